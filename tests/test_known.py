"""Scores of known images, against NumPy."""

import keras
import numpy as np
import pytest
from keras import ops
from scipy.special import logsumexp, softmax

from keras_vit import VisionTransformer, known
from keras_vit.known import SCORES, KnownScore, fit_score, with_features
from keras_vit.models.features import CLASSIFIER_ACTIVATIONS
from tests.tiny import noise, randomize, tiny_config

WIDTH, CLASSES = 6, 4


@pytest.fixture(scope="module")
def data():
    """Return features, classes, and features and logits of other images."""
    random = np.random.default_rng(3)
    classes = np.repeat([0, 1, 3], (40, 25, 5))  # None has class 2.
    spread = random.normal(size=(WIDTH, WIDTH))
    features = random.normal(size=(70, WIDTH)) @ spread
    features += 4 * random.normal(size=(CLASSES, WIDTH))[classes] + 30
    others = random.normal(size=(9, WIDTH)).astype("float32") * 3 + 30
    logits = 5 * random.normal(size=(9, CLASSES)).astype("float32")
    return features.astype("float32"), classes, others, logits


def make_model(dtype=None):
    config = tiny_config(image_size=(32, 32))
    return randomize(VisionTransformer(config, dtype=dtype))


def cosine_similarity(x, y):
    x, y = (v / np.linalg.norm(v, axis=-1, keepdims=True) for v in (x, y))
    return x @ y.T


def compute(score, features, logits):
    found = score(
        ops.convert_to_tensor(features), ops.convert_to_tensor(logits)
    )
    found = ops.convert_to_numpy(found)
    assert found.shape == (len(features),) and found.dtype == np.float32
    return found


@pytest.mark.parametrize("activation", CLASSIFIER_ACTIVATIONS)
def test_scores_of_logits(data, activation):
    *_, others, logits = data
    probabilities = {
        "softmax": softmax(logits, -1),
        "sigmoid": 1 / (1 + np.exp(-logits.astype("float64"))),
    }[activation]
    score = KnownScore("max_probability", activation=activation)
    expected = probabilities.max(-1)
    np.testing.assert_allclose(compute(score, others, logits), expected, 1e-5)
    score = KnownScore("energy", activation=activation)
    expected = logsumexp(logits, -1)
    np.testing.assert_allclose(compute(score, others, logits), expected, 1e-5)


def test_distance_from_the_nearest_class_mean(data):
    """The Mahalanobis distance, computed without whitening."""
    features, classes, others, logits = data
    score = fit_score("class_means", features, classes)
    x = features.astype("float64")
    means = {i: x[classes == i].mean(0) for i in (0, 1, 3)}
    rest = x - np.stack([means[i] for i in classes])
    covariance = np.mean([np.outer(row, row) for row in rest], axis=0)
    shrunk = (1 - known.SHRINKAGE) * covariance
    shrunk += known.SHRINKAGE * np.trace(covariance) / WIDTH * np.eye(WIDTH)
    inverse = np.linalg.inv(shrunk)
    squares = [
        np.einsum("nd,de,ne->n", others - mean, inverse, others - mean)
        for mean in means.values()
    ]
    expected = -np.sqrt(np.min(squares, axis=0) / WIDTH)
    np.testing.assert_allclose(compute(score, others, logits), expected, 1e-4)


def test_distances_are_exact_far_from_zero_and_at_a_mean(data):
    """Where float32 has few digits left, and where a square is near zero."""
    features, classes, others, logits = data
    score = fit_score("class_means", features, classes)
    far = fit_score("class_means", features + 3000.0, classes)
    found = compute(far, others + 3000, logits)
    expected = compute(score, others, logits)
    np.testing.assert_allclose(found, expected, rtol=1e-2)
    means = np.stack([features[classes == i].mean(0) for i in (0, 1, 3)])
    shifts = np.linspace(-1e-5, 1e-5, 41)[:, None, None]
    near = (means + shifts).reshape(-1, WIDTH).astype("float32")
    found = compute(score, near, np.zeros((len(near), CLASSES), "float32"))
    assert np.all(found > -1e-2) and np.all(found <= 0)


def test_cosine_to_the_nearest_training_image(data):
    features, classes, others, logits = data
    score = fit_score("neighbors", features, classes)
    expected = cosine_similarity(others, features).max(-1)
    np.testing.assert_allclose(compute(score, others, logits), expected, 1e-5)
    itself = compute(score, features[:9], logits)
    np.testing.assert_allclose(itself, 1, rtol=1e-6)


def test_few_neighbors_are_of_all_classes(data, monkeypatch):
    features, classes, *_ = data
    order = np.random.default_rng(0).permutation(len(classes))
    features, classes = features[order], classes[order]
    monkeypatch.setattr(known, "NUM_NEIGHBORS", 14)
    kept = fit_score("neighbors", features, classes).vectors["neighbors"]
    rows = cosine_similarity(kept, features).argmax(-1)
    assert len(kept) == 14 and len({*rows}) == 14
    shares = np.bincount(classes[rows], minlength=4)
    np.testing.assert_allclose(shares, [8, 5, 0, 1], atol=1)


@pytest.mark.parametrize("kind", SCORES)
def test_features_without_spread_give_finite_scores(kind):
    """A dead ReLU, or an image a class."""
    features = np.eye(3, 8, dtype="float32")
    features[0] = 0
    logits = np.zeros((3, 3), "float32")
    score = fit_score(kind, features, np.arange(3))
    assert np.isfinite(compute(score, features, logits)).all()


def test_an_image_at_the_threshold_is_known():
    score = KnownScore("energy", threshold=0.1)
    found = score.is_known(np.float32([0.09, 0.1, 0.11]))
    assert found.tolist() == [False, True, True]
    # As exports compare, also if the number has more digits.
    score = KnownScore("energy", threshold=np.float64(0.7))
    assert score.is_known(np.float32([0.7])).tolist() == [True]


@pytest.mark.parametrize("kind", SCORES)
def test_outputs_in_16_bits_are_scored_in_float32(kind, data):
    features, classes, others, logits = data
    score = fit_score(kind, features, classes)
    half = others.astype("float16"), logits.astype("float16")
    again = [x.astype("float32") for x in half]
    expected = compute(score, *again)
    np.testing.assert_allclose(compute(score, *half), expected, rtol=1e-6)


def test_features_and_logits_of_a_model():
    model, images = make_model(), noise(2, 32, 32, 3)
    found = with_features(model).predict(images, verbose=0)
    logits = model.predict(images, verbose=0)
    head = model.get_layer("predictions")
    np.testing.assert_allclose(found[:, -logits.shape[1] :], logits, 1e-6)
    features = found[:, : -logits.shape[1]]
    expected = features @ ops.convert_to_numpy(head.kernel)
    expected += ops.convert_to_numpy(head.bias)
    np.testing.assert_allclose(logits, expected, atol=1e-5)


def test_a_distilled_head_has_the_features_of_two_tokens():
    config = tiny_config(
        image_size=(32, 32), pooling="distilled", use_distillation_token=True
    )
    model, images = randomize(VisionTransformer(config)), noise(3, 32, 32, 3)
    found = with_features(model).predict(images, verbose=0)
    features, logits = found[:, :-7], found[:, -7:]
    np.testing.assert_allclose(logits, model.predict(images, verbose=0), 1e-5)
    score = fit_score("neighbors", features, np.arange(3))
    as_in_graphs = features.reshape(3, 2, config.width)
    np.testing.assert_allclose(compute(score, as_in_graphs, logits), 1, 1e-5)


def test_features_of_a_model_in_16_bits_are_float32():
    model = make_model(dtype="mixed_bfloat16")
    found = with_features(model)(np.zeros((1, 32, 32, 3), "float32"))
    assert keras.backend.standardize_dtype(found.dtype) == "float32"


@pytest.mark.parametrize(
    "choices, match",
    [
        ({"kind": "entropy"}, "`kind` .*'entropy'"),
        ({"activation": "relu"}, "`activation` .*'relu'"),
        ({"threshold": "0.5"}, "`threshold` .*'0.5'"),
        ({"kind": "neighbors"}, "`vectors` must be neighbors .*none"),
        ({"vectors": {"means": np.zeros(3)}}, "`vectors` must be empty"),
    ],
    ids=str,
)
def test_arguments_are_checked(choices, match):
    with pytest.raises(ValueError, match=match):
        KnownScore(**{"kind": "energy", **choices})
