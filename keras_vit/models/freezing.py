"""Choosing which weights of a model are trained, by the names of its parts."""

import re
from collections.abc import Callable, Iterable

from keras_vit.tables import pick


def set_trained(model, is_trained: Callable[[str], bool]):
    """Make exactly the weights that `is_trained` accepts trainable.

    A kernel with LoRA stays frozen, and its factors stay trainable. A layer
    none of whose weights is trained is frozen as a whole.

    Args:
        model: A VisionTransformer.
        is_trained: Maps the path of a weight to whether it is trained.
    """
    replaced = {weight.path for weight in kernels_with_lora(model)}
    layers = model._flatten_layers()
    for layer in layers:
        for weight in layer._trainable_variables:
            weight.trainable = weight.path not in replaced and (
                is_factor(weight) or is_trained(weight.path)
            )
    for layer in layers:
        # Setting `trainable` would set all sublayers as well, or, on
        # TensorFlow, nothing at all if the layer has this value already.
        has_trained = any(weight.trainable for weight in layer.weights)
        layer._trainable = has_trained or not layer.weights
    model._trainable = True
    forget_compiled(model)


def keeping(names: Iterable[str]) -> Callable[[str], bool]:
    """Return a function that accepts the weights of the named parts.

    Args:
        names: Keys of PARTS.

    Raises:
        ValueError: If a name is unknown, or `names` is not a sequence.
    """
    if isinstance(names, str):
        raise ValueError(
            f"`keep` must be a sequence of names. Received: keep={names!r}"
        )
    patterns = [pick(PARTS, name, "keep") for name in names]
    return lambda path: any(re.search(p, path) for p in patterns)


def in_last_blocks(model, num_last_blocks: int) -> Callable[[str], bool]:
    """Return a function that accepts the last blocks and all that follows.

    Args:
        model: A VisionTransformer.
        num_last_blocks: Number of blocks; with 0, nothing is accepted.

    Raises:
        ValueError: If the model does not have so many blocks.
    """
    depth = model.config.depth
    if type(num_last_blocks) is not int or not 0 <= num_last_blocks <= depth:
        raise ValueError(
            "`num_last_blocks` must be a whole number from 0 to the number of "
            f"blocks, {depth}. Received: num_last_blocks={num_last_blocks!r}"
        )
    if not num_last_blocks:
        return lambda path: False
    names = [layer.name for layer in model.layers]
    first = depth - num_last_blocks
    last = names[names.index(f"block_{first:02d}") :]
    # In the list of layers, these precede their block.
    for kind in (
        "position_embedding",
        "relative_positions",
        "rotary_positions",
    ):
        last.append(f"{kind}_{first:02d}")
    return lambda path: path.split("/")[0] in last


def train_layer(model, name: str):
    """Make a layer trainable, also if all else is frozen.

    Args:
        model: A VisionTransformer.
        name: Name of the layer.
    """
    model._trainable = True
    layer = model.get_layer(name)
    layer.trainable = True
    for weight in layer.weights:
        weight.trainable = True


def describe_frozen(model) -> dict[str, list[str]]:
    """Return the frozen layers and weights, as `get_config` stores them.

    Args:
        model: A VisionTransformer.

    Returns:
        The paths of frozen layers, and of frozen weights in other layers.
    """
    layers = [
        layer.path
        for layer in model._flatten_layers(include_self=False)
        if layer.path and not layer.trainable
    ]
    weights = [
        weight.path
        for layer in model._flatten_layers()
        if layer.trainable
        for weight in layer._trainable_variables
        if not (weight.trainable or is_factor(weight))
    ]
    # Only if needed: version 0.1 does not know this entry.
    singly = {"frozen_weights": weights} if weights else {}
    return {"frozen": layers, **singly}


def freeze_again(model, layers: Iterable[str], weights: Iterable[str]):
    """Freeze the layers and weights that `describe_frozen` returned.

    Args:
        model: A VisionTransformer.
        layers: Paths of layers.
        weights: Paths of weights.
    """
    layers, weights = set(layers), set(weights)
    for layer in model._flatten_layers(include_self=False):
        if layer.path in layers:
            layer.trainable = False
    for weight in model.weights:
        if weight.path in weights:
            weight.trainable = False


def kernels_with_lora(model) -> list:
    """Return the kernels of `model` that have LoRA factors."""
    return [
        next(w for w in layer.weights if w.name == "kernel")
        for layer in model._flatten_layers()
        if getattr(layer, "lora_enabled", False)
    ]


def is_factor(weight) -> bool:
    """Return whether `weight` is a factor of a LoRA update."""
    return weight.name.startswith("lora_")


def forget_compiled(model):
    """Forget compiled functions, which contain the weights as they were."""
    model.train_function = None
    model.test_function = None
    model.predict_function = None


# Part -> pattern that the paths of its weights contain.
PARTS = {
    "head": r"^predictions/",
    "norms": r"/(gamma|beta)$",
    "biases": r"/(query_|value_)?bias$",
    "positions": r"^(position_embedding|(rotary|relative)_positions)(_\d+)?/",
    "class_token": r"^(class_token|distillation_token|registers)/",
}
