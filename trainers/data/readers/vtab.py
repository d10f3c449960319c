"""VTAB_TASKS: the 19 tasks of the Visual Task Adaptation Benchmark.

Reference: Zhai et al. 2019, arXiv:1910.04867. The splits are those of
    task_adaptation, the code of its authors.
"""

import dataclasses
import functools

import tensorflow as tf
import tensorflow_datasets as tfds

from trainers.data.readers.dataset_row import DatasetRow, LabelRule
from trainers.data.readers.derived_labels import (
    CLEVR_COUNT,
    CLEVR_DISTANCE,
    DSPRITES_LOCATION,
    DSPRITES_ORIENTATION,
    KITTI_DISTANCE,
)
from trainers.data.splits import Range

NUM_TRAIN, NUM_VAL = 800, 200
VTAB_GROUPS = ("natural", "specialized", "structured")


@dataclasses.dataclass(frozen=True)
class VtabTask:
    """A task of VTAB: a TFDS data set, its label and its splits.

    Args:
        group: One of VTAB_GROUPS.
        builder: Name of the data set in TFDS.
        num_classes: Number of classes.
        train, val, test: The ranges of TFDS splits that the task calls so.
        label: See `DatasetRow`.
        scale: The factor of the pixels of a grey image, which is copied to
            three channels; None for a colour image.
    """

    group: str
    builder: str
    num_classes: int
    train: Range
    val: Range
    test: Range
    label: str | LabelRule = "label"
    scale: int | None = None

    @property
    def row(self) -> DatasetRow:
        """How the data set of the task is read."""
        return DatasetRow(
            functools.partial(tfds.builder, self.builder),
            label=self.label,
            pixels=self.scale
            and functools.partial(to_colour, scale=self.scale),
            train_split="train800val200",
            eval_split="test",
            splits=self.splits,
        )

    @property
    def splits(self) -> dict[str, list[Range]]:
        """The splits of the task, those of VTAB-1k last."""
        first_train = (*self.train[:2], self.train[1] + NUM_TRAIN)
        first_val = (*self.val[:2], self.val[1] + NUM_VAL)
        return {
            "train": [self.train],
            "val": [self.val],
            "trainval": [self.train, self.val],
            "test": [self.test],
            "train800": [first_train],
            "val200": [first_val],
            "train800val200": [first_train, first_val],
        }


def to_colour(image: tf.Tensor, scale: int) -> tf.Tensor:
    """Return a grey image (H, W, 1) as (H, W, 3), its pixels times `scale`."""
    return tf.repeat(image * tf.constant(scale, image.dtype), 3, -1)


def three_splits(train: int, val: int, test: int) -> tuple[Range, Range, Range]:
    """Return the splits of a task that are those of TFDS, by their sizes."""
    return ("train", 0, train), ("validation", 0, val), ("test", 0, test)


def two_splits(train: int, val: int, test: int, name: str = "test"):
    """Return splits whose validation images are the last for training.

    Args:
        train: Number of training images.
        val: Number of validation images.
        test: Number of test images.
        name: What TFDS calls the test split.
    """
    size = train + val
    return ("train", 0, train), ("train", train, size), (name, 0, test)


def one_split(train: int, val: int, test: int) -> tuple[Range, Range, Range]:
    """Return splits that are consecutive parts of the only one of TFDS."""
    size = train + val
    first = ("train", 0, train), ("train", train, size)
    return *first, ("train", size, size + test)


_CLEVR = two_splits(63_000, 7000, 15_000, "validation")
_DSPRITES = one_split(589_824, 73_728, 73_728)
# Its validation images are from its test split.
_SMALLNORB = ("train", 0, 24_300), ("test", 0, 12_150), ("test", 12_150, 24_300)

_TASKS = {
    "caltech101": VtabTask(
        "natural", "caltech101", 102, *two_splits(2754, 306, 6084)
    ),
    "cifar100": VtabTask(
        "natural", "cifar100", 100, *two_splits(45_000, 5000, 10_000)
    ),
    "dtd": VtabTask("natural", "dtd", 47, *three_splits(1880, 1880, 1880)),
    "flowers102": VtabTask(
        "natural", "oxford_flowers102", 102, *three_splits(1020, 1020, 6149)
    ),
    "pets": VtabTask(
        "natural", "oxford_iiit_pet", 37, *two_splits(2944, 736, 3669)
    ),
    "sun397": VtabTask(
        "natural", "sun397/tfds", 397, *three_splits(76_128, 10_875, 21_750)
    ),
    "svhn": VtabTask(
        "natural", "svhn_cropped", 10, *two_splits(65_931, 7326, 26_032)
    ),
    "camelyon": VtabTask(
        "specialized",
        "patch_camelyon",
        2,
        *three_splits(262_144, 32_768, 32_768),
    ),
    "eurosat": VtabTask(
        "specialized", "eurosat/rgb", 10, *one_split(16_200, 5400, 5400)
    ),
    "resisc45": VtabTask(
        "specialized", "resisc45", 45, *one_split(18_900, 6300, 6300)
    ),
    "retinopathy": VtabTask(
        "specialized",
        "diabetic_retinopathy_detection/btgraham-300",
        5,
        *three_splits(35_126, 10_906, 42_670),
    ),
    "clevr_count": VtabTask("structured", "clevr", 8, *_CLEVR, CLEVR_COUNT),
    "clevr_distance": VtabTask(
        "structured", "clevr", 6, *_CLEVR, CLEVR_DISTANCE
    ),
    "dmlab": VtabTask(
        "structured", "dmlab", 6, *three_splits(65_550, 22_628, 22_735)
    ),
    # The pixels of dSprites are 0 and 1.
    "dsprites_location": VtabTask(
        "structured",
        "dsprites",
        16,
        *_DSPRITES,
        DSPRITES_LOCATION,
        scale=255,
    ),
    "dsprites_orientation": VtabTask(
        "structured",
        "dsprites",
        16,
        *_DSPRITES,
        DSPRITES_ORIENTATION,
        scale=255,
    ),
    "kitti_distance": VtabTask(
        "structured",
        "kitti",
        4,
        *three_splits(6347, 423, 711),
        KITTI_DISTANCE,
    ),
    "smallnorb_azimuth": VtabTask(
        "structured",
        "smallnorb",
        18,
        *_SMALLNORB,
        "label_azimuth",
        scale=1,
    ),
    "smallnorb_elevation": VtabTask(
        "structured", "smallnorb", 9, *_SMALLNORB, "label_elevation", scale=1
    ),
}
VTAB_TASKS = {f"vtab:{name}": task for name, task in _TASKS.items()}
