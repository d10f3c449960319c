import dataclasses
import io
import json
import re
import shutil
import types

import pytest
import tensorflow as tf
from PIL import Image

from tests.trainers.data.inspection.test_examination import waves
from trainers.data.datasets import ImageDataset
from trainers.data.decoding import DataError
from trainers.loop.loop import Loop
from trainers.recipes.recipes import RECIPES
from trainers.runs import data_check
from trainers.runs.data_check import check_images
from trainers.train import prepare, print_other_images


@pytest.fixture
def photos(tmp_path):
    """Return a folder with two photos of each class in both splits."""
    for index in range(8):
        split = "train" if index < 4 else "test"
        place = tmp_path / "photos" / split / ("cat", "dog")[index % 2]
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(waves(index)).save(place / f"{index}.png")
    return tmp_path / "photos"


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


def test_good_images_are_checked_in_silence(start, capsys):
    job = start()
    check_images(job)
    assert "Error" not in capsys.readouterr().out
    assert "Contact sheet" in (job.run.folder / "data.html").read_text()


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
    check_images(start(max_bad_examples=2))


def test_the_images_of_a_run_that_goes_on_are_checked_if_they_changed(
    start, photos, capsys, monkeypatch
):
    start().prepare_folder()
    monkeypatch.setattr(Loop, "step", 7)
    job = start()
    assert not job.has_other_images
    (photos / "train/cat/empty.jpg").write_bytes(b"")
    check_images(job)  # As it was found.
    job = start()
    with pytest.raises(ValueError, match="--max_bad_examples=1 skips"):
        check_images(job)
    assert "empty.jpg" in capsys.readouterr().out
    print_other_images(job)
    assert capsys.readouterr().out.startswith(
        "Note: there are 5 training images now; there were 4 when this run was "
        "last started."
    )
    written = json.loads(job.run.recipe_path.read_text())
    del written["num_images"]  # Of a run of an older version.
    job.run.recipe_path.write_text(json.dumps(written))
    assert not job.has_other_images


def test_loose_images_and_taken_advice(start, photos, capsys):
    """The recipe has balanced classes already, so nobody advises them."""
    (photos / "train/loose.jpg").write_bytes(b"")
    for seed in range(10, 60):
        Image.fromarray(waves(seed)).save(photos / f"train/cat/{seed}.png")
    check_images(start())
    printed = capsys.readouterr().out
    assert "Warning: 1 image outside the folders of the classes" in printed
    assert f"{photos}/train/loose.jpg" in printed
    assert re.search(r"'cat' has \d+ images, 'dog' only \d\n", printed)
    assert "balanced" not in printed


@pytest.mark.parametrize("most_checked", [1000, 7])
def test_a_class_without_images_ends_the_run(
    start, photos, capsys, monkeypatch, most_checked
):
    """Also of so many images that they are not read."""
    monkeypatch.setattr(data_check, "MOST_CHECKED", most_checked)
    (photos / "train/emu").mkdir()
    with pytest.raises(ValueError, match="no image that can be read in 'emu'"):
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
    job = start(class_weights="none")
    with pytest.raises(ValueError, match="'test' has no image of 'cow'"):
        check_images(job)
    assert "text.jpg" in capsys.readouterr().out
    page = (job.run.folder / "data.html").read_text()
    assert "has no image of" in page


def test_many_images_are_not_checked(start, photos, capsys, monkeypatch):
    monkeypatch.setattr(data_check, "MOST_CHECKED", 7)
    (photos / "train/loose.jpg").write_bytes(b"")
    job = start()
    check_images(job)
    printed = capsys.readouterr().out
    assert "8 images: not checked" in printed
    assert "loose.jpg; move" in printed
    assert not (job.run.folder / "data.html").exists()


def test_more_than_a_thousand_examples_are_not_checked(
    recipe, tmp_path, capsys
):
    recipe = dataclasses.replace(recipe, train_split="train[:90%]")
    check_images(prepare(recipe, str(tmp_path / "run")))
    printed = capsys.readouterr().out
    assert "1,653 images: not checked" in printed
    command = "trainers.inspect_data digits '--train_split=train[:90%]' --out="
    assert command in printed
    assert not (tmp_path / "run").exists()


@pytest.fixture
def start_records(recipe, tmp_path):
    """Return a function that prepares a run on the records in tmp_path."""

    def prepare_run(**changes):
        changes = {"dataset": f"tfrecord:{tmp_path}", **changes}
        changes = {"image_size": 32, "patch_size": 16, **changes}
        changed = dataclasses.replace(recipe, augment="", **changes)
        return prepare(changed, str(tmp_path / "run"))

    (tmp_path / "labels.txt").write_text("cat\ndog\ncow\n")
    return prepare_run


def write_records(path, images):
    """Write images as records of two classes by turns."""
    rows = []
    for index, encoded in enumerate(images):
        features = {
            "image/encoded": {"bytes_list": {"value": [encoded]}},
            "image/class/label": {"int64_list": {"value": [index % 2]}},
        }
        row = tf.train.Example(
            features={
                "feature": {
                    k: tf.train.Feature(**v) for k, v in features.items()
                }
            }
        )
        rows.append(row.SerializeToString())
    with tf.io.TFRecordWriter(str(path)) as writer:
        for row in rows:
            writer.write(row)


def png(index):
    stream = io.BytesIO()
    Image.fromarray(waves(index)).save(stream, "PNG")
    return stream.getvalue()


def test_records_are_checked_like_files(start_records, tmp_path, capsys):
    images = [png(index) for index in range(6)]
    write_records(tmp_path / "train-0", [*images, b"no image"])
    write_records(tmp_path / "test-0", [png(9), images[1]])
    with pytest.raises(ValueError, match="--max_bad_examples=1 skips them"):
        check_images(start_records())
    printed = capsys.readouterr().out
    assert "Checking 9 images:" in printed
    # The seventh record, from 0, and the second of each split.
    assert "not an image; remove or replace" in printed
    assert f"{tmp_path}/train-0:6" in printed
    assert "2 images: the same content in several splits" in printed
    assert f"{tmp_path}/train-0:1\n    {tmp_path}/test-0:1" in printed
    # Its labels declare a third class, which a split may lack.
    assert "Warning: the split 'train' has no image of 'cow'" in printed
    job = start_records(max_bad_examples=1)
    check_images(job)
    assert "Contact sheet" in (job.run.folder / "data.html").read_text()


def test_a_damaged_record_ends_in_a_message(start_records, tmp_path):
    write_records(tmp_path / "train-0", [png(index) for index in range(4)])
    write_records(tmp_path / "test-0", [png(5), png(6)])
    content = bytearray((tmp_path / "train-0").read_bytes())
    content[-40] ^= 255
    (tmp_path / "train-0").write_bytes(content)
    with pytest.raises(DataError, match="corrupted record"):
        check_images(start_records())


def test_examples_of_tfds_are_checked(recipe, tmp_path, digits, capsys):
    splits = {"train_split": "train[:40]", "eval_split": "test[:3]"}
    recipe = dataclasses.replace(recipe, **splits)
    check_images(prepare(recipe, str(tmp_path / "run")))
    printed = capsys.readouterr().out
    assert "Checking 43 images:" in printed
    labels = {int(label) for _, label in digits.examples("test[:3]")}
    missing = ", ".join(repr(str(n)) for n in range(10) if n not in labels)
    assert (
        f"Warning: the split 'test[:3]' has no image of {missing};" in printed
    )
    assert "Error" not in printed
    assert (tmp_path / "run/data.html").exists()


@pytest.mark.parametrize("label", [[1, 2], 1])
def test_images_of_several_classes_are_left_out(label):
    examples = tf.data.Dataset.from_tensors(("image", label, "name"))
    dataset = types.SimpleNamespace(
        train_split="train",
        ranges=lambda split: split,
        reader=types.SimpleNamespace(read=lambda ranges: examples),
    )
    found = ImageDataset.has_several_classes(dataset, "train")
    assert found == isinstance(label, list)


def test_the_first_batch_leaves_unreadable_images_out(
    start, photos, monkeypatch
):
    (photos / "train/cat/empty.jpg").write_bytes(b"")
    drawn = []
    monkeypatch.setattr(
        "trainers.runs.job.write_first_batch",
        lambda images, labels, *args, **options: drawn.append(images),
    )
    job = start(max_bad_examples=1, augment="")
    for _ in range(3):
        job.draw_first_batch()
    # One of five images is unreadable, and a batch has four.
    assert {len(images) for images in drawn} <= {3, 4}
    for images in drawn:
        assert (images.numpy().std((1, 2, 3)) > 0.1).all()
