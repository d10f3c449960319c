"""From decoded images to model inputs: augmentation, size, normalisation."""

from collections.abc import Callable

import tensorflow as tf

from keras_vit.preprocessing import preprocess_input
from keras_vit.preprocessing.description import Normalization
from trainers.augment.augmentation import Augmentation, parse_augmentation
from trainers.data.datasets import ImageDataset


def make_prepare(
    dataset: ImageDataset,
    image_size: tuple[int, int],
    augmentation: Augmentation,
    seed: int,
    decode: Callable | None = None,
) -> Callable:
    """Return a function that turns an example into an input of the model.

    Shapes:
        The function takes the position in the run and an example. The example
        is the image (H, W, C), the label, and whether the image is readable;
        with `decode`, it is the arguments of that function. The function
        returns the image at `image_size`, the label (classes,) and the weight.

    Args:
        dataset: The data set of the examples.
        image_size: (height, width) of the result, in pixels.
        augmentation: The augmentation of the images.
        seed: Seed of the augmentation, combined with the position.
        decode: See `make_decode`; None if the examples are already decoded.
    """
    num_classes = len(dataset.class_names)
    # If all images have one size, they are small, and are decoded whole.
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
            return to_model_input(
                augmented, image_size, augmentation.normalization
            )

        if dataset.has_several_labels:
            is_known = tf.logical_not(tf.math.is_nan(label))
            weight = is_good * tf.cast(tf.reduce_any(is_known), tf.float32)
            label = tf.ensure_shape(label, (num_classes,))
        else:  # A label may be several classes, or none.
            label = tf.one_hot(tf.reshape(label, (-1,)), num_classes)
            label = tf.minimum(tf.reduce_sum(label, 0), 1.0)
            weight = is_good * tf.reduce_max(label)
        shape = (*image_size, dataset.channels)
        image = tf.cond(is_good > 0, augment, lambda: tf.zeros(shape))
        return image, tf.where(is_good > 0, label, 0.0), weight

    return prepare


def make_prepare_one(
    preprocess: str, image_size: tuple[int, int]
) -> tuple[Callable, Normalization]:
    """Return a function that turns one image into an input of the model.

    Shapes:
        The function takes (H', W', C), from 0 to 255, and returns (H, W, C),
        floats.

    Args:
        preprocess: See `parse_augmentation`.
        image_size: (H, W).

    Returns:
        The function, and mean and deviation of its images.
    """
    augmentation = parse_augmentation(preprocess, image_size, "preprocess")

    def prepare(pixels):
        image = tf.cast(pixels, tf.float32)
        image = augmentation.image(image, tf.zeros(2, tf.int64))
        return to_model_input(image, image_size, augmentation.normalization)

    return prepare, augmentation.normalization


def to_model_input(image, image_size, mode="vit"):
    """Resize an image, ignoring its aspect ratio, and normalise its pixels.

    By default, this is the preprocessing of the official ViT code for
    evaluation.
    """
    image = tf.convert_to_tensor(image)
    if tuple(image.shape[-3:-1]) != tuple(image_size):
        image = tf.image.resize(image, image_size)
    return preprocess_input(image, "channels_last", mode)
