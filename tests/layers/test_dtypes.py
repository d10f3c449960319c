"""Every type of numbers: what is rounded once only, float64, no images."""

import itertools

import keras
import numpy as np
import pytest
from keras import ops

from keras_vit import VisionTransformer, layers
from keras_vit.layers.resnet_stem import StandardizedConv2D
from tests.tiny import LATER_KINDS, make, noise, tiny_config, to_numpy

GRID = (14, 14)
ROTARY = {"grid_size": GRID, "head_size": 16, "num_prefix_tokens": 1}
# Layers that compute in float32 with a weight, with an input, and the allowed
# error relative to the largest output, in steps of bfloat16.
WIDE_LAYERS = {
    "mixed": (
        lambda dtype: layers.MixedRotaryPositions(2, **ROTARY, dtype=dtype),
        (1, 197, 32),
    ),
    "class": (
        lambda dtype: layers.ROTARY_POSITIONS["axial_class"](
            **ROTARY, dtype=dtype
        ),
        (1, 197, 32),
    ),
    "rms": (lambda dtype: layers.RmsNorm(dtype=dtype), (2, 5, 32)),
    "layer": (lambda dtype: layers.LayerNorm(dtype=dtype), (2, 5, 32)),
    "resized table": (
        lambda dtype: layers.LearnedPositionEmbedding(
            (3, 3), 1, returns_rows=True, dtype=dtype
        ),
        (1, 197, 32),
    ),
}


@pytest.mark.parametrize("name", WIDE_LAYERS)
def test_a_weight_is_not_rounded_before_float32(name):
    make, shape = WIDE_LAYERS[name]
    x = noise(*shape).astype("float32")
    features = [noise(1, *GRID, 3)] if name == "resized table" else []
    results = []
    wide, narrow = make("float32"), make("mixed_bfloat16")
    x = to_numpy(ops.cast(ops.cast(x, "bfloat16"), "float32"))
    for layer in (wide, narrow):
        layer.build(shape, *(x.shape for x in features))
        for weight in layer.weights:
            weight.assign(noise(*weight.shape))
        results.append(layer(x, *features))
    expected = ops.cast(results[0], "bfloat16")
    rounded, found = (
        to_numpy(ops.cast(y, "float32")) for y in (expected, results[1])
    )
    np.testing.assert_array_equal(found, rounded)


def test_a_kernel_is_standardised_before_it_is_rounded():
    x = noise(2, 6, 6, 8)
    kernel = noise(3, 3, 8, 4) + 100.0  # Rounded, its deviation is another.
    found = []
    for dtype in ("float32", "mixed_bfloat16"):
        layer = StandardizedConv2D(4, 3, dtype=dtype)
        layer.build(x.shape)
        layer.kernel.assign(kernel)
        found.append(to_numpy(ops.cast(layer(x), "float32")))
    np.testing.assert_allclose(found[1], found[0], atol=0.15)


@pytest.mark.skipif(
    keras.backend.backend() != "tensorflow",
    reason="JAX has no float64, and Keras multiplies in float32 on PyTorch.",
)
@pytest.mark.parametrize(
    "choices",
    [
        *LATER_KINDS.values(),
        {"position_embedding": "sincos_2d", "use_dynamic_image_size": True},
        {"patch_size": 1, "stem_stages": (1,), "pooling": "map"},
    ],
    ids=[*LATER_KINDS, "dynamic", "hybrid"],
)
def test_float64_is_computed_in_float64(choices):
    """Its answer moves by what float32 could not express."""
    model = make(dtype="float64", **choices)
    assert {w.dtype for w in model.weights} == {"float64"}
    x = np.random.default_rng(0).normal(size=(1, *model.config.image_size, 3))
    step = np.random.default_rng(1).normal(size=x.shape)
    slopes = [
        ops.convert_to_numpy(model(x + h * step) - model(x)) / h
        for h in (1e-7, 2e-7)
    ]
    assert slopes[0].dtype == "float64"
    np.testing.assert_allclose(*slopes, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    "choices",
    [{}, {"use_dynamic_image_size": True}, *LATER_KINDS.values()],
    ids=["fixed", "dynamic", *LATER_KINDS],
)
def test_no_images_have_no_answers(choices):
    model = VisionTransformer(tiny_config(**choices))
    x = np.zeros((0, 32, 32, 3), "float32")
    assert tuple(model(x).shape) == (0, 7)
    [grid] = model.features(x, blocks=[-1])
    assert tuple(grid.shape) == (0, 4, 4, 24)


def test_an_image_of_parts_of_patches_names_both_sizes():
    config = tiny_config(use_dynamic_image_size=True)
    model = VisionTransformer(config)
    outer = keras.Sequential([keras.Input((None, None, 3)), model])
    calls = (model, outer, model.features, model.predict_on_batch)
    for call, (h, w) in itertools.product(calls, [(50, 48), (48, 50), (5, 48)]):
        with pytest.raises(ValueError, match=rf"{h}x{w}.*patch_size=8"):
            call(np.zeros((2, h, w, 3), "float32"))
