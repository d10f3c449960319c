import dataclasses

import pytest
from PIL import Image

from tests.trainers.data.inspection.test_examination import waves
from trainers.recipes.recipes import RECIPES
from trainers.runs import data_check
from trainers.runs.data_check import check_images
from trainers.train import prepare


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


def test_a_class_of_one_split_ends_the_run(start, photos):
    (photos / "test/cow").mkdir()
    Image.fromarray(waves(9)).save(photos / "test/cow/9.png")
    with pytest.raises(ValueError, match="'train' has no image of 'cow'"):
        check_images(start(class_weights="none"))


def test_many_images_are_not_checked(start, capsys, monkeypatch):
    monkeypatch.setattr(data_check, "MOST_CHECKED", 7)
    job = start()
    check_images(job)
    assert "8 images: not checked" in capsys.readouterr().out
    assert not (job.run.folder / "data.html").exists()


def test_a_data_set_that_is_no_folder_is_not_checked(recipe, tmp_path):
    check_images(prepare(recipe, str(tmp_path / "run")))
    assert not (tmp_path / "run").exists()


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
