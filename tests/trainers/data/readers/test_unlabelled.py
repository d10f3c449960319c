import dataclasses

import numpy as np
import pytest

from tests.trainers.made import write_photos
from trainers.data.batches import eval_batches
from trainers.data.datasets import open_dataset
from trainers.training.trainer import check_labels, prepare


@pytest.fixture
def folder(tmp_path):
    """Return a folder with images beside and inside of other folders."""
    path = tmp_path / "photos"
    write_photos(path, 4 * ["", "2024", "2025/summer"], size=(12, 16))
    (path / "notes.txt").write_text("No image.")
    return path


def test_all_images_are_found_wherever_they_are(folder):
    dataset = open_dataset(f"images:{folder}")
    assert dataset.class_names == ["unlabelled"]
    sizes = [dataset.num_examples(split) for split in ("train", "test")]
    assert sum(sizes) == 12 and min(sizes) > 0
    [(images, labels, _)] = eval_batches(
        dataset, image_size=(12, 16), batch_size=sizes[1]
    ).take(1)
    assert images.shape == (sizes[1], 12, 16, 3)
    assert (labels.numpy() == 1).all()


def test_they_train_an_encoder_but_no_classifier(folder, recipe, tmp_path):
    recipe = dataclasses.replace(
        recipe, dataset=f"images:{folder}", batch_size=4, augment=""
    )
    with pytest.raises(ValueError, match="`dataset` must have labels"):
        prepare(recipe, str(tmp_path / "run"))
    encoder = dataclasses.replace(recipe, objective="masked_patches")
    trainer = prepare(encoder, str(tmp_path / "run"))
    check_labels(encoder, trainer.dataset)
    assert np.isfinite(trainer.train()["val_loss"])


def test_one_image_cannot_be_split(folder):
    place = folder / "alone"
    place.mkdir()
    (folder / "0.png").rename(place / "0.png")
    with pytest.raises(ValueError, match="or more. Received.*with one"):
        open_dataset(f"images:{place}")
