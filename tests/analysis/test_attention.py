"""Attention maps, against other code and their mathematical properties."""

import keras
import numpy as np
import pytest
from scipy.special import softmax

from keras_vit import from_checkpoint
from keras_vit.analysis import (
    attention_distances,
    attention_maps,
    attention_scores,
    grid_size_of,
    mean_attention_distance,
)
from tests.analysis.cases import CHOICES, images_of, model_of
from tests.golden import FOLDER
from tests.tiny import to_numpy


def test_maps_of_hugging_face():
    model = from_checkpoint(FOLDER / "hf_vit")
    with np.load(FOLDER / "hf_vit.expected.npz") as file:
        images = file["x"]
        expected = np.stack([file["attention/0"], file["attention/1"]])
    maps = attention_maps(model, images)
    np.testing.assert_allclose(maps, expected, rtol=0, atol=1e-5)
    # The two differ, so that their order is tested.
    assert np.abs(expected[0] - expected[1]).max() > 0.01


@pytest.mark.parametrize("name", CHOICES)
def test_maps_are_the_softmax_of_what_enters_a_block(name):
    # From the outputs of the model's own layers, by the formula.
    model, images = model_of(name), images_of(name)
    maps = attention_maps(model, images)
    before = [model.get_layer("block_00").input] + [
        model.get_layer(f"block_{i:02d}").output
        for i in range(model.config.depth - 1)
    ]
    tokens = keras.Model(model.input, before)(images)
    for index, x in enumerate(tokens):
        block = model.get_layer(f"block_{index:02d}")
        kernel, bias = block.attention.qkv.get_weights()
        qkv = to_numpy(block.attention_norm(x)) @ kernel + bias
        length = qkv.shape[1]
        heads = qkv.reshape(2, length, 3, 3, 8)  # B, T, qkv, K, D/K
        logits = np.einsum("bqkd,btkd->bkqt", heads[:, :, 0], heads[:, :, 1])
        expected = softmax(logits / 8**0.5, axis=-1)
        np.testing.assert_allclose(maps[index], expected, atol=2e-6)
    h, w = grid_size_of(model, images)
    assert maps.shape[-1] == model.config.num_prefix_tokens + h * w
    assert maps.dtype == "float32"


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_mixed_precision(policy):
    images = images_of("token")
    maps = attention_maps(model_of("token", policy), images)
    exact = attention_maps(model_of("token"), images)
    assert maps.dtype == "float32"
    np.testing.assert_allclose(maps, exact, atol=0.05)
    np.testing.assert_allclose(maps.sum(axis=-1), 1, atol=0.02)


@pytest.mark.parametrize(
    ("layers", "expected"),
    [([0], [0]), ([-1], [2]), ([2, 0], [2, 0]), ((1, -2), [1, 1])],
)
def test_layers_are_those_asked_for_in_their_order(layers, expected):
    model, images = model_of("softmax"), images_of("softmax")
    everything = attention_maps(model, images)
    maps = attention_maps(model, images, layers=layers)
    np.testing.assert_allclose(maps, everything[expected], atol=1e-6)
    scores = attention_scores(model, images, layers=np.array(layers))
    for one, other in zip(scores, maps):
        np.testing.assert_allclose(to_numpy(one), other, atol=1e-6)


def recording(names, name, function):
    """Return `function`, which first notes `name`."""

    def call(*args, **kwargs):
        names.append(name)
        return function(*args, **kwargs)

    return call


def test_blocks_after_the_last_one_are_not_run(monkeypatch):
    model, images = model_of("softmax"), images_of("softmax")
    run = []
    for index in range(3):
        block = model.get_layer(f"block_{index:02d}")
        monkeypatch.setattr(
            block, "call", recording(run, block.name, block.call)
        )
    attention_maps(model, images, layers=[1])
    assert run == ["block_00", "block_01"]


@pytest.mark.parametrize("name", ["token", "open_size", "softmax"])
def test_the_model_stays_as_it_is(name):
    model, images = model_of(name), images_of(name)
    before = to_numpy(model(images))
    layers = list(model._flatten_layers())
    nodes = [len(layer._inbound_nodes) for layer in layers]
    config = model.get_config()
    attention_maps(model, images)
    after = list(model._flatten_layers())
    assert [id(layer) for layer in after] == [id(layer) for layer in layers]
    assert [len(layer._inbound_nodes) for layer in layers] == nodes
    assert model.get_config() == config
    np.testing.assert_array_equal(to_numpy(model(images)), before)


@pytest.mark.parametrize("layers", [[2], [-3], [], 1, "last"])
def test_unknown_layers_are_an_error(layers):
    with pytest.raises(ValueError, match="`layers`"):
        attention_maps(model_of("token"), images_of("token"), layers=layers)


def test_another_model_is_an_error():
    with pytest.raises(ValueError, match="`model`"):
        attention_maps(keras.Sequential(), images_of("token"))


def uniform(layers, batch, heads, tokens):
    return np.full((layers, batch, heads, tokens, tokens), 1 / tokens)


@pytest.mark.parametrize("prefix", [0, 1])
def test_uniform_attention_looks_as_far_as_patches_are_apart(prefix):
    h, w, side = 3, 5, 16
    apart = [
        side * ((y - v) ** 2 + (x - u) ** 2) ** 0.5
        for y in range(h)
        for x in range(w)
        for v in range(h)
        for u in range(w)
    ]
    maps = uniform(2, 1, 3, prefix + h * w)
    distance = mean_attention_distance(maps, (h, w), side, renormalize=True)
    np.testing.assert_allclose(distance, np.full((2, 3), np.mean(apart)), 1e-5)
    # What goes to the class token goes no distance.
    distance = mean_attention_distance(maps, (h, w), side)
    kept = h * w / (prefix + h * w)
    np.testing.assert_allclose(distance, np.mean(apart) * kept, rtol=1e-5)


def test_attention_to_the_right_neighbour_looks_one_patch_far():
    # Each token in its own head: head 0 one column on, head 1 one row on.
    maps = np.zeros((1, 1, 2, 12, 12))
    for y in range(3):
        for x in range(4):
            maps[0, 0, 0, 4 * y + x, 4 * y + min(x + 1, 3)] = 1
            maps[0, 0, 1, 4 * y + x, 4 * min(y + 1, 2) + x] = 1
    distance = mean_attention_distance(maps, (3, 4), 8)
    np.testing.assert_allclose(distance, [[8 * 3 / 4, 8 * 2 / 3]], rtol=1e-6)


def test_a_row_that_sees_no_patch_looks_nowhere():
    maps = np.zeros((1, 1, 1, 5, 5))
    maps[..., 0] = 1
    distance = mean_attention_distance(maps, (2, 2), 8, renormalize=True)
    np.testing.assert_array_equal(distance, 0)


@pytest.mark.parametrize("renormalize", [False, True])
@pytest.mark.parametrize(
    "name", sorted({"rectangle", "average", "open_hybrid"} & set(CHOICES))
)
def test_distances_of_a_model_are_those_of_its_maps(name, renormalize):
    model, images = model_of(name), images_of(name, batch=4)
    maps = attention_maps(model, images, batch_size=2)
    pixels = 8  # A patch of the hybrid is one cell of its stem, of stride 8.
    np.testing.assert_allclose(
        attention_distances(model, images, renormalize, batch_size=2),
        mean_attention_distance(
            maps, grid_size_of(model, images), pixels, renormalize
        ),
        rtol=1e-5,
    )


@pytest.mark.parametrize(
    ("shape", "match"),
    [
        ((2, 3, 17, 17), "`maps`"),
        ((1, 2, 3, 17, 16), "`maps`"),
        ((1, 2, 3, 18, 18), "`grid_size`"),
        ((1, 2, 3, 15, 15), "`grid_size`"),
    ],
)
def test_maps_of_another_shape_are_an_error(shape, match):
    with pytest.raises(ValueError, match=match):
        mean_attention_distance(np.zeros(shape), (4, 4), 8)
