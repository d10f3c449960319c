"""The images of a run and of a data set are checked."""

import dataclasses
import json
import shutil

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

import trainers.train
from tests import commands
from tests.pictures import encode
from tests.trainers.made import waves, write_photos, write_records
from trainers.data.decoding import DataError
from trainers.inspect_data import check_out
from trainers.recipes.recipes import RECIPES
from trainers.train import check_images, print_other_images
from trainers.training import pictures
from trainers.training.loop import Loop
from trainers.training.trainer import prepare


@pytest.fixture
def photos(tmp_path):
    """Return a folder with two photos of each class in both splits."""
    places = 2 * ["train/cat", "train/dog"] + 2 * ["test/cat", "test/dog"]
    return write_photos(tmp_path / "photos", places, draw=waves)


@pytest.fixture
def start(photos, tmp_path):
    """Return a function that prepares a run of the photos."""

    def prepare_run(**changes):
        recipe = dataclasses.replace(
            RECIPES["photos"],
            dataset=f"folder:{photos}",
            model="mu/16",
            image_size=16,
            batch_size=4,
            total_steps=1,
            warmup_steps=0,
            **changes,
        )
        return prepare(recipe, str(tmp_path / "run"))

    return prepare_run


def test_unreadable_images_are_named_before_the_first_update(
    start, photos, capsys
):
    (photos / "train/cat/empty.jpg").write_bytes(b"")
    (photos / "train/dog/text.jpg").write_bytes(b"no image")
    with pytest.raises(ValueError, match="--max_bad_examples=2 skips them"):
        check_images(start())
    printed = capsys.readouterr().out
    assert "empty.jpg" in printed
    assert "text.jpg" in printed
    trainer = start(max_bad_examples=2)
    check_images(trainer)
    assert "Contact sheet" in (trainer.run.folder / "data.html").read_text()


def test_the_images_of_a_run_that_goes_on_are_checked_if_they_changed(
    start, photos, capsys, monkeypatch
):
    start().prepare_folder()
    monkeypatch.setattr(Loop, "step", 7)
    trainer = start()
    assert not trainer.has_other_images
    (photos / "train/cat/empty.jpg").write_bytes(b"")
    check_images(trainer)  # As it was found.
    trainer = start()
    with pytest.raises(ValueError, match="--max_bad_examples=1 skips"):
        check_images(trainer)
    assert "empty.jpg" in capsys.readouterr().out
    print_other_images(trainer)
    assert "there are 5 training images now" in capsys.readouterr().out
    written = json.loads(trainer.run.recipe_path.read_text())
    del written["num_images"]  # Of a run of an older version.
    trainer.run.recipe_path.write_text(json.dumps(written))
    assert not trainer.has_other_images


def test_a_class_without_images_ends_the_run(start, photos, monkeypatch):
    """Also of so many images that they are not read."""
    monkeypatch.setattr(trainers.train, "MOST_CHECKED", 7)
    (photos / "train/emu").mkdir()
    with pytest.raises(ValueError, match="'emu'"):
        check_images(start(class_weights="none"))
    (photos / "train/emu").rmdir()
    (photos / "test/cow").mkdir()
    Image.fromarray(waves(9)).save(photos / "test/cow/9.png")
    with pytest.raises(ValueError, match="'train' has no image of 'cow'"):
        check_images(start(class_weights="none"))


def test_the_only_photo_of_a_class_does_not_hide_the_other_faults(
    start, photos, tmp_path, capsys
):
    (photos / "train").rename(tmp_path / "all")
    shutil.rmtree(photos)
    (tmp_path / "all").rename(photos)
    (photos / "cow").mkdir()
    Image.fromarray(waves(9)).save(photos / "cow/9.png")
    (photos / "dog/text.jpg").write_bytes(b"no image")
    trainer = start(class_weights="none")
    with pytest.raises(ValueError, match="'test' has no image of 'cow'"):
        check_images(trainer)
    assert "text.jpg" in capsys.readouterr().out
    page = (trainer.run.folder / "data.html").read_text()
    assert "has no image of" in page


def test_many_images_are_not_checked(start, photos, capsys, monkeypatch):
    monkeypatch.setattr(trainers.train, "MOST_CHECKED", 7)
    (photos / "train/loose.jpg").write_bytes(b"")
    trainer = start()
    check_images(trainer)
    printed = capsys.readouterr().out
    assert "8 images: not checked" in printed and "loose.jpg" in printed
    assert not (trainer.run.folder / "data.html").exists()


@pytest.fixture
def start_records(recipe, tmp_path):
    """Return a function that prepares a run on the records in tmp_path."""

    def prepare_run(**changes):
        changes = {"dataset": f"tfrecord:{tmp_path}", **changes}
        changes["eval_split"] = None
        changes = {"image_size": 32, "patch_size": 16, **changes}
        changed = dataclasses.replace(recipe, augment="", **changes)
        return prepare(changed, str(tmp_path / "run"))

    (tmp_path / "labels.txt").write_text("cat\ndog\ncow\n")
    return prepare_run


CLASSES = 4 * [0, 1]
PNGS = [encode(waves(index)) for index in range(10)]


def test_records_are_checked_like_files(start_records, tmp_path, capsys):
    write_records(tmp_path / "train-0", [*PNGS[:6], b"no image"], CLASSES)
    write_records(tmp_path / "test-0", [PNGS[9], PNGS[1]], CLASSES)
    with pytest.raises(ValueError, match="--max_bad_examples=1 skips them"):
        check_images(start_records())
    printed = capsys.readouterr().out
    assert "Checking 9 images:" in printed
    # The seventh record, from 0, and the second of each split.
    assert "not an image; remove or replace" in printed
    assert f"{tmp_path}/train-0:6" in printed
    assert "2 images: the same content in several splits" in printed
    assert f"{tmp_path}/train-0:1\n    {tmp_path}/test-0:1" in printed


def test_a_damaged_record_ends_in_a_message(start_records, tmp_path):
    write_records(tmp_path / "train-0", PNGS[:4], CLASSES)
    write_records(tmp_path / "test-0", PNGS[5:7], CLASSES)
    content = bytearray((tmp_path / "train-0").read_bytes())
    content[-40] ^= 255
    (tmp_path / "train-0").write_bytes(content)
    with pytest.raises(DataError, match="corrupted record"):
        check_images(start_records())


def test_the_first_batch_leaves_unreadable_images_out(
    start, photos, monkeypatch
):
    (photos / "train/cat/empty.jpg").write_bytes(b"")
    drawn, draw = [], pictures.plot_batch

    def record(images, *others):
        drawn.append(images)
        draw(images, *others)

    monkeypatch.setattr(pictures, "plot_batch", record)
    trainer = start(max_bad_examples=1, augment="")
    for _ in range(3):
        pictures.draw_first_batch(trainer)
    # One of five images is unreadable, and a batch has four.
    assert {len(images) for images in drawn} <= {3, 4}
    for images in drawn:
        assert (images.std((1, 2, 3)) > 0.1).all()


def test_a_first_batch_of_which_nothing_is_known_is_said(start, photos):
    for path in photos.glob("train/*/*.png"):
        path.write_bytes(b"")
    trainer = start(max_bad_examples=99, augment="")
    with pytest.warns(UserWarning, match="first batch has no image"):
        pictures.draw_first_batch(trainer)
    assert not (trainer.run.folder / "first_batch.png").exists()


def test_the_first_batch_is_in_the_file_and_in_tensorboard(start):
    trainer = start(augment="")
    trainer.loop.numbers["step"] += 7
    pictures.draw_first_batch(trainer)
    (file,) = (trainer.run.folder / "tensorboard" / "train").iterdir()
    events = [
        tf.compat.v1.Event.FromString(record.numpy())
        for record in tf.data.TFRecordDataset(str(file))
    ]
    (event,) = [event for event in events if event.summary.value]
    assert event.step == 7
    (value,) = event.summary.value
    assert value.tag == "first_batch"
    # Width, height and the picture.
    shown = tf.io.decode_png(value.tensor.string_val[2], channels=3)
    content = (trainer.run.folder / "first_batch.png").read_bytes()
    written = tf.io.decode_png(content, channels=3)
    np.testing.assert_array_equal(shown, written)


@pytest.fixture
def mixed_photos(tmp_path):
    """Return a folder with eight photos of two classes, and a broken one."""
    places = 4 * ["Kätzchen", "犬"]
    photos = write_photos(tmp_path / "my photos", places, draw=waves)
    (photos / "犬/broken.jpg").write_bytes(b"\xff\xd8\xff")
    return photos


def test_findings_are_printed_and_on_a_page(
    mixed_photos, tmp_path, subprocess_environment
):
    words = [
        "-m",
        "trainers.inspect_data",
        f"folder:{mixed_photos}",
        "--out=seen",
    ]
    result = commands.run(words, subprocess_environment, tmp_path)
    assert result.returncode == 1
    assert "| Kätzchen | " in result.stdout
    assert "Error: 1 image: unreadable" in result.stdout
    page = tmp_path / "seen/index.html"
    assert "broken.jpg" in page.read_text()
    check_out(tmp_path / "seen")  # It may be written anew.
    page.write_text("My page about seals.")
    words[2] = f"--dataset=folder:{mixed_photos}"
    result = commands.run(words, subprocess_environment, tmp_path)
    assert result.returncode == 1
    assert "`out` must be a folder without a page of" in result.stderr
    assert "Traceback" not in result.stderr
    assert page.read_text() == "My page about seals."
