"""An evaluation on images that may have several labels."""

import csv
import dataclasses
import json
import re

import numpy as np
import pytest

import trainers.data.batches
from tests.trainers.made import (
    MadeDataset,
    made_batches,
    made_split,
    save_identity,
)
from trainers import evaluate as command
from trainers.evaluation import label_predictions
from trainers.evaluation.evaluation import evaluate
from trainers.evaluation.image_predictions import PREDICTIONS_NAME
from trainers.evaluation.label_predictions import (
    TellingLabels,
    read_label_predictions,
)
from trainers.evaluation.label_scores import LabelTally, sigmoid
from trainers.training.run_folder import NamedModel

NAMES = ["<cat>", 'dog, "large"', "Bär"]
THRESHOLDS = [0.3, 0.5, 0.8]


class Separate(NamedModel):
    """A model of several labels with thresholds, without a run."""

    activation = "sigmoid"
    has_several_labels = True
    thresholds = THRESHOLDS


@pytest.fixture
def source(tmp_path):
    return Separate(save_identity(tmp_path / "identity.keras", 3))


@pytest.fixture
def dataset(monkeypatch):
    """Return 40 images of logits, some labels unknown, some images without."""
    monkeypatch.setattr(trainers.data.batches, "eval_batches", made_batches)
    # Images of one row of pixels cannot be drawn.
    monkeypatch.setattr(
        label_predictions, "plot_texts", lambda *rows: rows[-1].touch()
    )
    draws = np.random.default_rng(4)
    logits = draws.normal(0, 2, (40, 3)).astype("float32")
    labels = (logits + draws.normal(0, 2, logits.shape) > 1).astype("float32")
    labels[draws.random(labels.shape) < 0.2] = np.nan
    labels[3] = np.nan
    is_known = ~np.isnan(labels).all(-1)
    split = made_split(logits, labels, is_known)
    return MadeDataset({"test": split}, NAMES, has_several_labels=True)


@pytest.fixture
def arrays(dataset):
    """Return logits, labels and decisions of the images, in their order."""
    images, labels, _ = dataset.splits["test"]
    logits = images[:, 0, :, 0]
    return logits, labels, sigmoid(logits) >= THRESHOLDS


def evaluate_made(source, dataset, folder, **choices):
    return evaluate(
        source,
        dataset,
        batch_size=16,
        preprocess="value_range(0, 1)",
        report_dir=folder,
        **choices,
    )


def test_the_report_and_its_files(source, dataset, arrays, tmp_path):
    folder = tmp_path / "report"
    report = evaluate_made(source, dataset, folder)
    logits, labels, decisions = arrays
    tally = LabelTally(NAMES, THRESHOLDS)
    tally.add(logits, labels)
    for name, value in tally.report().items():
        assert report[name] == pytest.approx(value, rel=1e-6), name
    num_known = int((~np.isnan(labels)).any(-1).sum())
    assert report["num_left_out"] == 40 - num_known
    written = json.loads((folder / "evaluation.json").read_text())
    assert written == report
    names = command.list_files(3, has_matrix=False)
    assert sorted(path.name for path in folder.iterdir()) == sorted(names)
    predictions = read_label_predictions(
        folder / PREDICTIONS_NAME, NAMES, THRESHOLDS
    )
    assert len(predictions) == num_known
    for position, row in predictions.items():
        np.testing.assert_array_equal(row.labels, labels[position])
        np.testing.assert_array_equal(row.decisions, decisions[position])
        np.testing.assert_allclose(
            row.probabilities, sigmoid(logits[position]), rtol=1e-5
        )
        assert row.name == f"test{position}"
    with open(folder / PREDICTIONS_NAME, newline="") as file:
        columns = next(csv.reader(file))
    assert columns[:4] == [
        "position",
        "image",
        "label/<cat>",
        f"label/{NAMES[1]}",
    ]


def test_the_page(source, dataset, arrays, tmp_path):
    report = evaluate_made(source, dataset, tmp_path)
    page = (tmp_path / "evaluation.html").read_text(encoding="utf-8")
    assert not re.search(r"<script|https?:|<cat>", page)
    figure = f"(mAP)</th><td>{report['mean_average_precision']:.4f}</td>"
    assert figure in page
    assert "Confusion matrix" not in page
    logits, labels, decisions = arrays

    def section(title):
        return page.split(f"<h2>{title}</h2>")[1].split("<h2>")[0]

    def first(title):
        found = re.search(r'title="test(\d+)".*?<figcaption>(.*?)</fig',
                          section(title), re.DOTALL)  # fmt: skip
        return int(found[1]), found[2].split("<br>")

    chances = sigmoid(logits)
    alarms = np.where(decisions & (labels == 0), chances, 0)
    position, label = np.unravel_index(alarms.argmax(), alarms.shape)
    shown, lines = first("False alarms")
    assert shown == position
    name = [x.replace("<", "&lt;").replace(">", "&gt;") for x in NAMES][label]
    name = name.replace('"', "&quot;")
    assert lines[0] == f"{name} {alarms.max():.1%}"
    assert lines[2].startswith("given: ") and name in lines[2]
    missed = np.where(~decisions & (labels == 1), chances, 1)
    position, label = np.unravel_index(missed.argmin(), missed.shape)
    assert first("Missed labels")[0] == position
    rows = re.findall(r"<tr><th>[^<]+</th><td>", section("Classes"))
    assert len(rows) == 3
    pairs = (labels == 1).T.astype(int) @ (decisions & (labels == 0))
    cells = re.findall(r">(\d*)</td>", section("False alarms by label"))
    assert sorted(map(int, filter(None, cells))) == sorted(pairs[pairs > 0])


def test_telling_labels_are_those_of_sorting_everything():
    draws = np.random.default_rng(0)
    logits, positions = draws.normal(0, 2, (300, 4)), np.arange(300)
    labels = (draws.random(logits.shape) < 0.3).astype(float)
    labels[draws.random(labels.shape) < 0.1] = np.nan
    thresholds = np.array([0.2, 0.5, 0.7, 0.9])
    chances = sigmoid(logits)
    decisions = chances >= thresholds
    distances = np.abs(logits - np.log(thresholds / (1 - thresholds)))
    keys = {
        "alarms": np.where(decisions & (labels == 0), -chances, np.nan),
        "missed": np.where(~decisions & (labels == 1), chances, np.nan),
        "doubtful": np.where(np.isnan(labels), np.nan, distances),
    }
    for batch_size in (7, 300):
        found = TellingLabels(thresholds)
        for start in range(0, 300, batch_size):
            part = slice(start, start + batch_size)
            images = positions[part, None, None, None].copy()
            names = [f"{n}.png" for n in positions[part]]
            found.add(
                *(positions[part], images, logits[part], None, labels[part]),
                names,
            )
        for name, key in keys.items():
            best = np.argsort(key, axis=None)[:24]
            cases = getattr(found, name)
            assert [4 * x.position + x.label for x in cases] == best.tolist()
            for case in cases:
                assert case.image.item() == case.position
                chance = chances[case.position, case.label]
                assert case.probability == pytest.approx(chance)
        assert {x.image.base is None for x in found.all} == {True}


def test_pictures_say_what_is_wrong_first(
    source, dataset, tmp_path, monkeypatch
):
    drawn = {}

    def record(images, texts, hits, normalization, path):
        drawn.update({tuple(x.ravel()): t for x, t in zip(images, texts)})
        drawn["hits"] = [*map(bool, hits)]
        path.touch()

    monkeypatch.setattr(label_predictions, "plot_texts", record)
    logits = np.array([[2.0, 3, 0], [1, -1, -1], [-3, -3, -3]], "float32")
    labels = np.array([[1.0, 0, 1], [np.nan, 0, 0], [0, 0, 0]])
    dataset.splits["test"] = made_split(logits, labels)
    evaluate_made(source, dataset, tmp_path)
    assert drawn["hits"] == [False, True, True]
    assert drawn[2, 3, 0] == 'not dog, "large" 95%\nmissed Bär 50%\n<cat> 88%'
    assert drawn[1, -1, -1] == "<cat> 73%"  # Nobody knows.
    assert drawn[-3, -3, -3] == "no label"


def test_two_evaluations_side_by_side(source, dataset, arrays, tmp_path):
    evaluate_made(source, dataset, tmp_path / "first")
    other = command.read_other(str(tmp_path / "first"), dataset)

    class Careful(Separate):
        thresholds = [0.9, 0.9, 0.9]

    careful = Careful(source.path_or_name)
    report = evaluate_made(careful, dataset, tmp_path / "second", other=other)
    page = (tmp_path / "second/evaluation.html").read_text(encoding="utf-8")
    logits, labels, decisions = arrays
    known = ~np.isnan(labels)
    first, second = (
        ((given == (labels == 1)) | ~known).all(-1) & known.any(-1)
        for given in (decisions, sigmoid(logits) >= 0.9)
    )
    for title, images in (
        ("Right here, wrong with", second & ~first),
        ("Wrong here, right with", first & ~second),
    ):
        part = page.split(f"<h2>{title}")[1].split("<h2>")[0]
        shown = re.findall(r'<figure title="test(\d+)"', part)
        assert shown == [str(n) for n in np.flatnonzero(images)]
        assert len(shown) > 0
    assert f"{other.report['exact_match']:.4f} (95 %" in page
    assert report["threshold/Bär"] == 0.9
    one = dataclasses.replace(dataset, has_several_labels=False)
    with pytest.raises(
        ValueError, match="`compare` must be an evaluation with"
    ):
        command.read_other(str(tmp_path / "first"), one)


def test_models_and_data_of_different_kinds_are_refused(dataset, tmp_path):
    path = save_identity(tmp_path / "identity.keras", 3)
    with pytest.raises(ValueError, match="`labels` must be one.*any number"):
        evaluate_made(NamedModel(path), dataset, None)

    class OfRun(Separate):
        def load_recipe(self):
            return object()

    one = dataclasses.replace(dataset, has_several_labels=False)
    with pytest.raises(ValueError, match="`labels` must be several.*one class"):
        evaluate_made(OfRun(path), one, None)


def test_data_without_any_label_are_refused(source, dataset):
    images, labels, weights = dataset.splits["test"]
    dataset.splits["test"] = images, np.zeros_like(labels), weights
    with pytest.raises(ValueError, match="`dataset` must have images with"):
        evaluate_made(source, dataset, None)
