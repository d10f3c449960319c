import types

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.trainers.made import write_records
from trainers.data.datasets import ImageDataset, open_dataset
from trainers.data.splits import count_split
from trainers.sweeps.sweeping import check_classes_held_out, hold_out


def declared(train_split, **sizes):
    """Return a data set that has splits of these sizes, and no images."""
    splits = {name: count_split(name, size) for name, size in sizes.items()}
    reader = types.SimpleNamespace(splits=splits)
    return ImageDataset("declared", reader, train_split, "test")


@pytest.mark.parametrize(
    "split, held_out, parts",
    [
        ("train", "2%", ("train[0:49000]", "train[49000:50000]")),
        ("train[:98%]", "2%", ("train[0:48020]", "train[48020:49000]")),
        # The validation images of VTAB-1k.
        (
            "train[:800]+train[45000:45200]",
            "20%",
            ("train[0:800]", "train[45000:45200]"),
        ),
        (
            "train[:90]+validation",
            "25",
            ("train[0:90]+validation[0:5]", "validation[5:30]"),
        ),
    ],
)
def test_the_last_images_are_held_out(split, held_out, parts):
    """And both parts together are the training split, in its order."""
    dataset = declared(split, train=50_000, validation=30)
    assert hold_out(dataset, held_out) == parts
    numbers = [
        (name, index)
        for part in (*parts, split)
        for name, first, last in dataset.ranges(part)
        for index in range(first, last)
    ]
    half = len(numbers) // 2
    assert numbers[:half] == numbers[half:]


@pytest.mark.parametrize(
    "held_out, fault",
    [
        ("0%", "leave.*of the 30 im"),
        ("30", "leave.*of the 30 im"),
        ("0.1%", "leave.*of the 30 im"),
        ("2 %", "be a share such as"),
        ("0.5", "be a share such as"),
        ("train[90%:]", "be a share such as"),
    ],
)
def test_both_sides_have_images(held_out, fault):
    dataset = declared("train", train=30)
    with pytest.raises(ValueError, match=f"`held_out` must {fault}"):
        hold_out(dataset, held_out)


def open_records(folder, labels, num_classes):
    """Open records with one grey image for each label, to train on."""
    names = [f"class {index}" for index in range(num_classes)]
    (folder / "labels.txt").write_text("\n".join(names) + "\n")
    encoded = tf.io.encode_png(np.full((2, 2, 3), 128, "uint8")).numpy()
    for split in ("train", "test"):
        write_records(folder / f"{split}-0", len(labels) * [encoded], labels)
    return open_dataset(f"tfrecord:{folder}")


def test_records_in_the_order_of_their_classes_are_refused(tmp_path):
    dataset = open_records(tmp_path, np.repeat(range(4), 10), 4)
    _, held_out = hold_out(dataset, "25%")
    with pytest.raises(ValueError, match="shuffle.*10 images, all of .*ss 3'"):
        check_classes_held_out(dataset, held_out)


def test_few_classes_are_a_warning(tmp_path):
    dataset = open_records(tmp_path, np.repeat(range(20), 5), 20)
    _, held_out = hold_out(dataset, "25%")
    with pytest.warns(UserWarning, match="25 held-out .* are of 5 of the 20"):
        check_classes_held_out(dataset, held_out)
    # Shuffled ones are not warned of, which would be an error.
    labels = np.random.default_rng(0).permutation(np.repeat(range(20), 5))
    dataset = open_records(tmp_path, labels, 20)
    check_classes_held_out(dataset, hold_out(dataset, "25%")[1])


def test_images_of_a_folder_are_held_out_of_those_to_train_on(tmp_path):
    """Files on three sides; those of the test are where they were."""
    for index in range(40):
        path = tmp_path / "ab"[index % 2] / f"{index}.png"
        path.parent.mkdir(exist_ok=True)
        keras.utils.save_img(
            path, np.full((4, 4, 3), index, "uint8"), scale=False
        )
    dataset = open_dataset(f"folder:{tmp_path}")
    kept, held_out = hold_out(dataset, "25%")
    sides = [
        {
            name.decode()
            for _, _, name in dataset.reader.read(
                dataset.ranges(split)
            ).as_numpy_iterator()
        }
        for split in (kept, held_out, "test")
    ]
    assert sum(map(len, sides)) == len(set.union(*sides)) == 40
    assert len(sides[1]) == round(0.25 * (40 - len(sides[2])))
    check_classes_held_out(dataset, held_out)
