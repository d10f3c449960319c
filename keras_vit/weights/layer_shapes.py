"""The weights of a VisionTransformer, listed without their memory."""

import concurrent.futures
import dataclasses
import functools
import random
import re
from typing import NamedTuple

import keras

from keras_vit.models.config import ViTConfig
from keras_vit.models.vit import VisionTransformer

BLOCK = "block_{i:02d}/"
ROTARY = "rotary_positions_{i:02d}"
RELATIVE = "relative_positions_{i:02d}"
UNIT = "stem/stage_{s:02d}_unit_{u:02d}/"
# Layers that a checkpoint for other classes does not contain.
HEAD_LAYERS = ("pre_logits", "predictions")


class LayerWeights(NamedTuple):
    """The weights of one layer of a VisionTransformer.

    Args:
        template: Path of the layer in the model, with fields for indices.
        numbers: The values of these fields.
        kind: Kind of the layer, a key of a `Style`: dense, conv, norm, ...
        shapes: Shape of each weight, by name.
    """

    template: str
    numbers: dict
    kind: str
    shapes: dict[str, tuple]

    @property
    def path(self) -> str:
        """The path of the layer in the model."""
        return self.template.format(**self.numbers)


def shapes_of(config: ViTConfig) -> dict[str, tuple]:
    """Return the shape of each weight of the model of `config`, by path.

    No weight is made, so a file that claims to contain a gigantic model needs
    no memory. All blocks are alike, so one of them is built.

    Args:
        config: Configuration of the model.
    """
    found = {}
    for path, shape in _shapes_of_one_block(
        dataclasses.replace(config, depth=1, use_dynamic_image_size=False)
    ):
        first, slash, rest = path.partition("/")
        numbers = range(config.depth) if first.endswith("_00") else (0,)
        for index in numbers:
            start = first.removesuffix("_00")
            start += f"_{index:02d}" if start != first else ""
            found[start + slash + rest] = shape
    return found


@functools.lru_cache(maxsize=32)
def _shapes_of_one_block(config) -> tuple[tuple[str, tuple], ...]:
    """Return the weights of the model of `config`, whose depth is 1."""
    # Keras keeps its state by thread: a thread of its own leaves no trace.
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        state = random.getstate()
        try:
            return pool.submit(_build, config, keras.config.floatx()).result()
        finally:
            random.setstate(state)


def _build(config, floatx):
    with keras.StatelessScope(initialize_variables=False):
        model = VisionTransformer(config, dtype=floatx)
    return tuple((w.path, tuple(w.shape)) for w in model.weights)


def layers_of(config: ViTConfig) -> list[LayerWeights]:
    """Return the layers with weights of the model of `config`, in its order.

    Args:
        config: Configuration of the model.
    """
    layers = {}
    for path, shape in shapes_of(config).items():
        layer, _, weight = path.rpartition("/")
        layers.setdefault(layer, {})[weight] = shape
    return [_describe_layer(path, shapes) for path, shapes in layers.items()]


def _describe_layer(path, shapes):
    template, numbers = path, {}
    if match := re.match(r"stem/stage_(\d+)_unit_(\d+)/", path):
        stage, unit = map(int, match.groups())
        # The official code counts stages and units from one.
        numbers = {"s": stage, "u": unit, "s1": stage + 1, "u1": unit + 1}
        template = UNIT + path[match.end() :]
    elif match := re.match(r"(\w+)_(\d\d+)(?=/|$)", path):
        index = int(match[2])
        # keras-hub and vit-keras omit the number of the first block.
        numbers = {"i": index, "_i": f"_{index}" if index else ""}
        template = match[1] + "_{i:02d}" + path[match.end() :]
    kind = _kind_of(template, shapes)
    return LayerWeights(template, numbers, kind, shapes)


def _kind_of(template, shapes):
    if "kernel" not in shapes:
        first = next(iter(shapes))
        kinds = {
            "gamma": "norm",
            "query_bias": "query_value_bias",
            "rows": "grid",
        }
        return kinds.get(first, first)
    if template.startswith("stem/"):
        return "stem"
    if re.search(r"/(qkv|query|key_value)$", template):
        return "heads_in"
    if template.endswith(("attention/out", "pooling/out")):
        return "heads_out"
    return "conv" if template == "patch_encoder" else "dense"
