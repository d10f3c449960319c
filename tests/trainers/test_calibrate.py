"""The command that calibrates the model of a run."""

import csv
import dataclasses
import io
import json
import re
import shutil

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_digits

from keras_vit.known import SCORES
from tests import commands
from tests.trainers.made import write_photos
from trainers.calibrate import describe, load_images, refuse_known
from trainers.data.datasets import open_dataset
from trainers.data.decoding import BadExamples
from trainers.evaluation.file_predictions import (
    OUTPUT_FORMS,
    expand_folders,
    predict_each,
)
from trainers.training.run_folder import RunFolder

LETTERS = "abcdefghij"


@pytest.fixture(scope="module")
def folder(tmp_path_factory, trained):
    """Return a folder with a run, and with pictures of noise."""
    folder = tmp_path_factory.mktemp("calibrate")
    shutil.copytree(trained, folder / "run")
    random = np.random.default_rng(0)
    (folder / "noise").mkdir()
    for index in range(20):
        pixels = random.integers(0, 256, (8, 8), "uint8")
        Image.fromarray(pixels).save(folder / "noise" / f"{index}.png")
    places = [f"{split}/{x}" for split in ("train", "test") for x in LETTERS]
    write_photos(folder / "letters", 2 * places, size=(8, 8))
    (folder / "digits").mkdir()
    for index, image in enumerate(load_digits().images[:12]):
        pixels = (image * 15.9375).astype("uint8")
        Image.fromarray(pixels).save(folder / "digits" / f"{index}.png")
    return folder


@pytest.fixture(scope="module")
def calibrate(folder):
    """Return a function that runs the command in the folder."""

    def execute(*flags):
        words = ["-m", "trainers.calibrate", *flags]
        return commands.run(words, commands.environment(), folder)

    return execute


@pytest.fixture(scope="module")
def calibrated(calibrate, folder):
    """Return the run after the command, and what the command printed."""
    result = calibrate("--run_dir=run", "--unknown=noise", "--refuse=0.1")
    assert not result.returncode, result.stderr
    return RunFolder(folder / "run"), result.stdout


def test_it_prints_what_it_measured(calibrated):
    run, text = calibrated
    found = run.calibration
    assert describe(found) in text
    lines = text.splitlines()
    [table] = [i for i, x in enumerate(lines) if x.startswith("score  ")]
    rows = [re.split(r"\s{2,}", x) for x in lines[table + 1 : table + 5]]
    assert [row[0] for row in rows] == [*found.figures["scores"]]
    for kind, left_out, area, passed, *mark in rows:
        figures = found.figures["scores"][kind]
        assert left_out == f"{figures['left_out']:.4f}"
        assert area == f"{figures['auroc']:.4f}"
        assert passed.startswith(f"{figures['false_positive_rate']:.1%}")
        is_used = "<- used" in " ".join([passed, *mark])
        assert is_used == (kind == found.known.kind)
    assert "20 unknown images" in lines[table]
    assert "calibration.npz. Evaluations and exports" in lines[-1]


def predict(run, folder, form, **choices):
    paths = expand_folders([str(folder / "digits"), str(folder / "noise")])
    file = io.StringIO()
    OUTPUT_FORMS[form](predict_each(run, paths, 2, **choices), file)
    return file.getvalue()


def test_predictions_say_what_is_unknown(calibrated, folder):
    run, _ = calibrated
    rows = [json.loads(x) for x in predict(run, folder, "jsonl").splitlines()]
    limit = np.float32(run.calibration.known.threshold)
    known = [row["score"] >= limit for row in rows]
    assert [row["is_known"] for row in rows] == known
    assert sum(known[:12]) > 8 and sum(known[12:]) < 4
    lines = predict(run, folder, "text").splitlines()
    said = ["unknown; most probable: " not in line for line in lines]
    assert said == known
    table = list(csv.DictReader(io.StringIO(predict(run, folder, "csv"))))
    assert [row["known"] == "1" for row in table] == known
    scores = [float(row["score"]) for row in table]
    np.testing.assert_allclose(scores, [x["score"] for x in rows], rtol=1e-5)
    text = predict(run, folder, "table").removeprefix("\ufeff")
    table = list(csv.DictReader(io.StringIO(text)))
    assert [row["label"] != "" for row in table] == known


def test_predictions_name_the_classes_that_the_right_one_is_among(
    calibrated, folder
):
    run, _ = calibrated
    text = predict(run, folder, "jsonl", coverage=0.9)
    rows = [json.loads(x) for x in text.splitlines()]
    # 0.9 of 356 is the 322nd of the 355 largest.
    truths = np.sort(run.calibration.truths)[::-1]
    assert len(truths) == 355
    limit = truths[int(np.ceil(0.9 * 356)) - 1]
    for row in rows:
        found = [x["probability"] for x in row["candidates"]]
        assert all(x >= limit for x in found)
        assert found == sorted(found, reverse=True)
        inside = [x for x in row["classes"] if x["probability"] >= limit]
        assert row["candidates"][: len(inside)] == inside
    # More than the two classes that are shown otherwise.
    assert max(len(row["candidates"]) for row in rows) > 2
    lines = predict(run, folder, "text", coverage=0.9).splitlines()
    for line, row in zip(lines, rows):
        start = "one of: " if row["candidates"] else "no class is probable"
        start = start if row["is_known"] else "unknown; most probable: "
        assert line.split(": ", 1)[1].startswith(start)
    table = predict(run, folder, "csv", coverage=0.9)
    for cells, row in zip(csv.DictReader(io.StringIO(table)), rows):
        names = [x["name"] for x in row["candidates"]]
        assert cells["candidates"] == "|".join(names)


def test_a_class_at_the_limit_is_among_them(calibrated, folder, tmp_path):
    run, _ = calibrated
    run = RunFolder(shutil.copytree(run.folder, tmp_path / "run"))
    text = predict(run, folder, "jsonl")
    [best, *_] = json.loads(text.splitlines()[0])["classes"]
    truths = np.full(9, best["probability"], "float32")
    found = dataclasses.replace(run.calibration, truths=truths)
    run.save_calibration(found)
    text = predict(run, folder, "jsonl", coverage=0.5)
    assert json.loads(text.splitlines()[0])["candidates"] == [best]


def test_a_coverage_needs_a_calibrated_run(trained, folder):
    run = RunFolder(trained)
    with pytest.raises(ValueError, match="`coverage` needs .*coverage=0.9"):
        predict(run, folder, "text", coverage=0.9)


def test_unreadable_pictures_of_other_things_may_be_skipped(tmp_path):
    (tmp_path / "bad.png").write_bytes(b"no image")
    Image.new("L", (8, 8)).save(tmp_path / "good.png")
    few = BadExamples(1)
    [image] = load_images([str(tmp_path)], (8, 8, 1), "", few)
    assert image.shape == (8, 8, 1)
    assert few.names == [str(tmp_path / "bad.png")]
    with pytest.raises(ValueError, match="bad.png.*max_bad_examples=0"):
        load_images([str(tmp_path)], (8, 8, 1), "", BadExamples())


def test_photos_of_the_data_set_show_no_other_things(tmp_path):
    write_photos(tmp_path / "photos", [*"ab"] * 8)
    dataset = open_dataset(f"folder:{tmp_path}/photos")
    write_photos(tmp_path / "more", ["c"], size=(5, 5))
    refuse_known([f"{tmp_path}/more"], dataset)
    with pytest.raises(ValueError, match="`unknown` .*photos/a/0.png"):
        refuse_known([f"{tmp_path}/more", f"{tmp_path}/photos/a"], dataset)


def test_a_score_that_was_not_measured_is_named(calibrated):
    found = calibrated[0].calibration
    assert "could be measured" not in describe(found)
    rows = {kind: {"left_out": float("nan")} for kind in SCORES}
    figures = {**found.figures, "scores": rows, "num_unknown": 0}
    text = describe(dataclasses.replace(found, figures=figures))
    assert f"No score could be measured, and {found.known.kind}" in text


def test_a_run_that_is_trained_is_not_calibrated(calibrate, calibrated, folder):
    """The training may replace the model while it is measured."""
    with RunFolder(folder / "run").claimed():
        result = calibrate("--run_dir=run")
    assert result.returncode and "`run_dir` is in use" in result.stderr


def test_mistakes_are_named(calibrate, calibrated):
    for flags, words in (
        (("--run_dir=absent",), "`run_dir` must be the folder of a run"),
        (("--run_dir=run", "--unknown=absent"), "absent"),
        (("--run_dir=run", "--unknown=run/recipe.json"), "recipe.json"),
        (("--run_dir=run", "--unknown="), "`unknown` must name images"),
        (("--run_dir=run", "--refuse=1"), "`refuse` must be a share"),
        (("--run_dir=run", "--eval_split=nothing"), "nothing"),
        # Ten classes, but others: figures of these would become those of the
        # run.
        (("--run_dir=run", "--dataset=folder:letters"), "has 'a', 'b', 'c'"),
        (("--run_dir=run", "--threshold_goal=f1"), "`threshold_goal` is for a"),
    ):
        result = calibrate(*flags)
        assert result.returncode and words in result.stderr, flags
        assert "Traceback" not in result.stderr
