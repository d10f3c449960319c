"""Conversion of mixed-precision models to float32, for most formats."""

import keras

from keras_vit.layers.dtypes import is_quantized


def in_float32(model: keras.Model) -> keras.Model:
    """Return a copy of `model` that computes in float32, with equal weights.

    A model that already computes in float32 is returned unchanged.

    Raises:
        ValueError: If Keras quantized the model, or a layer cannot be rebuilt
            from its config.
    """
    if is_quantized(model):
        raise ValueError(
            "A model quantized by Keras cannot be converted; export the model "
            f"that it was quantized from. Received: model={model.name!r}"
        )
    if computes_in_float32(model):
        return model
    try:
        copy = rebuild(model)
        copy.set_weights(model.get_weights())
    except Exception as error:  # A layer may raise anything.
        raise conversion_error(
            model, f"{type(error).__name__}: {error}"
        ) from error
    if not computes_in_float32(copy):
        raise conversion_error(model, "a layer still computes in another type")
    return copy


def rebuild(model: keras.Model) -> keras.Model:
    """Return a model with the layers of `model`, all in float32."""
    if hasattr(model, "with_dtype"):  # A VisionTransformer.
        return model.with_dtype("float32")
    return keras.models.clone_model(model, clone_function=rebuild_layer)


def rebuild_layer(layer: keras.Layer) -> keras.Layer:
    """Return a new layer with the config of `layer`, in float32."""
    if isinstance(layer, keras.Model):
        return rebuild(layer)
    config = {**layer.get_config(), "dtype": "float32"}
    return type(layer).from_config(config)


def computes_in_float32(model: keras.Model) -> bool:
    """Return whether all layers compute in float32."""
    return all(
        layer.compute_dtype == "float32" for layer in model._flatten_layers()
    )


def computes_in_16_bits(model: keras.Model) -> bool:
    """Return whether any layer computes in bfloat16 or float16."""
    return any(
        layer.compute_dtype in ("bfloat16", "float16")
        for layer in model._flatten_layers()
    )


def conversion_error(model: keras.Model, reason: str) -> ValueError:
    """Return the error for a model that cannot be converted."""
    return ValueError(
        "`model` must compute in float32, and this one cannot be converted to "
        f"it ({reason}). Build a new model after "
        "keras.config.set_dtype_policy('float32'), copy the weights with "
        "new_model.set_weights(model.get_weights()), and export new_model. "
        f"Received: {type(model).__name__} {model.name!r}"
    )
