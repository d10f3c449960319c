"""The builders: ViT_B16() and its family, with the keras.applications face."""

import dataclasses
import os
import warnings

import keras

from keras_vit.layers.dtypes import is_quantized
from keras_vit.models.config import ViTConfig, check_fields
from keras_vit.models.variants import VARIANTS
from keras_vit.models.vision_transformer import VisionTransformer, connect
from keras_vit.weights.loading import build_and_load
from keras_vit.weights.positions import Known
from keras_vit.weights.pretrained import PRETRAINED, find_pretrained
from keras_vit.weights.report import warn

DOCSTRING = """Build the ViT {variant}, {num_parameters:,} parameters.

    The arguments are those of `keras.applications`, and the defaults too,
    but for `weights`. Inputs are floats in [-1, 1] (`preprocess_input`),
    channels last.

    Args:
        include_top: Whether to end in the classifier.
        weights: None for new weights; a name of `PRETRAINED`, with or
            without the variant: {weights}; the path of a checkpoint of any
            family, see `from_checkpoint`; or a `.weights.h5` or `.keras` file
            that this package saved. Choices that are not made here are then
            those of the checkpoint, the image size among them.
        input_tensor: A symbolic tensor to build the model on.
        input_shape: (height, width, channels) in pixels, any whole number of
            patches; default ({height}, {width}, {channels}). (None, None, C)
            accepts any size in the call and resizes the position table.
        pooling: What follows the last layer norm: "token" (class token),
            "avg" or "max" (over the patches), "map" (attention pooling),
            "none" (all tokens, the class token first). Default with the
            classifier: {pooling!r}; without it: "none".
        classes: Number of classes of the classifier.
        classifier_activation: Of the classifier; None gives logits.
        name: Name of the model.
        dtype: Type policy of the layers, such as "mixed_bfloat16".
        **choices: Any other field of `ViTConfig`, such as `dropout_rate`,
            `representation_size`, `position_embedding` or `gelu`.

    Returns:
        A VisionTransformer; a plain functional keras.Model if `input_tensor`
        is given.

    Raises:
        ValueError: If an argument is not one of the above.

    Reference: Dosovitskiy et al. 2021, arXiv:2010.11929.
    """


def builder(function_name: str, variant: str):
    """Return the builder of a row of VARIANTS.

    Args:
        function_name: What the builder is called.
        variant: A key of VARIANTS.
    """
    default = VARIANTS[variant].config

    def build(
        include_top: bool = True,
        weights: str | os.PathLike | None = None,
        input_tensor=None,
        input_shape: tuple | None = None,
        pooling: str | None = None,
        classes: int = 1000,
        classifier_activation: str | None = "softmax",
        name: str = function_name.lower(),
        dtype=None,
        **choices,
    ) -> keras.Model:
        keras.activations.get(classifier_activation)
        choices = {
            **image_choices(default, input_tensor, input_shape),
            **({"pooling": pooling} if pooling else {}),
            **({} if include_top or pooling else {"pooling": "none"}),
            "num_classes": classes if include_top else 0,
            "classifier_activation": classifier_activation,
            **check_choices(choices),
        }

        def build_model(config):
            if input_tensor is None:
                return VisionTransformer(config, dtype=dtype, name=name)
            policy = keras.dtype_policies.get(dtype)
            outputs = connect(config, input_tensor, policy)
            inputs = keras.utils.get_source_inputs(input_tensor)
            inputs = inputs[0] if len(inputs) == 1 else inputs
            return keras.Model(inputs, outputs, name=name)

        weights = check_weights(weights, variant)
        if weights is None or is_own_file(weights):
            model = build_model(dataclasses.replace(default, **choices))
            if weights is not None:
                load_own_weights(model, weights)
            return model
        return load_foreign_weights(
            weights, function_name, default, choices, build_model
        )

    build.__name__ = build.__qualname__ = function_name
    build.__doc__ = DOCSTRING.format(
        variant=variant,
        num_parameters=VARIANTS[variant].num_parameters,
        height=default.image_size[0],
        width=default.image_size[1],
        channels=default.channels,
        pooling=default.pooling,
        weights=", ".join(map(repr, pretrained_tags(variant))) or "none yet",
    )
    return build


def pretrained_tags(variant: str) -> list[str]:
    """Return what the checkpoints of a variant are called without it.

    Args:
        variant: A key of VARIANTS.
    """
    return [
        name.removeprefix(f"{variant}-")
        for name in PRETRAINED
        if name.startswith(f"{variant}-")
    ]


def image_choices(default: ViTConfig, input_tensor, input_shape) -> dict:
    """Return the fields of ViTConfig that the input arguments decide.

    Args:
        default: The configuration of the variant.
        input_tensor: A symbolic tensor, or None.
        input_shape: (height, width, channels), or None.

    Raises:
        ValueError: If they are no image or contradict each other.
    """
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
                f"input_shape={tuple(input_shape)}, input_tensor of {shape}"
            )
        input_shape = shape
    if input_shape is None:
        return {}
    shape = tuple(input_shape)
    if (
        len(shape) != 3
        or shape[2] is None
        or (shape[0] is None) != (shape[1] is None)
    ):
        raise ValueError(
            "`input_shape` must be (height, width, channels), both sizes in "
            "pixels or both None, channels last. "
            f"Received: input_shape={input_shape}"
        )
    if shape[0] is None:
        return {"use_dynamic_image_size": True, "channels": shape[2]}
    return {"image_size": shape[:2], "channels": shape[2]}


def check_choices(choices: dict) -> dict:
    """Return `choices`, or raise a ValueError for what is no field.

    The fields that an argument of the builder decides are not accepted
    either; the error says which argument that is.
    """
    renamed = {
        "image_size": "input_shape",
        "channels": "input_shape",
        "use_dynamic_image_size": "input_shape",
        "num_classes": "classes",
    }
    check_fields(choices, renamed)
    return choices


def check_weights(weights, variant: str) -> str | None:
    """Return the path or the full name that `weights` stands for.

    Args:
        weights: What the builder was given.
        variant: A key of VARIANTS.

    Raises:
        ValueError: If it is neither a file nor a pretrained name.
    """
    if weights is None:
        return None
    text = os.fspath(weights)
    path = os.path.expanduser(text)
    if os.path.exists(path):
        return path
    if text.startswith(("https://", "http://", "gs://")):
        return text
    for name in (f"{variant}-{text}", text):
        row = find_pretrained(name)
        if row:
            check_variant(row.config, VARIANTS[variant].config, name, variant)
            return name
    known = ", ".join(map(repr, pretrained_tags(variant))) or "none"
    raise ValueError(
        "`weights` must be None, the path of an existing file or folder, or "
        f"the name of a pretrained {variant}: {known}. "
        f"Received: weights={text!r}"
    )


def is_own_file(path: str) -> bool:
    """Return whether Keras wrote `path` for a model of this package.

    Args:
        path: A file or a name.
    """
    if not os.path.isfile(path) or not path.endswith(".weights.h5"):
        return path.endswith(".keras") and os.path.isfile(path)
    import h5py

    try:
        with h5py.File(path) as file:
            return "layers/patch_encoder" in file
    except OSError:
        return True  # Keras says what is wrong with it.


def check_variant(found: ViTConfig, wanted: ViTConfig, weights, name: str):
    """Raise a ValueError if a checkpoint is one of another variant.

    Args:
        found: The configuration of the checkpoint.
        wanted: That of the builder.
        weights: What the builder was given.
        name: Of the builder or its variant.
    """
    sizes = ("width", "depth", "mlp_dim", "num_heads", "patch_size")
    different = [
        f"{size}={getattr(found, size)} and not {getattr(wanted, size)}"
        for size in (*sizes, "stem_stages")
        if getattr(found, size) != getattr(wanted, size)
    ]
    if different:
        raise ValueError(
            f"`weights`: {weights} is no {name}: it has "
            f"{', '.join(different)}. Use `keras_vit.from_checkpoint` for a "
            "model of any size."
        )


def load_foreign_weights(
    weights: str, function_name: str, default, choices: dict, build_model
) -> keras.Model:
    """Return the model of a builder with the weights of a checkpoint.

    Args:
        weights: Its path or name.
        function_name: What the builder is called.
        default: The configuration of the variant.
        choices: The fields of ViTConfig that the caller chose.
        build_model: Makes a model of a configuration.

    Raises:
        ValueError: If the checkpoint holds another variant.
    """

    def configure(found):
        wanted = dataclasses.replace(default, **choices)
        check_variant(found, wanted, weights, function_name)
        return dataclasses.replace(found, **choices)

    model = build_and_load(
        weights,
        configure,
        build_model,
        known=Known(
            choices.get("num_heads", default.num_heads),
            choices.get("image_size"),
            None,
        ),
    )
    warn(model.load_report, stacklevel=3, without=set(choices))
    new_head = any("predictions" in path for path in model.load_report.reset)
    if new_head and choices["num_classes"] == 1000:
        warnings.warn(
            f"The classifier of {function_name} is new, for 1,000 classes: "
            f"{weights} has none of that size. Pass `classes` to choose.",
            stacklevel=3,
        )
    return model


def load_own_weights(model: keras.Model, path: str):
    """Load into `model` the weights that a model of this package saved.

    From a `.keras` file the weights are taken by their names. Those that
    `model` has no use for, such as a classifier's, are left.

    Args:
        model: Takes the weights.
        path: A `.weights.h5` or a `.keras` file.

    Raises:
        ValueError: If a weight is missing or of another shape. `model` is
            then as it was.
    """
    if path.endswith(".weights.h5"):
        model.load_weights(path)
        return
    source = keras.saving.load_model(path, compile=False)
    if is_quantized(source):
        raise ValueError(
            "`weights` must be those of a model that is not quantised. "
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


ViT_Ti16 = builder("ViT_Ti16", "Ti/16")
ViT_S16 = builder("ViT_S16", "S/16")
ViT_S32 = builder("ViT_S32", "S/32")
ViT_B8 = builder("ViT_B8", "B/8")
ViT_B16 = builder("ViT_B16", "B/16")
ViT_B32 = builder("ViT_B32", "B/32")
ViT_L16 = builder("ViT_L16", "L/16")
ViT_L32 = builder("ViT_L32", "L/32")
ViT_H14 = builder("ViT_H14", "H/14")
ViT_M16 = builder("ViT_M16", "M/16")
ViT_So400m14 = builder("ViT_So400m14", "So400m/14")
ViT_g14 = builder("ViT_g14", "g/14")
ViT_G14 = builder("ViT_G14", "G/14")
R_ViT_Ti16 = builder("R_ViT_Ti16", "R+Ti/16")
R26_ViT_S32 = builder("R26_ViT_S32", "R26+S/32")
R26_ViT_B32 = builder("R26_ViT_B32", "R26+B/32")
R50_ViT_B16 = builder("R50_ViT_B16", "R50+B/16")
R50_ViT_L32 = builder("R50_ViT_L32", "R50+L/32")

BUILDERS = {
    build.__name__: build
    for build in (
        ViT_Ti16,
        ViT_S16,
        ViT_S32,
        ViT_B8,
        ViT_B16,
        ViT_B32,
        ViT_L16,
        ViT_L32,
        ViT_H14,
        ViT_M16,
        ViT_So400m14,
        ViT_g14,
        ViT_G14,
        R_ViT_Ti16,
        R26_ViT_S32,
        R26_ViT_B32,
        R50_ViT_B16,
        R50_ViT_L32,
    )
}
