import math

import keras
import numpy as np
import pytest
from sklearn.dummy import DummyClassifier
from sklearn.metrics import (
    accuracy_score,
    confusion_matrix,
    f1_score,
    log_loss,
    precision_recall_fscore_support,
    top_k_accuracy_score,
)

from trainers.evaluation.scores import (
    Tally,
    calibration_bins,
    calibration_error,
    score_predictions,
    wilson_interval,
)


@pytest.fixture
def logits(rng):
    return rng.normal(0, 3, (60, 9)).astype("float32")


@pytest.fixture
def rng():
    return np.random.default_rng(0)


def softmax(logits):
    exponents = np.exp(logits.astype("float64"))
    return exponents / exponents.sum(-1, keepdims=True)


def test_one_class_an_image_as_scikit_learn(logits, rng):
    labels = rng.integers(0, 9, 60)
    row = score_predictions(logits, np.eye(9, dtype=bool)[labels])
    classes = range(9)
    assert row["accuracy"].mean() == accuracy_score(labels, logits.argmax(-1))
    assert row["top5_accuracy"].mean() == top_k_accuracy_score(
        labels, logits, k=5, labels=classes
    )
    probabilities = softmax(logits)
    np.testing.assert_allclose(
        row["loss"].mean(), log_loss(labels, probabilities, labels=classes)
    )
    np.testing.assert_allclose(row["confidence"], probabilities.max(-1))


def test_several_classes_an_image_as_a_loop(logits, rng):
    truths = rng.random(logits.shape) < 0.3
    truths[:, 4] |= ~truths.any(-1)
    row = score_predictions(logits, truths)
    probabilities = softmax(logits)
    for i in range(len(logits)):
        right = {c for c in range(9) if truths[i, c]}
        ranked = sorted(range(9), key=lambda c: -logits[i, c])
        assert row["accuracy"][i] == (ranked[0] in right)
        assert row["top5_accuracy"][i] == bool(right & set(ranked[:5]))
        assert row["loss"][i] == pytest.approx(
            -np.log(sum(probabilities[i, c] for c in right))
        )


def test_of_equal_logits_the_first_is_the_answer():
    logits = np.zeros((3, 100))  # So many that a fast sort would mix them.
    row = score_predictions(logits, np.eye(100, dtype=bool)[[0, 4, 5]])
    assert row["accuracy"].tolist() == [True, False, False]
    assert row["top5_accuracy"].tolist() == [True, True, False]


def test_large_logits_do_not_overflow():
    logits = np.array([[1e5, 0.0], [0.0, 1e5]], "float32")
    truths = np.array([[True, False]] * 2)
    row = score_predictions(logits, truths, "sigmoid")
    np.testing.assert_allclose(row["loss"], [np.log(2), 1e5 + np.log(2)])
    row = score_predictions(logits, truths)
    np.testing.assert_allclose(row["loss"], [0, 1e5])
    np.testing.assert_array_equal(row["confidence"], [1, 1])


def test_sigmoid_as_a_loop_and_as_keras(logits, rng):
    truths = rng.random(logits.shape) < 0.3
    row = score_predictions(logits, truths, "sigmoid")
    probabilities = 1 / (1 + np.exp(-logits.astype("float64")))
    np.testing.assert_allclose(row["confidence"], probabilities.max(-1))
    expected = keras.losses.binary_crossentropy(
        truths.astype("float32"), logits, from_logits=True
    )
    np.testing.assert_allclose(row["loss"], 9 * np.array(expected), rtol=1e-5)
    of_softmax = score_predictions(logits, truths)
    for name in ("accuracy", "top5_accuracy"):
        np.testing.assert_array_equal(row[name], of_softmax[name])
    with pytest.raises(
        ValueError, match="`activation` must be one of .*'relu'"
    ):
        score_predictions(logits, truths, "relu")


@pytest.mark.parametrize("num_hits, number", [(0, 5), (5, 5), (90, 100)])
def test_the_interval_is_that_of_scipy(num_hits, number):
    stats = pytest.importorskip("scipy.stats")
    want = stats.binomtest(num_hits, number).proportion_ci(method="wilson")
    found = wilson_interval(num_hits, number)
    np.testing.assert_allclose(found, (want.low, want.high), atol=1e-6)


def test_metrics_of_the_classes_are_those_of_scikit_learn(logits, rng):
    names = [f"class {index}" for index in range(9)]
    labels = rng.integers(0, 7, 60)  # Two classes have no images.
    tally = Tally(names)
    for part in (slice(0, 40), slice(40, 60)):
        tally.add(logits[part], np.eye(9, dtype=bool)[labels[part]])
    report, predictions = tally.report(), logits.argmax(-1)
    precisions, recalls, f1, images = precision_recall_fscore_support(
        labels, predictions, labels=range(9), zero_division=0
    )
    for index, name in enumerate(names):
        if images[index]:
            assert report[f"accuracy/{name}"] == pytest.approx(recalls[index])
            assert report[f"f1/{name}"] == pytest.approx(f1[index])
            assert report[f"images/{name}"] == images[index]
            hits = round(recalls[index] * images[index])
            assert (
                report[f"accuracy_low/{name}"],
                report[f"accuracy_high/{name}"],
            ) == pytest.approx(wilson_interval(hits, images[index]))
        else:
            assert f"f1/{name}" not in report
        assert report[f"precision/{name}"] == pytest.approx(precisions[index])
    assert report["balanced_accuracy"] == pytest.approx(
        recalls[images > 0].mean(), rel=1e-12
    )
    macro = f1_score(labels, predictions, labels=range(7), average="macro")
    assert report["macro_f1"] == pytest.approx(macro, rel=1e-12)
    dummy = DummyClassifier(strategy="most_frequent").fit(logits, labels)
    assert report["baseline_accuracy"] == dummy.score(logits, labels)
    np.testing.assert_array_equal(
        tally.confusion, confusion_matrix(labels, predictions, labels=range(9))
    )


def test_a_class_that_is_never_predicted_has_no_precision():
    tally = Tally(["cat", "dog"])
    tally.add(np.array([[1.0, 0], [2, 0]]), np.eye(2, dtype=bool))
    report = tally.report()
    assert "precision/dog" not in report
    assert (report["accuracy/dog"], report["f1/dog"]) == (0, 0)
    assert report["baseline_accuracy"] == 0.5
    assert report["precision/cat"] == 0.5
    assert report["f1/cat"] == pytest.approx(2 / 3)


def test_of_several_right_classes_the_nearest_is_counted():
    tally = Tally(["a", "b", "c"])
    truths = np.array([[True, True, False], [True, True, False]])
    tally.add(np.array([[0.0, 2, 1], [1, 0, 2]]), truths)
    assert tally.confusion.tolist() == [[0, 0, 1], [0, 1, 0], [0, 0, 0]]


def test_many_classes_have_no_confusion_matrix():
    assert Tally([str(index) for index in range(2001)]).confusion is None


def test_bins_hold_each_prediction_once(rng):
    confidence, hits = rng.random(500), rng.random(500) < 0.5
    confidence[:20] = np.arange(1, 21) / 20  # On the borders of bins, too.
    bins = calibration_bins(confidence, hits)
    assert len(bins) == 15
    for index, row in enumerate(bins):
        inside = (confidence > index / 15) & (confidence <= (index + 1) / 15)
        assert row.count == inside.sum()
        assert row.confidence == pytest.approx(confidence[inside].mean())
        assert row.accuracy == pytest.approx(hits[inside].mean())
    assert sum(row.count for row in bins) == 500
    gaps = [
        row.count / 500 * abs(row.accuracy - row.confidence) for row in bins
    ]
    assert calibration_error(confidence, hits) == pytest.approx(sum(gaps))
    assert math.isnan(calibration_bins(np.ones(1), np.ones(1))[0].accuracy)
