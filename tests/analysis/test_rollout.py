"""Rollout: against plain loops over numpy, and closed forms."""

import keras
import numpy as np
import pytest
from scipy.special import softmax

from keras_vit import VisionTransformer
from keras_vit.analysis import (
    HEAD_FUSIONS,
    attention_grid,
    attention_maps,
    attention_relevance,
    attention_rollout,
    grid_size_of,
    head_grid,
    head_tokens,
    inspect_model,
    roll_out,
    to_grid,
)
from tests.analysis.cases import CHOICES, images_of, model_of
from tests.tiny import noise, randomize, tensorflow_only, tiny_config, to_numpy

MAPS = softmax(2 * noise(3, 2, 4, 7, 7), axis=-1)  # (layers, B, K, T, T)


def roll_out_in_numpy(maps, head_fusion, discard_ratio, num_prefix_tokens):
    """Image by image and entry by entry, in float64."""
    maps = np.asarray(maps, "float64")
    rollouts = []
    for image in range(maps.shape[1]):
        rollout = np.eye(maps.shape[-1])
        for layer in range(maps.shape[0]):
            step = getattr(np, head_fusion)(maps[layer, image], axis=0)
            ranked = sorted(step.ravel())
            kept_from = ranked[int(discard_ratio * len(ranked))]
            for row, column in np.argwhere(step < kept_from):
                if row != column or row >= num_prefix_tokens:
                    step[row, column] = 0
            step = step + np.eye(len(step))
            step = np.array([row / row.sum() for row in step])
            rollout = step @ rollout
        rollouts.append(rollout)
    return np.stack(rollouts)


@pytest.mark.parametrize("prefix", [0, 1])
@pytest.mark.parametrize("discard_ratio", [0.0, 0.3, 0.99])
@pytest.mark.parametrize("head_fusion", HEAD_FUSIONS)
def test_equals_plain_loops(head_fusion, discard_ratio, prefix):
    maps = MAPS.copy()
    maps[:, :, :, 0, 0] = 1e-4  # Would be dropped first.
    rollout = roll_out(maps, head_fusion, discard_ratio, prefix)
    expected = roll_out_in_numpy(maps, head_fusion, discard_ratio, prefix)
    np.testing.assert_allclose(to_numpy(rollout), expected, atol=1e-6)


def test_uniform_attention_halves_the_identity_in_each_block():
    # (I + J/T)/2 to the power L is 2^-L I + (1 - 2^-L) J/T.
    maps = np.full((3, 1, 2, 4, 4), 0.25)
    expected = np.eye(4) / 8 + 7 / 8 / 4
    np.testing.assert_allclose(to_numpy(roll_out(maps))[0], expected, 1e-6)
    # Equal entries are kept together: there is no smallest among them.
    rollout = to_numpy(roll_out(maps, discard_ratio=0.9))
    np.testing.assert_allclose(rollout[0], expected, rtol=1e-6)


@pytest.mark.parametrize("name", CHOICES)
def test_rollout_of_a_model_is_that_of_its_maps(name):
    model, images = model_of(name), images_of(name, batch=4)
    prefix = model.config.num_prefix_tokens
    maps = attention_maps(model, images, batch_size=2)
    expected = roll_out_in_numpy(maps, "max", 0.5, prefix)
    rollout = attention_rollout(model, images, "max", 0.5, batch_size=2)
    np.testing.assert_allclose(rollout, expected, atol=1e-5)
    np.testing.assert_allclose(rollout.sum(axis=-1), 1, atol=1e-5)
    # The picture of it, of the readers' rows.
    plain = roll_out_in_numpy(maps[:, :2], "mean", 0, prefix)
    h, w = grid_size_of(model, images)
    readers = list(head_tokens(model.config)) or slice(prefix, None)
    picture = plain[:, readers, prefix:].mean(axis=1).reshape(-1, h, w)
    grid = attention_grid(model, images[:2])
    np.testing.assert_allclose(to_numpy(grid), picture, atol=1e-5)


# Choices of a model with registers, and the tokens that its head reads.
READ = [
    ({"pooling": "none"}, (0,)),
    ({"pooling": "none", "use_class_token": False}, ()),
    ({"pooling": "avg", "use_class_token": False}, ()),
    ({"pooling": "avg"}, ()),
    ({"pooling": "max"}, ()),
    ({"pooling": "map"}, ()),
    ({"pooling": "token"}, (0,)),
    ({"pooling": "prefix"}, (0,)),
    ({"pooling": "prefix", "use_class_token": False}, (0,)),
    ({"pooling": "prefix", "pooling_indices": (1, 2)}, (1, 2)),
    ({"pooling": "distilled", "use_distillation_token": True}, (0, 1)),
]
SOME_READ = READ[6:]  # Not all of them.
if keras.backend.backend() == "jax":  # It compiles for each number of tokens.
    SOME_READ = READ[9:10]


@pytest.mark.parametrize(("choices", "rows"), READ, ids=str)
def test_which_tokens_the_head_reads(choices, rows):
    assert head_tokens(tiny_config(num_registers=2, **choices)) == rows


@pytest.mark.parametrize(("choices", "rows"), SOME_READ, ids=str)
def test_the_head_s_grid_is_of_the_tokens_that_it_reads(choices, rows):
    """The gradient of the head with respect to the other tokens is zero."""
    config = tiny_config(num_registers=2, **choices)
    model = randomize(VisionTransformer(config))
    images = noise(2, *config.image_size, config.channels)
    h, w = grid_size_of(model, images)
    prefix = config.num_prefix_tokens
    length = prefix + h * w
    matrix = noise(2, length, length, seed=4)
    expected = matrix[:, rows, prefix:].mean(1).reshape(-1, h, w)
    grid = head_grid(model, images, matrix)
    np.testing.assert_allclose(grid, expected, atol=1e-6)
    inspection = inspect_model(model, images, num_classes=0)
    np.testing.assert_array_equal(inspection.read_grid(matrix), grid)
    # Relevance comes from the rows that are read alone.
    relevance = attention_relevance(model, images, 0)
    assert to_numpy(head_grid(model, images, relevance)).max() > 0


def test_the_grid_is_filled_row_by_row():
    matrix = np.zeros((1, 7, 7), "float32")
    matrix[0, 0] = np.arange(7)
    grid = to_grid(matrix, (2, 3))
    assert isinstance(grid, np.ndarray)
    np.testing.assert_array_equal(grid, [[[1, 2, 3], [4, 5, 6]]])
    matrix[0, 3:5] = 60
    grid = to_grid(matrix, (2, 3), tokens=())
    np.testing.assert_array_equal(grid, np.full((1, 2, 3), 20))
    grid = to_grid(matrix[:, 1:, 1:], (3, 2), 0, ())
    np.testing.assert_array_equal(grid, np.full((1, 3, 2), 20))


@tensorflow_only
@pytest.mark.parametrize("name", ["token", "average", "open_hybrid"])
def test_a_saved_model_answers_with_the_grid(name, tmp_path):
    import tensorflow as tf

    model, images = model_of(name), images_of(name)
    archive = keras.export.ExportArchive()
    archive.add_endpoint(
        "attention",
        lambda images: {"grid": attention_grid(model, images)},
        input_signature=[tf.TensorSpec((None, *model.input_shape[1:]))],
    )
    archive.write_out(tmp_path / "1", verbose=False)
    archive = tf.saved_model.load(tmp_path / "1")  # It owns the variables.
    for batch in (images, images[:1]):
        grid = to_numpy(archive.attention(tf.constant(batch))["grid"])
        assert grid.shape == (len(batch), *grid_size_of(model, batch))
        expected = to_numpy(attention_grid(model, batch))
        np.testing.assert_allclose(grid, expected, atol=1e-6)


@pytest.mark.parametrize(
    ("maps", "options", "match"),
    [
        (MAPS, {"head_fusion": "sum"}, "`head_fusion`"),
        (MAPS, {"discard_ratio": 1.0}, "`discard_ratio`"),
        (MAPS, {"discard_ratio": -0.1}, "discard_ratio=-0.1"),
        (MAPS[0], {}, "`scores`"),
        ([], {}, "`scores`"),
    ],
)
def test_what_cannot_be_rolled_out_is_named(maps, options, match):
    with pytest.raises(ValueError, match=match):
        roll_out(maps, **options)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"grid_size": (2, 2)}, r"7 tokens, grid_size=\(2, 2\)"),
        ({"grid_size": (2, 3), "num_prefix_tokens": 0}, "7 tokens"),
        ({"grid_size": (7, 1), "num_prefix_tokens": 0}, "`tokens`"),
        ({"grid_size": (2, 3), "tokens": (1,)}, "`tokens`"),
    ],
)
def test_a_matrix_of_another_grid_is_an_error(options, match):
    with pytest.raises(ValueError, match=match):
        to_grid(np.zeros((1, 7, 7)), **options)
