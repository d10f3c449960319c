"""A version of a model in memory, loaded from a file of any format."""

from collections.abc import Callable, Mapping

import numpy as np

from keras_vit.serving.signatures import read_signatures


class LoadedModel:
    """A version of a model.

    Args:
        signature_defs: SignatureDefs by name, in their JSON form.
        call: Takes the name of a signature and its inputs; returns its
            outputs, both arrays by name. Raises a ServingError if the inputs
            are wrong.

    Attributes:
        description: Of a TFLite file, see `keras_vit.export.description`.
        image_steps: What it does with image files, see
            `keras_vit.export.image_steps`.
    """

    def __init__(
        self,
        signature_defs: Mapping[str, dict],
        call: Callable[[str, Mapping], dict[str, np.ndarray]],
    ):
        self.signature_defs = signature_defs
        self.signatures = read_signatures(signature_defs)
        self.call = call
        self.description = None
        self.image_steps = []

    def has_signature(self, name, verb: str) -> bool:
        """Return whether there is such a signature.

        Args:
            name: What a request calls it.
            verb: "predict", which takes all, or "classify".
        """
        if not isinstance(name, str) or name not in self.signatures:
            return False
        method = self.signature_defs[name]["method_name"]
        return verb == "predict" or method == f"tensorflow/serving/{verb}"

    def has_rows(self, name: str) -> bool:
        """Return whether all inputs and outputs have one row per instance."""
        row = self.signatures[name]
        specs = [*row.inputs.values(), *row.outputs.values()]
        return all(spec.shape and spec.shape[0] is None for spec in specs)
