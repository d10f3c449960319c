"""Loading: from_checkpoint and load_checkpoint.

A load is planned and checked before the first weight is assigned: if anything
is wrong, the model stays as it was.
"""

import dataclasses
import os
from collections.abc import Callable

import keras

from keras_vit.layers.dtypes import is_quantized
from keras_vit.models.config import ViTConfig, check_fields
from keras_vit.models.submodels import check_vision_transformer
from keras_vit.models.vision_transformer import VisionTransformer
from keras_vit.weights.containers import open_checkpoint
from keras_vit.weights.plan import Choices, make_plan
from keras_vit.weights.positions import Known
from keras_vit.weights.pretrained import locate
from keras_vit.weights.report import LoadReport, warn
from keras_vit.weights.source import identify

NOTHING_KNOWN = Known()
DEFAULT_CHOICES = Choices()


def from_checkpoint(
    path_or_name: str | os.PathLike,
    *,
    image_size: tuple[int, int] | int | None = None,
    source_image_size: tuple[int, int] | int | None = None,
    classes: int | None = None,
    num_heads: int | None = None,
    classifier_activation: str | None = None,
    dtype=None,
    head: str = "auto",
    position_resize: str = "official",
    patch_resize: str | None = None,
    name: str = "vision_transformer",
    **overrides,
) -> VisionTransformer:
    """Build the model that a checkpoint holds, with its weights.

    The names and shapes in the file show its family (official, big_vision,
    timm, Hugging Face, keras-hub, vit-keras) and the whole configuration.
    Without further arguments the model computes what the source does.

    Args:
        path_or_name: A `.npz`, `.safetensors` or `.h5` file, a folder as
            Hugging Face, timm or keras-hub write it, a URL, or a name of
            `PRETRAINED`.
        image_size: (height, width) in pixels, or one number for a square;
            default as in the file. Positions are resized to it.
        source_image_size: (height, width) of the images of the file, for one
            whose positions may be those of several sizes. Default is what the
            file or the JSON beside it says, a square, or `image_size`.
        classes: Number of classes, 0 for a model without a head. Another
            number than that of the file makes a new head. Default as in the
            file.
        num_heads: Number of attention heads, for a file that does not show
            it.
        classifier_activation: Activation of the head, such as "softmax"; None
            for logits.
        dtype: Type policy of the layers, such as "mixed_bfloat16".
        head: "auto" takes the head of the file if it fits and makes a new one
            if not, "strict" fails if it does not fit, "reset" always makes a
            new one.
        position_resize: A key of RESIZES: "official", "bilinear", "bicubic"
            (Hugging Face) or "bicubic_antialias" (timm).
        patch_resize: A key of RESIZES, to load patches of another size than
            `patch_size=` says.
        name: Name of the model.
        **overrides: Fields of `ViTConfig`, such as `dropout_rate`.

    Returns:
        A VisionTransformer; its `load_report` says what was loaded.

    Raises:
        ValueError: If the file is damaged, of no known family or incomplete,
            or if an argument must settle what it leaves open. Names the file
            and all that does not fit.
    """
    choices = Choices(head, position_resize, patch_resize)
    choices.check()
    check_fields(overrides, RENAMED_FIELDS)
    changes = {
        "image_size": image_size,
        "num_classes": classes,
        "classifier_activation": classifier_activation,
    }
    changes = {key: v for key, v in changes.items() if v is not None}

    def configure(found):
        if num_heads not in (None, found.num_heads):
            raise ValueError(
                f"{path_or_name} has {found.num_heads} heads. "
                f"Received: num_heads={num_heads}"
            )
        return dataclasses.replace(found, **changes, **overrides)

    def build(config):
        return VisionTransformer(config, dtype=dtype, name=name)

    known = Known(num_heads, image_size, source_image_size)
    model = build_and_load(path_or_name, configure, build, known, choices)
    # The caller knows of a choice that was made by name.
    warn(model.load_report, stacklevel=2, without=set(overrides))
    return model


def build_and_load(
    path_or_name: str | os.PathLike,
    configure: Callable[[ViTConfig], ViTConfig],
    build: Callable[[ViTConfig], keras.Model],
    known: Known = NOTHING_KNOWN,
    choices: Choices = DEFAULT_CHOICES,
) -> keras.Model:
    """Build a model for a checkpoint and load it; `load_report` says how.

    Args:
        path_or_name: As in `from_checkpoint`.
        configure: Returns the configuration of the model for that of the
            file.
        build: Returns a new model of a configuration.
        known: What the caller knows of the file.
        choices: How the file is to be loaded.
    """
    with open_checkpoint(locate(path_or_name)) as checkpoint:
        source = identify(checkpoint, *known)
        plan = make_plan(source, configure(source.config), choices)
        checkpoint.verify(plan.report.used)
        model = build(plan.config)
        report = plan.carry_out(model)
    # A model that exists has settled what had to be assumed for this one.
    report = dataclasses.replace(report, notes=source.notes + report.notes)
    _remember(model, source, report)
    return model


def load_checkpoint(
    model: VisionTransformer,
    path: str | os.PathLike,
    head: str = "auto",
    position_resize: str = "official",
    patch_resize: str | None = None,
    source_image_size: tuple[int, int] | int | None = None,
) -> LoadReport:
    """Load a checkpoint of any family into a model.

    Positions are resized to the grid of the model, and the first kernel is
    adapted to its input channels. Updates of LoRA start anew at zero.
    Everything is planned and checked first: if anything is wrong, the model
    stays as it was.

    Args:
        model: The model that takes the weights.
        path: As `path_or_name` of `from_checkpoint`.
        head: "auto" takes the head of the file if it fits and starts anew if
            not, "strict" fails if it does not fit, "reset" always starts
            anew.
        position_resize: A key of RESIZES: "official", "bilinear", "bicubic"
            (Hugging Face) or "bicubic_antialias" (timm).
        patch_resize: A key of RESIZES, to load patches of another size;
            "bilinear" is the rule of FlexiViT.
        source_image_size: (height, width) of the images of the file, for one
            whose positions may be those of several sizes.

    Returns:
        What was used, resized, reset and ignored. A difference between the
        source and the model that changes the outputs is a warning, too.

    Raises:
        ValueError: If the file or the model does not fit; names all of it.
    """
    check_vision_transformer(model)
    if is_quantized(model):
        raise ValueError(
            "`model` is quantised; load the checkpoint first and quantise "
            f"then. Received: model={model.name!r}"
        )
    choices = Choices(head, position_resize, patch_resize)
    choices.check()
    config = model.config
    known = Known(config.num_heads, config.image_size, source_image_size)
    with open_checkpoint(locate(path)) as checkpoint:
        source = identify(checkpoint, *known)
        plan = make_plan(source, config, choices)
        checkpoint.verify(plan.report.used)
        report = plan.carry_out(model)
    warn(report, stacklevel=2)
    _remember(model, source, report)
    return report


def _remember(model, source, report):
    """Note in the model what was loaded, and the spelling to write it in."""
    model.load_report = report
    model.checkpoint_spelling = f"{source.family}/{source.spelling}"


# Names that other builders have for an argument, and ours.
RENAMED_FIELDS = {
    "num_classes": "classes",
    "include_top": "classes",
    "input_shape": "image_size",
}
