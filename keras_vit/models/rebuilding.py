"""Copying a VisionTransformer into one of another configuration."""

import dataclasses

from keras_vit.layers.dtypes import is_quantized
from keras_vit.layers.patch_encoder import PatchEncoder
from keras_vit.layers.position_embedding import PositionEmbedding
from keras_vit.layers.relative_positions import (
    RelativePositionKeys,
    RelativePositionTable,
)
from keras_vit.models.freezing import is_factor
from keras_vit.models.lora import merged_values


def copy_model(model, new_layers=(), *, dtype=None, is_merged=False, **changes):
    """Return a copy of a VisionTransformer with the same weights.

    The copy has the LoRA weights of the model, and the same weights are
    frozen.

    Args:
        model: The model; it does not change.
        new_layers: Names of the layers whose weights are not copied.
        dtype: Dtype policy of the copy. Default: that of the model.
        is_merged: Whether to add LoRA updates to their kernels.
        **changes: Fields of the configuration.

    Raises:
        ValueError: If the configuration is invalid, a quantised model would be
            merged, or the class of the model does not take a configuration.
    """
    if is_merged and is_quantized(model):
        raise ValueError(
            "LoRA updates of a quantised model cannot be merged; quantise the "
            "model that `merge_lora()` returns. "
            f"Received: model={model.name!r}"
        )
    config = dataclasses.replace(model.config, **changes)
    arguments = {
        **model.get_config(),
        "config": dataclasses.asdict(config),
        **({"dtype": dtype} if dtype else {}),
    }
    copy = type(model).from_config(arguments)
    if copy.config != config:
        raise ValueError(
            f"The class {type(model).__name__} must build its model from the "
            "`config` that `from_config` receives, as VisionTransformer does; "
            "it built one of another configuration. "
            f"Received: model={model.name!r}, {changes}"
        )
    values = merged_values(model) if is_merged else None
    for layer in copy.layers:
        if layer.name not in new_layers:
            copy_layer(layer, model.get_layer(layer.name), values)
    return copy


def copy_layer(layer, source, values=None):
    """Copy weights, LoRA weights and `trainable` from another layer.

    Args:
        layer: The layer to change; built, without LoRA weights.
        source: A layer of the same class.
        values: Functions that return the merged weights, by path; None copies
            the weights and their updates as they are.
    """
    for new, old in zip(layer._flatten_layers(), source._flatten_layers()):
        new.trainable = old.trainable
        if values is None and getattr(old, "lora_enabled", False):
            new.enable_lora(old.lora_rank, lora_alpha=old.lora_alpha)
    if isinstance(layer, RESIZABLE):
        layer.resize_from(source)
    kept = [w for w in _by_path(source) if values is None or not is_factor(w)]
    for new, old in zip(_by_path(layer), kept, strict=True):
        if not isinstance(layer, RESIZABLE):
            new.assign(old.numpy() if values is None else values[old.path]())
        new.trainable = old.trainable


def _by_path(layer):
    """Return the weights of a layer, in the order of their paths.

    Their own order is another one in a layer that is quantised to float8 than
    in one that is built so.
    """
    return sorted(layer.weights, key=lambda weight: weight.path)


# Layers whose weights depend on the size of the images or of the patches. They
# have no LoRA weights.
RESIZABLE = (
    PatchEncoder,
    PositionEmbedding,
    RelativePositionKeys,
    RelativePositionTable,
)
