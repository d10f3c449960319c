"""From decoded images to model inputs: augmentation, size, pixel range."""

from collections.abc import Callable

import tensorflow as tf

from trainers.augment.augmentation import Augmentation, parse_augmentation
from trainers.data.datasets import ImageDataset


def make_prepare(
    dataset: ImageDataset,
    image_size: tuple[int, int],
    augmentation: Augmentation,
    seed: int,
    decode: Callable | None = None,
) -> Callable:
    """Return the function that turns an example into what the model reads.

    Shapes:
        The function takes the position in the run and an example: the image
        (H, W, C), the label and whether the image is good; or, with `decode`,
        what that takes. It returns the image at `image_size`, the label
        (classes,) and the weight.

    Args:
        dataset: Where the examples come from.
        image_size: (height, width) of the result, in pixels.
        augmentation: What is done to the images.
        seed: Of the augmentation, besides the position.
        decode: See `make_decode`; None for examples that are decoded.
    """
    num_classes = len(dataset.class_names)
    # Images that are all of one size are small.
    is_window = None in dataset.reader.image_shape
    is_window &= decode is not None and augmentation.pick_window is not None

    def prepare(position, *example):
        draw = tf.stack([tf.constant(seed, tf.int64), position])
        name = "" if decode is None else example[2]
        if is_window:
            example = decode(
                *example, lambda shape: augmentation.pick_window(shape, draw)
            )
        elif decode is not None:
            example = decode(*example)
        image, label, is_good = example

        def augment():
            augmented = augmentation.image(
                tf.cast(image, tf.float32), draw, is_window, name
            )
            return to_model_range(
                augmented, image_size, augmentation.value_range
            )

        black = tf.zeros((*image_size, dataset.channels))
        # A label may be several classes, or none.
        label = tf.one_hot(tf.reshape(label, (-1,)), num_classes)
        label = tf.minimum(tf.reduce_sum(label, 0), 1.0)
        weight = is_good * tf.reduce_max(label)
        image = tf.cond(is_good > 0, augment, lambda: black)
        return image, label * is_good, weight

    return prepare


def make_prepare_one(
    preprocess: str, image_size: tuple[int, int]
) -> tuple[Callable, tuple[float, float]]:
    """Return the function that turns one image into what the model reads.

    Shapes:
        The function takes (H', W', C), from 0 to 255, and returns (H, W, C),
        floats.

    Args:
        preprocess: See `parse_augmentation`.
        image_size: (H, W).

    Returns:
        The function, and the numbers that it makes of pixels of 0 and 255.
    """
    augmentation = parse_augmentation(preprocess, image_size, "preprocess")

    def prepare(pixels):
        image = tf.cast(pixels, tf.float32)
        image = augmentation.image(image, tf.zeros(2, tf.int64))
        return to_model_range(image, image_size, augmentation.value_range)

    return prepare, augmentation.value_range


def to_model_range(image, image_size, value_range=(-1.0, 1.0)):
    """Resize an image, aspect ratio ignored, and scale 0..255 to a range.

    This is the evaluation of the official ViT code.
    """
    low, high = value_range
    image = tf.convert_to_tensor(image)
    if tuple(image.shape[-3:-1]) != tuple(image_size):
        image = tf.image.resize(image, image_size)
    return image / (255.0 / (high - low)) + low
