"""Position similarity and principal filters, of tables made for the test."""

import numpy as np
import pytest

from keras_vit import VisionTransformer
from keras_vit.analysis import (
    embedding_filters,
    position_similarity,
    scale_filters,
)
from keras_vit.layers import POSITION_EMBEDDINGS
from tests.analysis.cases import model_of
from tests.tiny import noise, randomize, tiny_config

GRID = (2, 3)


def model_with(kind, **choices):
    """Return a model with six patches and 12 features."""
    config = tiny_config(
        **{
            "width": 12,
            "image_size": (16, 24),
            "position_embedding": kind,
            **choices,
        }
    )
    return VisionTransformer(config)


@pytest.mark.parametrize("prefix", [0, 1])
def test_a_planted_table_has_its_similarity(prefix):
    model = model_with("learned", use_class_token=bool(prefix), pooling="avg")
    angles = np.deg2rad([0, 60, 90, 120, 180, 0])
    table = np.zeros((prefix + 6, 12))
    table[:prefix] = 100.0  # Not to be seen.
    lengths = np.array([1, 2, 3, 4, 5, 0])  # The last has no direction.
    table[prefix:, 4] = lengths * np.cos(angles)
    table[prefix:, 7] = lengths * np.sin(angles)
    model.get_layer("position_embedding").set_weights([table])
    similarity = position_similarity(model)
    expected = np.cos(angles[:, None] - angles[None])
    expected[5] = expected[:, 5] = 0
    assert similarity.dtype == "float32"
    np.testing.assert_allclose(
        similarity, expected.reshape(2, 3, 2, 3), atol=1e-6
    )


def test_prefix_tokens_without_positions_have_no_rows():
    model = model_with("learned", use_prefix_positions=False)
    table = noise(6, 12)
    model.get_layer("position_embedding").set_weights([table])
    expected = model_with("learned", use_class_token=False, pooling="avg")
    expected.get_layer("position_embedding").set_weights([table])
    np.testing.assert_array_equal(
        position_similarity(model), position_similarity(expected)
    )


def test_rows_and_columns_of_their_own():
    model = model_with("learned_2d")
    layer = model.get_layer("position_embedding")
    layer.rows.assign(3 * np.eye(2, 6))
    layer.columns.assign(3 * np.eye(3, 6))
    y, x = np.indices(GRID)
    same_row = y[..., None, None] == y
    same_column = x[..., None, None] == x
    np.testing.assert_allclose(
        position_similarity(model), (same_row * 0.5 + same_column * 0.5)
    )


@pytest.mark.parametrize("choices", [{}, {"use_dynamic_image_size": True}])
def test_sines_and_cosines_in_two_directions(choices):
    # sin a sin b + cos a cos b = cos(a - b), of each of the frequencies.
    similarity = position_similarity(model_with("sincos_2d", **choices))
    frequencies = 10_000.0 ** -np.array([0, 0.5, 1])
    y, x = np.indices(GRID)
    apart = np.stack([y[..., None, None] - y, x[..., None, None] - x])
    expected = np.cos(apart[..., None] * frequencies).mean(axis=(0, -1))
    np.testing.assert_allclose(similarity, expected, atol=1e-6)


@pytest.mark.parametrize("kind", sorted(set(POSITION_EMBEDDINGS) - {"none"}))
def test_a_position_is_like_itself(kind):
    similarity = position_similarity(randomize(model_with(kind)))
    similarity = similarity.reshape(6, 6)
    np.testing.assert_allclose(np.diag(similarity), 1, atol=1e-6)
    np.testing.assert_array_equal(similarity, similarity.T)
    assert np.abs(similarity).max() <= 1


def test_a_model_without_positions_is_an_error():
    with pytest.raises(ValueError, match="`model`"):
        position_similarity(model_with("none"))


def planted(strengths, channels=3, width=24, side=8):
    """Return (kernel, its components, its coefficients)."""
    size = side * side * channels
    rank = len(strengths)
    components = np.linalg.qr(noise(size, rank, seed=1))[0].T
    # Orthogonal to each other and to a constant: what is left of the kernel
    # once the mean is subtracted.
    free = np.concatenate([np.ones((width, 1)), noise(width, rank)], axis=1)
    coefficients = np.linalg.qr(free)[0][:, 1:].T
    kernel = np.einsum("r,rs,rw->sw", strengths, components, coefficients)
    kernel = kernel + noise(size, 1, seed=2)  # The mean of the filters.
    return kernel.reshape(side, side, channels, width), components


def test_filters_of_a_planted_kernel_are_found():
    strengths = np.array([5.0, 3.0, 2.0, 0.5])
    kernel, components = planted(strengths)
    model = model_of("token")
    model = VisionTransformer(model.config)
    encoder = model.get_layer("patch_encoder")
    encoder.kernel.assign(kernel)
    filters, variance = embedding_filters(model, num=6)
    assert filters.shape == (6, 8, 8, 3) and filters.dtype == "float32"
    expected = strengths**2 / np.sum(strengths**2)
    np.testing.assert_allclose(variance, [*expected, 0, 0], atol=1e-6)
    found = filters.reshape(6, -1)
    # Up to the sign, which makes the largest number positive.
    signs = np.sign(components[range(4), np.abs(components).argmax(axis=1)])
    np.testing.assert_allclose(
        found[:4], components * signs[:, None], atol=1e-5
    )
    np.testing.assert_allclose(found @ found.T, np.eye(6), atol=1e-5)
    encoder.kernel.assign(-kernel)
    again = embedding_filters(model, num=4).filters
    np.testing.assert_allclose(again, filters[:4], atol=1e-5)


@pytest.mark.parametrize(
    "width, patch_size, channels, num",
    [(12, 8, 3, 11), (48, 8, 5, 28), (48, 2, 1, 4)],
)
def test_there_are_as_many_filters_as_explain(width, patch_size, channels, num):
    """Without the mean, D filters have no more than D - 1 directions."""
    sizes = {"width": width, "patch_size": patch_size, "channels": channels}
    model = randomize(model_with("learned", **sizes))
    filters, variance = embedding_filters(model)
    assert filters.shape == (num, patch_size, patch_size, channels)
    assert variance.min() > 1e-6 and (np.diff(variance) <= 0).all()
    with pytest.raises(ValueError, match="`num`"):
        embedding_filters(model, 0)


def test_filters_are_scaled_each_by_itself():
    filters = noise(3, 4, 4, 3) * np.array([1, 10, 0])[:, None, None, None]
    pictures = scale_filters(filters.astype("float32"))
    for picture, one in zip(pictures[:2], filters):
        assert (picture.min(), picture.max()) == (0, 1)
        assert picture.argmax() == one.argmax()
    np.testing.assert_array_equal(pictures[2], 0.5)
