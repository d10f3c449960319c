"""Features of data sets, and the report of the probes."""

import dataclasses
import json

import keras
import numpy as np
import pytest

import trainers.evaluation.predictions
import trainers.evaluation.probing
from keras_vit.models.features import without_head
from tests.trainers.evaluation.features import (
    make_features,
    written_out_few_shot,
)
from tests.trainers.made import (
    MadeDataset,
    made_batches,
    made_split,
    save_identity,
    write_photos,
)
from trainers.data.datasets import open_dataset
from trainers.evaluation.probing import (
    Features,
    ProbeChoices,
    extract_features,
    probe,
)
from trainers.probe import parse_numbers
from trainers.training.run_folder import NamedModel


@pytest.fixture
def made(monkeypatch, tmp_path):
    """Return a model whose features are the pixels, and its images."""
    monkeypatch.setattr(
        trainers.evaluation.predictions, "eval_batches", made_batches
    )
    features = make_features(9)
    labels = np.eye(6)[features.train_classes]
    splits = {
        "train": made_split(features.train, labels),
        "test": made_split(features.test, features.test_truths),
    }
    dataset = MadeDataset(splits, list("abcdef"))
    head = [keras.layers.Dense(6, "softmax")]
    return save_identity(tmp_path / "model.keras", 9, head), dataset, features


def test_features_are_what_goes_into_the_last_layer(made):
    path, dataset, features = made
    model = without_head(NamedModel(path).load_model())
    for found, expected in zip(extract_features(model, dataset, 32), features):
        assert found.dtype == expected.dtype
        np.testing.assert_array_equal(found, expected)


def test_several_classes_of_a_training_image_are_refused(made):
    path, dataset, _ = made
    dataset.splits["train"][1][7, :2] = 1
    with pytest.raises(ValueError, match="one class for each.*train"):
        probe(NamedModel(path), dataset, preprocess="")
    # Of a test image they are not.
    turned = dataclasses.replace(
        dataset, train_split="test", eval_split="train"
    )
    report = probe(NamedModel(path), turned, ["knn"], preprocess="")
    assert report["num_test"] == 300


def test_unreadable_images_are_named_or_left_out(tmp_path):
    places = 4 * ["train/a", "train/b"] + 2 * ["test/a", "test/b"]
    write_photos(tmp_path / "images", places)
    damaged = tmp_path / "images/train/b/3.png"
    damaged.write_bytes(damaged.read_bytes()[:100])
    path = str(tmp_path / "model.keras")
    layers = [keras.layers.Flatten(), keras.layers.Dense(2)]
    keras.Sequential([keras.Input((9, 9, 3)), *layers]).save(path)
    dataset = open_dataset(f"folder:{tmp_path}/images")
    choices = ProbeChoices(neighbors=(1,))
    with pytest.raises(ValueError, match=f"`{damaged}` cannot be read"):
        probe(NamedModel(path), dataset, ["knn"], choices, preprocess="")
    report = probe(
        NamedModel(path),
        dataset,
        ["knn"],
        choices,
        preprocess="",
        max_bad_examples=1,
    )
    assert report["num_unreadable"] == 1
    assert (report["num_train"], report["num_test"]) == (7, 4)


def test_a_report_that_cannot_be_written_was_shown(made, tmp_path, monkeypatch):
    path, dataset, _ = made
    folder, shown = tmp_path / "new", []

    def show(report):
        shown.append(report)
        folder.write_text("a file")

    choices = {"report_dir": folder, "show": show, "preprocess": ""}
    with pytest.raises(
        OSError, match="`report_dir` must be .*report_dir='.*new'"
    ):
        probe(NamedModel(path), dataset, ["knn"], **choices)
    assert list(shown[0]["probes"]) == ["knn/20"]
    monkeypatch.setattr("trainers.evaluation.probing.extract_features", None)
    choices["report_dir"] = folder / "a"
    with pytest.raises(OSError, match="`report_dir` must be a folder that can"):
        probe(NamedModel(path), dataset, ["knn"], **choices)


def test_what_cannot_be_probed_is_refused_before_the_work(made):
    _, dataset, _ = made
    absent = NamedModel("absent.keras")
    with pytest.raises(ValueError, match="`probes` must be one of 'few_shot'"):
        probe(absent, dataset, ["few_shots"])
    dataset = dataclasses.replace(dataset, train_split=None)
    with pytest.raises(ValueError, match="train split to learn on.*'made'"):
        probe(absent, dataset, preprocess="")


def test_a_run_on_digits_end_to_end(run, digits):
    choices = ProbeChoices(shots=(1, 25), num_seeds=2, neighbors=(5, 20))
    report = probe(run, digits, choices=choices)
    assert json.loads((run.folder / "probe.json").read_text()) == report
    assert report["model"] == str(run.folder)
    assert (report["num_train"], report["num_test"]) == (1442, 355)
    assert list(report["probes"]) == [
        "few_shot/1",
        "few_shot/25",
        "knn/5",
        "knn/20",
    ]
    body = run.load_model().with_num_classes(0)

    def read(split):
        images, labels = zip(*digits.examples(split).as_numpy_iterator())
        images = np.stack(images).astype("float32") / 127.5 - 1
        return body.predict(images, verbose=0), np.array(labels)

    (x, y), (test_x, test_y) = read("train"), read("test")
    features = Features(x, y, test_x, np.eye(10, dtype=bool)[test_y])
    row = report["probes"]["few_shot/25"]
    expected = [written_out_few_shot(features, 25, seed) for seed in (0, 1)]
    np.testing.assert_allclose(row["accuracies"], expected, atol=1.5 / 355)
    assert row["mean"] == pytest.approx(np.mean(row["accuracies"]))
    assert row["deviation"] == pytest.approx(
        abs(row["accuracies"][0] - row["accuracies"][1]) / np.sqrt(2)
    )
    # Even a model that is hardly trained tells some digits apart.
    assert row["mean"] > 0.25 and report["probes"]["knn/5"]["mean"] > 0.25
    assert report["probes"]["knn/5"]["deviation"] is None


def test_numbers_of_a_flag():
    assert parse_numbers("shots", ["1", " 5"]) == (1, 5)
    with pytest.raises(ValueError, match="`shots` must be whole.*shots=1,a"):
        parse_numbers("shots", ["1", "a"])
