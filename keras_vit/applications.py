"""The builders ViT_B16() and its family, with the keras.applications interface.

One function makes them all. Their names are written out at the end, so that
editors and type checkers see them.
"""

import dataclasses
import functools
import os
import warnings
from collections.abc import Sequence
from typing import Any, Protocol, overload

import keras
import numpy as np

from keras_vit.arguments import as_whole, is_whole
from keras_vit.layers.base import is_quantized
from keras_vit.models.config import ViTConfig, check_fields
from keras_vit.models.variants import VARIANTS
from keras_vit.models.vit import VisionTransformer, connect_layers
from keras_vit.weights.families.inference import Known
from keras_vit.weights.hub import (
    HUB_MODELS,
    PRETRAINED,
    find_pretrained,
    holds_weights,
    parse_repository,
)
from keras_vit.weights.images import change_config
from keras_vit.weights.read import build_from, warn
from keras_vit.weights.write import check_unedited

DOCSTRING = """Build the ViT {variant}, {num_parameters:,} parameters.

    Arguments and defaults are those of `keras.applications`, except that
    `weights` is None by default. Inputs are floats in [-1, 1]
    (`preprocess_input`), channels last.

    Args:
        include_top: Whether the model ends in the classifier.
        weights: None for new weights; a name of `PRETRAINED` or `HUB_MODELS`,
            with or without the variant: {weights}; the path of a checkpoint
            of any family, see `from_checkpoint`; or a `.keras` file of a
            VisionTransformer. Arguments that are not given are then those of
            the checkpoint, the image size among them. Or a `.weights.h5` file
            of a model that was built with the same arguments, or the `.keras`
            file of one with an `input_tensor`.
        input_tensor: A symbolic tensor to build the model on.
        input_shape: (height, width, channels) in pixels, any whole number of
            patches; default ({height}, {width}, {channels}). (None, None, C)
            accepts any size in the call and resizes the position table.
        pooling: The layer after the last layer norm: "token" (class token),
            "avg" or "max" (over the patches), "map" (attention pooling),
            "none" (all tokens, the class token first). Default with the
            classifier: {pooling!r}; without it: "none".
        classes: Number of classes of the classifier.
        classifier_activation: Activation of the classifier; None for logits.
        name: Name of the model.
        dtype: Type policy of the layers, such as "mixed_bfloat16".
        **choices: Any other field of `ViTConfig`, such as `dropout_rate`,
            `representation_size`, `position_embedding` or `activation`.

    Returns:
        A VisionTransformer; a plain functional keras.Model if `input_tensor`
        is given.

    Raises:
        ValueError: If an argument is not one of the above.

    Reference: Dosovitskiy et al. 2021, arXiv:2010.11929.
    """


class Builder(Protocol):
    """The signature of a builder; `keras_vit.ViT_B16` describes it."""

    @overload
    def __call__(
        self,
        include_top: bool = True,
        weights: str | os.PathLike | None = None,
        input_tensor: None = None,
        input_shape: Sequence[int | None] | None = None,
        pooling: str | None = None,
        classes: int = 1000,
        classifier_activation: str | None = "softmax",
        name: str = ...,
        dtype: Any = None,
        **choices: Any,
    ) -> VisionTransformer: ...

    @overload
    def __call__(
        self,
        include_top: bool = True,
        weights: str | os.PathLike | None = None,
        input_tensor: Any = None,
        input_shape: Sequence[int | None] | None = None,
        pooling: str | None = None,
        classes: int = 1000,
        classifier_activation: str | None = "softmax",
        name: str = ...,
        dtype: Any = None,
        **choices: Any,
    ) -> keras.Model: ...


def make_builder(variant: str) -> Builder:
    """Return the builder of a row of VARIANTS."""
    default, num_parameters, builder_name = VARIANTS[variant]

    def build(
        include_top: bool = True,
        weights: str | os.PathLike | None = None,
        input_tensor=None,
        input_shape: tuple | None = None,
        pooling: str | None = None,
        classes: int = 1000,
        classifier_activation: str | None = "softmax",
        name: str = builder_name.lower(),
        dtype=None,
        **choices,
    ) -> keras.Model:
        keras.activations.get(classifier_activation)  # Raises if unknown.
        # Fields that have another name here are refused, and unknown ones.
        check_fields(choices, RENAMED_FIELDS)
        choices = {
            **image_choices(input_tensor, input_shape),
            **({"pooling": pooling} if pooling else {}),
            **({} if include_top or pooling else {"pooling": "none"}),
            "num_classes": as_whole(classes, "classes", 0) * bool(include_top),
            "classifier_activation": classifier_activation,
            **choices,
        }
        if input_tensor is None:
            make = functools.partial(VisionTransformer, dtype=dtype, name=name)
        else:
            make = functools.partial(build_on, input_tensor, dtype, name)
        if weights is None:
            return make(dataclasses.replace(default, **choices))
        source = find_weights(weights, variant)
        if not is_own_file(source):
            return _build_from(source, variant, choices, make)
        wanted = dataclasses.replace(default, **choices)
        if source.endswith(".weights.h5"):  # It tells the weights alone.
            model = make(wanted)
            model.load_weights(source)
            return model
        own = open_own_file(source)
        if isinstance(own, VisionTransformer):
            check_variant(own.config, wanted, source, builder_name)
            wanted = change_own(own.config, choices)
        model = make(wanted)
        copy_own_weights(model, own, source)
        return model

    build.__name__ = build.__qualname__ = builder_name
    build.__doc__ = DOCSTRING.format(
        variant=variant,
        num_parameters=num_parameters,
        height=default.image_size[0],
        width=default.image_size[1],
        channels=default.channels,
        pooling=default.pooling,
        weights=", ".join(map(repr, tags_of(variant))) or "none yet",
    )
    return build


def build_on(input_tensor, dtype, name: str, config: ViTConfig) -> keras.Model:
    """Return the model of a configuration on a symbolic input tensor."""
    policy = keras.dtype_policies.get(dtype)
    outputs = connect_layers(config, input_tensor, policy)
    inputs = keras.utils.get_source_inputs(input_tensor)
    inputs = inputs[0] if len(inputs) == 1 else inputs
    return keras.Model(inputs, outputs, name=name)


def image_choices(input_tensor, input_shape) -> dict:
    """Return the fields of ViTConfig that the input arguments set.

    Raises:
        ValueError: If they are not the shape of an image or contradict each
            other.
    """
    if input_tensor is None and input_shape is None:
        return {}
    shape = input_shape
    if input_tensor is not None:
        if not isinstance(input_tensor, keras.KerasTensor):
            raise ValueError(
                "`input_tensor` must be a symbolic tensor, such as the output "
                f"of a Keras layer. Received: {type(input_tensor).__name__}"
            )
        shape = tuple(input_tensor.shape[1:])
        if input_shape is not None and tuple(input_shape) != shape:
            raise ValueError(
                "`input_shape` must be that of `input_tensor`. Received: "
                f"input_shape={input_shape}, input_tensor of {shape}"
            )
    shape = tuple(shape) if isinstance(shape, Sequence | np.ndarray) else ()
    if not (
        len(shape) == 3
        and is_whole(shape[2])
        and (shape[:2] == (None, None) or all(map(is_whole, shape)))
    ):
        raise ValueError(
            "`input_shape` must be (height, width, channels), both sizes in "
            "pixels or both None, channels last. "
            f"Received: input_shape={input_shape or shape!r}"
        )
    if shape[0] is None:
        return {"use_dynamic_image_size": True, "channels": shape[2]}
    return {"image_size": shape[:2], "channels": shape[2]}


# Fields of ViTConfig -> the argument of a builder that sets them.
RENAMED_FIELDS = {
    **dict.fromkeys(
        ("image_size", "channels", "use_dynamic_image_size"), "input_shape"
    ),
    "num_classes": "classes",
}


# ------------------------------------------------------------ with weights


def tags_of(variant: str) -> list[str]:
    """Return the names of the checkpoints of a variant, without the variant."""
    start = f"{variant}-"
    names = (*PRETRAINED, *HUB_MODELS)
    return [n.removeprefix(start) for n in names if n.startswith(start)]


def find_weights(weights, variant: str) -> str:
    """Return the path, the address or the full name of a checkpoint.

    Raises:
        ValueError: If there is none, or it is known to be of another variant.
    """
    text = os.path.expanduser(str(weights))
    if holds_weights(text):
        return text
    for name in (f"{variant}-{text}", text):
        if row := find_pretrained(name):
            check_variant(row.config, VARIANTS[variant].config, name, variant)
            return name
        if name in HUB_MODELS and name.startswith(f"{variant}-"):
            return name
    is_address = text.startswith(("https://", "http://", "gs://"))
    if is_address or parse_repository(text) or os.path.exists(text):
        return text
    known = ", ".join(map(repr, tags_of(variant))) or "none"
    raise ValueError(
        "`weights` must be None, the path of an existing file or folder, or "
        f"the name of a pretrained {variant}: {known}. "
        f"Received: weights={text!r}"
    )


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


def _build_from(weights, variant, choices, build_model):
    """Return the model of a builder with the weights of a checkpoint."""
    default, _, name = VARIANTS[variant]
    classes = choices["num_classes"]
    known = Known(
        choices.get("num_heads", default.num_heads),
        choices.get("image_size"),
        fields={"num_classes": classes},
    )

    def check(found):
        wanted = dataclasses.replace(default, **choices)
        check_variant(found, wanted, weights, name)

    model = build_from(weights, known, choices, check, build_model)
    # The warnings point at the caller of the builder.
    warn(model.load_report, stacklevel=3, without=set(choices))
    new_head = any("predictions" in path for path in model.load_report.reset)
    if new_head and classes == 1000:
        warnings.warn(
            f"The classifier of {name} is new, for 1,000 classes: {weights} "
            "has none of that size. Pass `classes` to set another number.",
            stacklevel=3,
        )
    return model


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


def open_own_file(path: str) -> keras.Model:
    """Return the model of a `.keras` file.

    It is a VisionTransformer, or has the layers of one (`input_tensor`).

    Raises:
        ValueError: If it is quantised or layers of it were edited, or if it
            has layers before the patches, such as a `Rescaling`: they would
            be lost.
    """
    own = keras.saving.load_model(path, compile=False)
    if is_quantized(own):
        raise ValueError(
            "`weights` must belong to a model that is not quantised. "
            f"Received: weights={path!r}"
        )
    if isinstance(own, VisionTransformer):
        check_unedited(own)
        return own
    first = [layer.name for layer in own.layers[1:2]]  # After the input.
    if first not in (["patch_encoder"], ["stem"]):
        raise ValueError(
            "`weights` must be the file of a VisionTransformer. Received: "
            f"weights={path!r}, a {type(own).__name__}; load it with "
            "`keras.saving.load_model`"
        )
    return own


def change_own(config: ViTConfig, choices: dict) -> ViTConfig:
    """Return the configuration of a file with what a builder was given.

    What does not go together with that is left out.
    """
    rest = {}
    if choices["num_classes"] != config.num_classes:
        rest |= {"class_names": None, "probabilities": None}
    if "image_size" in choices:
        rest["use_dynamic_image_size"] = False
    is_open = choices.get("use_dynamic_image_size")
    if is_open or choices.get("pooling") == "none":
        rest |= {"patch_dropout_rate": 0.0, "merged_tokens": 0}
    return change_config(config, {**rest, **choices})


def copy_own_weights(model: keras.Model, own: keras.Model, path: str):
    """Copy the weights of the model of a file, matched by their paths.

    Those that `model` does not have, such as of a classifier, are ignored.

    Args:
        model: The model to copy them into.
        own: The model of the file.
        path: The file, for the error.

    Raises:
        ValueError: If a weight is missing or has another shape; `model` is
            left unchanged.
    """
    found = {weight.path: weight for weight in own.weights}
    for weight in model.weights:
        if weight.path not in found:
            raise ValueError(f"`weights`: {path} has no {weight.path}.")
        if found[weight.path].shape != weight.shape:
            shape = tuple(found[weight.path].shape)
            advice = "For another image size, load the file and call "
            advice += "`with_image_size`."
            if weight.path.startswith("predictions/"):
                advice = f"Pass `classes={shape[-1]}`."
            raise ValueError(
                f"`weights`: {weight.path} has the shape {shape} in {path} and "
                f"{tuple(weight.shape)} in this model. {advice}"
            )
    for weight in model.weights:
        weight.assign(found[weight.path])


ViT_Ti16 = make_builder("Ti/16")
ViT_S16 = make_builder("S/16")
ViT_S32 = make_builder("S/32")
ViT_B8 = make_builder("B/8")
ViT_B16 = make_builder("B/16")
ViT_B32 = make_builder("B/32")
ViT_L16 = make_builder("L/16")
ViT_L32 = make_builder("L/32")
ViT_H14 = make_builder("H/14")
R_ViT_Ti16 = make_builder("R+Ti/16")
R26_ViT_S32 = make_builder("R26+S/32")
R26_ViT_B32 = make_builder("R26+B/32")
R50_ViT_B16 = make_builder("R50+B/16")
R50_ViT_B32 = make_builder("R50+B/32")
R50_ViT_L16 = make_builder("R50+L/16")
R50_ViT_L32 = make_builder("R50+L/32")
ViT_M16 = make_builder("M/16")
ViT_So400m14 = make_builder("So400m/14")
ViT_g14 = make_builder("g/14")
ViT_G14 = make_builder("G/14")

# In the order of VARIANTS; each row that names a builder has it above.
BUILDERS: dict[str, Builder] = {
    row.builder: globals()[row.builder]
    for row in VARIANTS.values()
    if row.builder
}
