"""Data sets of tensorflow-datasets (TFDS), and the table DATASETS."""

import dataclasses
import functools
import logging
import operator
from collections.abc import Callable

import tensorflow as tf
import tensorflow_datasets as tfds

from trainers.data.readers.digits import Digits, Digits0To4, Digits5To9


def _is_news(record):
    """Return False for the deprecation warning that TFDS itself causes."""
    return "FeatureConnector.dtype` is deprecated" not in record.getMessage()


# TFDS itself reads the deprecated name, so every program would get the warning.
logging.getLogger("absl").addFilter(_is_news)


@dataclasses.dataclass(frozen=True)
class DatasetRow:
    """Options to open a TFDS data set that differ from the defaults.

    Args:
        builder: Takes data_dir and returns the TFDS builder; None for the
            builder that TFDS registers under the name.
        label: The feature with the label: a class or a list of classes.
        train_split: Split to train on; None for `train`, if it exists.
        eval_split: Split to evaluate on; None for the default one.
    """

    builder: Callable[..., tfds.core.DatasetBuilder] | None = None
    label: str = "label"
    train_split: str | None = None
    eval_split: str | None = None


@dataclasses.dataclass(frozen=True)
class TfdsReader:
    """Reads the examples that a TFDS builder has prepared.

    The examples are read as they are stored, as JPEG or PNG files, because a
    shuffle buffer of decoded images would not fit into memory.

    Args:
        builder: The TFDS builder.
        label: Name of the feature with the label.
        train_split: See `ExampleReader`.
        eval_split: See `ExampleReader`.
    """

    builder: tfds.core.DatasetBuilder
    label: str = "label"
    train_split: str | None = None
    eval_split: str | None = None
    shuffle_buffer = 50_000
    has_exif = False

    @property
    def class_names(self):
        feature = self.builder.info.features[self.label]
        return getattr(feature, "feature", feature).names

    @property
    def image_shape(self):
        return self.builder.info.features["image"].shape

    @property
    def splits(self):
        return self.builder.info.splits

    def read(self, ranges):
        instructions = [
            tfds.core.ReadInstruction(name, from_=first, to=last, unit="abs")
            for name, first, last in ranges
        ]
        logger = tf.get_logger()
        level = logger.level
        logger.setLevel("ERROR")  # TFDS calls a deprecated TensorFlow API.
        try:
            examples = self.builder.as_dataset(
                split=functools.reduce(operator.add, instructions),
                shuffle_files=False,
                decoders=tfds.decode.PartialDecoding(
                    {"image": True, self.label: True},
                    {"image": tfds.decode.SkipDecoding()},
                ),
                read_config=tfds.ReadConfig(
                    try_autocache=False,
                    interleave_cycle_length=1,
                    add_tfds_id=True,
                ),
            )
        finally:
            logger.setLevel(level)
        return examples.map(
            lambda row: (row["image"], row[self.label], row["tfds_id"])
        )

    def fetch(self, stored):
        return stored

    def decode(self, encoded):
        image = self.builder.info.features["image"].decode_example(encoded)
        return tf.ensure_shape(image, self.image_shape)


def open_tfds(name: str, data_dir: str | None) -> TfdsReader:
    """Return the TFDS data set `name`, prepared for reading.

    Args:
        name: A key of DATASETS or any name of TFDS.
        data_dir: Folder of the TFDS data sets; None or "" for the default of
            TFDS. (TFDS itself treats "" as the current folder.)

    Raises:
        tfds.core.DatasetNotFoundError: If TFDS has no data set of this name.
        ValueError: If the data set cannot be prepared, or does not consist of
            labelled images.
    """
    row = DATASETS.get(name, DatasetRow())
    make = row.builder or functools.partial(tfds.builder, name)
    try:
        builder = make(data_dir=data_dir or None)
        builder.download_and_prepare()
    except (AssertionError, ImportError) as error:
        # TFDS raises these errors if files must be downloaded manually, or if
        # a version or a package is missing.
        raise ValueError(
            f"`dataset` could not be prepared: {error} "
            f"Received: dataset={name!r}"
        ) from None
    features = builder.info.features
    image, label = (
        features[key] if key in features else None
        for key in ("image", row.label)
    )
    label = getattr(label, "feature", label)
    if not isinstance(image, tfds.features.Image) or not isinstance(
        label, tfds.features.ClassLabel
    ):
        raise ValueError(
            f"`dataset` must have the features `image` and `{row.label}`. "
            f"Received: dataset={name!r} with {sorted(features)}"
        )
    return TfdsReader(builder, row.label, row.train_split, row.eval_split)


DATASETS: dict[str, DatasetRow] = {
    "digits": DatasetRow(Digits),
    "digits_0to4": DatasetRow(Digits0To4),
    "digits_5to9": DatasetRow(Digits5To9),
    "cifar10": DatasetRow(),
    "cifar100": DatasetRow(),
    "oxford_flowers102": DatasetRow(),
    "oxford_iiit_pet": DatasetRow(),
    # Its test split has no labels.
    "imagenet2012": DatasetRow(eval_split="validation"),
    "imagenet2012_real": DatasetRow(label="real_label"),
    "imagenet_v2": DatasetRow(
        functools.partial(tfds.builder, "imagenet_v2/matched-frequency")
    ),
}
