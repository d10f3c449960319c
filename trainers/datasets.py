"""Labelled images through tensorflow-datasets, and the tf.data pipelines.

`digits` is a TFDS builder over the images that scikit-learn ships; any other
name is one of TFDS, and `folder:PATH` is a folder of JPEG or PNG images.
"""

import dataclasses
import functools
import os
from collections.abc import Callable

import tensorflow as tf
import tensorflow_datasets as tfds

from trainers.augment import parse_augmentation

FOLDER_PREFIX = "folder:"
SHUFFLE_BUFFER = 50_000


@dataclasses.dataclass(frozen=True)
class ImageDataset:
    """A labelled image data set with a split to train on and one to judge by.

    Args:
        name: What it was asked for as.
        builder: The TFDS builder.
        train_split: Name or slice of the split to train on.
        eval_split: Name or slice of the split to evaluate on.
    """

    name: str
    builder: tfds.core.DatasetBuilder
    train_split: str
    eval_split: str

    @property
    def class_names(self) -> list[str]:
        """Names of the classes, in the order of their labels."""
        return list(self.builder.info.features["label"].names)

    @property
    def channels(self) -> int:
        """Channels of the images."""
        return self.builder.info.features["image"].shape[-1]

    def num_examples(self, split: str) -> int:
        """Return how many examples `split` has."""
        return self.builder.info.splits[split].num_examples

    def examples(self, split: str) -> tf.data.Dataset:
        """Return the (image, label) pairs of `split`, in a fixed order."""
        return self.encoded_examples(split).map(
            lambda image, label: (self.decode(image), label),
            num_parallel_calls=tf.data.AUTOTUNE,
        )

    def encoded_examples(self, split: str) -> tf.data.Dataset:
        """Return the pairs with the image as it is stored, a JPEG or PNG.

        Decoded, the images of a shuffle buffer would not fit into memory.
        """
        dataset = self.builder.as_dataset(
            split=split,
            shuffle_files=False,
            decoders={"image": tfds.decode.SkipDecoding()},
            read_config=tfds.ReadConfig(
                try_autocache=False, interleave_cycle_length=1
            ),
        )
        return dataset.map(lambda example: (example["image"], example["label"]))

    def decode(self, image):
        """Return the pixels (H, W, C) of an image as it is stored."""
        return self.builder.info.features["image"].decode_example(image)


def open_dataset(name: str, data_dir: str | None = None) -> ImageDataset:
    """Return the data set called `name`, prepared for reading.

    Args:
        name: A key of DATASETS, any name of TFDS, or `folder:PATH`.
        data_dir: Where TFDS keeps its data sets; None for its own default.

    Raises:
        ValueError: If there is no such data set, or it is not one of labelled
            images with a split to train on and one to evaluate on.
    """
    if name.startswith(FOLDER_PREFIX):
        builder = open_folder(name.removeprefix(FOLDER_PREFIX))
        row = {}
    else:
        row = DATASETS.get(name, {})
        make = row.get("builder", functools.partial(open_tfds, name))
        try:
            builder = make(data_dir=data_dir)
            builder.download_and_prepare()
        except (AssertionError, ImportError) as error:
            # How TFDS says that files must be fetched by hand, or that a
            # version or a package is missing.
            raise ValueError(
                f"`dataset` could not be prepared: {error} "
                f"Received: dataset={name!r}"
            ) from None
    check_features(name, builder)
    splits = list(builder.info.splits)
    return ImageDataset(
        name,
        builder,
        row.get("train_split") or find_split(name, splits, ["train"]),
        row.get("eval_split")
        or find_split(name, splits, ["test", "validation", "val"]),
    )


def open_tfds(name: str, data_dir: str | None = None):
    """Return the builder that TFDS has under `name`."""
    try:
        return tfds.builder(name, data_dir=data_dir)
    except tfds.core.DatasetNotFoundError as error:
        hint = str(error).strip().splitlines()[0]
        known = ", ".join(DATASETS)
        raise ValueError(
            f"`dataset` must be one of {known}, any name of "
            f"tensorflow-datasets, or {FOLDER_PREFIX}PATH. "
            f"Received: dataset={name!r} ({hint})"
        ) from None


def open_folder(path: str):
    """Return a builder for PATH/<split>/<class>/<image>.{jpg,jpeg,png}."""
    path = os.path.expanduser(path)
    builder = tfds.ImageFolder(path) if os.path.isdir(path) else None
    if builder is None or "train" not in builder.info.splits:
        raise ValueError(
            f"`dataset={FOLDER_PREFIX}PATH` must name a folder of the form "
            "PATH/train/CLASS/IMAGE.jpg and PATH/test/CLASS/IMAGE.jpg. "
            f"Received: PATH={path!r}"
        )
    for split, info in builder.info.splits.items():
        if not info.num_examples:
            raise ValueError(
                f"`dataset={FOLDER_PREFIX}PATH` has no JPEG or PNG image in "
                f"its split {split!r}. Received: PATH={path!r}"
            )
    return builder


def check_features(name, builder):
    """Raise a ValueError unless `builder` has labelled images."""
    features = builder.info.features
    if (
        "image" not in features
        or "label" not in features
        or not isinstance(features["label"], tfds.features.ClassLabel)
    ):
        raise ValueError(
            "`dataset` must have the features `image` and `label`. "
            f"Received: dataset={name!r} with {sorted(features)}"
        )


def find_split(name, splits, candidates):
    """Return the first of `candidates` that is in `splits`."""
    for split in candidates:
        if split in splits:
            return split
    raise ValueError(
        f"`dataset` must have a split called {' or '.join(candidates)}. "
        f"Received: dataset={name!r} with {', '.join(splits)}"
    )


def train_batches(
    dataset: ImageDataset,
    *,
    image_size: tuple[int, int],
    batch_size: int,
    augment: str = "",
    seed: int = 0,
    first_step: int = 0,
) -> tf.data.Dataset:
    """Return the endless batches to train on.

    The order and the augmentation depend on `seed` and the step alone: a
    run that goes on at `first_step` sees what it would have seen.

    Shapes:
        yields images (B, H, W, C), floats in [-1, 1], and labels (B, classes),
        one-hot floats.

    Args:
        dataset: Where the images come from.
        image_size: (height, width) of the batches, in pixels.
        batch_size: Number B of images over all devices.
        augment: See `parse_augmentation`.
        seed: Of the order and the augmentation.
        first_step: Number of batches to leave out at the start.
    """
    augmentation = parse_augmentation(augment, image_size)
    num_classes = len(dataset.class_names)
    examples = dataset.encoded_examples(dataset.train_split)
    num_examples = dataset.num_examples(dataset.train_split)
    examples = examples.cache() if num_examples <= SHUFFLE_BUFFER else examples
    buffer = min(num_examples, SHUFFLE_BUFFER)

    def prepare(index, example):
        image, label = example
        image = tf.cast(dataset.decode(image), tf.float32)
        image = augmentation.image(image, tf.stack([seed, index]))
        image = to_model_range(image, image_size, augmentation.value_range)
        return image, tf.one_hot(label, num_classes)

    def mix(step, batch):
        weights = tf.ones((batch_size,))
        return augmentation.batch(*batch, weights, tf.stack([seed, step]))

    return (
        examples.shuffle(buffer, seed=seed, reshuffle_each_iteration=True)
        .repeat()
        .enumerate()
        .skip(first_step * batch_size)
        .map(prepare, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)
        .batch(batch_size, drop_remainder=True)
        .enumerate(first_step)
        .map(mix)
        .prefetch(tf.data.AUTOTUNE)
    )


def eval_batches(
    dataset: ImageDataset, *, image_size: tuple[int, int], batch_size: int
) -> tf.data.Dataset:
    """Return the batches to evaluate on, once through.

    The last batch is filled up with images of weight 0, so that all batches
    have one shape and every example counts once, on any number of devices.

    Shapes:
        yields images (B, H, W, C), labels (B, classes), weights (B,).

    Args:
        dataset: Where the images come from.
        image_size: (height, width) of the batches, in pixels.
        batch_size: Number B of images over all devices.
    """
    num_classes = len(dataset.class_names)
    missing = -dataset.num_examples(dataset.eval_split) % batch_size

    def prepare(image, label):
        image = to_model_range(tf.cast(image, tf.float32), image_size)
        return image, tf.one_hot(label, num_classes), tf.ones(())

    examples = dataset.examples(dataset.eval_split).map(
        prepare, num_parallel_calls=tf.data.AUTOTUNE
    )
    filler = tf.data.Dataset.from_tensors(
        (
            tf.zeros((*image_size, dataset.channels)),
            tf.zeros((num_classes,)),
            tf.zeros(()),
        )
    ).repeat(missing)
    return (
        examples.concatenate(filler)
        .batch(batch_size, drop_remainder=True)
        .prefetch(tf.data.AUTOTUNE)
    )


def to_model_range(image, image_size, value_range=(-1.0, 1.0)):
    """Resize an image, aspect ratio ignored, and scale 0..255 to a range.

    The evaluation of the official ViT code.
    """
    image = tf.image.resize(image, image_size)
    low, high = value_range
    return image / (255 / (high - low)) + low


class Digits(tfds.core.GeneratorBasedBuilder):
    """The 1,797 handwritten digits that scikit-learn ships.

    8x8 pixels, 17 shades of grey. Every fifth image of each class is in the
    test split: no draw is involved, and the classes are balanced.
    """

    VERSION = tfds.core.Version("1.0.0")

    def _info(self):
        return tfds.core.DatasetInfo(
            builder=self,
            description="Handwritten digits, shipped with scikit-learn.",
            features=tfds.features.FeaturesDict(
                {
                    "image": tfds.features.Image(shape=(8, 8, 1)),
                    "label": tfds.features.ClassLabel(
                        names=[str(digit) for digit in range(10)]
                    ),
                }
            ),
            supervised_keys=("image", "label"),
            homepage="https://archive.ics.uci.edu/dataset/80",
        )

    def _split_generators(self, dl_manager):
        return {
            "train": self._generate_examples(is_test=False),
            "test": self._generate_examples(is_test=True),
        }

    def _generate_examples(self, is_test):
        from sklearn.datasets import load_digits

        digits = load_digits()
        seen = [0] * 10
        for index, (image, label) in enumerate(
            zip(digits.images, digits.target)
        ):
            seen[label] += 1
            if (seen[label] % 5 == 0) == is_test:
                pixels = (image * (255 / 16)).round().astype("uint8")
                yield index, {"image": pixels[..., None], "label": int(label)}


DATASETS: dict[str, dict[str, str | Callable]] = {
    "digits": {"builder": Digits},
    "cifar10": {},
    "imagenet2012": {"eval_split": "validation"},  # Its test has no labels.
}
