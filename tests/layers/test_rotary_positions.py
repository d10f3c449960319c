import keras
import numpy as np
import pytest

from keras_vit.layers import (
    AxialRotaryPositions,
    CenteredRotaryPositions,
    ClassRotaryPositions,
    MixedRotaryPositions,
    RoundedRotaryPositions,
)
from tests.tiny import noise, randomize, to_numpy

GRID, SIZE = (2, 3), 8


def angles_of(layer, tokens=None, features=None):
    """Return the angles (T, K, E/2) up to a whole turn, as complex numbers."""
    tokens = noise(1, 7, 24) if tokens is None else tokens
    cosines, sines = to_numpy(layer(tokens, features))
    turned = cosines + 1j * sines
    is_paired = layer.pairs == "neighbours"
    half = turned.shape[-1] // 2
    return turned[..., 0::2] if is_paired else turned[..., :half]


def expected_angles(angle, grid=GRID):
    """Return e^(i angle) of each token; `angle(row, column)` is (E/2,)."""
    h, w = grid
    rows = [angle(row, column) for row in range(h) for column in range(w)]
    return np.exp(1j * np.array([np.zeros_like(rows[0]), *rows]))


STEPS = {
    temperature: temperature ** -np.array([0, 0.5]) for temperature in (50, 100)
}


@pytest.mark.parametrize(
    "options, angle",
    [
        ({}, lambda y, x: [*(y * STEPS[100]), *(x * STEPS[100])]),
        (
            {"temperature": 50.0, "axes": "xy", "offset": 1.0},
            lambda y, x: [*((x + 1) * STEPS[50]), *((y + 1) * STEPS[50])],
        ),
        (
            {"reference_size": (16, 12), "offset": 0.5},
            lambda y, x: [
                *((y + 0.5) / 2 * 16 * STEPS[100]),
                *((x + 0.5) / 3 * 12 * STEPS[100]),
            ],
        ),
    ],
)
def test_axial_angles_equal_their_formula(options, angle):
    layer = AxialRotaryPositions(grid_size=GRID, head_size=SIZE, **options)
    np.testing.assert_allclose(
        angles_of(layer)[:, 0], expected_angles(angle), atol=1e-5
    )


def test_centered_angles_equal_their_formula():
    layer = CenteredRotaryPositions(
        temperature=50.0, grid_size=GRID, head_size=SIZE
    )

    def angle(row, column):
        y, x = 2 * (row + 0.5) / 2 - 1, 2 * (column + 0.5) / 3 - 1
        return 2 * np.pi * np.array([*(y * STEPS[50]), *(x * STEPS[50])])

    np.testing.assert_allclose(
        angles_of(layer)[:, 0], expected_angles(angle), atol=1e-5
    )


def test_rounded_angles_have_periods_of_eight_bits():
    """Of 10^0, 10^(1/2), ... for a temperature of 100, rounded by hand."""
    layer = RoundedRotaryPositions(
        temperature=100.0, grid_size=GRID, head_size=16
    )
    periods = np.array([1, 202 / 64, 10, 253 / 8])

    def angle(row, column):
        y, x = 2 * (row + 0.5) / 2 - 1, 2 * (column + 0.5) / 3 - 1
        return 2 * np.pi * np.array([*(y / periods), *(x / periods)])

    np.testing.assert_allclose(
        angles_of(layer)[:, 0], expected_angles(angle), atol=1e-5
    )


def test_the_class_token_has_learned_angles():
    layer = ClassRotaryPositions(
        temperature=50.0, num_prefix_tokens=2, grid_size=GRID, head_size=SIZE
    )
    layer(noise(1, 8, 24))
    randomize(layer)
    found = angles_of(layer)[:, 0]
    own = to_numpy(layer.class_angles)[0]
    np.testing.assert_allclose(found[0], np.exp(1j * own), atol=1e-5)
    # Registers are not turned, and patches as those of other models.
    others = expected_angles(lambda y, x: [*(y * STEPS[50]), *(x * STEPS[50])])
    np.testing.assert_allclose(found[1:], others, atol=1e-5)


def test_mixed_angles_equal_their_formula():
    layer = MixedRotaryPositions(num_heads=3, grid_size=GRID, head_size=SIZE)
    layer(noise(1, 7, 24))
    randomize(layer)
    by_x, by_y = to_numpy(layer.frequency)
    found = angles_of(layer)
    for head in range(3):
        expected = expected_angles(
            lambda y, x, head=head: x * by_x[head] + y * by_y[head]
        )
        np.testing.assert_allclose(found[:, head], expected, atol=1e-5)


LAYERS = {
    "axial": (AxialRotaryPositions, {"reference_size": (4, 4)}),
    "axial_class": (ClassRotaryPositions, {}),
    "centered": (CenteredRotaryPositions, {}),
    "mixed": (MixedRotaryPositions, {"num_heads": 3}),
}


@pytest.mark.parametrize("name", LAYERS)
def test_another_image_size_gives_the_angles_of_its_grid(name):
    layer_class, options = LAYERS[name]
    options = {**options, "head_size": SIZE, "patch_size": 4}
    layer = layer_class(grid_size=GRID, **options)
    layer(noise(1, 7, 24))
    randomize(layer)
    other = layer_class(grid_size=(4, 5), **options)
    other(noise(1, 21, 24))
    other.set_weights(layer.get_weights())
    features = noise(1, 16, 20, 3)
    np.testing.assert_array_equal(
        to_numpy(layer(noise(1, 21, 24), features)),
        to_numpy(other(noise(1, 21, 24))),
    )


def test_prefix_tokens_are_not_turned():
    layer = CenteredRotaryPositions(
        num_prefix_tokens=3, grid_size=GRID, head_size=SIZE
    )
    rotation = to_numpy(layer(noise(1, 9, 24)))
    np.testing.assert_array_equal(rotation[0, :3], 1)
    np.testing.assert_array_equal(rotation[1, :3], 0)
    assert (rotation[1, 3:] != 0).any()


def test_a_head_of_an_odd_number_of_pairs_is_an_error():
    with pytest.raises(ValueError, match="multiple of 4.*head_size=6"):
        AxialRotaryPositions(grid_size=GRID, head_size=6)
    with pytest.raises(ValueError, match="`axes` must be one of 'yx', 'xy'"):
        AxialRotaryPositions(axes="zx", grid_size=GRID, head_size=8)


def test_works_in_a_graph_of_unknown_size():
    images = keras.Input((None, None, 3))
    tokens = keras.Input((None, 24))
    layer = AxialRotaryPositions(grid_size=GRID, head_size=SIZE, patch_size=4)
    model = keras.Model([tokens, images], layer(tokens, images))
    actual = model([noise(1, 21, 24), noise(1, 16, 20, 3)])
    expected = AxialRotaryPositions(grid_size=(4, 5), head_size=SIZE)
    np.testing.assert_allclose(
        to_numpy(actual), to_numpy(expected(noise(1, 21, 24))), atol=1e-6
    )
