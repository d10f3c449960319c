"""Figures from sums over images are those of scikit-learn over all of them."""

import numpy as np
import pytest
import sklearn.metrics

from trainers.training.objectives import (
    LEAST_BINS,
    LIMIT,
    MOST_BINS,
    BalancedAccuracy,
    MeanAveragePrecision,
)


@pytest.fixture
def batches():
    """Return five batches of logits, weights and 4 classes of any frequency."""
    random = np.random.default_rng(0)
    logits = random.normal(0, 5, (5, 32, 4)).astype("float32")
    weights = (random.random((5, 32)) < 0.9).astype("float32")
    classes = np.minimum(random.integers(0, 40, (5, 32)), 2)
    return logits, weights, classes


def total(figure, labels, logits, weights):
    rows = zip(labels, logits, weights)
    sums = [np.asarray(figure.measure(*row)) for row in rows]
    assert all(row.shape == (figure.size,) for row in sums)
    return figure.report(np.sum(sums, axis=0))


def test_balanced_accuracy(batches):
    """A class without images does not count."""
    logits, weights, classes = batches
    labels = np.eye(4, dtype="float32")[classes]
    found = total(BalancedAccuracy(4), labels, logits, weights)
    want = sklearn.metrics.balanced_accuracy_score(
        classes[weights > 0], logits[..., :3].argmax(-1)[weights > 0]
    )
    counted = logits.argmax(-1)
    recalls = [
        np.mean(counted[(classes == c) & (weights > 0)] == c) for c in range(3)
    ]
    assert found == pytest.approx(np.mean(recalls), abs=1e-6)
    logits[..., 3] = -99
    found = total(BalancedAccuracy(4), labels, logits, weights)
    assert found == pytest.approx(want, abs=1e-6)


def test_mean_average_precision(batches):
    """Of rounded logits; unknown labels and missing images do not count."""
    logits, weights, classes = batches
    random = np.random.default_rng(1)
    labels = (logits + random.normal(0, 5, logits.shape) > 4).astype("float32")
    labels[..., 3] = 0  # A class without positives.
    labels[random.random(labels.shape) < 0.2] = np.nan
    logits[0, 0] = [1e6, -1e6, 100, -100]
    figure = MeanAveragePrecision(4)
    found = total(figure, labels, logits, weights)
    step = 2 * LIMIT / figure.bins
    rounded = np.floor(np.clip(logits, -LIMIT, LIMIT - step) / step)
    values = []
    for c in range(3):
        counts = (weights > 0) & ~np.isnan(labels[..., c])
        values.append(
            sklearn.metrics.average_precision_score(
                labels[..., c][counts], rounded[..., c][counts]
            )
        )
    assert found == pytest.approx(np.mean(values), abs=1e-6)


def test_many_classes_have_fewer_bins():
    sizes = [MeanAveragePrecision(n).bins for n in (1, 512, 2048, 10**5)]
    assert sizes == [MOST_BINS, MOST_BINS, 1024, LEAST_BINS]


def test_without_positives_it_is_zero():
    labels = np.zeros((4, 2), "float32")
    figure = MeanAveragePrecision(2)
    assert total(figure, labels[None], labels[None], np.ones((1, 4))) == 0
