"""Finding a VisionTransformer inside another model, for error messages."""

from collections.abc import Iterator

import keras

from keras_vit.layers.patch_encoder import PatchEncoder
from keras_vit.models.vision_transformer import VisionTransformer


def check_vision_transformer(model):
    """Raise a ValueError unless `model` is a VisionTransformer.

    If a VisionTransformer is part of `model`, the message names the call that
    returns it.
    """
    if isinstance(model, VisionTransformer):
        return
    advice = ""
    calls = list(find_vision_transformers(model))
    if calls:
        advice = f" Pass the one inside of it: {' or '.join(calls)}."
    elif is_plain_copy(model):
        advice = (
            " This model has the layers of one but no configuration, as after "
            "`keras.models.clone_model`. Copy the original with "
            "`keras_vit.VisionTransformer.from_config(model.get_config())`."
        )
    raise ValueError(
        "`model` must be a keras_vit.VisionTransformer."
        f"{advice} Received: {type(model).__name__}"
    )


def find_vision_transformers(model, call: str = "model") -> Iterator[str]:
    """Yield the call that returns each VisionTransformer inside `model`.

    Args:
        model: A Sequential, functional or subclassed Keras model.
        call: A Python expression for `model`.

    Example:
        >>> vit = VisionTransformer(VARIANTS["mu/16"].config)
        >>> model = keras.Sequential([vit])
        >>> list(find_vision_transformers(model))
        ["model.get_layer('vision_transformer')"]
    """
    if not isinstance(model, keras.Model):
        return
    for layer in model.layers:
        inner = f"{call}.get_layer({layer.name!r})"
        if isinstance(layer, VisionTransformer):
            yield inner
        else:
            yield from find_vision_transformers(layer, inner)


def is_plain_copy(model) -> bool:
    """Return whether a plain model has the layers of a VisionTransformer."""
    layers = model.layers if isinstance(model, keras.Model) else ()
    return any(isinstance(layer, PatchEncoder) for layer in layers)
