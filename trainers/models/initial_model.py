"""The model that a run begins with: a `.keras` file, its notes and images."""

import contextlib
import dataclasses
import json
import os
import zipfile
from collections.abc import Mapping, Sequence

import keras
import tensorflow as tf

from keras_vit.model_files import (
    RUN_MODEL,
    RUN_RECIPE,
    check_class_names,
    load_keras,
)
from keras_vit.models import VARIANTS, DensePredictor, VisionTransformer
from keras_vit.models.tuning import TunableModel, copy_model, train_layer
from keras_vit.preprocessing.description import Preprocessing, as_preprocessing
from keras_vit.weights import read_preprocessing
from keras_vit.weights.families.family import HEAD_LAYERS
from keras_vit.weights.read import LoadReport
from trainers.models.resnets import find_bit, is_bit_resnet, rebuild_bit_resnet
from trainers.paths import as_path, parse_object
from trainers.recipes.recipe import Recipe


def find_model_file(path_or_name: str) -> str:
    """Return the model.keras in the folder of a run; otherwise the path itself.

    Args:
        path_or_name: A path, which may begin with `~`, or the name of a
            published model.
    """
    if is_run_folder(path_or_name):
        return str(as_path(path_or_name) / RUN_MODEL)
    return os.path.expanduser(path_or_name)


def is_run_folder(path_or_name: str) -> bool:
    """Return whether a path is the folder of a run.

    Args:
        path_or_name: A path, or the name of a published model.
    """
    if path_or_name.endswith(".keras"):
        return False
    try:
        folder = as_path(path_or_name)
    except ValueError:  # A scheme of downloads, such as hf://.
        return False
    return any((folder / name).exists() for name in (RUN_MODEL, RUN_RECIPE))


# Flags that describe a new model, and the fields of its configuration.
MODEL_FLAGS = {
    "depth": "depth",
    "width": "width",
    "mlp_dim": "mlp_dim",
    "num_heads": "num_heads",
    "patch_size": "patch_size",
    "mlp_activation": "activation",
    "position_embedding": "position_embedding",
    "position_placement": "position_placement",
    "relative_positions": "relative_positions",
}
SIZE_FIELDS = ("width", "depth", "mlp_dim", "num_heads", "patch_size")


def explain_ignored_flags(
    given: Mapping, init_from: str | None, model: keras.Model
) -> str | None:
    """Return which flags do not change the model of `init_from`.

    Args:
        given: The values of the flags of a command, by name.
        init_from: That of the recipe, which a flag or its default gives.
        model: The model of the run.

    Returns:
        A sentence; None if the model is as the flags say, or a new one.
    """
    if not init_from or not isinstance(model, VisionTransformer):
        return None
    config = model.config
    ignored = [
        f"--{name}={given[name]} (it is {getattr(config, field)})"
        for name, field in MODEL_FLAGS.items()
        if name in given and given[name] != getattr(config, field)
    ]
    variant = VARIANTS.get(given.get("model"))
    if variant and any(
        getattr(variant.config, n) != getattr(config, n)
        for n in SIZE_FIELDS
        if n not in given  # A size that was given is judged by itself.
    ):
        ignored.insert(0, f"--model={given['model']} (its sizes are others)")
    if not ignored:
        return None
    return (
        f"The model stays that of {init_from}, which these flags do "
        f"not change: {', '.join(ignored)}."
    )


def explain_other_classes(
    recipe: Recipe, class_names: Sequence[str]
) -> str | None:
    """Return why the head of `init_from` is replaced although it would fit.

    A head for as many classes fits, but its logits are of other classes if the
    names are others, or are in another order.

    Returns:
        A sentence; None if the head is for these classes, is of another size,
        or no run beside the file says what it is for.

    Raises:
        ValueError: If the run beside the file has no valid class names.
    """
    theirs = read_initial_classes(recipe.init_from)
    if recipe.init_head == "reset" or not theirs or not class_names:
        return None
    if len(theirs) != len(class_names) or theirs == list(class_names):
        return None
    return (
        f"The head of {recipe.init_from} is for other classes "
        f"({', '.join(theirs[:5])}{', ...' if len(theirs) > 5 else ''}): a new "
        "one is trained in its place."
    )


def read_initial_classes(
    path: str, num_classes: int | None = None
) -> list[str]:
    """Return the class names of the run that an initial model is from.

    Without a run, those that the model itself knows.

    Args:
        path: The value of `init_from`.
        num_classes: Number of logits of the model; None if it is not known.

    Returns:
        The names in the order of the logits; none if there is no run, or its
        model is an encoder.

    Raises:
        ValueError: If they are no names, or not one for each logit.
    """
    file, content = _read_beside(path)
    names = content.get("class_names", [])
    if not content and path:
        file = find_model_file(path)
        names = _read_keras_config(file).get("class_names") or []
    try:
        return check_class_names(names, num_classes if names else None)
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from None


def explain_other_size(recipe: Recipe) -> str | None:
    """Return that the images have another size than those of `init_from`.

    Returns:
        A sentence; None if the sizes are equal, or no run beside the file
        says what its size was.
    """
    fields = _read_beside(recipe.init_from)[1].get("recipe")
    theirs = fields.get("image_size") if isinstance(fields, dict) else None
    if theirs in (None, recipe.image_size):
        return None
    return (
        f"{recipe.init_from} was trained on images of {theirs}x{theirs} "
        f"pixels, and this run has {recipe.image_size}x{recipe.image_size}. "
        f"To keep the size: --image_size={theirs}"
    )


def _read_beside(path):
    """Return the path and content of recipe.json beside the model of a run.

    An empty content, if there is no such file or it is of no run.
    """
    path = find_model_file(path) if path else ""
    if os.path.basename(path) != RUN_MODEL:
        return None, {}
    file = as_path(os.path.dirname(path)) / RUN_RECIPE
    if not file.is_file():
        return file, {}
    try:
        return file, parse_object(file.read_text(encoding="utf-8"))
    except ValueError:
        return file, {}


def initial_preprocessing(recipe: Recipe, channels: int) -> Preprocessing:
    """Return the preprocessing of `init_from`; no weight is read.

    Args:
        recipe: The recipe; without an initial model, the default is returned.
        channels: Channels of the images. If they are not those of a
            checkpoint, its first layer is adapted to the usual normalisation.

    Raises:
        ValueError: If `init_from` is not a checkpoint.
    """
    found = Preprocessing()
    source = find_model_file(recipe.init_from) if recipe.init_from else ""
    if source.endswith(".keras"):
        with contextlib.suppress(KeyError, TypeError, ValueError):
            fields = _read_keras_config(source)
            found = as_preprocessing(fields["preprocessing"])
    elif source and not find_bit(source):
        found = read_preprocessing(
            source,
            num_heads=recipe.num_heads or "published",
            image_size=recipe.image_size,
            architecture=recipe.architecture,
        )
    if len(found.mean) not in (1, channels):
        return dataclasses.replace(found, normalization="vit")
    return found


def _read_keras_config(path):
    """Return the fields of the ViTConfig in a `.keras` file, {} without one.

    What is wrong with the file is said when it is loaded.
    """
    fields = _read_keras_object(path).get("config")
    return dict(fields) if isinstance(fields, dict) else {}


def reads_pixels(path: str) -> bool:
    """Return whether a `.keras` file has a model of an answer a pixel.

    What is wrong with the file is said when it is loaded.
    """
    return "num_outputs" in (_read_keras_object(path).get("head") or {})


def _read_keras_object(path):
    """Return the configuration of the model in a `.keras` file, or {}."""
    try:
        with tf.io.gfile.GFile(path, "rb") as file, zipfile.ZipFile(file) as z:
            return dict(json.loads(z.read("config.json"))["config"])
    except (
        KeyError,
        OSError,
        TypeError,
        ValueError,
        tf.errors.OpError,
        zipfile.BadZipFile,
    ):
        return {}


def load_initial_model(
    path: str,
    image_size: int,
    num_classes: int,
    channels: int,
    head: str = "auto",
    dtype: str | None = None,
    *,
    representation_size: int | None = None,
    head_bias: float = 0.0,
) -> keras.Model:
    """Return the model of a `.keras` file, resized and with a fitting head.

    A head that is reset does not keep the tanh layer of the old one, as in the
    official fine-tuning, nor what a head of class vectors reads, unit vectors.

    Args:
        path: The file, which may be in a bucket.
        image_size: Side of the images, in pixels.
        num_classes: Number of logits. A head for another number is replaced.
        channels: Channels of the images; must match a VisionTransformer.
        head: "reset" always replaces the head.
        dtype: Dtype policy of the layers. Default: that of the file.
        representation_size: Size of a tanh layer of a head that is reset.
        head_bias: Initial bias of a head that is reset.

    Raises:
        ValueError: If the file does not exist or contains no such model, or
            its run does not name a class for each logit.
    """
    if not as_path(path).is_file():
        raise ValueError(
            "`init_from` must be the path of an existing .keras file, or the "
            f"folder of a finished run. Received: init_from={path!r}"
        )
    model = load_keras(str(as_path(path)))
    if not isinstance(model, DensePredictor):
        read_initial_classes(path, model.output_shape[-1])
    if is_bit_resnet(model):
        return rebuild_bit_resnet(
            model,
            image_size=image_size,
            channels=channels,
            num_classes=num_classes,
            head=head,
            head_bias=head_bias,
            dtype=dtype or model.layers[-1].dtype_policy,
        )
    _check(model, path, channels)
    whole, model = model, model.with_image_size(image_size)
    if isinstance(model, DensePredictor):  # It has its head, see `factory`.
        model = model.with_dtype(dtype) if dtype else model
        model.load_report = report_copy(path, whole, model)
        return model
    model = model.with_classifier_activation(None)  # The losses take logits.
    is_new = head == "reset" or model.config.num_classes != num_classes
    reads_vectors = model.config.representation == "unit"
    if head == "reset" or (is_new and reads_vectors):
        model = copy_with_new(
            model,
            HEAD_LAYERS,
            num_classes=num_classes,
            class_names=None,
            representation="tanh",
            representation_size=representation_size,
            head_bias=head_bias,
        )
    elif is_new:
        model = model.with_num_classes(num_classes)
    model = model.with_dtype(dtype) if dtype else model
    model.load_report = report_copy(
        path, whole, model, HEAD_LAYERS if is_new else ()
    )
    return model


def _check(model, path, channels):
    """Raise a ValueError unless a model takes images of so many channels."""
    if not isinstance(model, TunableModel):
        raise ValueError(
            "`init_from` must hold a VisionTransformer or a BiT ResNet. "
            f"Received: {type(model).__name__} in {path!r}"
        )
    if model.config.channels != channels:
        raise ValueError(
            f"`init_from` holds a model for images of {model.config.channels} "
            f"channels; those of the data set have {channels}."
        )


def copy_with_new(model, names, **changes):
    """Return a copy with new layers, trained even if all else is not."""
    copy = copy_model(model, names, **changes)
    for layer in copy.layers:
        if layer.name in names:
            train_layer(copy, layer.name)
    return copy


def report_copy(
    path: str,
    before: keras.Model,
    after: keras.Model,
    new_layers: Sequence[str] = (),
) -> LoadReport:
    """Return which weights a model has from a `.keras` file."""
    shapes = {w.path: tuple(w.shape) for w in before.weights}
    used, resized, reset = [], [], []
    for weight in after.weights:
        name, shape = weight.path, tuple(weight.shape)
        if name.split("/")[0] in new_layers or name not in shapes:
            reset.append(name)
            continue
        used.append(name)
        if shape != shapes[name]:
            resized.append(f"{name}: {shapes[name]} to {shape}")
    return LoadReport(
        path, "keras", tuple(used), tuple(resized), tuple(reset), (), ()
    )
