import shutil

import pytest
from PIL import Image

from tests.trainers.data.inspection.test_examination import waves
from trainers.data.datasets import open_dataset
from trainers.data.inspection.unread import find_unread


@pytest.fixture
def photos(tmp_path):
    """Return a folder with a photo of each class in three splits."""
    for index in range(6):
        place = tmp_path / ("train", "test", "val")[index // 2]
        place = place / ("cat", "dog")[index % 2]
        place.mkdir(parents=True)
        Image.fromarray(waves(index)).save(place / f"{index}.png")
    return tmp_path


def test_a_split_that_nobody_reads_is_named_with_its_use(photos):
    [found] = find_unread(open_dataset(f"folder:{photos}"))
    assert str(found).startswith("Warning: the split 'val', 2 images, is not")
    assert "with --eval_split=val" in found.text
    assert "evaluate --eval_split=test" in found.text
    dataset = open_dataset(
        f"folder:{photos}", train_split="train+val", eval_split="test[:1]"
    )
    assert find_unread(dataset) == []


def test_an_unknown_split_may_be_for_either(photos):
    (photos / "val").rename(photos / "fold_1")
    [found] = find_unread(open_dataset(f"folder:{photos}"))
    assert "--train_split or --eval_split=fold_1 reads it" in found.text


def test_files_of_no_image_are_counted_by_their_endings(photos):
    shutil.rmtree(photos / "val")
    for name in ("a.TXT", "b.txt", "c.psd", "d", ".hidden", "Thumbs.db"):
        (photos / "train/cat" / name).write_bytes(b"")
    (photos / "test/dog/lost.jpg").symlink_to(photos / "nowhere.jpg")
    with pytest.warns(UserWarning, match="1 broken link is left out.*lost.jpg"):
        dataset = open_dataset(f"folder:{photos}")
    [found] = find_unread(dataset)
    assert "not read: 2 of .txt, 1 of " in found.text
    for part in ("1 of .psd", "1 of no ending", "1 of links that lead nowhere"):
        assert part in found.text
    assert "hidden" not in found.text and ".db" not in found.text


def test_data_sets_of_others_have_splits_of_their_own():
    assert find_unread(open_dataset("digits")) == []
