import dataclasses

import numpy as np
import pytest

from keras_vit import Preprocessing, ViTConfig
from keras_vit.preprocessing import NORMALIZATIONS
from keras_vit.preprocessing.description import (
    as_normalization,
    from_range,
    resized_size,
    to_fractions,
    to_uint8,
)
from tests.tiny import tiny_config


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ({"normalization": "caffe"}, "`normalization` must be one of 'vit'"),
        ({"normalization": (1, 0)}, "deviations greater than 0"),
        ({"normalization": ((1, 2), (1,))}, "one number for each channel"),
        ({"normalization": 3}, "a name or .mean, deviation."),
        ({"normalization": ((float("nan"),), (1,))}, "a name or"),
        ({"resize_mode": "longest"}, "`resize_mode` must be one of 'squash'"),
        ({"interpolation": "lanczos"}, "`interpolation` must be one of"),
        ({"crop_fraction": 0}, r"`crop_fraction` must be in \(0, 1\]"),
        ({"crop_fraction": 1.01}, "Received: crop_fraction=1.01"),
    ],
)
def test_wrong_values_are_named(choices, message):
    with pytest.raises(ValueError, match=message):
        Preprocessing(**choices)


@pytest.mark.parametrize("name", NORMALIZATIONS)
def test_known_numbers_are_a_name(name):
    pair = [list(part) for part in NORMALIZATIONS[name]]
    assert Preprocessing(pair) == Preprocessing(name)
    assert Preprocessing(name).mean_and_deviation == NORMALIZATIONS[name]


def test_as_a_field_of_a_configuration():
    config = tiny_config(preprocessing="imagenet")
    assert config.preprocessing == Preprocessing("imagenet")
    pair = ((0.5,), (0.25,))
    config = tiny_config(preprocessing=pair)
    assert config.preprocessing == Preprocessing(pair)
    again = ViTConfig(**dataclasses.asdict(config))
    assert again == config and hash(again) == hash(config)
    with pytest.raises(ValueError, match="`preprocessing` must be a `Prepro"):
        tiny_config(preprocessing=3)
    with pytest.raises(ValueError, match="`preprocessing` must.*channels=4"):
        tiny_config(preprocessing="clip", channels=4)


@pytest.mark.parametrize(
    ("mode", "shape", "size"),
    [
        ("squash", (90, 61), (40, 40)),
        ("shortest", (90, 61), (59, 40)),
        ("shortest", (61, 90), (40, 59)),
        ("shortest", (7, 7), (40, 40)),
        # 40 * 1001 / 1000 = 40.04: never smaller than the crop.
        ("shortest", (1000, 1001), (40, 40)),
    ],
)
def test_sizes(mode, shape, size):
    settings = Preprocessing("vit", mode, crop_fraction=0.8)
    step, *_ = settings.steps((32, 32))
    assert resized_size(step, shape) == size


def test_a_range_is_a_normalisation():
    pixels = np.arange(256, dtype="float32")[:, None]
    for low, high in ((-1, 1), (0, 1), (0, 255), (-3, 2)):
        mean, deviation = from_range(low, high)
        scaled = low + pixels / 255 * (high - low)
        expected = (pixels / 255 - mean) / deviation
        np.testing.assert_allclose(scaled, expected, atol=1e-4)
        fractions = to_fractions(scaled, (mean, deviation))
        np.testing.assert_allclose(fractions, pixels / 255, atol=1e-5)
        found = to_uint8(scaled, (mean, deviation))
        np.testing.assert_array_equal(found, pixels)
    assert as_normalization((0.5, 0.5)) == NORMALIZATIONS["vit"]
