import shutil

import numpy as np
import pytest
import tensorflow as tf

from tests.trainers.data.reading import take
from trainers.data.batches import eval_batches
from trainers.data.datasets import open_dataset
from trainers.data.readers.folder import list_empty_classes, list_loose_images
from trainers.data.readers.image_paths import list_images


@pytest.fixture
def folder(tmp_path):
    """Return a folder of made JPEG and PNG images, two classes."""
    random = np.random.default_rng(0)
    for split, count in (("train", 6), ("test", 3)):
        for name, shade in (("black", 20), ("white", 220)):
            path = tmp_path / split / name
            path.mkdir(parents=True)
            for index in range(count):
                pixels = random.integers(shade - 9, shade + 9, (20, 16, 3))
                pixels = tf.constant(pixels, tf.uint8)
                encode, ending = (
                    (tf.io.encode_png, "png")
                    if index % 2
                    else (tf.io.encode_jpeg, "jpg")
                )
                tf.io.write_file(
                    str(path / f"{index}.{ending}"), encode(pixels)
                )
    return tmp_path


def test_folder_of_images(folder):
    dataset = open_dataset(f"folder:{folder}")
    assert dataset.class_names == ["black", "white"]
    assert dataset.channels == 3
    assert dataset.num_examples(dataset.train_split) == 12
    assert dataset.num_examples(dataset.eval_split) == 6
    [(images, labels, _)] = take(
        eval_batches(dataset, image_size=(8, 8), batch_size=6), 1
    )
    bright = images.mean((1, 2, 3)) > 0
    np.testing.assert_array_equal(bright, labels[:, 1] == 1)


@pytest.mark.parametrize(
    ("train", "test"),
    [
        ("Train", "Test"),
        ("training", "testing"),
        ("training_set", "test-set"),
        ("train", "Valid"),
        ("TRAIN", "dev"),
    ],
)
def test_splits_by_other_names(folder, train, test):
    (folder / "train").rename(folder / "renamed")
    (folder / "renamed").rename(folder / train)
    (folder / "test").rename(folder / test)
    dataset = open_dataset(f"folder:{folder}")
    assert dataset.class_names == ["black", "white"]
    assert (dataset.train_split, dataset.eval_split) == (train, test)
    assert dataset.num_examples(train) == 12


def test_a_class_by_the_name_of_a_split_beside_other_classes(folder):
    (folder / "train").rename(folder / "Val")
    (folder / "test").rename(folder / "Anna")
    dataset = open_dataset(f"folder:{folder}")
    assert dataset.class_names == ["Anna", "Val"]


def test_a_folder_that_cannot_be_read_is_an_error(tmp_path):
    """Its images would be missing without a word."""
    with pytest.raises(OSError, match="absent"):
        list_images(str(tmp_path / "absent"))


@pytest.mark.parametrize("make", [True, False])
def test_folder_that_is_none(tmp_path, make):
    path = tmp_path if make else tmp_path / "absent"
    with pytest.raises(ValueError, match="PATH/train/CLASS/IMAGE.jpg") as error:
        open_dataset(f"folder:{path}")
    assert ("there is no such folder" in str(error.value)) == (not make)


def test_images_without_classes_are_counted(folder):
    for number in range(3):
        path = next((folder / "test/black").iterdir())
        path.rename(folder / f"{number}.PNG")
    for name in ("train", "test"):
        shutil.rmtree(folder / name)
    with pytest.raises(ValueError, match="with 3 images that are in no class$"):
        open_dataset(f"folder:{folder}")


def test_folder_without_a_test_split(folder):
    (folder / "test").rename(folder / "holdout")
    with pytest.raises(ValueError, match="split called test or validation"):
        open_dataset(f"folder:{folder}")
    dataset = open_dataset(f"folder:{folder}", eval_split="holdout")
    assert dataset.num_examples(dataset.eval_split) == 6


def test_folder_to_evaluate_on_only(folder):
    shutil.rmtree(folder / "train")
    dataset = open_dataset(f"folder:{folder}")
    assert (dataset.train_split, dataset.eval_split) == (None, "test")


def test_folder_with_an_empty_split(folder):
    shutil.rmtree(folder / "test")
    (folder / "test/white").mkdir(parents=True)
    with pytest.raises(ValueError, match="images in each split.*'test'"):
        open_dataset(f"folder:{folder}")


def test_empty_folders_are_no_classes(folder):
    for name in ("train/aaa", "test/green"):
        (folder / name).mkdir()
    (folder / "train/aaa/notes.txt").write_text("no image")
    assert open_dataset(f"folder:{folder}").class_names == ["black", "white"]


def test_folders_of_classes_without_images_are_listed(folder):
    for name in ("train/green", "test/green", "test/Blue", "test/__MACOSX"):
        (folder / name).mkdir()
    shutil.copytree(folder / "train/white", folder / "train/Blue")
    for path, want in (
        (folder, ["green"]),
        (folder / "train", ["green"]),
        (folder / "test", ["Blue", "green"]),
    ):
        names = open_dataset(f"folder:{path}").class_names
        assert list_empty_classes(str(path), names) == want


def test_other_files_than_images_of_a_class_are_skipped(folder):
    """Files of version control, macOS and editors are ignored."""
    want = open_dataset(f"folder:{folder}").reader.files
    for name in (
        ".DS_Store",
        ".cache/black/0.jpg",
        "train/0.jpg",
        "train/.git/0.jpg",
        "train/black/._0.jpg",
        "train/black/0.jpg.txt",
        "train/black/.thumbnails/0.jpg",
    ):
        (folder / name).parent.mkdir(exist_ok=True, parents=True)
        (folder / name).write_bytes(b"")
    reader = open_dataset(f"folder:{folder}").reader
    assert reader.class_names == ["black", "white"]
    assert reader.files == want


def test_loose_images_are_listed(folder):
    path = folder / "train"
    for name in ("b.jpg", "a.PNG", ".hidden.jpg", "notes.txt", "black/in.jpg"):
        (path / name).write_bytes(b"")
    loose = [str(path / "a.PNG"), str(path / "b.jpg")]
    # Of splits, and of classes without splits.
    assert list_loose_images(str(folder)) == loose
    assert list_loose_images(str(path)) == loose


@pytest.mark.parametrize("ending", ["JPG", "Jpeg", "PNG", "webp", "bmp"])
def test_endings_of_images(folder, ending):
    (folder / "train/black/0.jpg").rename(folder / f"train/black/é 0.{ending}")
    assert open_dataset(f"folder:{folder}").num_examples("train") == 12


def test_a_slice_of_a_folder_has_images_of_all_classes(folder):
    """And the rest of the split has the other images."""
    dataset = open_dataset(
        f"folder:{folder}", train_split="train[:50%]", eval_split="train[50%:]"
    )
    names = [
        [
            name.numpy()
            for *_, name in dataset.reader.read(dataset.ranges(split))
        ]
        for split in (dataset.train_split, dataset.eval_split)
    ]
    assert len(set(names[0] + names[1])) == 12
    for half in names:
        assert len(half) == 6
        assert any(b"black" in n for n in half) and any(
            b"white" in n for n in half
        )
