"""LoRA: the low-rank updates that Keras' `enable_lora` adds to a weight.

A layer with LoRA uses the kernel `kernel + alpha / rank * a @ b`. A checkpoint
contains this sum.
"""

import functools
import math
import numbers
import re
from collections.abc import Callable, Iterable

import keras
import numpy as np

from keras_vit.layers.dtypes import as_float32, is_quantized
from keras_vit.models.freezing import keeping, set_trained
from keras_vit.tables import pick

# Names of the second factors. If they are zero, so is the low-rank update.
SECOND_FACTORS = ("lora_kernel_b", "lora_embeddings_b")


def merged_values(model: keras.Model) -> dict[str, Callable[[], np.ndarray]]:
    """Return functions that compute each weight, with its LoRA update.

    The weights are float32. The model is not changed.

    Args:
        model: Any model; the layers with LoRA may be of any kind.

    Returns:
        The functions, by the path of the weight.
    """
    values = {
        weight.path: functools.partial(as_float32, weight)
        for weight in model.weights
    }
    for layer in model._flatten_layers():
        if not getattr(layer, "lora_enabled", False):
            continue
        own = {weight.name: weight for weight in layer.weights}
        for name in own.keys() & set(SECOND_FACTORS):
            target = name.removeprefix("lora_").removesuffix("_b")
            values[own[target].path] = functools.partial(
                _merge,
                own[target],
                own[f"lora_{target}_a"],
                own[name],
                layer.lora_alpha / layer.lora_rank,
            )
    return values


def _merge(weight, first, second, scale):
    update = as_float32(first) @ as_float32(second)
    return as_float32(weight) + np.float32(scale) * update


def without_lora(model: keras.Model) -> keras.Model:
    """Return `model`, or a copy with merged LoRA weights if it has any.

    A model of another class than VisionTransformer is returned as it is.
    """
    has_lora = hasattr(model, "merge_lora") and layers_with_lora(model)
    return model.merge_lora() if has_lora else model


def reset_lora(model: keras.Model) -> tuple[str, ...]:
    """Set all low-rank updates to zero.

    The first factors are kept, so training can continue.

    Args:
        model: Any model.

    Returns:
        The paths of the second factors, which were set to zero.
    """
    factors = [w for w in model.weights if w.name in SECOND_FACTORS]
    for factor in factors:
        factor.assign(np.zeros(factor.shape, "float32"))
    return tuple(factor.path for factor in factors)


def add_lora(model, rank: int, layers: Iterable[str], alpha, keep):
    """Add LoRA weights; see `VisionTransformer.enable_lora`.

    Everything is checked first: after an error, the model is unchanged.
    """
    is_kept = keeping(keep)
    targets = check_lora(model, rank, layers, alpha)
    for layer in targets:
        layer.enable_lora(int(rank), lora_alpha=alpha)
        layer.save_own_variables = functools.partial(_save_merged, layer)
    set_trained(model, is_kept)
    if keras.backend.backend() == "torch":
        # Keras makes the parameters of a module once, when it is built.
        model._track_variables()


def _save_merged(layer, store):
    """Store a layer as Keras does, but with the kernel merged in float32.

    Keras merges in the compute dtype, which rounds all of the kernel.
    """
    if layer.quantization_mode is not None:
        type(layer).save_own_variables(layer, store)
        return
    scale = layer.lora_alpha / layer.lora_rank
    first, second = layer.lora_kernel_a, layer.lora_kernel_b
    store["0"] = _merge(layer._kernel, first, second, scale)
    if layer.bias is not None:
        store["1"] = layer.bias


def check_lora(model, rank: int, layers: Iterable[str], alpha) -> list:
    """Return the layers to which LoRA weights can be added.

    Raises:
        ValueError: If the model is quantised or has LoRA weights, a
            name is unknown, or a number is out of range.
    """
    if is_quantized(model):
        raise ValueError(
            "A quantised model cannot be fine-tuned; use the model it was "
            f"quantised from. Received: model={model.name!r}"
        )
    if layers_with_lora(model):
        raise ValueError(
            "The model has LoRA updates; continue with "
            "`model = model.merge_lora()`. "
            f"Received: {describe_lora(model)}"
        )
    if alpha is not None and not (
        isinstance(alpha, numbers.Real) and 0 < alpha < math.inf
    ):
        raise ValueError(
            f"`alpha` must be a positive number. Received: alpha={alpha!r}"
        )
    targets = _find_layers(model, layers)
    for layer in targets:
        most = min(layer.kernel.shape)
        is_whole = isinstance(rank, numbers.Integral)
        if not is_whole or isinstance(rank, bool) or not 1 <= rank <= most:
            raise ValueError(
                f"`rank` must be a whole number from 1 to {most} for the layer "
                f"{layer.path}, whose kernel has the shape "
                f"{tuple(layer.kernel.shape)}. Received: rank={rank!r}"
            )
    return targets


def _find_layers(model, names):
    if isinstance(names, str):
        raise ValueError(
            f"`layers` must be a sequence of names. Received: layers={names!r}"
        )
    names = list(names)
    for name in names:
        pick(LORA_LAYERS, name, "layers")
    if len(set(names)) < len(names):
        raise ValueError(
            "`layers` must name each layer once. "
            f"Received: layers={tuple(names)!r}"
        )
    patterns = {name: LORA_LAYERS[name] for name in names}
    found = {
        name: [
            layer
            for layer in model._flatten_layers(include_self=False)
            if layer.path and re.fullmatch(pattern, layer.path)
        ]
        for name, pattern in patterns.items()
    }
    missing = [name for name in found if not found[name]]
    if missing or not found:
        raise ValueError(
            "`layers` must name one or more layers of the model. "
            f"Received: layers={tuple(names)!r}"
            + (f"; it has no {missing[0]}" if missing else "")
        )
    return sorted(sum(found.values(), []), key=lambda layer: layer.path)


def layers_with_lora(model: keras.Model) -> list[keras.layers.Layer]:
    """Return the layers with LoRA weights."""
    return [
        layer
        for layer in model._flatten_layers()
        if getattr(layer, "lora_enabled", False)
    ]


def describe_lora(model) -> dict:
    """Return the rank, the alpha and the names of the layers with LoRA.

    Names are those of LORA_LAYERS.
    """
    layers = layers_with_lora(model)
    names = [
        name
        for name, pattern in LORA_LAYERS.items()
        if any(re.fullmatch(pattern, layer.path) for layer in layers)
    ]
    first = layers[0]
    return {"rank": first.lora_rank, "alpha": first.lora_alpha, "layers": names}


# Name -> pattern of the paths of the layers.
LORA_LAYERS = {
    "qkv": r"block_\d+/attention/qkv",
    "out": r"block_\d+/attention/out",
    "mlp_hidden": r"block_\d+/mlp/hidden",
    "mlp_out": r"block_\d+/mlp/out",
    "head": r"predictions",
}
