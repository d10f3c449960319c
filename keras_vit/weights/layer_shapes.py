"""The weights of a VisionTransformer, listed without building the model."""

import math
from collections.abc import Iterator
from typing import NamedTuple

from keras_vit.layers.layer_norm import LayerNorm
from keras_vit.layers.norms import NORMS
from keras_vit.layers.resnet_stem import ROOT_WIDTH
from keras_vit.layers.weight_rows import (
    WeightRow,
    dense_row,
    heads_in_row,
    heads_out_row,
    norm_row,
    single_row,
)
from keras_vit.models.config import ViTConfig
from keras_vit.models.parts import pooled_head, pooling, stem_positions
from keras_vit.models.position_inputs import MAKERS, position_templates

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
    model needs no memory. The layers of tables list their weights themselves.

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
            yield _place(single_row("token", (1, int(count), width), name))
    yield from _own_rows("position_embedding", stem_positions(config), width)
    if config.use_embedding_norm:
        yield _norm(config, "embedding_norm", width)


def _position_layers(config) -> Iterator[LayerWeights]:
    """Yield the layers that compute positions for the attention of blocks."""
    for argument, template in position_templates(config).items():
        layer = MAKERS[argument](config, template.format(i=0))
        is_shared = template.format(i=0) == template
        for i in range(1 if is_shared else config.depth):
            yield from _own_rows(template, layer, config.width, {"i": i})


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
    yield _place(heads_in_row(name + "/qkv", width, 3, has_bias), numbers)
    if config.qkv_bias == "query_value":
        shapes = {"query_bias": (width,), "value_bias": (width,)}
        yield LayerWeights(name, numbers, "query_value_bias", shapes)
    if config.qk_norm != "none":
        size = config.head_size if config.qk_norm == "head" else width
        yield _norm(config, name + "/query_norm", size, numbers)
        yield _norm(config, name + "/key_norm", size, numbers)
    if config.use_attention_inner_norm:
        yield _norm(config, name + "/inner_norm", width, numbers)
    has_bias = config.use_block_bias
    yield _place(heads_out_row(name + "/out", width, has_bias), numbers)


def _pooling_layers(config):
    """Yield the pooling and the last norm, which precedes or follows it."""
    width = config.width
    if config.use_final_norm and not config.use_pooling_norm:
        yield _norm(config, "encoder_norm", width)
    yield from _own_rows("pooling", pooling(config), width)
    if config.use_final_norm and config.use_pooling_norm:
        yield _norm(config, "pooling_norm", _pooled_size(config))


def _pooled_size(config):
    """Return the size of what the pooling returns for each image."""
    layer = pooling(config)
    length = config.num_prefix_tokens + math.prod(config.grid_size)
    tokens_shape = (None, length, config.width)
    shape = layer.compute_output_shape(tokens_shape) if layer else tokens_shape
    return shape[-1]


def _head_layers(config):
    features = _pooled_size(config)
    if config.representation_size:
        yield _dense("pre_logits", features, config.representation_size)
        features = config.representation_size
    if not config.num_classes:
        return
    layer = pooled_head(config)
    if layer is None:
        yield _dense("predictions", features, config.num_classes)
    yield from _own_rows("predictions", layer, features)


def _own_rows(template, layer, width, numbers=None) -> Iterator[LayerWeights]:
    """Yield the weights that a layer lists, nothing for None."""
    for row in layer.weight_rows(width) if layer else ():
        place = f"{template}/{row.name}" if row.name else template
        yield _place(row._replace(name=place), numbers)


def _place(row: WeightRow, numbers=None):
    return LayerWeights(row.name, numbers or {}, row.kind, row.shapes)


def _dense(template, inputs, outputs, numbers=None, has_bias=True):
    return _place(dense_row(template, inputs, outputs, has_bias), numbers)


def _norm(config, template, width, numbers=None):
    """Return a norm of the kind of a configuration."""
    return _place(norm_row(template, width, NORMS[config.norm]), numbers)


def _layer_norm(template, width, numbers=None):
    return _place(norm_row(template, width, LayerNorm), numbers)


def _scale(template, width, numbers):
    return _place(single_row("scale", (width,), template), numbers)


def _stem_conv(template, shape, numbers=None):
    return LayerWeights(template, numbers or {}, "stem", {"kernel": shape})
