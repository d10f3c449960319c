"""The mathematics of the probes, and the command over them."""

import dataclasses
import json
import tracemalloc

import keras
import numpy as np
import pytest
from PIL import Image

import trainers.evaluation.predictions
import trainers.evaluation.probes
from keras_vit.models.features import without_head
from tests.trainers.made import (
    MadeDataset,
    made_batches,
    made_split,
    save_identity,
)
from trainers.data.datasets import open_dataset
from trainers.evaluation.probes import (
    PROBES,
    Features,
    ProbeChoices,
    few_shot,
    knn,
    shuffle_by_class,
)
from trainers.evaluation.probing import extract_features, probe
from trainers.probe import parse_numbers
from trainers.runs.named_model import NamedModel


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


def test_support_is_drawn_by_one_generator_class_by_class():
    classes = np.random.default_rng(1).integers(0, 5, 60)
    classes[classes == 3] = 4  # A class without images.
    generator = np.random.default_rng(7)
    for label, drawn in enumerate(shuffle_by_class(classes, 5, seed=7)):
        members = [i for i in range(60) if classes[i] == label]
        expected = generator.permutation(np.array(members, int))
        np.testing.assert_array_equal(drawn, expected)
        assert (label == 3) == (len(drawn) == 0)


def test_a_class_with_fewer_images_than_shots_gives_all():
    features = make_features(20, num_train=60)
    few = np.bincount(features.train_classes)
    found = few_shot(features, ProbeChoices((max(few), 1000), num_seeds=2))
    all_of_them = found[f"few_shot/{max(few)}"]
    assert found["few_shot/1000"] == pytest.approx(all_of_them)
    expected = written_out_few_shot(features, 1000, 0)
    assert found["few_shot/1000"] == pytest.approx([expected] * 2)


def test_features_that_never_change_do_no_harm():
    features = make_features(10)
    constant = np.full((len(features.train), 1), 3, "float32")
    wider = features._replace(
        train=np.c_[features.train, constant],
        test=np.c_[features.test, constant[: len(features.test)]],
    )
    choices = ProbeChoices(shots=(5,))
    assert few_shot(wider, choices) == few_shot(features, choices)


@pytest.mark.parametrize("neighbors", [1, 10, 20, 200])
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


def test_votes_are_weighed():
    """Two near images of one class against three farther of another."""
    angles = np.radians([4, -4, 30, -30, 31])
    train = np.c_[np.cos(angles), np.sin(angles)].astype("float32")
    features = Features(
        train * [[2], [3], [50], [60], [70]],  # Lengths do not matter.
        np.array([1, 1, 0, 0, 0]),
        np.array([[9.0, 0.0]], "float32"),
        np.array([[False, True]]),
    )
    assert knn(features, ProbeChoices(neighbors=(5,))) == {"knn/5": [1.0]}


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
    monkeypatch.setattr(trainers.evaluation.probes, "CHUNK", 64)
    assert [probe(features, choices) for probe in PROBES.values()] == whole


def test_memory_is_that_of_a_chunk():
    rng = np.random.default_rng(2)
    features = Features(
        rng.normal(0, 1, (80_000, 4)).astype("float32"),
        rng.integers(0, 2, 80_000),
        rng.normal(0, 1, (600, 4)).astype("float32"),
        np.eye(2, dtype=bool)[rng.integers(0, 2, 600)],
    )
    tracemalloc.start()
    knn(features, ProbeChoices(neighbors=(20,)))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 20e6 < 600 * 80_000 * 4 / 9  # All distances.


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


def test_numbers_of_a_flag():
    assert parse_numbers("shots", ["1", " 5"]) == (1, 5)
    with pytest.raises(ValueError, match="`shots` must be whole.*shots=1,a"):
        parse_numbers("shots", ["1", "a"])


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
        probe(NamedModel(path), dataset)
    # Of a test image they are not.
    turned = dataclasses.replace(
        dataset, train_split="test", eval_split="train"
    )
    assert probe(NamedModel(path), turned, ["knn"])["num_test"] == 300


def test_unreadable_images_are_named_or_left_out(tmp_path):
    rng = np.random.default_rng(0)
    for split, count in (("train", 4), ("test", 2)):
        for name in ("a", "b"):
            folder = tmp_path / "images" / split / name
            folder.mkdir(parents=True)
            for index in range(count):
                pixels = rng.integers(0, 256, (4, 4, 3), "uint8")
                Image.fromarray(pixels).save(folder / f"{index}.jpg")
    damaged = tmp_path / "images/train/b/2.jpg"
    damaged.write_bytes(damaged.read_bytes()[:200])
    path = str(tmp_path / "model.keras")
    layers = [keras.layers.Flatten(), keras.layers.Dense(2)]
    keras.Sequential([keras.Input((4, 4, 3)), *layers]).save(path)
    dataset = open_dataset(f"folder:{tmp_path}/images")
    choices = ProbeChoices(neighbors=(1,))
    with pytest.raises(ValueError, match=f"`{damaged}` is not a readable"):
        probe(NamedModel(path), dataset, ["knn"], choices)
    report = probe(
        NamedModel(path), dataset, ["knn"], choices, max_bad_examples=1
    )
    assert report["num_unreadable"] == 1
    assert (report["num_train"], report["num_test"]) == (7, 4)


def test_an_unknown_probe_is_refused_before_the_work(made):
    _, dataset, _ = made
    with pytest.raises(ValueError, match="`probes` must be one of 'few_shot'"):
        probe(NamedModel("absent.keras"), dataset, ["few_shots"])


def test_a_data_set_without_a_train_split_is_refused(made):
    path, dataset, _ = made
    dataset = dataclasses.replace(dataset, train_split=None)
    with pytest.raises(ValueError, match="train split to learn on.*'made'"):
        probe(NamedModel(path), dataset)


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
    by_hand = [
        (
            np.stack([image for image, _ in pairs]).astype("float32") / 127.5
            - 1,
            np.array([label for _, label in pairs]),
        )
        for pairs in (
            list(digits.examples(split).as_numpy_iterator())
            for split in ("train", "test")
        )
    ]
    body = run.load_model().with_num_classes(0)
    (x, y), (test_x, test_y) = (
        (body.predict(images, verbose=0), labels) for images, labels in by_hand
    )
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
