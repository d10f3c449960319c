"""The ResNets of BiT: sizes, roots, heads."""

import keras
import numpy as np
import pytest

from tests.tiny import noise, randomize, to_numpy
from trainers.models.resnets import build_bit_resnet
from trainers.recipes.baselines import BIT_SIZES, BitSize

# Parameters with 1000 and with 21,843 classes, and number of weights. Those
# with 1000 classes are in results-imagenet.csv of timm, in millions.
GOLDEN = {
    "R50x1": (25_549_352, 68_256_659, 153),
    "R50x2": (97_988_712, 183_382_483, 153),
    "R50x3": (217_319_080, 345_399_315, 153),
    "R101x1": (44_541_480, 87_248_787, 306),
    "R101x3": (387_934_888, 516_015_123, 306),
    "R152x1": (60_185_128, 102_892_435, 459),
    "R152x2": (236_335_208, 321_728_979, 459),
    "R152x4": (936_533_224, 1_107_299_923, 459),
    "R200x3": (568_633_000, 696_713_235, 603),
    # By the formula of a unit, see below.
    "R14x0.25-small": (1_015_544, 11_708_003, 45),
    "R26x0.25-small": (1_388_344, 12_080_803, 81),
}
TINY = BitSize((1, 2), 0.125)


def build(size=TINY, **changes):
    arguments = {"image_size": 32, "num_classes": 5, **changes}
    return build_bit_resnet(size, **arguments)


@pytest.mark.parametrize("name", BIT_SIZES)
def test_parameters_are_those_of_the_source(name):
    with keras.StatelessScope(initialize_variables=False):
        model = build(BIT_SIZES[name], num_classes=1000)
        count = model.count_params()
    keras.backend.clear_session()
    assert (count, len(model.weights)) == (GOLDEN[name][0], GOLDEN[name][2])


def count_by_formula(size, channels, num_classes):
    """Add the parameters of each unit: norms, convolutions, projection."""
    width = round(64 * size.width_factor)
    side = 3 if size.use_small_root else 7
    total, inputs = side * side * channels * width, width
    for stage, num_units in enumerate(size.units):
        f = width * 2**stage
        for unit in range(num_units):
            total += 2 * inputs + inputs * f + 2 * f + 9 * f * f + 2 * f
            total += 4 * f * f + (inputs * 4 * f if unit == 0 else 0)
            inputs = 4 * f
    return total + 2 * inputs + (inputs + 1) * num_classes


@pytest.mark.parametrize("name", BIT_SIZES)
def test_the_golden_numbers_follow_from_the_formula(name):
    for num_classes, golden in zip((1000, 21_843), GOLDEN[name]):
        assert count_by_formula(BIT_SIZES[name], 3, num_classes) == golden


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


def test_layers_have_the_precision_asked_for():
    model = build(dtype="mixed_bfloat16")
    policies = {layer.dtype_policy.name for layer in model.layers[1:]}
    assert policies == {"mixed_bfloat16"}
    assert {str(weight.dtype) for weight in model.weights} == {"float32"}


def test_a_saved_model_needs_only_the_package(tmp_path):
    model = randomize(build())
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    x = noise(2, 32, 32, 3)
    np.testing.assert_array_equal(to_numpy(again(x)), to_numpy(model(x)))
