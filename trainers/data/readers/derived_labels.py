"""Labels that VTAB computes from the features of a TFDS data set.

Reference: Zhai et al. 2019, arXiv:1910.04867; the rules are those of
    task_adaptation, the code of its authors.
"""

import tensorflow as tf

from trainers.data.readers.dataset_row import LabelRule

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

    Args:
        feature: Name of the feature.
        number: Number of its classes.
        merged: Number of classes of the label.
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
