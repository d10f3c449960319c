"""The weights of a VisionTransformer, listed without building the model."""

from collections.abc import Iterator
from typing import NamedTuple

from keras_vit.layers.resnet_stem import ROOT_WIDTH
from keras_vit.models.config import ViTConfig

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
        *_position_layers(config),
        *(row for i in range(config.depth) for row in _block_layers(config, i)),
        *_pooling_layers(config),
        *_head_layers(config),
    ]


def _stem_layers(config) -> Iterator[LayerWeights]:
    if config.stem_stages is None:
        return
    yield _stem_conv("stem/root_conv", (7, 7, config.channels, ROOT_WIDTH))
    yield _layer_norm("stem/root_norm", ROOT_WIDTH)
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
        yield _layer_norm(norm, shape[-1], numbers)


def _embedding_layers(config):
    """Yield what makes tokens of the patches, up to the first block."""
    patch, width = config.patch_size, config.width
    channels = config.channels
    if config.stem_stages is not None:
        stages = len(config.stem_stages)
        channels = _stage_width(stages - 1) if stages else ROOT_WIDTH
    shapes = {"kernel": (patch, patch, channels, width)}
    if config.use_patch_bias:
        shapes["bias"] = (width,)
    yield LayerWeights("patch_encoder", {}, "conv", shapes)
    if config.use_patch_norm:
        yield _norm(config, "patch_norm", width)
    for name, count in (
        ("registers", config.num_registers),
        ("distillation_token", config.use_distillation_token),
        ("class_token", config.use_class_token),
    ):
        if count:
            yield _single(name, "token", (1, int(count), width))
    h, w = config.grid_size
    if config.position_embedding == "learned":
        rows = h * w + config.use_prefix_positions * config.num_prefix_tokens
        yield _single("position_embedding", "embedding", (rows, width))
    elif config.position_embedding == "learned_2d":
        shapes = {"rows": (h, width // 2), "columns": (w, width // 2)}
        yield LayerWeights("position_embedding", {}, "grid", shapes)
    if config.use_embedding_norm:
        yield _norm(config, "embedding_norm", width)


def _position_layers(config) -> Iterator[LayerWeights]:
    """Yield the layers that hand rotary and relative positions to blocks."""
    heads = config.num_heads
    if config.rotary_positions == "mixed":
        shape = (2, heads, config.head_size // 2)
        for i in range(config.depth):
            yield _single(ROTARY, "frequency", shape, {"i": i})
    if config.rotary_positions == "axial_class":
        shape = (1, config.head_size // 2)
        yield _single("rotary_positions", "class_angles", shape)
    if config.relative_positions == "none":
        return
    h, w = config.grid_size
    count = 1 if config.use_shared_relative_positions else config.depth
    for i in range(count):
        shared = config.use_shared_relative_positions
        template = "relative_positions" if shared else RELATIVE
        if config.relative_positions == "table":
            special = 3 if config.num_prefix_tokens else 0
            shape = ((2 * h - 1) * (2 * w - 1) + special, heads)
            yield _single(template, "table", shape, {"i": i})
        else:
            hidden = config.relative_hidden_dim
            yield _dense(template + "/hidden", 2, hidden, {"i": i})
            yield _dense(template + "/out", hidden, heads, {"i": i})


def _block_layers(config, index):
    width, mlp_dim = config.width, config.mlp_dim
    # keras-hub and vit-keras omit the number of the first block.
    numbers = {"i": index, "_i": f"_{index}" if index else ""}
    has_bias = config.use_block_bias
    yield _norm(config, BLOCK + "attention_norm", width, numbers)
    yield from _attention_layers(config, numbers)
    has_scale = config.layer_scale_init is not None
    if has_scale:
        yield _scale(BLOCK + "attention_scale", width, numbers)
    yield _norm(config, BLOCK + "mlp_norm", width, numbers)
    hidden = (1 + config.use_gated_mlp) * mlp_dim
    yield _dense(BLOCK + "mlp/hidden", width, hidden, numbers, has_bias)
    if config.use_mlp_inner_norm:
        yield _norm(config, BLOCK + "mlp/inner_norm", mlp_dim, numbers)
    yield _dense(BLOCK + "mlp/out", mlp_dim, width, numbers, has_bias)
    if has_scale and config.layer_scale_branches == "both":
        yield _scale(BLOCK + "mlp_scale", width, numbers)


def _attention_layers(config, numbers):
    width, name = config.width, BLOCK + "attention"
    has_bias = config.qkv_bias == "all"
    yield _heads_in(name + "/qkv", width, 3, numbers, has_bias)
    if config.qkv_bias == "query_value":
        shapes = {"query_bias": (width,), "value_bias": (width,)}
        yield LayerWeights(name, numbers, "query_value_bias", shapes)
    if config.qk_norm != "none":
        size = config.head_size if config.qk_norm == "head" else width
        yield _norm(config, name + "/query_norm", size, numbers)
        yield _norm(config, name + "/key_norm", size, numbers)
    if config.use_attention_inner_norm:
        yield _norm(config, name + "/inner_norm", width, numbers)
    yield _heads_out(name + "/out", width, numbers, config.use_block_bias)


def _pooling_layers(config):
    """Yield the pooling and the last norm, which precedes or follows it."""
    width = config.width
    if config.use_final_norm and not config.use_pooling_norm:
        yield _norm(config, "encoder_norm", width)
    if config.pooling == "probe":
        yield _single("pooling", "probe", (1, width))
        yield _heads_in("pooling/key_value", width, 2, has_bias=False)
        yield _heads_out("pooling/out", width)
    if config.pooling.startswith("map"):
        yield _single("pooling", "probe", (1, width))
        yield _heads_in("pooling/query", width, 1)
        yield _heads_in("pooling/key_value", width, 2)
        yield _heads_out("pooling/out", width)
        yield _layer_norm("pooling/norm", width)
        mlp_dim = config.pooling_mlp_dim or config.mlp_dim
        yield _dense("pooling/mlp/hidden", width, mlp_dim)
        yield _dense("pooling/mlp/out", mlp_dim, width)
    if config.use_final_norm and config.use_pooling_norm:
        yield _norm(config, "pooling_norm", width)


def _head_layers(config):
    features = config.representation_size or config.width
    if config.representation_size:
        yield _dense("pre_logits", config.width, features)
    if not config.num_classes:
        return
    if config.pooling == "distilled":
        for name in ("class_head", "teacher_head"):
            yield _dense(f"predictions/{name}", features, config.num_classes)
        return
    if config.pooling == "prefix":
        features *= len(config.pooling_indices)
    features *= 1 + (config.pooling == "token_and_avg")
    yield _dense("predictions", features, config.num_classes)


def _dense(
    template, inputs, outputs, numbers=None, has_bias=True, kind="dense"
):
    shapes = {"kernel": (inputs, outputs)}
    if has_bias:
        shapes["bias"] = (outputs,)
    return LayerWeights(template, numbers or {}, kind, shapes)


def _heads_in(template, width, count, numbers=None, has_bias=True):
    size = count * width
    return _dense(template, width, size, numbers, has_bias, "heads_in")


def _heads_out(template, width, numbers=None, has_bias=True):
    return _dense(template, width, width, numbers, has_bias, "heads_out")


def _norm(config, template, width, numbers=None):
    """Return a norm of the kind of a configuration."""
    if config.norm == "rms":
        return _single(template, "gamma", (width,), numbers, "norm")
    return _layer_norm(template, width, numbers)


def _layer_norm(template, width, numbers=None):
    shapes = {"gamma": (width,), "beta": (width,)}
    return LayerWeights(template, numbers or {}, "norm", shapes)


def _scale(template, width, numbers):
    return _single(template, "scale", (width,), numbers)


def _single(template, name, shape, numbers=None, kind=None):
    return LayerWeights(template, numbers or {}, kind or name, {name: shape})


def _stem_conv(template, shape, numbers=None):
    return LayerWeights(template, numbers or {}, "stem", {"kernel": shape})
