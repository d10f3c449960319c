import pathlib
import types

import numpy as np
import pytest
from PIL import Image

from benchmarks import fine_tuning
from benchmarks.fine_tuning import Result
from benchmarks.fine_tuning_images import ImageSplit, paint, write_images
from keras_vit import VisionTransformer
from tests.tiny import tiny_config


def result(way, rate=0.01, purpose="choice", seed=0, accuracy=0.5):
    return Result(purpose, way, rate, seed, accuracy, 10, 2**21, 2**30, 7.4)


def test_the_report_of_each_way_has_its_own_best_rate(tmp_path, monkeypatch):
    """The last way is best at the highest rate, the others at the lowest."""
    *others, last = fine_tuning.WAYS
    job = types.SimpleNamespace(
        loop=types.SimpleNamespace(model=VisionTransformer(tiny_config()))
    )

    def tune(folder, initial, purpose, way, rate, seed):
        accuracy = rate if way == last else 1 - rate
        return result(way, rate, purpose, seed, accuracy)

    monkeypatch.setattr(fine_tuning, "IMAGES", {})
    monkeypatch.setattr(
        fine_tuning, "run", lambda *_: (job, {"val_accuracy": 0.5}, None)
    )
    monkeypatch.setattr(fine_tuning, "fine_tune", tune)
    found = fine_tuning.measure(2, tmp_path)
    report = [(r.way, r.learning_rate) for r in found if r.purpose == "report"]
    low, high = min(fine_tuning.RATES), max(fine_tuning.RATES)
    assert report == 2 * [*((way, low) for way in others), (last, high)]


def test_the_table_has_means_of_the_report():
    results = [
        result(way, purpose=purpose, seed=seed, accuracy=accuracy)
        for way in fine_tuning.WAYS
        for purpose, seed, accuracy in (
            ("choice", 100, 0.0),
            ("report", 0, 0.5),
            ("report", 1, 0.75),
        )
    ]
    table = fine_tuning.describe(results).splitlines()
    assert len(table) == 2 + len(fine_tuning.WAYS)
    assert table[-1] == (
        "| head | 10 | 2.0 MiB | 1,024 MiB | 7 ms | 0.01 | 62.5 % "
        "| 50.0 to 75.0 % |"
    )


def test_the_test_of_the_report_has_no_part_in_the_choice():
    choice, report = (
        fine_tuning.IMAGES[name][2] for name in ("choice", "report")
    )
    assert choice["test"].last <= report["test"].first
    assert report["train"].last <= report["test"].first


def test_images_are_the_same_each_time(tmp_path):
    parts = {"train": ImageSplit(0, 0.05, 2), "test": ImageSplit(0.95, 1, 1)}
    for name in ("one", "other"):
        write_images(tmp_path / name, range(5), "china.jpg", parts, seed=3)
    paths = sorted((tmp_path / "one").rglob("*.png"))
    assert {path.parent.parent.name for path in paths} == {"train", "test"}
    for path in paths:
        other = tmp_path / "other" / path.relative_to(tmp_path / "one")
        assert path.read_bytes() == other.read_bytes()
        with Image.open(path) as image:
            assert image.size == (16, 16)


@pytest.mark.parametrize("brightness", [20, 200])
def test_a_digit_is_far_from_the_brightness_of_the_photograph(brightness):
    photo = np.full((40, 40, 3), brightness, "uint8")
    digit = np.ones((8, 8))
    painted = paint(photo, digit, np.random.default_rng(0)).astype(int)
    assert np.abs(painted - brightness).max() > 60
    assert (painted == brightness).mean() > 0.2


def test_every_way_is_a_recipe():
    for changes in fine_tuning.WAYS.values():
        assert fine_tuning.dataclasses.replace(
            fine_tuning.FINE_TUNING_RECIPE, **changes
        )
    assert pathlib.Path(fine_tuning.parse([]).csv).name == "fine_tuning.csv"
