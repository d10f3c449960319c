"""What stands before a VisionTransformer tells what images a model reads."""

import keras
import numpy as np
import pytest
from keras import layers, ops

from keras_vit import Preprocessing, ViTConfig, preprocess_input
from keras_vit.layers import ImagePreprocessor
from keras_vit.models import VisionTransformer
from keras_vit.preprocessing.model_inputs import (
    RAW,
    find_scaling,
    input_preprocessing,
)

IMAGENET = Preprocessing("imagenet")
MEAN, DEVIATION = (np.array(part) for part in IMAGENET.mean_and_deviation)
FLIPS = keras.Sequential([layers.RandomFlip(), layers.RandomRotation(0.1)])


def build_vit(normalization="vit", **fields):
    config = ViTConfig(
        image_size=(16, 16),
        patch_size=8,
        depth=1,
        width=12,
        num_heads=3,
        mlp_dim=12,
        num_classes=3,
        preprocessing=Preprocessing(normalization, **fields),
    )
    return VisionTransformer(config)


def around(vit, *before, size=16, channels=3):
    """Return a model with operations before a VisionTransformer."""
    x = image = keras.Input((size, size, channels))
    for operation in before:
        x = operation(x)
    return keras.Model(image, layers.Dense(2)(vit(x)))


def to_range(low, high):
    return layers.Rescaling((high - low) / 255, low)


@pytest.mark.parametrize(
    "mode, before, read",
    [
        ("vit", [to_range(-1, 1)], RAW),
        ("vit", [FLIPS, to_range(-1, 1)], RAW),
        ("vit", [preprocess_input], RAW),
        ("vit", [lambda x: x / 127.5, lambda x: x - 1], RAW),
        ("vit", [keras.Sequential([to_range(0, 1)]), lambda x: 2 * x - 1], RAW),
        ("vit", [layers.Pipeline([to_range(-1, 1)])], RAW),
        ("vit", [ImagePreprocessor((16, 16))], RAW),
        # As people train from scratch, whatever the configuration says.
        ("vit", [to_range(0, 1)], RAW),
        ("imagenet", [lambda x: preprocess_input(x, mode="imagenet")], RAW),
        (
            "imagenet",
            [to_range(0, 1), layers.Normalization(-1, MEAN, DEVIATION**2)],
            RAW,
        ),
        ("vit", [layers.Normalization(-1, 120.0, 4000.0)], RAW),
        ("vit", [layers.Rescaling(2, -1)], "zero_one"),
        (
            "imagenet",
            [layers.Normalization(-1, MEAN, DEVIATION**2)],
            "zero_one",
        ),
        ("zero_one", [layers.Rescaling(0.5, 0.5)], "vit"),
        ("zero_one", [to_range(0, 1)], RAW),
        ("imagenet", [], "imagenet"),
        ("imagenet", [FLIPS, layers.Dropout(0.1)], "imagenet"),
    ],
)
def test_the_layers_before_it_tell_the_range(mode, before, read):
    model = around(build_vit(mode), *before)
    assert input_preprocessing(model) == Preprocessing(read)


def test_models_inside_of_models(tmp_path):
    """As they come back from a file."""
    vit = build_vit("imagenet")
    inner = keras.Sequential([keras.Input((16, 16, 3)), to_range(0, 1), vit])
    outer = around(inner, layers.RandomFlip())
    path = tmp_path / "outer.keras"
    outer.save(path)
    for model in (outer, inner, keras.saving.load_model(path)):
        assert input_preprocessing(model) == Preprocessing(RAW)
    assert input_preprocessing(vit) == IMAGENET


def test_the_resizing_is_that_of_the_model_unless_layers_resize():
    fields = {"resize_mode": "shortest", "crop_fraction": 0.5}
    vit = build_vit(**fields)
    found = input_preprocessing(around(vit, to_range(-1, 1)))
    assert found == Preprocessing(RAW, **fields)
    for size, layer in [(20, layers.Resizing(16, 16)), (16, crop)]:
        found = input_preprocessing(
            around(vit, layer, to_range(-1, 1), size=size)
        )
        assert found == Preprocessing(RAW)


def crop(x):
    return layers.ZeroPadding2D(2)(layers.CenterCrop(12, 12)(x))


@pytest.mark.parametrize(
    "before",
    [
        [ops.tanh],
        [lambda x: ops.clip(x, 0, 1)],
        [layers.Rescaling(1.0, -100.0)],
        [layers.Rescaling(0.5)],
        [layers.Rescaling(20.0)],
        [layers.Conv2D(3, 1)],
        [layers.BatchNormalization(epsilon=0.5)],
    ],
)
def test_what_does_not_tell_is_refused(before):
    model = around(build_vit(), *before)
    with pytest.raises(ValueError, match="preprocess"):
        input_preprocessing(model)


def test_other_models_tell_by_their_scaling_alone():
    convolution = layers.Conv2D(2, 3)
    x = keras.Input((None, None, 3))
    plain = keras.Model(x, convolution(x))
    scaled = keras.Model(x, plain(to_range(0, 1)(x)))
    assert find_scaling(plain) is None
    with pytest.raises(ValueError, match="preprocess"):
        input_preprocessing(plain)
    assert input_preprocessing(scaled) == Preprocessing(RAW)


def test_half_precision():
    policy = keras.dtype_policies.DTypePolicy("mixed_bfloat16")
    layer = layers.Rescaling(1 / 127.5, -1, dtype=policy)
    assert input_preprocessing(around(build_vit(), layer)) == Preprocessing(RAW)
