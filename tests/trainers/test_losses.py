import numpy as np
import pytest

from trainers.losses import LOSSES, sigmoid, smooth_labels, softmax


@pytest.fixture
def batch():
    random = np.random.default_rng(0)
    labels = np.eye(5, dtype="float32")[[1, 4, 0]]
    logits = random.normal(scale=3, size=(3, 5)).astype("float32")
    return labels, logits


def test_softmax_is_minus_the_log_probability_of_the_label(batch):
    labels, logits = batch
    exponents = np.exp(logits)
    probabilities = exponents / exponents.sum(-1, keepdims=True)
    want = -np.log(probabilities[labels == 1])
    np.testing.assert_allclose(softmax(labels, logits), want, rtol=1e-5)


def test_sigmoid_sums_binary_cross_entropies_over_the_classes(batch):
    labels, logits = batch
    p = 1 / (1 + np.exp(-logits))
    want = -(labels * np.log(p) + (1 - labels) * np.log(1 - p)).sum(-1)
    np.testing.assert_allclose(sigmoid(labels, logits), want, rtol=1e-5)


@pytest.mark.parametrize("name", LOSSES)
def test_huge_logits_give_finite_losses(name):
    labels = np.array([[1.0, 0.0], [0.0, 1.0]], "float32")
    logits = np.array([[1e4, -1e4], [1e4, -1e4]], "float32")
    losses = np.asarray(LOSSES[name](labels, logits))
    assert np.all(np.isfinite(losses))
    assert losses[0] < 1e-3 < losses[1]


def test_smoothing_keeps_the_sum_and_moves_the_share_asked_for(batch):
    labels, _ = batch
    smooth = np.asarray(smooth_labels(labels, 0.1))
    np.testing.assert_allclose(smooth.sum(-1), 1, rtol=1e-6)
    np.testing.assert_allclose(smooth[labels == 1], 0.9 + 0.02, rtol=1e-6)
    np.testing.assert_allclose(smooth[labels == 0], 0.02, rtol=1e-6)
