"""Loading a version of a model, from a SavedModel or a TFLite file."""

import dataclasses
import functools
import importlib.util
import pathlib
from collections.abc import Callable, Mapping

import numpy as np

from keras_vit.serving.exported_version import read_signature_defs
from keras_vit.serving.server.litert import open_litert
from keras_vit.serving.server.refusals import Refusal, invalid
from keras_vit.serving.server.requests import print_shape
from keras_vit.serving.signatures import Signature, read_signatures
from keras_vit.serving.warmup import WARMUP_FILE, read_warmup


@dataclasses.dataclass(frozen=True, eq=False)
class LoadedModel:
    """A version of a model.

    Args:
        signature_defs: SignatureDefs by name, in their JSON form.
        call: Takes the name of a signature and its inputs; returns its
            outputs, both arrays by name. Raises a Refusal.
    """

    signature_defs: Mapping[str, dict]
    call: Callable[[str, Mapping[str, np.ndarray]], dict[str, np.ndarray]]

    @functools.cached_property
    def signatures(self) -> dict[str, Signature]:
        """The types of the inputs and outputs of each signature."""
        return read_signatures(self.signature_defs)

    def has_rows(self, name: str) -> bool:
        """Return whether all inputs and outputs have one row per instance."""
        row = self.signatures[name]
        specs = [*row.inputs.values(), *row.outputs.values()]
        return all(spec.shape and spec.shape[0] is None for spec in specs)

    def check_shapes(self, name: str, inputs: Mapping[str, np.ndarray]):
        """Raise a Refusal unless the inputs have the declared shapes."""
        for key, spec in self.signatures[name].inputs.items():
            if spec.shape is None:
                continue
            found = inputs[key].shape
            if len(found) != len(spec.shape) or any(
                size not in (None, length)
                for size, length in zip(spec.shape, found)
            ):
                sizes = ["?" if n is None else n for n in spec.shape]
                raise invalid(
                    f"Shape of tensor {key} {print_shape(found)} is not "
                    f"compatible with expected shape {print_shape(sizes)}."
                )


def load_version(folder: pathlib.Path) -> LoadedModel:
    """Load the model in the folder of a version, and warm it up.

    Args:
        folder: Holds saved_model.pb or one .tflite file.

    Raises:
        ValueError: If it holds neither, or several .tflite files.
        Exception: If the model cannot be loaded or warmed up.
    """
    if (folder / "saved_model.pb").exists():
        return load_saved_model(folder)
    files = sorted(folder.glob("*.tflite"))
    if len(files) != 1:
        names = ", ".join(path.name for path in files) or "neither"
        raise ValueError(
            "The folder of a version must hold saved_model.pb or one .tflite "
            f"file. Received: {names} in {folder}"
        )
    return LoadedModel(*open_litert(files[0]))


def load_saved_model(folder: pathlib.Path) -> LoadedModel:
    """Load a SavedModel, and run the requests of its warm-up file."""
    import tensorflow as tf

    signature_defs = read_signature_defs(folder)
    loaded = tf.saved_model.load(str(folder), tags=["serve"])

    def call(name, inputs):
        try:
            outputs = loaded.signatures[name](
                **{key: tf.constant(x) for key, x in inputs.items()}
            )
        except tf.errors.OpError as error:
            code = TENSORFLOW_CODES.get(error.error_code, "UNKNOWN")
            raise Refusal(code, shorten_error(error.message)) from None
        except (TypeError, ValueError) as error:
            raise invalid(shorten_error(str(error))) from None
        return {key: x.numpy() for key, x in outputs.items()}

    model = LoadedModel(signature_defs, call)
    path = folder / WARMUP_FILE
    # As in TF Serving, a version that fails at its warm-up is not served.
    if path.exists() and importlib.util.find_spec("tensorflow_serving"):
        for record in read_warmup(path):
            model.call(record.signature, record.inputs)
    return model


def shorten_error(message: str) -> str:
    r"""Return the first line of TensorFlow's message that is not about graphs.

    Example:
        >>> shorten_error("Graph execution error:\n\nDetected at node x\n"
        ...               "Unknown image file format.\n\t [[{{node x}}]]")
        'Unknown image file format.'
    """
    lines = [
        line
        for line in message.splitlines()
        if line.strip() and not line.startswith(GRAPH_LINES)
    ]
    return lines[0].split(" [Op:")[0].strip() if lines else message.strip()


GRAPH_LINES = (
    "Graph execution error",
    "Detected at node",
    "<stack traces",
    "\t [[",
    "  [[",
)
# By the numbers of absl::StatusCode.
TENSORFLOW_CODES = {
    1: "CANCELLED",
    3: "INVALID_ARGUMENT",
    4: "DEADLINE_EXCEEDED",
    5: "NOT_FOUND",
    8: "RESOURCE_EXHAUSTED",
    9: "FAILED_PRECONDITION",
    10: "ABORTED",
    11: "OUT_OF_RANGE",
    12: "UNIMPLEMENTED",
    13: "INTERNAL",
    14: "UNAVAILABLE",
}
