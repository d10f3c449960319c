"""Predictions of a model: for image files and for a data set."""

from collections.abc import Callable, Iterator

import keras
import numpy as np
import tensorflow as tf

from keras_vit.known import KnownScore, with_features
from keras_vit.models.features import name_activation
from keras_vit.progress import ProgressBar
from trainers.data.batches import make_prepare_one, read_batches
from trainers.data.datasets import ImageDataset
from trainers.data.decoding import BadExamples, decode_file, describe_error
from trainers.data.pixels import PixelOptions
from trainers.data.readers.image_paths import printable

BATCH_SIZE = 64  # Of images that are only read.


def make_load_image(
    input_shape: tuple,
    preprocess: str = "",
    pixel_range: tuple[float, float] | None = None,
) -> Callable[[str], np.ndarray]:
    """Return the function from an image file to the input of a model.

    Several threads may call it. It raises a ValueError if the file is not an
    image, and an OSError if it cannot be read.

    Shapes:
        The function returns (H, W, C), floats in the range of the model.

    Args:
        input_shape: (H, W, C) of the model.
        preprocess: Operations on the images, see `eval_batches`. The files are
            decoded as in training; of several frames, the first one is used.
        pixel_range: See `PixelOptions`.
    """
    prepare, _ = make_prepare_one(preprocess, input_shape[:2])
    options = PixelOptions(input_shape[-1], pixel_range)

    def load(path):
        with open(path, "rb") as file:
            pixels = decode_file(file.read(), options, path)
        try:
            return prepare(pixels).numpy()
        except tf.errors.InvalidArgumentError as error:
            # Such as an image that is smaller than what is to be cut out.
            reason = describe_error(error)
            raise ValueError(f"{printable(path)}: {reason}") from None

    return load


def make_predict(
    model: keras.Model, activation: str, known: KnownScore | None = None
) -> Callable:
    """Return a function from images to probabilities of classes and scores.

    Shapes:
        The function takes B arrays (H, W, C), and returns (B, classes),
        float32, and B scores.

    Args:
        model: A classifier. Its outputs are logits, or probabilities if its
            last layer is a softmax or sigmoid.
        activation: The function that turns logits into probabilities.
        known: Tells known images; without it, the scores are None.
    """
    has_logits = name_activation(model) is None
    reader = model if known is None else with_features(model)

    def predict(images):
        scores = [None] * len(images)
        # `predict` would make a data set of them, a tenth of the time.
        outputs = reader.predict_on_batch(np.stack(images))
        if known is not None:
            outputs, scores = split_scores(outputs, model, known)
        if has_logits:
            outputs = to_probabilities(outputs, activation)
        return np.asarray(outputs, "float32"), scores

    return predict


def split_scores(
    outputs: np.ndarray, model: keras.Model, known: KnownScore
) -> tuple[np.ndarray, np.ndarray]:
    """Return the logits and the scores of images.

    Shapes:
        outputs: (B, D + C), see `with_features`. returns: (B, C) and (B,).
    """
    features, logits = np.split(outputs, [-model.output_shape[-1]], axis=1)
    return logits, keras.ops.convert_to_numpy(known(features, logits))


def to_probabilities(logits: np.ndarray, activation: str) -> np.ndarray:
    """Return the probabilities of logits, float32.

    Shapes:
        logits: (B, C). returns: (B, C).

    Args:
        logits: Logits of any floating type.
        activation: Of a `RunFolder` or `NamedModel`: softmax or sigmoid.
    """
    activate = keras.activations.get(activation)
    return np.asarray(activate(keras.ops.cast(logits, "float32")))


def predict_dataset(
    model: keras.Model,
    dataset: ImageDataset,
    *,
    batch_size: int = 128,
    preprocess: str = "",
    bad_examples: BadExamples | None = None,
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, list[str]]]:
    """Yield the images of a data set, the outputs of a model, and the labels.

    The images are in the order of the evaluation split; those of weight 0 are
    left out. The model runs in inference mode. Shows a progress bar.

    Shapes:
        yields images (b, H, W, C), outputs (b, D), labels (b, classes), or
        with maps outputs (b, H, W, D) and labels (b, H, W); the positions of
        the images in the split (b,), with b at most batch_size; and the names
        of the images, b strings.

    Args:
        model: Maps images of a fixed size to one vector per image, or with
            maps per pixel.
        dataset: The data set; its evaluation split is read.
        batch_size: Number of images per batch.
        preprocess: See `eval_batches`.
        bad_examples: See `read_batches`.

    Raises:
        ValueError: If the images do not fit the model, an output is not
            finite, no image has a label or the data set cannot be read.
    """
    check_images_fit(model, dataset)
    num_images = dataset.num_examples(dataset.eval_split)
    num_outputs = 0
    batches = read_batches(
        dataset, model.input_shape[1:3], batch_size, preprocess, bad_examples
    )
    with ProgressBar("Predicting", "images", num_images) as bar:
        for index, (images, labels, counts, names) in enumerate(batches):
            outputs = model.predict_on_batch(images)[counts].astype("float32")
            if not np.isfinite(outputs).all():
                raise ValueError(
                    "`model` must give finite outputs. Received: NaN or "
                    f"infinity in batch {index + 1} of {dataset.name!r}"
                )
            first = index * batch_size
            bar.update(min(first + batch_size, num_images))
            num_outputs += len(outputs)
            if len(outputs):
                positions = first + np.flatnonzero(counts)
                yield (
                    images[counts],
                    outputs,
                    labels[counts],
                    positions,
                    [printable(name) for name in names[counts]],
                )
    if not num_outputs:
        raise ValueError(
            "`dataset` must have images with a label. Received: "
            f"{dataset.name!r}, split {dataset.eval_split!r}"
        )


def take_images(
    dataset: ImageDataset,
    preprocess: str,
    model: keras.Model,
    count: int,
    bad_examples: BadExamples | None = None,
) -> np.ndarray:
    """Return the first images of the evaluation split, preprocessed.

    Shapes:
        returns: (B, H, W, C), float32, with B at most `count`.

    Args:
        dataset: The data set; its evaluation split is read.
        preprocess: See `eval_batches`.
        model: The model to preprocess the images for.
        count: Largest number of images to return.
        bad_examples: See `read_batches`.

    Raises:
        ValueError: If the images do not fit the model, or the data set cannot
            be read.
    """
    check_images_fit(model, dataset)
    found, num_found = [], 0
    size, batch_size = model.input_shape[1:3], min(count, BATCH_SIZE)
    for images, _, counts, _ in read_batches(
        dataset, size, batch_size, preprocess, bad_examples
    ):
        found.append(images[counts])
        num_found += counts.sum()
        if num_found >= count:
            break
    return np.concatenate(found)[:count]


def check_images_fit(model: keras.Model, dataset: ImageDataset):
    """Raise a ValueError unless `model` returns a vector for each image.

    Args:
        model: The model.
        dataset: The data set of the images.
    """
    _, height, width, channels = model.input_shape
    rank, each = (
        (4, "a vector for each pixel")
        if dataset.maps
        else (2, "a vector for each")
    )
    if None in (height, width) or len(model.output_shape) != rank:
        raise ValueError(
            f"`model` must take images of a fixed size and give {each}. "
            f"Received: input_shape={model.input_shape}, "
            f"output_shape={model.output_shape}"
        )
    if channels != dataset.channels:
        raise ValueError(
            f"`model` takes images of {channels} channels; those of "
            f"{dataset.name!r} have {dataset.channels}."
        )
