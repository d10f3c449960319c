"""The model of a `.keras` file, to begin a run with."""

from collections.abc import Sequence

import keras

from keras_vit.model_files import load_keras
from keras_vit.models import VisionTransformer
from keras_vit.models.tuning import copy_model, train_layer
from keras_vit.weights.families.family import HEAD_LAYERS
from keras_vit.weights.read import LoadReport
from trainers.models.bit_checkpoints import is_bit_resnet, rebuild_bit_resnet
from trainers.models.initial_notes import read_initial_classes
from trainers.paths import as_path


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
    official fine-tuning.

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
    model = model.with_classifier_activation(None)  # The losses take logits.
    is_new = head == "reset" or model.config.num_classes != num_classes
    if head == "reset":
        model = copy_with_new(
            model,
            HEAD_LAYERS,
            num_classes=num_classes,
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
    if not isinstance(model, VisionTransformer):
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
    """Return a copy with new layers, trained even if all else is not.

    Args:
        model: A VisionTransformer.
        names: Names of the layers.
        **changes: Fields of the configuration.
    """
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
    """Return which weights a model has from a `.keras` file.

    Args:
        path: The file.
        before: The model of the file.
        after: Its copy, of another size or with new layers.
        new_layers: Names of layers whose weights were initialised anew.
    """
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
