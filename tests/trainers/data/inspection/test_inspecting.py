import pathlib

import pytest
from PIL import Image

from tests.trainers.data.inspection.test_examination import waves
from trainers.data.datasets import open_dataset
from trainers.data.inspection.inspecting import inspect_images


@pytest.fixture
def photos(tmp_path):
    """Return a folder with six photos of two classes."""
    for index in range(6):
        place = tmp_path / "photos" / ("cat", "dog")[index % 2]
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(waves(index)).save(place / f"{index}.png")
    return tmp_path / "photos"


def test_all_images_of_both_splits_are_examined(photos, capsys):
    dataset = open_dataset(f"folder:{photos}")
    images = inspect_images(dataset)
    assert len(images) == 6
    for image in images:
        path = pathlib.Path(image.name)
        assert image.label == path.parent.name
        assert (str(path), dataset.class_names.index(image.label)) in (
            dataset.reader.files[image.split]
        )
        assert not image.fault
    assert "6/6" in capsys.readouterr().out


def test_a_file_that_was_removed_is_unreadable(photos):
    dataset = open_dataset(f"folder:{photos}")
    (photos / "dog/3.png").unlink()
    faults = {
        pathlib.Path(i.name).name: i.fault for i in inspect_images(dataset)
    }
    assert faults.pop("3.png") == "the file is empty"
    assert set(faults.values()) == {""}


def test_a_data_set_of_records(digits):
    images = inspect_images(
        open_dataset("digits", train_split="train[:9]", eval_split="test[:4]")
    )
    assert [image.split for image in images] == ["train[:9]"] * 9 + [
        "test[:4]"
    ] * 4
    labels = [int(label) for _, label in digits.examples("train[:9]")]
    assert [int(image.label) for image in images[:9]] == labels
    assert {image.kind for image in images} == {"PNG L"}
