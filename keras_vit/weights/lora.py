"""LoRA: the low-rank updates that Keras' `enable_lora` adds to a weight.

A layer with LoRA uses the kernel `kernel + alpha / rank * a @ b`. A checkpoint
contains this sum.
"""

import functools
from collections.abc import Callable

import keras
import numpy as np

from keras_vit.models.intermediates import as_float32

# Names of the second factors. If they are zero, so is the update.
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


def reset_updates(model: keras.Model) -> tuple[str, ...]:
    """Set all LoRA updates to zero.

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
