"""The 19 tasks of VTAB: sizes, labels, splits and images.

The figures are those that the tests of task_adaptation assert.
"""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_datasets as tfds

from tests.trainers.data.reading import take
from tests.trainers.mocked import write_metadata
from trainers.data.batches import eval_batches
from trainers.data.datasets import is_same_dataset, open_dataset
from trainers.data.readers import vtab
from trainers.data.readers.tfds import DATASETS
from trainers.data.readers.vtab import VTAB_GROUPS, VTAB_TASKS
from trainers.recipes.vit import NO_CROP, NO_FLIP

TRAIN, VALIDATION, TEST = "train", "validation", "test"
GOLDEN = {
    # classes; sizes of train, val and test; where val and test begin
    "caltech101": (102, 2754, 306, 6084, (TRAIN, 2754), (TEST, 0)),
    "cifar100": (100, 45000, 5000, 10000, (TRAIN, 45000), (TEST, 0)),
    "dtd": (47, 1880, 1880, 1880, (VALIDATION, 0), (TEST, 0)),
    "flowers102": (102, 1020, 1020, 6149, (VALIDATION, 0), (TEST, 0)),
    "pets": (37, 2944, 736, 3669, (TRAIN, 2944), (TEST, 0)),
    "svhn": (10, 65931, 7326, 26032, (TRAIN, 65931), (TEST, 0)),
    "sun397": (397, 76128, 10875, 21750, (VALIDATION, 0), (TEST, 0)),
    "camelyon": (2, 262144, 32768, 32768, (VALIDATION, 0), (TEST, 0)),
    "eurosat": (10, 16200, 5400, 5400, (TRAIN, 16200), (TRAIN, 21600)),
    "resisc45": (45, 18900, 6300, 6300, (TRAIN, 18900), (TRAIN, 25200)),
    "retinopathy": (5, 35126, 10906, 42670, (VALIDATION, 0), (TEST, 0)),
    "clevr_count": (8, 63000, 7000, 15000, (TRAIN, 63000), (VALIDATION, 0)),
    "clevr_distance": (6, 63000, 7000, 15000, (TRAIN, 63000), (VALIDATION, 0)),
    "dmlab": (6, 65550, 22628, 22735, (VALIDATION, 0), (TEST, 0)),
    "dsprites_location": (
        *(16, 589824, 73728, 73728),
        *((TRAIN, 589824), (TRAIN, 663552)),
    ),
    "dsprites_orientation": (
        *(16, 589824, 73728, 73728),
        *((TRAIN, 589824), (TRAIN, 663552)),
    ),
    "kitti_distance": (4, 6347, 423, 711, (VALIDATION, 0), (TEST, 0)),
    "smallnorb_azimuth": (18, 24300, 12150, 12150, (TEST, 0), (TEST, 12150)),
    "smallnorb_elevation": (9, 24300, 12150, 12150, (TEST, 0), (TEST, 12150)),
}


def tfds_sizes(task):
    """Return the sizes of the splits of TFDS that a task reads."""
    ends = [part for ranges in task.splits.values() for part in ranges]
    return {
        name: max(last for split, _, last in ends if split == name)
        for name, _, _ in ends
    }


@pytest.fixture
def open_mocked(tmp_path):
    """Return a function that opens a task whose examples are made up."""
    with tfds.testing.mock_data(num_examples=8, data_dir=str(tmp_path)):

        def open_task(name, **sizes):
            task = VTAB_TASKS[name]
            sizes = tfds_sizes(task) | sizes
            write_metadata(task.builder, list(sizes), tmp_path, **sizes)
            return open_dataset(name)

        yield open_task


@pytest.mark.parametrize("name", GOLDEN)
def test_sizes_are_those_of_the_benchmark(name, open_mocked):
    classes, train, val, test, val_start, test_start = GOLDEN[name]
    dataset = open_mocked(f"vtab:{name}")
    assert len(dataset.class_names) == len(set(dataset.class_names)) == classes
    assert VTAB_TASKS[dataset.name].num_classes == classes
    assert dataset.channels == 3
    assert (dataset.train_split, dataset.eval_split) == (
        "train800val200",
        "test",
    )
    sizes = {
        "train": train,
        "val": val,
        "trainval": train + val,
        "test": test,
        "train800": 800,
        "val200": 200,
        "train800val200": 1000,
    }
    assert {
        split: dataset.num_examples(split) for split in dataset.reader.splits
    } == sizes
    places = VTAB_TASKS[dataset.name].splits
    starts = {"train": ("train", 0), "val": val_start, "test": test_start}
    for split, (source, first) in starts.items():
        assert places[split] == [(source, first, first + sizes[split])]
    assert places["train800val200"] == [
        ("train", 0, 800),
        (*val_start, val_start[1] + 200),
    ]


def test_the_groups_have_7_4_and_8_tasks():
    assert VTAB_TASKS.keys() == {f"vtab:{name}" for name in GOLDEN}
    groups = [task.group for task in VTAB_TASKS.values()]
    assert [groups.count(group) for group in VTAB_GROUPS] == [7, 4, 8]
    assert {*NO_CROP, *NO_FLIP} <= VTAB_TASKS.keys()


def test_other_sizes_are_a_warning_and_used(open_mocked):
    """As of Caltech-101, where later versions of TFDS have an image less."""
    with pytest.warns(UserWarning, match="'train': 3059.*on {'train': 3060"):
        dataset = open_mocked("vtab:caltech101", train=3059, test=6085)
    sizes = [dataset.num_examples(name) for name in ("train", "val", "test")]
    assert sizes == [2754, 305, 6085]
    assert dataset.num_examples("train800val200") == 1000


# The labels.


def clevr(distances):
    places = np.zeros((len(distances), 3), "float32")
    places[:, 2] = distances
    objects = {"pixel_coords": tf.constant(places)}
    objects["size"] = tf.zeros(len(distances), tf.int64)
    return {"objects": objects}


def test_clevr_counts_from_three_objects():
    rule = vtab.CLEVR_COUNT
    for number in range(3, 11):
        label = int(rule.compute(clevr([9.0] * number)))
        assert label == number - 3
        assert rule.class_names[label] == f"{number} objects"


@pytest.mark.parametrize(
    "distances, label",
    [
        ([7.0, 9.9], 0),
        ([8.0], 0),  # Not above the threshold.
        ([12.0, 8.1, 9.0], 1),
        ([8.5], 1),
        ([8.75, 8.75], 2),
        ([9.75, 99.0], 4),
        ([10.5, 11.0], 5),
    ],
)
def test_clevr_takes_the_nearest_object(distances, label):
    assert vtab.CLEVR_DISTANCE.compute(clevr(distances)) == label


CAR, VAN, TRUCK, PEDESTRIAN, TRAM = 0, 1, 2, 3, 6


def kitti(objects):
    types = [kind for kind, _ in objects]
    places = [(50.0, -50.0, distance) for _, distance in objects]
    return {
        "objects": {
            "type": np.array(types, "int64"),
            "location": np.reshape(np.float32(places), (-1, 3)),
        }
    }


KITTI_EXAMPLES = [
    ([(CAR, 1.0)], 0),
    ([(VAN, 10.0)], 1),
    ([(TRUCK, 30.0)], 2),
    ([(CAR, 8.0)], 0),  # Not above the threshold.
    ([(CAR, 20.0)], 1),
    ([(CAR, 30.0), (VAN, 10.0), (TRUCK, 1.0)], 0),
    ([(PEDESTRIAN, 1.0), (CAR, 30.0), (TRAM, 2.0)], 2),
    ([(PEDESTRIAN, 1.0)], 3),
    ([], 3),
]


def test_kitti_takes_the_nearest_vehicle():
    for objects, label in KITTI_EXAMPLES:
        assert vtab.KITTI_DISTANCE.compute(kitti(objects)) == label


@pytest.mark.parametrize(
    "rule, feature, number",
    [
        (vtab.DSPRITES_LOCATION, "label_x_position", 32),
        (vtab.DSPRITES_ORIENTATION, "label_orientation", 40),
    ],
)
def test_dsprites_merges_neighbours_as_the_formula_in_floats(
    rule, feature, number
):
    classes = np.arange(number)
    want = np.floor(np.float32(classes) / np.float32(number / 16))
    got = rule.compute({feature: tf.constant(classes)}).numpy()
    np.testing.assert_array_equal(got, want)
    for label, name in enumerate(rule.class_names):
        first, last = map(int, name.split(" to "))
        np.testing.assert_array_equal(
            np.flatnonzero(want == label), range(first, last + 1)
        )


# Files that TFDS has really written.


@pytest.fixture
def prepare(tmp_path, monkeypatch):
    """Return a function that writes a small data set and opens a task of it."""

    def prepare_task(name, rows):
        task = VTAB_TASKS[name]
        builder = tfds.builder(task.builder, data_dir=tmp_path)
        monkeypatch.setattr(
            type(builder),
            "_split_generators",
            lambda self, manager: {
                split: enumerate(rows[split]) for split in rows
            },
        )
        splits = {
            "train": [("train", 0, 3)],
            "train800val200": [("train", 0, 3), ("train", 4, len(rows[TRAIN]))],
            "test": [("test", 1, len(rows["test"]))],
        }
        row = dataclasses.replace(DATASETS[name], splits=splits)
        monkeypatch.setitem(DATASETS, name, row)
        return open_dataset(name, str(tmp_path))

    return prepare_task


def test_kitti_is_read_from_files(prepare):
    """The first pixel tells which example it is; TFDS shuffles them once."""
    rest = {"truncated": 0.0, "occluded": 0, "alpha": 0.0, "rotation_y": 0.0}
    rest |= {"dimensions": (1.0, 1.0, 1.0)}
    rest |= {"bbox": tfds.features.BBox(0.1, 0.1, 0.9, 0.9)}
    rows = [
        {
            "image": np.full((4 + index, 5, 3), index, "uint8"),
            "image/file_name": f"{index}.png",
            "objects": [
                {"type": kind, "location": (0.0, 0.0, distance), **rest}
                for kind, distance in objects
            ],
        }
        for index, (objects, _) in enumerate(KITTI_EXAMPLES)
    ]
    dataset = prepare("vtab:kitti_distance", {"train": rows, "test": rows[:3]})
    found = [
        (int(image[0, 0, 0]), int(label))
        for image, label in dataset.examples("train800val200")
    ]
    everything = [
        int(row["image"][0, 0, 0])
        for row in dataset.reader.builder.as_dataset(split="train")
    ]
    order = [*everything[:3], *everything[4:]]
    assert found == [(index, KITTI_EXAMPLES[index][1]) for index in order]
    assert sorted(everything) == list(range(9))
    parts = [
        [int(image[0, 0, 0]) for image, _ in dataset.examples(split)]
        for split in ("train", "train800val200[2:4]", "test")
    ]
    assert parts[:2] == [everything[:3], [everything[2], everything[4]]]
    assert len(parts[2]) == 2


def test_dsprites_becomes_white_on_black_in_three_channels(prepare):
    rng = np.random.default_rng(0)
    values = ("shape", "scale", "orientation", "x_position", "y_position")
    rows = [
        {
            "image": rng.integers(0, 2, (64, 64, 1), "uint8"),
            "label_shape": 0,
            "label_scale": 0,
            "label_orientation": 4 * index,
            "label_x_position": 3 * index,
            "label_y_position": 0,
            **{f"value_{name}": 0.0 for name in values},
        }
        for index in range(6)
    ]
    dataset = prepare("vtab:dsprites_location", {"train": rows, "test": rows})
    by_pixels = {row["image"].tobytes(): row for row in rows}
    assert dataset.reader.image_shape == (64, 64, 3)
    [(images, labels, _)] = take(
        eval_batches(dataset, image_size=(64, 64), batch_size=5), -1
    )
    for image, label in zip(images, labels):
        row = by_pixels[(image[..., :1] > 0).astype("uint8").tobytes()]
        assert np.argmax(label) == row["label_x_position"] // 2
        np.testing.assert_array_equal(
            image, np.repeat(2.0 * row["image"] - 1, 3, -1)
        )


def test_each_task_is_a_data_set_of_its_own():
    """Or the splits of one would be those of another."""
    assert is_same_dataset("vtab:pets", "vtab:pets")
    assert not is_same_dataset("vtab:pets", "vtab:dtd")
    assert is_same_dataset("cifar10", "cifar10:3.0.2")
