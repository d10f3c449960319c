"""Loading: from_checkpoint and load_checkpoint.

Everything is checked before the first weight is assigned: after an error, the
model is unchanged.
"""

import dataclasses
import os
from collections.abc import Callable

import keras

from keras_vit.arguments import as_whole
from keras_vit.layers.dtypes import is_quantized
from keras_vit.models.config import ViTConfig, check_fields
from keras_vit.models.vit import VisionTransformer, check_vision_transformer
from keras_vit.preprocessing.settings import Preprocessing
from keras_vit.weights.containers import open_checkpoint
from keras_vit.weights.hub import locate
from keras_vit.weights.image_settings import change_config
from keras_vit.weights.load_plan import Choices, make_plan
from keras_vit.weights.load_report import LoadReport, warn
from keras_vit.weights.positions import NOTHING_KNOWN, PUBLISHED, Known
from keras_vit.weights.source import identify

DEFAULT_CHOICES = Choices(renormalize=True)


def from_checkpoint(
    path_or_name: str | os.PathLike,
    *,
    image_size: tuple[int, int] | int | None = None,
    source_image_size: tuple[int, int] | int | None = None,
    classes: int | None = None,
    num_heads: int | str | None = None,
    architecture: str | None = None,
    classifier_activation: str | None = None,
    dtype=None,
    head: str = "auto",
    position_resize: str | None = None,
    patch_resize: str | None = None,
    name: str = "vision_transformer",
    **overrides,
) -> VisionTransformer:
    """Build the model of a checkpoint and load its weights.

    The names and shapes in the file determine its family, a key of LAYOUTS,
    and the whole configuration, as far as it is not in the JSON beside the
    file. Without further arguments, the model computes the same
    outputs as the source.

    Args:
        path_or_name: A `.npz`, `.safetensors` or `.h5` file, a folder as
            Hugging Face, timm or keras-hub write it, a URL, a name of
            `PRETRAINED` or `HUB_MODELS`, "hf://owner/name" or "timm/name".
        image_size: (height, width) in pixels, or one number for a square. The
            position table is resized to it. Default: that of the file.
        source_image_size: (height, width) of the images of the file, if its
            positions fit several sizes. Default: the size in the file or in
            the JSON beside it, a square, or `image_size`.
        classes: Number of classes; 0 for a model without a head. If it differs
            from that of the file, the head is new. Default: that of the file.
        num_heads: Number of attention heads, if the file does not determine
            it; "published" for that of the published model of the same size,
            with a warning.
        architecture: Name of the architecture in the code of the family, such
            as timm's "vit_base_patch16_clip_224", for a file without its
            `config.json`. It tells what names and shapes do not.
        classifier_activation: Activation of the head, such as "softmax";
            "linear" for logits. Default: that which the file states, or
            logits.
        dtype: Dtype policy of the layers, such as "mixed_bfloat16".
        head: "auto" loads the head of the file if it fits, and otherwise
            creates a new one; "strict" raises an error if it does not fit;
            "reset" always creates a new head.
        position_resize: A key of RESIZES, such as "official", "bicubic"
            (Hugging Face) or "bicubic_antialias" (timm). Default: the rule of
            the file's family.
        patch_resize: A key of RESIZES, to resize the patch kernel if
            `patch_size` differs from that of the file.
        name: Name of the model.
        **overrides: Fields of `ViTConfig`, such as `dropout_rate`.

    Returns:
        A VisionTransformer with a `load_report`, see `LoadReport`.

    Raises:
        ValueError: If the file is damaged, incomplete or of no known family,
            or if it leaves a setting open that needs an argument. The message
            names the file and every array that does not fit.
    """
    choices = Choices(head, position_resize, patch_resize, True)
    choices.check()
    check_fields(overrides, RENAMED_FIELDS)
    if classes is not None:
        classes = as_whole(classes, "classes", 0)
    fields = {**overrides}
    if classes is not None:
        fields["num_classes"] = classes
    known = Known(
        num_heads, image_size, source_image_size, architecture, fields
    )
    known.check()
    changes = {
        "image_size": image_size,
        "num_classes": classes,
        "classifier_activation": classifier_activation,
        "position_resize": position_resize,
    }
    changes = {key: v for key, v in changes.items() if v is not None}

    def configure(found):
        if num_heads not in (None, PUBLISHED, found.num_heads):
            raise ValueError(
                f"{path_or_name} has {found.num_heads} heads. "
                f"Received: num_heads={num_heads}"
            )
        config = change_config(found, {**changes, **overrides})
        if config.classifier_activation == "linear":
            config = dataclasses.replace(config, classifier_activation=None)
        return config

    def build(config):
        return VisionTransformer(config, dtype=dtype, name=name)

    model = build_and_load(path_or_name, configure, build, known, choices)
    # Notes on fields that the caller passed are not repeated.
    warn(model.load_report, stacklevel=2, without=set(overrides))
    return model


def build_and_load(
    path_or_name: str | os.PathLike,
    configure: Callable[[ViTConfig], ViTConfig],
    build: Callable[[ViTConfig], keras.Model],
    known: Known = NOTHING_KNOWN,
    choices: Choices = DEFAULT_CHOICES,
) -> keras.Model:
    """Build a model for a checkpoint, load it, and set its `load_report`.

    Args:
        path_or_name: See `from_checkpoint`.
        configure: Maps the configuration of the file to that of the model.
        build: Returns a new model of a configuration.
        known: Facts about the file that the caller knows.
        choices: Options of the load.
    """
    with open_checkpoint(locate(path_or_name)) as checkpoint:
        source = identify(checkpoint, known)
        plan = make_plan(source, configure(source.config), choices)
        checkpoint.verify(plan.report.used)
        model = build(plan.config)
        report = plan.carry_out(model)
    # Only here: for an existing model, nothing has to be assumed.
    report = dataclasses.replace(report, notes=source.notes + report.notes)
    _remember(model, source, report)
    return model


def read_preprocessing(
    path_or_name: str | os.PathLike,
    *,
    num_heads: int | str | None = None,
    image_size: tuple[int, int] | int | None = None,
    architecture: str | None = None,
) -> Preprocessing:
    """Return the preprocessing of a checkpoint's model; no weight is read.

    Args:
        path_or_name: See `from_checkpoint`.
        num_heads: See there.
        image_size: See there.
        architecture: See there.

    Raises:
        ValueError: As `from_checkpoint` does.
    """
    known = Known(num_heads, image_size, architecture=architecture)
    known.check()
    with open_checkpoint(locate(path_or_name)) as checkpoint:
        return identify(checkpoint, known).config.preprocessing


def load_checkpoint(
    model: VisionTransformer,
    path: str | os.PathLike,
    head: str = "auto",
    position_resize: str | None = None,
    patch_resize: str | None = None,
    source_image_size: tuple[int, int] | int | None = None,
) -> LoadReport:
    """Load a checkpoint of any family into a model.

    The position table is resized to the grid of the model, and the first
    kernel is adapted to its input channels. LoRA updates are reset to zero.
    Everything is checked first: after an error, the model is unchanged.

    Args:
        model: The model to load the weights into.
        path: See `path_or_name` of `from_checkpoint`.
        head: "auto" loads the head of the file if it fits, and otherwise
            initialises it anew; "strict" raises an error if it does not fit;
            "reset" always initialises it anew.
        position_resize: A key of RESIZES, such as "official", "bicubic"
            (Hugging Face) or "bicubic_antialias" (timm). Default: the rule of
            the file's family.
        patch_resize: A key of RESIZES, to load patches of another size;
            "bilinear" is the rule of FlexiViT.
        source_image_size: (height, width) of the images of the file, if its
            positions fit several sizes.

    Returns:
        A report of the arrays that were used, resized, reset and ignored. If
        the source and the model compute different outputs, a warning states
        the difference.

    Raises:
        ValueError: If the file does not fit the model. The message names every
            array that does not fit.
    """
    check_vision_transformer(model)
    if is_quantized(model):
        raise ValueError(
            "`model` is quantised; load the checkpoint first, then quantise. "
            f"Received: model={model.name!r}"
        )
    choices = Choices(head, position_resize, patch_resize)
    choices.check()
    config = model.config
    known = Known(
        config.num_heads,
        config.image_size,
        source_image_size,
        fields={"num_classes": config.num_classes},
    )
    with open_checkpoint(locate(path)) as checkpoint:
        source = identify(checkpoint, known)
        plan = make_plan(source, config, choices)
        checkpoint.verify(plan.report.used)
        report = plan.carry_out(model)
    warn(report, stacklevel=2)
    _remember(model, source, report)
    return report


def _remember(model, source, report):
    """Store the report and the dialect of the file in the model."""
    model.load_report = report
    model.checkpoint_dialect = f"{source.family}/{source.dialect}"


# Names of arguments in other builders -> the arguments here.
RENAMED_FIELDS = {
    "num_classes": "classes",
    "include_top": "classes",
    "input_shape": "image_size",
}
