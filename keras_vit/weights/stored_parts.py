"""Parts: the arrays of a file that make up the weights of a model."""

from typing import NamedTuple

import numpy as np

from keras_vit.models.config import ViTConfig
from keras_vit.weights.layer_shapes import BLOCK, layers_of
from keras_vit.weights.layouts import Layout
from keras_vit.weights.styles import Form


class Part(NamedTuple):
    """One array of a file: a weight of the model, or a part of it.

    Args:
        name: Name of the array in the file.
        form: Form of the array in the file.
        shape: Shape of the array in the model.
        optional: Not empty if it may be missing in a file, together with
            all others that have the same text.
    """

    name: str
    form: Form
    shape: tuple
    optional: str = ""

    def shape_in_file(self, num_heads: int) -> tuple:
        """Return the shape of the array as it is stored."""
        empty = np.broadcast_to(np.float32(0), self.shape)
        return self.form.to_file(empty, num_heads).shape


def parts_of(layout: Layout, config: ViTConfig) -> dict[str, list[Part]]:
    """Return the arrays in a file for each weight of the model of `config`.

    Args:
        layout: The family of the file.
        config: Configuration of the model.

    Raises:
        ValueError: If the family has no name for a layer.
    """
    found = {}
    for layer in layers_of(config):
        names = layout.names.get(layer.template)
        known = layout.style_of(layer.template, layer.kind) or {}
        if names is None or not set(layer.shapes) <= set(known):
            raise ValueError(f"{layout.title} has no name for {layer.path}.")
        names = (names,) if isinstance(names, str) else names
        for weight, shape in layer.shapes.items():
            ending, form = known[weight]
            shape = (*shape[:-1], shape[-1] // len(names))
            optional = _group_of_optional(layout, layer, weight)
            found[f"{layer.path}/{weight}"] = [
                Part(
                    name.format(**layer.numbers) + ending, form, shape, optional
                )
                for name in names
            ]
    return found


def _group_of_optional(layout, layer, weight):
    """Return the template of a layer whose bias may be missing, or ""."""
    is_in_block = layer.template.startswith(BLOCK)
    key = layer.kind if is_in_block else layer.template
    is_optional = weight == "bias" and key in layout.optional_bias
    return layer.template if is_optional else ""


def whole_shape(parts: list[Part]) -> tuple:
    """Return the shape of the weight that consists of `parts`.

    Args:
        parts: The arrays of one weight, side by side.
    """
    return (*parts[0].shape[:-1], parts[0].shape[-1] * len(parts))
