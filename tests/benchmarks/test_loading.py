"""The benchmark of reading and augmenting files."""

import csv

import numpy as np
import pytest
from PIL import Image

from benchmarks import loading
from benchmarks.worker_loading import AUGMENTATIONS, SIDE, ours
from trainers.augment.augmentation import parse_augmentation


def test_the_files_are_different_photos_of_one_size(tmp_path):
    loading.make_files(tmp_path, 12)
    paths = sorted(tmp_path.glob("*/*.jpg"))
    assert len(paths) == 12
    assert len({path.parent for path in paths}) == loading.NUM_CLASSES
    assert len({path.read_bytes() for path in paths}) == 12
    for path in paths:
        with Image.open(path) as image:
            assert image.size == (500, 375)


@pytest.mark.parametrize("augment", AUGMENTATIONS)
def test_ours_returns_what_the_others_do(augment, tmp_path):
    parse_augmentation(AUGMENTATIONS[augment], (SIDE, SIDE))
    loading.make_files(tmp_path, 20)
    case = {"folder": str(tmp_path), "augment": augment, "batch_size": 4}
    images, labels, weights = next(ours(case, {}))
    assert images.shape == (4, SIDE, SIDE, 3)
    assert -1 <= np.min(images) < 0 < np.max(images) <= 1
    np.testing.assert_allclose(np.sum(labels, axis=-1), 1, atol=1e-6)


@pytest.mark.parametrize("model", ["", "mu/16"])
def test_the_command_measures_in_turns(tmp_path, capsys, monkeypatch, model):
    path = tmp_path / "seconds.csv"
    monkeypatch.setattr(loading, "TRAININGS", ["ours"])
    loading.main(
        ["--packages=", "--augment=crop", "--files=20", "--images=8"]
        + ["--batch_size=4", "--rounds=2", f"--csv={path}"]
        + ([f"--models={model}"] if model else [])
    )
    assert f"| crop | {model} | ours |" in capsys.readouterr().out
    with path.open() as file:
        rows = list(csv.DictReader(file))
    assert [row["round"] for row in rows] == ["0", "1"]
    assert all(float(row["seconds"]) > 0 for row in rows)
