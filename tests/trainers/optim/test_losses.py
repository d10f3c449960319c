import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import scipy.special
import tensorflow as tf

from keras_vit.models.features import CLASSIFIER_ACTIVATIONS
from tests.tiny import noise
from trainers.evaluation.scores import LIKELIHOODS
from trainers.optim.losses import (
    LOSSES,
    Distillation,
    hard_loss,
    smooth_labels,
    soft_loss,
)
from trainers.recipes import recipe as recipes


@pytest.mark.parametrize("name", LOSSES)
def test_huge_logits_give_finite_losses(name):
    labels = np.array([[1.0, 0.0], [0.0, 1.0]], "float32")
    logits = np.array([[1e4, -1e4], [1e4, -1e4]], "float32")
    losses = np.asarray(LOSSES[name].function(labels, logits))
    assert np.all(np.isfinite(losses))
    assert losses[0] < 1e-3 < losses[1]


def test_smoothing_keeps_the_sum_and_moves_the_share_asked_for():
    labels = np.eye(5, dtype="float32")[[1, 4, 0]]
    smooth = np.asarray(smooth_labels(labels, 0.1))
    np.testing.assert_allclose(smooth, 0.9 * labels + 0.02, rtol=1e-6)


def sum_of_sigmoids(logits, labels):
    return optax.sigmoid_binary_cross_entropy(logits, labels).sum(-1)


def sum_of_focal(logits, labels):
    """Lin et al. 2017, eq. 4, as it is written."""
    p = jax.nn.sigmoid(logits)
    positive = -((1 - p) ** 2) * jnp.log(p)
    negative = -(p**2) * jnp.log(1 - p)
    return (labels * positive + (1 - labels) * negative).sum(-1)


def sum_of_asymmetric(logits, labels):
    """Ridnik et al. 2021, eq. 4 and 7, as they are written."""
    p = jax.nn.sigmoid(logits)
    shifted = jnp.maximum(p - 0.05, 0)
    negative = -(shifted**4) * jnp.log(1 - shifted)
    return (labels * -jnp.log(p) + (1 - labels) * negative).sum(-1)


GOLDEN = {
    "softmax": optax.softmax_cross_entropy,
    "sigmoid": sum_of_sigmoids,
    "focal": sum_of_focal,
    "asymmetric": sum_of_asymmetric,
}
LABELS = {
    "soft": np.abs(noise(4, 6)) / np.abs(noise(4, 6)).sum(-1, keepdims=True),
    "none, one, two or all of the classes": np.array(
        [[0] * 6, [0, 1, 0, 0, 0, 0], [1, 0, 0, 1, 0, 0], [1] * 6], "float32"
    ),
}


@pytest.mark.parametrize("labels", LABELS.values(), ids=LABELS)
@pytest.mark.parametrize("name", LOSSES)
def test_losses_and_gradients_of_any_labels_are_those_of_optax(name, labels):
    logits = tf.constant(noise(4, 6, seed=1, scale=3))
    with tf.GradientTape() as tape:
        tape.watch(logits)
        losses = LOSSES[name].function(labels, logits)
    want, gradient = jax.value_and_grad(
        lambda x: GOLDEN[name](x, labels).sum()
    )(logits.numpy())
    np.testing.assert_allclose(
        losses, GOLDEN[name](logits.numpy(), labels), rtol=1e-5, atol=1e-6
    )
    np.testing.assert_allclose(np.sum(losses), want, rtol=1e-5)
    np.testing.assert_allclose(
        tape.gradient(losses, logits), gradient, atol=1e-6
    )


@pytest.mark.parametrize("name", ["sigmoid", "focal", "asymmetric"])
def test_unknown_labels_do_not_count_and_positives_may_count_more(name):
    logits = noise(4, 6, seed=1, scale=3)
    labels = (noise(4, 6) > 0).astype("float32")
    is_known = noise(4, 6, seed=2) > 0
    weights = np.arange(1.0, 7.0, dtype="float32")
    want = [
        sum(
            GOLDEN[name](x[None], y[None]) * (w if y else 1)
            for x, y, w, known in zip(*row)
            if known
        )
        for row in zip(logits, labels, [weights] * 4, is_known)
    ]
    given = tf.constant(np.where(is_known, labels, np.nan))
    with tf.GradientTape() as tape:
        x = tf.constant(logits)
        tape.watch(x)
        losses = LOSSES[name].function(given, x, weights)
    np.testing.assert_allclose(losses, want, rtol=1e-5)
    gradient = tape.gradient(losses, x).numpy()
    assert np.isfinite(gradient).all() and (gradient[~is_known] == 0).all()


@pytest.mark.parametrize("name", LOSSES)
def test_predictions_and_evaluations_know_the_activation_of_a_loss(name):
    assert LOSSES[name].activation in CLASSIFIER_ACTIVATIONS
    assert LOSSES[name].activation in LIKELIHOODS


def test_the_activation_of_a_recipe_is_that_of_its_row(monkeypatch):
    """Not the name of the loss: two losses may have the same activation."""
    known = {name: row.activation for name, row in LOSSES.items()}
    assert recipes.LOSSES == known
    monkeypatch.setitem(recipes.LOSSES, "softmax", "sigmoid")
    assert recipes.Recipe(loss="softmax").activation == "sigmoid"


# The losses of a teacher


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
