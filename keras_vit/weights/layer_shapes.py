"""The weights of a VisionTransformer, listed without building the model."""

from collections.abc import Iterator
from typing import NamedTuple

from keras_vit.layers.resnet_stem import ROOT_WIDTH
from keras_vit.models.config import ViTConfig

BLOCK = "block_{i:02d}/"
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

    Args:
        config: Configuration of the model.
    """
    return {
        f"{layer.path}/{weight}": shape
        for layer in layers_of(config)
        for weight, shape in layer.shapes.items()
    }


def layers_of(config: ViTConfig) -> list[LayerWeights]:
    """Return the layers with weights of the model of `config`, in its order.

    Nothing is built or allocated, so a file that claims to contain a gigantic
    model needs no memory.

    Args:
        config: Configuration of the model.
    """
    return [
        *_stem_layers(config),
        *_embedding_layers(config),
        *(row for i in range(config.depth) for row in _block_layers(config, i)),
        *_pooling_layers(config),
        *_head_layers(config),
    ]


def _stem_layers(config) -> Iterator[LayerWeights]:
    if config.stem_stages is None:
        return
    yield _stem_conv("stem/root_conv", (7, 7, config.channels, ROOT_WIDTH))
    yield _norm("stem/root_norm", ROOT_WIDTH)
    inputs = ROOT_WIDTH
    for stage, units in enumerate(config.stem_stages):
        for unit in range(units):
            yield from _unit_layers(stage, unit, inputs)
            inputs = _stage_width(stage)


def _stage_width(stage):
    """Return the number of channels after a stage of the stem."""
    return 4 * ROOT_WIDTH * 2**stage


def _unit_layers(stage, unit, inputs):
    inner, outputs = ROOT_WIDTH * 2**stage, _stage_width(stage)
    # The official code counts stages and units from one.
    numbers = {"s": stage, "u": unit, "s1": stage + 1, "u1": unit + 1}
    convs = {
        "conv1": (1, 1, inputs, inner),
        "conv2": (3, 3, inner, inner),
        "conv3": (1, 1, inner, outputs),
    }
    if unit == 0:
        convs["shortcut_conv"] = (1, 1, inputs, outputs)
    for name, shape in convs.items():
        yield _stem_conv(UNIT + name, shape, numbers)
        norm = UNIT + name.replace("conv", "norm")
        yield _norm(norm, shape[-1], numbers)


def _embedding_layers(config):
    """Yield the patch encoder, the class token and the positions."""
    patch, width = config.patch_size, config.width
    channels = config.channels
    if config.stem_stages is not None:
        stages = len(config.stem_stages)
        channels = _stage_width(stages - 1) if stages else ROOT_WIDTH
    shape = (patch, patch, channels, width)
    shapes = {"kernel": shape, "bias": (width,)}
    yield LayerWeights("patch_encoder", {}, "conv", shapes)
    if config.use_class_token:
        yield _single("class_token", "token", (1, 1, width))
    h, w = config.grid_size
    if config.position_embedding == "learned":
        shape = (h * w + config.use_class_token, width)
        yield _single("position_embedding", "embedding", shape)
    elif config.position_embedding == "learned_2d":
        shapes = {"rows": (h, width // 2), "columns": (w, width // 2)}
        yield LayerWeights("position_embedding", {}, "grid", shapes)


def _block_layers(config, index):
    width, mlp_dim = config.width, config.mlp_dim
    # keras-hub and vit-keras omit the number of the first block.
    numbers = {"i": index, "_i": f"_{index}" if index else ""}
    yield _norm(BLOCK + "attention_norm", width, numbers)
    yield _heads_in(BLOCK + "attention/qkv", width, 3, numbers)
    yield _heads_out(BLOCK + "attention/out", width, numbers)
    yield _norm(BLOCK + "mlp_norm", width, numbers)
    yield _dense(BLOCK + "mlp/hidden", width, mlp_dim, numbers)
    yield _dense(BLOCK + "mlp/out", mlp_dim, width, numbers)


def _pooling_layers(config):
    """Yield the pooling and the last norm, which precedes or follows it."""
    width = config.width
    if not config.use_pooling_norm:
        yield _norm("encoder_norm", width)
    if config.pooling == "map":
        yield _single("pooling", "probe", (1, width))
        yield _heads_in("pooling/query", width, 1)
        yield _heads_in("pooling/key_value", width, 2)
        yield _heads_out("pooling/out", width)
        yield _norm("pooling/norm", width)
        yield _dense("pooling/mlp/hidden", width, config.mlp_dim)
        yield _dense("pooling/mlp/out", config.mlp_dim, width)
    if config.use_pooling_norm:
        yield _norm("pooling_norm", width)


def _head_layers(config):
    features = config.representation_size or config.width
    if config.representation_size:
        yield _dense("pre_logits", config.width, features)
    if config.num_classes:
        yield _dense("predictions", features, config.num_classes)


def _dense(template, inputs, outputs, numbers=None, kind="dense"):
    shapes = {"kernel": (inputs, outputs), "bias": (outputs,)}
    return LayerWeights(template, numbers or {}, kind, shapes)


def _heads_in(template, width, count, numbers=None):
    return _dense(template, width, count * width, numbers, "heads_in")


def _heads_out(template, width, numbers=None):
    return _dense(template, width, width, numbers, "heads_out")


def _norm(template, width, numbers=None):
    shapes = {"gamma": (width,), "beta": (width,)}
    return LayerWeights(template, numbers or {}, "norm", shapes)


def _single(template, name, shape):
    return LayerWeights(template, {}, name, {name: shape})


def _stem_conv(template, shape, numbers=None):
    return LayerWeights(template, numbers or {}, "stem", {"kernel": shape})
