"""The patches after blocks: against the layers themselves."""

import keras
import numpy as np
import pytest

from tests.tiny import LATER_KINDS, make, noise, to_numpy


def tokens_after(model, name, x):
    part = keras.Model(model.input, model.get_layer(name).output)
    return to_numpy(part(x))


@pytest.mark.parametrize("kind", ["plain", *LATER_KINDS])
def test_they_are_the_tokens_without_the_first_ones(kind):
    model = make(**LATER_KINDS.get(kind, {}))
    x = noise(2, 32, 32, 3)
    prefix = model.config.num_prefix_tokens
    found = model.features(x, norm=False, with_prefix=True)
    assert len(found) == model.config.depth
    for index, (patches, first) in enumerate(found):
        tokens = tokens_after(model, f"block_{index:02d}", x)
        assert tuple(patches.shape) == (2, 4, 4, 24)
        np.testing.assert_allclose(
            to_numpy(patches).reshape(2, 16, 24), tokens[:, prefix:], atol=1e-6
        )
        np.testing.assert_allclose(
            to_numpy(first), tokens[:, :prefix], atol=1e-6
        )


def test_the_last_norm_is_that_of_the_model():
    model = make()
    x = noise(1, 32, 32, 3)
    (last,) = model.features(x, blocks=[-1], as_grid=False)
    expected = tokens_after(model, "encoder_norm", x)[:, 1:]
    np.testing.assert_allclose(to_numpy(last), expected, atol=1e-6)
    first, again = model.features(x, blocks=(0, -2))
    np.testing.assert_array_equal(to_numpy(first), to_numpy(again))
    norm = model.get_layer("encoder_norm")
    expected = to_numpy(norm(tokens_after(model, "block_00", x)))[:, 1:]
    actual = to_numpy(first).reshape(1, 16, 24)
    np.testing.assert_allclose(actual, expected, atol=1e-6)
    # No call leaves nodes of a graph in the layers of the model.
    count = len(norm._inbound_nodes)
    model.features(x)
    assert len(norm._inbound_nodes) == count


def test_the_grid_of_a_rectangle_and_of_any_image():
    model = make(image_size=(16, 40))
    (grid,) = model.features(noise(1, 16, 40, 3), blocks=[0])
    assert tuple(grid.shape) == (1, 2, 5, 24)
    model = make(use_dynamic_image_size=True)
    (grid,) = model.features(noise(1, 48, 16, 3), blocks=[0])
    assert tuple(grid.shape) == (1, 6, 2, 24)


def test_they_are_part_of_a_graph_that_is_saved(tmp_path):
    backbone = make(num_classes=0)
    images = keras.Input((32, 32, 3))
    maps = backbone.features(images, blocks=[0, 1])
    x = keras.layers.Concatenate()(maps)
    model = keras.Model(images, keras.layers.Conv2D(5, 1)(x))
    x = noise(2, 32, 32, 3)
    before = to_numpy(model(x))
    assert before.shape == (2, 4, 4, 5)
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(to_numpy(again(x)), before)
    assert {w.path for w in backbone.weights} & {
        w.path for w in model.trainable_weights
    }


def test_a_graph_for_images_of_any_size(tmp_path):
    backbone = make(use_dynamic_image_size=True)
    images = keras.Input((None, None, 3))
    model = keras.Model(images, backbone.features(images, blocks=[0, -1]))
    assert model.output_shape == [(None, None, None, 24)] * 2
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    for size in ((48, 16), (16, 40)):
        x = noise(2, *size, 3)
        expected = backbone.with_image_size(size).features(x, blocks=[0, -1])
        for one, other, third in zip(expected, model(x), again(x)):
            np.testing.assert_allclose(
                to_numpy(other), to_numpy(one), atol=1e-5
            )
            np.testing.assert_array_equal(to_numpy(third), to_numpy(other))


def test_a_stem_rounds_the_sides_of_an_image_up():
    """39 pixels are 10 cells behind it, and 5 patches of two cells."""
    backbone = make(stem_stages=(), patch_size=2, use_dynamic_image_size=True)
    images = keras.Input((None, None, 3))
    model = keras.Model(images, backbone.features(images, blocks=[-1]))
    x = noise(2, 39, 32, 3)
    [found] = keras.tree.flatten(model(x))
    assert tuple(found.shape) == (2, 5, 4, 24)
    [expected] = backbone.features(x, blocks=[-1])
    np.testing.assert_allclose(to_numpy(found), to_numpy(expected), atol=1e-5)


@pytest.mark.parametrize("blocks", [[2], [-3], [0, 5], (), -1, "last", [0.5]])
def test_a_block_that_is_not_there(blocks):
    with pytest.raises(ValueError, match="`blocks`") as error:
        make().features(noise(1, 32, 32, 3), blocks=blocks)
    assert f"blocks={blocks!r}" in str(error.value)
