"""Similarity of representations and norms of tokens, by direct formulas."""

import keras
import numpy as np
import pytest

from keras_vit.analysis import (
    artefact_tokens,
    representation_similarity,
    token_norms,
)
from tests.analysis.cases import images_of, model_of
from tests.tiny import to_numpy


def tokens_of(model, images):
    """Return the tokens after each block, (layers, B, T, D)."""
    outputs = [
        model.get_layer(f"block_{index:02d}").output
        for index in range(model.config.depth)
    ]
    tokens = keras.Model(model.input, outputs)(images)
    return np.stack([to_numpy(x) for x in tokens]).astype("float64")


def unbiased_hsic(a, b):
    """Song et al. 2012, eq. 5."""
    n = len(a)
    a, b = (x.reshape(n, -1) @ x.reshape(n, -1).T for x in (a, b))
    np.fill_diagonal(a, 0)
    np.fill_diagonal(b, 0)
    one = np.ones(n)
    return (
        np.trace(a @ b)
        + (one @ a @ one) * (one @ b @ one) / ((n - 1) * (n - 2))
        - 2 / (n - 2) * (one @ a @ b @ one)
    ) / (n * (n - 3))


def test_similarity_equals_the_unbiased_estimate():
    one, other = model_of("token"), model_of("softmax")
    images = images_of("token", batch=9)
    parts = [slice(0, 5), slice(5, 9)]  # The one left over is not lost.
    a, b = (
        np.concatenate([tokens_of(model, images[p]) for p in parts], axis=1)
        for model in (one, other)
    )

    def hsic(x, y):
        return np.mean([unbiased_hsic(x[part], y[part]) for part in parts])

    expected = [
        [hsic(x, y) / np.sqrt(hsic(x, x) * hsic(y, y)) for y in b] for x in a
    ]
    similarity = representation_similarity(one, other, images, batch_size=4)
    assert similarity.shape == (2, 3)
    np.testing.assert_allclose(similarity, expected, atol=1e-4)
    similarity = representation_similarity(other, other, images)
    np.testing.assert_allclose(np.diag(similarity), 1, rtol=1e-6)
    assert similarity.min() < 0.999


@pytest.mark.parametrize(
    ("batch", "batch_size", "match"),
    [(3, 64, "Received: 3 images"), (8, 3, "batch_size=3")],
)
def test_too_few_images_are_an_error(batch, batch_size, match):
    model, images = model_of("token"), images_of("token", batch)
    with pytest.raises(ValueError, match=match):
        representation_similarity(model, model, images, batch_size)


@pytest.mark.parametrize("name", ["token", "average"])
def test_norms_are_those_of_the_tokens(name):
    model, images = model_of(name), images_of(name, batch=4)
    norms = token_norms(model, images, batch_size=2)
    expected = np.sqrt((tokens_of(model, images) ** 2).sum(axis=-1))
    assert norms.dtype == "float32"
    np.testing.assert_allclose(norms, expected, rtol=1e-5)


@pytest.mark.parametrize("prefix", [0, 1])
def test_planted_artefacts_are_found(prefix):
    norms = np.random.default_rng(0).uniform(30, 60, size=(2, 3, prefix + 50))
    norms[..., :prefix] = 900  # The class token may be long.
    planted = np.zeros((2, 3, 50), bool)
    planted[1, 2, [4, 17]] = planted[0, 0, 49] = True
    norms[..., prefix:][planted] = 450
    found = artefact_tokens(norms, prefix)
    np.testing.assert_array_equal(found, planted)
    np.testing.assert_array_equal(artefact_tokens(norms / 100, prefix), planted)
    assert not artefact_tokens(norms, prefix, ratio=20).any()
    assert artefact_tokens(norms, prefix, ratio=1.01).sum() > 10


@pytest.mark.parametrize(
    ("options", "match"),
    [({"ratio": 1.0}, "`ratio`"), ({"num_prefix_tokens": 10}, "`norms`")],
)
def test_bad_rules_of_artefacts_are_an_error(options, match):
    with pytest.raises(ValueError, match=match):
        artefact_tokens(np.ones((2, 10)), **options)
