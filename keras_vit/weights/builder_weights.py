"""The argument `weights` of the builders: finding the file and loading it."""

import dataclasses
import os
import warnings
from collections.abc import Callable

import keras

from keras_vit.layers.dtypes import is_quantized
from keras_vit.models.config import ViTConfig
from keras_vit.models.variants import VARIANTS
from keras_vit.weights.hub import (
    HUB_MODELS,
    PRETRAINED,
    find_pretrained,
    holds_weights,
    parse_repository,
)
from keras_vit.weights.images import change_config
from keras_vit.weights.read import Known, build_and_load, warn


def build_with_weights(
    weights, variant: str, choices: dict, build_model: Callable
) -> keras.Model:
    """Return the model of a builder, with the weights of its argument.

    Args:
        weights: Argument `weights` of the builder.
        variant: A key of VARIANTS.
        choices: The fields of ViTConfig that the caller passed.
        build_model: Returns a new model of a configuration.
    """
    weights = resolve_weights(weights, variant)
    if weights is not None and not is_own_file(weights):
        return load_foreign_weights(weights, variant, choices, build_model)
    default = VARIANTS[variant].config
    model = build_model(dataclasses.replace(default, **choices))
    if weights is not None:
        load_own_weights(model, weights)
    return model


def pretrained_tags(variant: str) -> list[str]:
    """Return the names of a variant's checkpoints without the variant.

    Args:
        variant: A key of VARIANTS.
    """
    return _tags_in(PRETRAINED, variant)


def known_tags(variant: str) -> list[str]:
    """Return these names, and those of the hub.

    Args:
        variant: A key of VARIANTS.
    """
    return [*pretrained_tags(variant), *_tags_in(HUB_MODELS, variant)]


def _tags_in(names, variant):
    prefix = f"{variant}-"
    return [n.removeprefix(prefix) for n in names if n.startswith(prefix)]


def resolve_weights(weights, variant: str) -> str | None:
    """Return the path or the full name of a checkpoint.

    Args:
        weights: Argument `weights` of the builder.
        variant: A key of VARIANTS.

    Raises:
        ValueError: If `weights` is neither a file nor a pretrained name.
    """
    if weights is None:
        return None
    text = str(weights)
    path = os.path.expanduser(text)
    if holds_weights(path):
        return path
    if text.startswith(("https://", "http://", "gs://")):
        return text
    if parse_repository(text) is not None:
        return text
    for name in (f"{variant}-{text}", text):
        if name in HUB_MODELS and name.startswith(f"{variant}-"):
            return name
        row = find_pretrained(name)
        if row:
            check_variant(row.config, VARIANTS[variant].config, name, variant)
            return name
    if os.path.exists(path):
        return path
    known = ", ".join(map(repr, known_tags(variant))) or "none"
    raise ValueError(
        "`weights` must be None, the path of an existing file or folder, or "
        f"the name of a pretrained {variant}: {known}. "
        f"Received: weights={text!r}"
    )


def is_own_file(path: str) -> bool:
    """Return whether Keras wrote `path` for a model of this package.

    Args:
        path: Path of a file, or the name of a checkpoint.
    """
    if not os.path.isfile(path) or not path.endswith(".weights.h5"):
        return path.endswith(".keras") and os.path.isfile(path)
    import h5py

    try:
        with h5py.File(path) as file:
            return "layers/patch_encoder" in file
    except OSError:
        return True  # Loading it then fails with the message of Keras.


def check_variant(found: ViTConfig, wanted: ViTConfig, weights, name: str):
    """Raise a ValueError if a checkpoint contains another variant.

    Args:
        found: The configuration of the checkpoint.
        wanted: The configuration of the builder.
        weights: Argument `weights` of the builder.
        name: Name of the builder or of its variant.
    """
    sizes = ("width", "depth", "mlp_dim", "num_heads", "patch_size")
    different = [
        f"{size}={getattr(found, size)} and not {getattr(wanted, size)}"
        for size in (*sizes, "stem_stages")
        if getattr(found, size) != getattr(wanted, size)
    ]
    if different:
        raise ValueError(
            f"`weights`: {weights} is not a {name}: it has "
            f"{', '.join(different)}. Use `keras_vit.from_checkpoint` for a "
            "model of any size."
        )


def load_foreign_weights(
    weights: str, variant: str, choices: dict, build_model: Callable
) -> keras.Model:
    """Return the model of a builder with the weights of a checkpoint.

    Args:
        weights: Path or name of the checkpoint.
        variant: A key of VARIANTS.
        choices: The fields of ViTConfig that the caller passed.
        build_model: Returns a new model of a configuration.

    Raises:
        ValueError: If the checkpoint contains another variant.
    """
    default, _, builder_name = VARIANTS[variant]

    def configure(found):
        wanted = dataclasses.replace(default, **choices)
        check_variant(found, wanted, weights, builder_name)
        return change_config(found, choices)

    model = build_and_load(
        weights,
        configure,
        build_model,
        known=Known(
            choices.get("num_heads", default.num_heads),
            choices.get("image_size"),
            fields={"num_classes": choices["num_classes"]},
        ),
    )
    # The warnings point at the caller of the builder.
    warn(model.load_report, stacklevel=4, without=set(choices))
    new_head = any("predictions" in path for path in model.load_report.reset)
    if new_head and choices["num_classes"] == 1000:
        warnings.warn(
            f"The classifier of {builder_name} is new, for 1,000 classes: "
            f"{weights} has none of that size. Pass `classes` to set another "
            "number.",
            stacklevel=4,
        )
    return model


def load_own_weights(model: keras.Model, path: str):
    """Load weights that Keras saved for a model of this package.

    The weights of a `.keras` file are matched by their paths. Weights that
    `model` does not have, such as those of a classifier, are ignored.

    Args:
        model: The model to load the weights into.
        path: A `.weights.h5` or `.keras` file.

    Raises:
        ValueError: If a weight is missing or has another shape. With a
            `.keras` file, `model` is left unchanged.
    """
    if path.endswith(".weights.h5"):
        model.load_weights(path)
        return
    source = keras.saving.load_model(path, compile=False)
    if is_quantized(source):
        raise ValueError(
            "`weights` must belong to a model that is not quantised. "
            f"Received: weights={path!r}"
        )
    found = {weight.path: weight for weight in source.weights}
    for weight in model.weights:
        if weight.path not in found:
            raise ValueError(f"`weights`: {path} has no {weight.path}.")
        if found[weight.path].shape != weight.shape:
            raise ValueError(
                f"`weights`: {weight.path} has the shape "
                f"{tuple(found[weight.path].shape)} in {path} and "
                f"{tuple(weight.shape)} in this model. For another image "
                "size, load the file and call `with_image_size`."
            )
    for weight in model.weights:
        weight.assign(found[weight.path])
