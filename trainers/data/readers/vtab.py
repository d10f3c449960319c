"""VTAB_TASKS: the 19 tasks of the Visual Task Adaptation Benchmark.

Reference: Zhai et al. 2019, arXiv:1910.04867. The splits are those of
    task_adaptation, the code of its authors.
"""

import dataclasses
import functools

import tensorflow as tf
import tensorflow_datasets as tfds

from trainers.data.readers.dataset_row import DatasetRow, LabelRule
from trainers.data.splits import Range

FEWEST_OBJECTS = 3  # Of an image of CLEVR; the most are 10.
# The label of a distance is the index of the last of these below it.
CLEVR_DISTANCES = (0.0, 8.0, 8.5, 9.0, 9.5, 10.0, 100.0)
KITTI_DISTANCES = (-100.0, 8.0, 20.0, 999.0)
NUM_VEHICLE_TYPES = 3  # Car, Van and Truck come first.
NO_VEHICLE = 1000.0


def count_objects(example):
    """Return the class of an image of CLEVR by its number of objects."""
    number = tf.shape(example["objects"]["size"], tf.int64)[0]
    return number - FEWEST_OBJECTS


def place_nearest_object(example):
    """Return the class of an image of CLEVR by its nearest object.

    The third pixel coordinate of an object is its distance from the camera.
    """
    distances = example["objects"]["pixel_coords"][:, 2]
    return find_last_below(tf.reduce_min(distances), CLEVR_DISTANCES)


def place_nearest_vehicle(example):
    """Return the class of an image of KITTI by its nearest vehicle.

    The third coordinate of a location is the distance from the camera.
    """
    objects = example["objects"]
    is_vehicle = objects["type"] < NUM_VEHICLE_TYPES
    distances = tf.where(is_vehicle, objects["location"][:, 2], NO_VEHICLE)
    nearest = tf.reduce_min(tf.concat([distances, [NO_VEHICLE]], 0))
    return find_last_below(nearest, KITTI_DISTANCES)


def find_last_below(value, thresholds):
    """Return the index of the last of `thresholds` that is below `value`."""
    return tf.reduce_sum(tf.cast(tf.constant(thresholds) < value, tf.int64)) - 1


def merge_classes(feature: str, number: int, merged: int) -> LabelRule:
    """Return the rule that merges neighbouring classes of a feature.

    Class c of `number` belongs to class floor(c / (number / merged)).
    """
    groups = [[] for _ in range(merged)]
    for index in range(number):
        groups[index * merged // number].append(index)
    return LabelRule(
        [f"{group[0]} to {group[-1]}" for group in groups],
        {feature: True},
        lambda example: example[feature] * merged // number,
    )


CLEVR_COUNT = LabelRule(
    [f"{FEWEST_OBJECTS + index} objects" for index in range(8)],
    {"objects": {"size": True}},
    count_objects,
)
CLEVR_DISTANCE = LabelRule(
    [
        f"{low:g} to {high:g}"
        for low, high in zip(CLEVR_DISTANCES, CLEVR_DISTANCES[1:])
    ],
    {"objects": {"pixel_coords": True}},
    place_nearest_object,
)
KITTI_DISTANCE = LabelRule(
    ["up to 8 m", "up to 20 m", "farther", "no vehicle"],
    {"objects": {"type": True, "location": True}},
    place_nearest_vehicle,
)
DSPRITES_LOCATION = merge_classes("label_x_position", 32, 16)
DSPRITES_ORIENTATION = merge_classes("label_orientation", 40, 16)


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
    """Return splits whose validation images are the last for training."""
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
