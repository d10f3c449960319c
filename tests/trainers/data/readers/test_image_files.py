import importlib.util
import pathlib
import shutil

import numpy as np
import pytest
from PIL import Image

from trainers.data.datasets import open_dataset

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
