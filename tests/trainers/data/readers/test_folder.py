import dataclasses
import importlib.util
import os
import pathlib
import shutil
import unicodedata

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from tests.trainers.data.reading import take
from tests.trainers.made import write_photos
from trainers.data.batches import eval_batches
from trainers.data.datasets import open_comparable, open_dataset
from trainers.data.inspection import read_files
from trainers.data.readers.folder import list_empty_classes, list_loose_images
from trainers.data.readers.image_paths import list_images
from trainers.training.trainer import check_labels, prepare


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
    [("Train", "Test"), ("training_set", "test-set"), ("TRAIN", "Valid")],
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


def test_files_of_less_common_kinds_are_not_left_out(folder):
    """Traffic signs are published as PPM, scans of maps as JPEG 2000."""
    for ending in ("ppm", "PGM", "jp2", "tiff", "txt"):
        image = Image.new("L" if ending == "PGM" else "RGB", (16, 16))
        path = folder / f"train/black/other.{ending}"
        image.save(path, None if ending != "txt" else "PNG")
    dataset = open_dataset(f"folder:{folder}")
    assert dataset.num_examples(dataset.train_split) == 12 + 4
    assert len([*dataset.examples(dataset.train_split)]) == 16


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
    if make:
        (path / "a.PNG").touch()
        with pytest.raises(ValueError, match="with 1 images that are in no cl"):
            open_dataset(f"folder:{path}")


def test_folder_without_a_test_split(folder):
    (folder / "test").rename(folder / "holdout")
    with pytest.raises(ValueError, match="split called test or validation"):
        open_dataset(f"folder:{folder}")
    dataset = open_dataset(f"folder:{folder}", eval_split="holdout")
    assert dataset.num_examples(dataset.eval_split) == 6


@pytest.mark.parametrize("inside", ["", "unknown"])
def test_a_test_split_without_the_classes(folder, inside):
    """Kaggle keeps the classes of the images to test on secret."""
    shutil.copytree(folder / "test", folder / "val")
    (folder / "test").rename(folder / "old")
    (folder / "test" / inside).mkdir(parents=True)
    for number, path in enumerate((folder / "old").glob("*/*")):
        path.rename(folder / "test" / inside / f"{number}{path.suffix}")
    shutil.rmtree(folder / "old")
    with pytest.warns(UserWarning, match="test is left out"):
        dataset = open_dataset(f"folder:{folder}")
    assert (dataset.eval_split, dataset.num_examples("val")) == ("val", 6)
    assert dataset.class_names == ["black", "white"]
    shutil.rmtree(folder / "val")
    with pytest.raises(ValueError, match="'test'.*no class.*folder:.*/train"):
        open_dataset(f"folder:{folder}")
    assert open_dataset(f"folder:{folder}/train").num_examples("train") > 6


def test_linked_folders_are_read_once(folder, tmp_path_factory):
    """A link to a folder around it would read other classes, or forever."""
    disk = tmp_path_factory.mktemp("disk")
    black = folder / "train/black"
    shutil.copytree(black, disk / "inner")
    (disk / "back").symlink_to(folder / "train")
    for name, target in (("more", disk), ("again", disk), ("up", "..")):
        (black / name).symlink_to(target)
    (folder / "train/grey").symlink_to(folder / "test/white")
    found = list_images(str(black))
    assert len(found) == 12
    assert len({os.path.realpath(path) for path in found}) == 12
    dataset = open_dataset(f"folder:{folder}/train")
    assert dataset.class_names == ["black", "grey", "white"]
    assert sum(map(len, dataset.reader.files.values())) == 12 + 3 + 6


def test_links_that_lead_nowhere_are_told(folder):
    for name in ("train/black/a.jpg", "train/black/more", "train/blue"):
        (folder / name).symlink_to("absent")
    with pytest.warns(
        UserWarning, match="3 broken links.*a.jpg.*black/more.*blue"
    ):
        dataset = open_dataset(f"folder:{folder}")
    assert dataset.num_examples("train") == 12
    assert list_empty_classes(str(folder), dataset.class_names) == ["blue"]


def test_names_that_are_not_utf8(folder):
    """As in zip archives that were made on Windows."""
    path = os.fsencode(folder)
    black = path + b"/train/black/"
    os.rename(black + b"0.jpg", black + b"k\xf6ln.jpg")
    os.rename(path, path + b"\xe9")
    name = os.fsdecode(path + b"\xe9")
    dataset = open_dataset(f"folder:{name}")
    assert len(list(dataset.examples("train"))) == 12
    found = [file for file, *_ in read_files(dataset, "train")]
    assert f"{folder}\\xe9/train/black/k\\xf6ln.jpg" in found
    os.rename(path + b"\xe9/train/black", path + b"\xe9/train/\xf6")
    with pytest.raises(ValueError, match=r"classes.*\\xf6.*UTF-8"):
        open_dataset(f"folder:{name}")
    os.rename(path + b"\xe9", path)


def test_a_class_whose_name_has_a_line_break_is_refused(folder):
    (folder / "train/black").rename(folder / "train/bl\nack")
    with pytest.raises(ValueError, match="line break"):
        open_dataset(f"folder:{folder}")


def test_forms_of_accents_are_of_one_class(folder):
    """Folders that were copied from a Mac have the other form."""
    nfc, nfd = (unicodedata.normalize(form, "é") for form in ("NFC", "NFD"))
    for split, name in (("train", nfc), ("test", nfd)):
        (folder / split / "black").rename(folder / split / name)
        (folder / split / "white").rename(folder / split / "f")
    both = open_dataset(f"folder:{folder}")
    assert both.class_names == ["f", nfc]
    assert list_empty_classes(str(folder), both.class_names) == []
    mac = open_dataset(f"folder:{folder}/test")
    assert mac.class_names == [nfd, "f"]
    same = mac.with_forms_of(both.class_names)
    assert same.class_names == both.class_names
    for split in ("train", "test"):
        for path, label in same.reader.files[split]:
            assert ("/f/" in path) == (label == 0)
    assert mac.with_forms_of([]) == mac


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


def test_endings_of_images(folder):
    for index, ending in enumerate(("JPG", "Jpeg", "webp", "bmp")):
        name = f"train/black/é {index}.{ending}"
        shutil.copy(folder / "train/white/0.jpg", folder / name)
    assert open_dataset(f"folder:{folder}").num_examples("train") == 16


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


@pytest.fixture
def unlabelled(tmp_path):
    """Return a folder with images beside and inside of other folders."""
    path = tmp_path / "photos"
    write_photos(path, 4 * ["", "2024", "2025/summer"], size=(12, 16))
    (path / "notes.txt").write_text("No image.")
    return path


def test_all_images_are_found_wherever_they_are(unlabelled):
    dataset = open_dataset(f"images:{unlabelled}")
    assert dataset.class_names == ["unlabelled"]
    sizes = [dataset.num_examples(split) for split in ("train", "test")]
    assert sum(sizes) == 12 and min(sizes) > 0
    [(images, labels, _)] = eval_batches(
        dataset, image_size=(12, 16), batch_size=sizes[1]
    ).take(1)
    assert images.shape == (sizes[1], 12, 16, 3)
    assert (labels.numpy() == 1).all()


@pytest.mark.usefixtures("eagerly")
def test_they_train_an_encoder_but_no_classifier(unlabelled, recipe, tmp_path):
    own = {"dataset": f"images:{unlabelled}", "eval_split": None}
    recipe = dataclasses.replace(recipe, **own, batch_size=4, augment="")
    with pytest.raises(ValueError, match="`dataset` must have labels"):
        prepare(recipe, str(tmp_path / "run"))
    encoder = dataclasses.replace(
        recipe, objective="masked_patches", total_steps=1
    )
    trainer = prepare(encoder, str(tmp_path / "run"))
    check_labels(encoder, trainer.dataset)
    assert np.isfinite(trainer.train()["val_loss"])


def test_one_image_cannot_be_split(unlabelled):
    place = unlabelled / "alone"
    place.mkdir()
    (unlabelled / "0.png").rename(place / "0.png")
    with pytest.raises(ValueError, match="or more. Received.*with one"):
        open_dataset(f"images:{place}")


# Written by pillow-heif 1.8.1: red on the left, blue on the right, with 60 of
# green in the upper half.
HEIC = pathlib.Path(__file__).with_name("red_blue.heic")


@pytest.fixture
def photos(tmp_path):
    """Return a folder with two classes of photos, in folders inside."""
    for index in range(6):
        place = tmp_path / "photos/cat" / ("old/2020" if index % 2 else "")
        place.mkdir(parents=True, exist_ok=True)
        shade = np.full((8, 8, 3), 30 * index, "uint8")
        Image.fromarray(shade).save(place / f"{index}.png")
    shutil.copytree(tmp_path / "photos/cat", tmp_path / "photos/dog")
    return tmp_path / "photos"


def read(dataset):
    """Return the images of both splits by (class, file)."""
    rows = dataset.reader.files["train"] + dataset.reader.files["test"]
    images = dataset.examples("train+test")
    return {
        (dataset.class_names[label], pathlib.Path(path).name): image.numpy()
        for (path, label), (image, _) in zip(rows, images)
    }


def test_a_folder_of_classes_is_split_and_read_with_its_folders(photos):
    (photos / ".thumbnails").mkdir()
    shutil.copy(__file__, photos / "cat/notes.txt")
    shutil.copy(photos / "cat/0.png", photos / "cat/.hidden.png")
    dataset = open_dataset(f"folder:{photos}")
    assert dataset.class_names == ["cat", "dog"]
    assert (dataset.train_split, dataset.eval_split) == ("train", "test")
    images = read(dataset)
    assert len(images) == 12
    for (_, name), image in images.items():
        assert (image == 30 * int(name[0])).all()


def test_heic_is_read(photos):
    shutil.copy(HEIC, photos / "dog/phone.HEIC")
    found = read(open_dataset(f"folder:{photos}"))[("dog", "phone.HEIC")]
    assert found.shape == (48, 64, 3)
    red, blue = found[40, 10].astype(int), found[5, 60].astype(int)
    np.testing.assert_allclose(red, [200, 0, 0], atol=6)
    np.testing.assert_allclose(blue, [0, 60, 200], atol=6)


def test_heic_without_its_package_is_left_out_and_named(photos, monkeypatch):
    shutil.copy(HEIC, photos / "dog/phone.heic")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.warns(UserWarning, match="1 HEIC .*pi-heif.*phone.heic"):
        dataset = open_dataset(f"folder:{photos}")
    assert sum(map(len, dataset.reader.files.values())) == 12


def test_one_folder_too_many_is_named(photos):
    """As archives unpack into a folder of their own."""
    with pytest.raises(ValueError, match=f"folder:{photos} has 'cat', 'dog'"):
        open_dataset(f"folder:{photos.parent}")


def test_thumbnails_of_a_drive_are_no_photos(photos):
    before = open_dataset(f"folder:{photos}").reader.files
    place = photos / "dog/@eaDir/0.png"
    place.mkdir(parents=True)
    shutil.copy(photos / "dog/0.png", place / "SYNOPHOTO_THUMB_M.png")
    assert open_dataset(f"folder:{photos}").reader.files == before


def test_a_split_that_is_gone_compares_with_nothing(tmp_path):
    """An evaluation that has ended asks whether a run chose by its images."""
    write_photos(tmp_path, 2 * ["train/a", "test/a", "train/b", "test/b"])
    dataset = open_dataset(f"folder:{tmp_path}")
    assert open_comparable(dataset, dataset.name, eval_split="test")
    assert open_comparable(dataset, dataset.name, eval_split="val") is None
