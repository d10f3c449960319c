"""Probes of features, and their report."""

import dataclasses
import json

import keras
import numpy as np
import pytest

import trainers.data.batches
import trainers.evaluation.probing
from keras_vit.models.features import without_head
from tests.trainers.made import (
    MadeDataset,
    made_batches,
    made_split,
    save_identity,
    write_photos,
)
from trainers.data.datasets import open_dataset
from trainers.evaluation.probing import (
    PROBES,
    Features,
    ProbeChoices,
    extract_features,
    few_shot,
    knn,
    probe,
)
from trainers.probe import parse_numbers
from trainers.training.run_folder import NamedModel


@pytest.fixture
def made(monkeypatch, tmp_path):
    """Return a model whose features are the pixels, and its images."""
    monkeypatch.setattr(trainers.data.batches, "eval_batches", made_batches)
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


def test_a_run_without_labels_is_probed_on_those_that_have_one(
    monkeypatch, made
):
    path, dataset, _ = made
    needed = []

    def record(dataset, **options):
        needed.append(dataset.needs_labels)
        return made_batches(dataset, **options)

    monkeypatch.setattr(trainers.data.batches, "eval_batches", record)
    unlabelled = dataclasses.replace(dataset, needs_labels=False)
    probe(NamedModel(path), unlabelled, ["knn"], preprocess="")
    assert needed == [True, True]


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
    # Of other data, the report has a folder of its own.
    few = dataclasses.replace(digits, name="digits_again")
    probe(run, few, ["knn"])
    assert json.loads((run.folder / "probe.json").read_text()) == report
    assert (run.folder / "dataset_digits_again/probe.json").exists()


def test_numbers_of_a_flag():
    assert parse_numbers("shots", ["1", " 5"]) == (1, 5)
    with pytest.raises(ValueError, match="`shots` must be whole.*shots=1,a"):
        parse_numbers("shots", ["1", "a"])


def make_features(size, num_train=300, num_test=200, num_classes=6, seed=0):
    """Return noisy features of unequal scale around a centre of each class."""
    rng = np.random.default_rng(seed)
    centres = rng.normal(0, 1, (num_classes, size))
    scales = rng.uniform(0.1, 30, size)

    def draw(number):
        classes = rng.integers(0, num_classes, number)
        noise = rng.normal(0, size**0.35, (number, size))
        features = (centres[classes] + noise) * scales + 5
        return features.astype("float32"), classes

    train, test = draw(num_train), draw(num_test)
    return Features(*train, test[0], np.eye(num_classes, dtype=bool)[test[1]])


def written_out_few_shot(features, shots, seed):
    """The protocol again: its own loops, and the normal equations solved."""
    generator = np.random.default_rng(seed)
    num_classes = features.test_truths.shape[1]
    support = []
    for label in range(num_classes):
        members = [
            i for i, c in enumerate(features.train_classes) if c == label
        ]
        support += list(generator.permutation(members))[:shots]
    x = features.train[support].astype("float64")
    y = -np.ones((len(support), num_classes))
    for row, index in enumerate(support):
        y[row, features.train_classes[index]] = 1
    mean = x.mean(axis=0)
    std = np.sqrt(((x - mean) ** 2).mean(axis=0)) + 1e-5

    def prepare(x):
        return np.c_[(x - mean) / std, np.full(len(x), 100.0)]

    inputs = prepare(x)
    gram = inputs.T @ inputs + 1024 * np.eye(inputs.shape[1])
    weights = np.linalg.solve(gram, inputs.T @ y)
    scores = prepare(features.test.astype("float64")) @ weights
    right = features.test_truths[np.arange(len(scores)), scores.argmax(-1)]
    return right.mean()


@pytest.mark.parametrize("size", [4, 50, 250])
def test_few_shot_is_the_protocol_written_out(size):
    """Supports of 6 to 150 images: fewer and more than features."""
    features = make_features(size)
    choices = ProbeChoices(shots=(1, 5, 25), num_seeds=3)
    found = few_shot(features, choices)
    assert list(found) == ["few_shot/1", "few_shot/5", "few_shot/25"]
    for shots in choices.shots:
        expected = [written_out_few_shot(features, shots, s) for s in range(3)]
        assert found[f"few_shot/{shots}"] == pytest.approx(expected)
    # The draws differ, and the features tell something.
    assert len(set(found["few_shot/5"])) > 1
    assert np.mean(found["few_shot/25"]) > 1.5 / 6


def test_a_class_with_fewer_images_than_shots_gives_all():
    features = make_features(20, num_train=60)
    few = np.bincount(features.train_classes)
    found = few_shot(features, ProbeChoices((max(few), 1000), num_seeds=2))
    all_of_them = found[f"few_shot/{max(few)}"]
    assert found["few_shot/1000"] == pytest.approx(all_of_them)
    expected = written_out_few_shot(features, 1000, 0)
    assert found["few_shot/1000"] == pytest.approx([expected] * 2)


@pytest.mark.parametrize("neighbors", [1, 20])
def test_knn_is_the_vote_written_out(neighbors):
    features = make_features(30, num_test=300)
    train, test = (
        f / np.linalg.norm(f, axis=-1, keepdims=True)
        for f in (features.train, features.test)
    )
    cosines = (test @ train.T).astype("float64")
    expected = []
    for row in cosines:
        votes = np.zeros(6)
        for index in np.argsort(-row)[:neighbors]:
            votes[features.train_classes[index]] += np.exp(row[index] / 0.07)
        expected.append(votes.argmax())
    truths = features.test_truths
    found = knn(features, ProbeChoices(neighbors=(neighbors, 3)))
    assert found[f"knn/{neighbors}"] == [
        truths[np.arange(len(truths)), expected].mean()
    ]
    # Not only the mean: the same predictions count as right for each image.
    agreeing = features._replace(test_truths=np.eye(6, dtype=bool)[expected])
    found = knn(agreeing, ProbeChoices(neighbors=(neighbors,)))
    assert found[f"knn/{neighbors}"] == [1.0]


def test_a_test_image_may_have_several_right_classes():
    features = make_features(8)
    both = features.test_truths.copy()
    both[:, 0] = True
    more = features._replace(test_truths=both)
    choices = ProbeChoices(shots=(5,), num_seeds=1)
    for function in PROBES.values():
        [strict], [lenient] = (
            next(iter(function(f, choices).values())) for f in (features, more)
        )
        assert strict < lenient < 1


def test_chunks_of_the_test_images_change_nothing(monkeypatch):
    features = make_features(8)
    choices = ProbeChoices()
    whole = [probe(features, choices) for probe in PROBES.values()]
    monkeypatch.setattr(trainers.evaluation.probing, "CHUNK_IMAGES", 64)
    assert [probe(features, choices) for probe in PROBES.values()] == whole


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"shots": (5, 0)}, "`shots` must be.*5, 0"),
        ({"shots": ()}, "`shots`"),
        ({"neighbors": (-1,)}, "`neighbors` must be numbers of 1 or more"),
        ({"num_seeds": 0}, "`num_seeds` must be 1 or more"),
    ],
)
def test_numbers_that_are_none_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        ProbeChoices(**changes)


def test_more_neighbours_than_images_are_refused():
    features = make_features(4, num_train=30)
    with pytest.raises(ValueError, match="at most the number.*30.*(20, 31)"):
        knn(features, ProbeChoices(neighbors=(20, 31)))


@pytest.mark.parametrize("num_train, number", [(9, 9), (30, 20)])
def test_no_more_neighbours_than_images_if_none_were_asked_for(
    num_train, number
):
    features = make_features(4, num_train=num_train)
    by_name = knn(features, ProbeChoices(neighbors=(number,)))
    assert knn(features, ProbeChoices()) == by_name
