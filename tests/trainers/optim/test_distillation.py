"""The losses of a teacher, against closed forms."""

import numpy as np
import pytest
import scipy.special

from trainers.optim.losses import LOSSES, Distillation, hard_loss, soft_loss


@pytest.fixture
def logits():
    random = np.random.default_rng(0)
    return random.standard_normal((2, 5, 7)).astype("float32") * 2


def softened(name, temperature):
    return soft_loss(LOSSES[name], temperature)


@pytest.mark.parametrize("temperature", [1.0, 3.0])
def test_soft_targets_of_softmax_are_a_divergence(logits, temperature):
    teacher, student = logits
    p, q = (scipy.special.softmax(x / temperature, -1) for x in logits)
    expected = temperature**2 * np.sum(scipy.special.rel_entr(p, q), -1)
    found = softened("softmax", temperature)(teacher, student)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)


def test_soft_targets_of_sigmoid_are_divergences_of_each_class(logits):
    teacher, student = logits
    p, q = scipy.special.expit(logits)
    parts = scipy.special.rel_entr(p, q) + scipy.special.rel_entr(1 - p, 1 - q)
    found = softened("sigmoid", 1.0)(teacher, student)
    np.testing.assert_allclose(found, parts.sum(-1), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", LOSSES)
def test_hard_targets_are_labels(logits, name):
    teacher, student = logits
    labels = np.eye(7, dtype="float32")[teacher.argmax(-1)]
    found = hard_loss(LOSSES[name], temperature=3.0)(teacher, student)
    expected = LOSSES[name].function(labels, student)
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_the_share_of_the_teacher(logits):
    rows = Distillation(None, lambda teacher, x: x[:, 0], weight=0.25)
    losses = np.arange(5.0, dtype="float32")
    found = rows.mix(losses, *logits)
    np.testing.assert_allclose(found, 0.75 * losses + 0.25 * logits[1][:, 0])
