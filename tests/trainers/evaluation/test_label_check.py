"""Labels that are probably wrong."""

import csv
import dataclasses
import io

import keras
import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_digits
from sklearn.linear_model import Ridge
from sklearn.neighbors import KNeighborsClassifier

from tests.trainers.made import write_photos
from trainers.data.datasets import ALL_SPLITS, open_dataset
from trainers.evaluation import label_check
from trainers.evaluation.embeddings import open_embeddings
from trainers.evaluation.label_check import (
    check_labels,
    find_wrong,
    probe_out_of_fold,
    read_classes,
    vote_of_neighbors,
    write_label_page,
    write_label_table,
)
from trainers.evaluation.vectors import embed, read_pictures
from trainers.training.run_folder import NamedModel


@pytest.fixture(scope="module")
def digits():
    """Return the pixels of digits, their labels, 5 % wrong, and which are."""
    data = load_digits()
    random = np.random.default_rng(0)
    changed = random.choice(len(data.target), 89, replace=False)
    labels = data.target.copy()
    labels[changed] = (labels[changed] + random.integers(1, 10, 89)) % 10
    return data.data.astype("float32"), labels, changed, data.target


def test_changed_labels_come_first(digits):
    vectors, labels, changed, truth = digits
    found = check_labels(vectors, labels, 10)
    first = found.order[:89]
    assert np.isin(first, changed).mean() > 0.9
    # cleanlab 2.9.0 finds the same 68, of these probabilities.
    assert found.are_wrong.sum() == 68
    assert np.isin(np.flatnonzero(found.are_wrong), changed).sum() == 67
    doubtful = found.suggested != labels
    assert found.are_suspects[changed].sum() == 88 and doubtful.sum() < 120
    assert (found.suggested[changed] == truth[changed]).mean() > 0.9
    assert (doubtful == (found.margins < 0)).all()


def test_the_probe_is_that_of_scikit_learn(digits, monkeypatch):
    """Its predictions; the fold of an image has no part in them."""
    monkeypatch.setattr(label_check, "CHUNK_ROWS", 100)
    vectors, labels = digits[0][:600], digits[1][:600]
    found = probe_out_of_fold(vectors, labels, 10)
    np.testing.assert_allclose(found.sum(1), 1, atol=1e-5)
    folds = np.random.default_rng(0).permutation(600) % label_check.NUM_FOLDS
    scaled = (vectors - vectors.mean(0)) / (vectors.std(0) + 1e-5)
    scaled = np.pad(scaled, ((0, 0), (0, 1)), constant_values=1.0)
    for fold in range(label_check.NUM_FOLDS):
        ridge = Ridge(label_check.PENALTY, fit_intercept=False)
        targets = 2 * np.eye(10)[labels[folds != fold]] - 1
        scores = ridge.fit(scaled[folds != fold], targets).predict(
            scaled[folds == fold]
        )
        # A softmax of the scores, times one number.
        logs = np.log(found[folds == fold])
        logs -= logs.max(1, keepdims=True)
        scores -= scores.max(1, keepdims=True)
        kept = logs > -20
        ratios = logs[kept & (scores < -0.1)] / scores[kept & (scores < -0.1)]
        np.testing.assert_allclose(ratios, ratios[0], rtol=1e-3)


def test_neighbours_vote_as_those_of_scikit_learn(digits, monkeypatch):
    monkeypatch.setattr(label_check, "CHUNK_ROWS", 64)
    vectors, labels = digits[0][:300], digits[1][:300]
    found = vote_of_neighbors(vectors, labels, 10, 7)
    for row in (0, 63, 64, 299):
        others = np.arange(300) != row
        votes = KNeighborsClassifier(
            7,
            metric="cosine",
            weights=lambda distances: np.exp((1 - distances) / 0.07),
        ).fit(vectors[others], labels[others])
        expected = np.zeros(10)
        expected[votes.classes_] = votes.predict_proba(vectors[[row]])[0]
        np.testing.assert_allclose(found[row], expected, atol=1e-4)


def test_confident_learning_by_hand():
    probabilities = np.array(
        [[0.9, 0.1], [0.7, 0.3], [0.2, 0.8], [0.4, 0.6], [0.45, 0.55]]
    )
    # The means of the labelled: (0.9 + 0.7 + 0.2) / 3 = 0.6, and 0.575.
    classes = np.array([0, 0, 0, 1, 1])
    found = find_wrong(probabilities, classes)
    assert found.tolist() == [False, False, True, False, False]


def test_as_probable_as_the_mean_is_confident():
    """And no image is confidently of a class that has none."""
    probabilities = np.array(
        [[0.25, 0.75, 0], [0.75, 0.25, 0], [0.25, 0.75, 0]]
    )
    found = find_wrong(probabilities, np.array([0, 0, 1]))
    assert found.tolist() == [True, False, False]
    # The second one is confidently of no class.
    probabilities = np.array([[0.75, 0.25, 0], [0.25, 0.25, 0.5]])
    found = find_wrong(probabilities, np.array([0, 0]))
    assert found.tolist() == [False, False]


def test_classes_of_one_image_and_no_labels_are_not_judged(digits):
    vectors, labels, *_ = digits
    labels = labels[:200].copy()
    labels[5], labels[6] = 10, -1
    found = check_labels(vectors[:200], labels, 12)
    assert not found.are_suspects[[5, 6]].any()
    assert (found.margins[[5, 6]] == 1).all()
    with pytest.raises(ValueError, match="two images or more of a class"):
        check_labels(vectors[:3], np.array([-1, 0, 1]), 2)


def test_the_only_class_is_certain():
    vectors = np.random.default_rng(0).normal(size=(9, 4)).astype("float32")
    found = check_labels(vectors, np.zeros(9, int), 1, 3)
    np.testing.assert_allclose(found.margins, 1, rtol=1e-6)
    assert not found.are_suspects.any()


@pytest.fixture(scope="module")
def embeddings(tmp_path_factory):
    """Return embeddings of photos of two colours, one with the wrong label."""
    folder = tmp_path_factory.mktemp("colours")

    def draw(index):
        shade = np.random.default_rng(index).integers(0, 40, (9, 9, 3), "uint8")
        shade[..., index % 2] += 180
        return shade

    places = 10 * ["train/red", "train/green"] + ["train/green", "test/green"]
    places += ["test/red", "train/green"]
    write_photos(folder / "photos", places, draw=draw)
    layers = [keras.layers.Flatten(), keras.layers.Dense(2)]
    path = str(folder / "model.keras")
    keras.Sequential([keras.Input((9, 9, 3)), *layers]).save(path)
    dataset = open_dataset(f"folder:{folder}/photos", eval_split=ALL_SPLITS)
    embed(
        NamedModel(path),
        dataset,
        folder / "out",
        preprocess="value_range(-1, 1)",
    )
    return open_embeddings(folder / "out")


def test_the_table_is_a_data_set(embeddings, tmp_path):
    classes, names = read_classes(embeddings)
    found = check_labels(embeddings.vectors(), classes, len(names), 5)
    write_label_table(tmp_path / "labels.csv", embeddings, found)
    text = (tmp_path / "labels.csv").read_text(encoding="utf-8-sig")
    first, *_ = rows = list(csv.DictReader(text.splitlines()))
    assert first["path"].endswith("green/20.png")
    assert (first["label"], first["suggested"]) == ("green", "red")
    assert first["wrong"] == "probably" and len(rows) == 24
    for row in rows:
        assert (row["suggested"] == "") == (row["wrong"] == "no")
        assert (tmp_path / row["path"]).is_file()
    dataset = open_dataset(f"csv:{tmp_path}/labels.csv")
    assert dataset.class_names == names
    splits = dict(zip(embeddings.paths, embeddings.splits))
    labels = dict(zip(embeddings.paths, embeddings.labels))
    for split, files in dataset.reader.files.items():
        for path, label in files:
            (name,) = [x for x in splits if x.endswith(path[-12:])]
            assert splits[name] == split and labels[name] == names[label]


def test_images_without_a_label_are_not_in_the_table(embeddings, tmp_path):
    labels = [None, *embeddings.labels[1:]]
    some = dataclasses.replace(embeddings)
    some.__dict__["labels"] = labels  # In place of those of the files.
    classes, names = read_classes(some)
    found = check_labels(some.vectors(), classes, len(names), 5)
    write_label_table(tmp_path / "labels.csv", some, found)
    text = (tmp_path / "labels.csv").read_text(encoding="utf-8-sig")
    rows = [*csv.DictReader(text.splitlines())]
    assert len(rows) == 23 and {row["label"] for row in rows} == {*names}


def test_the_page_shows_the_suspects(embeddings, tmp_path):
    classes, names = read_classes(embeddings)
    found = check_labels(embeddings.vectors(), classes, len(names), 5)
    rows = found.order[:1].tolist()
    pictures = read_pictures(embeddings, rows)
    assert pictures[rows[0]].startswith(b"\xff\xd8")
    write_label_page(tmp_path / "page.html", embeddings, found, rows, pictures)
    page = (tmp_path / "page.html").read_text()
    assert (
        page.count("<img ") == 1 and "green \N{RIGHTWARDS ARROW} red?" in page
    )


def test_images_of_no_files_are_shown_as_well(tmp_path):
    path = str(tmp_path / "model.keras")
    keras.Sequential([keras.Input((8, 8, 1)), keras.layers.Flatten()]).save(
        path
    )
    dataset = open_dataset("digits", eval_split="test[3:8]")
    options = {"preprocess": "value_range(-1, 1)", "shard_rows": 2}
    embed(NamedModel(path), dataset, tmp_path / "out", **options, batch_size=2)
    embeddings = open_embeddings(tmp_path / "out")
    assert sorted(read_pictures(embeddings, [4, 1])) == [1, 4]
    pictures, vectors = read_pictures(embeddings, range(5)), []
    for row in range(5):
        with Image.open(io.BytesIO(pictures[row])) as picture:
            vectors.append(np.ravel(picture.convert("L").resize((8, 8))))
    # Each picture is most similar to the pixels of its own row.
    likeness = np.corrcoef(vectors, embeddings.vectors())[:5, 5:]
    assert likeness.argmax(1).tolist() == [*range(5)]
