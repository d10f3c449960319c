"""The ResNets of BiT: sizes, roots, heads."""

import keras
import numpy as np
import pytest

from tests.tiny import noise, randomize, to_numpy
from trainers.models.resnets import build_bit_resnet
from trainers.recipes.baselines import BIT_SIZES, BitSize

# Parameters with 1000 classes, which are in results-imagenet.csv of timm, in
# millions, and number of weights.
GOLDEN = {
    "R50x1": (25_549_352, 153),
    "R152x4": (936_533_224, 459),
    # By the formula of a unit: norms, convolutions, projection.
    "R26x0.25-small": (1_388_344, 81),
}
TINY = BitSize((1, 2), 0.125)


def build(size=TINY, **changes):
    arguments = {"image_size": 32, "num_classes": 5, **changes}
    return build_bit_resnet(size, **arguments)


@pytest.mark.parametrize("name", GOLDEN)
def test_parameters_are_those_of_the_source(name):
    with keras.StatelessScope(initialize_variables=False):
        model = build(BIT_SIZES[name], num_classes=1000)
        count = model.count_params()
    keras.backend.clear_session()
    assert (count, len(model.weights)) == GOLDEN[name]


@pytest.mark.parametrize("size", [33, 32])
def test_the_root_pads_with_zeros(size):
    """Also where all that the pooling sees is negative."""
    model = randomize(build(image_size=size))
    root = keras.Model(model.input, model.get_layer("root_pool").output)
    before = keras.Model(model.input, model.get_layer("root_conv").output)
    x = noise(8, size, size, 3)
    y, maps = to_numpy(root(x)), to_numpy(before(x))
    assert maps.shape[1] == -(-size // 2) and y.shape[1] == -(-size // 4)
    corner = np.maximum(maps[:, :2, :2].max((1, 2)), 0)
    np.testing.assert_array_equal(y[:, 0, 0], corner)
    assert (maps[:, :2, :2].max((1, 2)) < 0).any()


def test_a_small_root_keeps_the_resolution():
    model = build(BitSize((1, 1), 0.125, use_small_root=True), image_size=8)
    assert model.get_layer("root_conv").output.shape == (None, 8, 8, 8)
    assert model.get_layer("stage_01_unit_00").output.shape[1:] == (4, 4, 64)
    # Two channels a group.
    assert model.get_layer("norm").groups == 4


def test_a_model_of_any_size_is_that_of_each():
    model = randomize(build(image_size=None))
    for size in (32, 45):
        fixed = build(image_size=size)
        fixed.set_weights(model.get_weights())
        x = noise(2, size, size, 3)
        np.testing.assert_allclose(
            to_numpy(model(x)), to_numpy(fixed(x)), atol=1e-5
        )


def test_a_new_head_answers_its_bias():
    model = build(head_bias=-3.0, channels=1)
    logits = to_numpy(model(noise(2, 32, 32, 1)))
    np.testing.assert_array_equal(logits, np.full((2, 5), -3.0))


def test_a_saved_model_needs_only_the_package(tmp_path):
    model = randomize(build())
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    x = noise(2, 32, 32, 3)
    np.testing.assert_array_equal(to_numpy(again(x)), to_numpy(model(x)))
