"""The colours of classes and of numbers."""

import matplotlib
import numpy as np

from keras_vit.analysis.colours import CLASS_COLOURS, NUMBER_COLOURS


def to_fractions(colours):
    return (
        np.array([[*bytes.fromhex(x.removeprefix("#"))] for x in colours]) / 255
    )


def to_lab(colours):
    """Return CIELAB of sRGB colours; white is (100, 0, 0)."""
    levels = to_fractions(colours)
    linear = np.where(
        levels <= 0.04045, levels / 12.92, ((levels + 0.055) / 1.055) ** 2.4
    )
    matrix = [
        [0.4124564, 0.3575761, 0.1804375],
        [0.2126729, 0.7151522, 0.0721750],
        [0.0193339, 0.1191920, 0.9503041],
    ]
    x, y, z = np.cbrt(linear @ np.transpose(matrix) / [0.95047, 1, 1.08883]).T
    return np.stack([116 * y - 16, 500 * (x - y), 200 * (y - z)], axis=-1)


def test_classes_can_be_told_apart():
    """About 2 is the least difference that people see side by side."""
    assert len({*CLASS_COLOURS}) == len(CLASS_COLOURS) == 256
    found = to_lab(CLASS_COLOURS)
    distances = np.linalg.norm(found[:, None] - found, axis=-1)
    np.fill_diagonal(distances, np.inf)
    for count, least in ((8, 50), (20, 35), (256, 10)):
        assert distances[:count, :count].min() > least
    lightness, *chroma = found.T
    assert 25 < lightness.min() and lightness.max() < 95
    assert np.hypot(*chroma).min() > 20  # The photo below may be grey.


def test_numbers_have_the_colours_of_viridis():
    places = np.linspace(0, 1, len(NUMBER_COLOURS))
    expected = matplotlib.colormaps["viridis"](places)[:, :3]
    np.testing.assert_allclose(
        to_fractions(NUMBER_COLOURS), expected, atol=0.01
    )
