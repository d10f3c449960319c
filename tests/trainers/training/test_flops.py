import keras
import pytest
import tensorflow as tf
from keras import layers

from benchmarks.flops import forward_flops
from keras_vit.models import VARIANTS, VisionTransformer
from tests.tiny import tiny_config
from trainers.training.flops import count_flops, measure_peak_flops


def model_of(*stack, shape=(8, 6, 4)):
    return keras.Sequential([keras.Input(shape), *stack])


def gram(x):
    return tf.matmul(x, x, transpose_a=True)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"pooling": "avg", "use_class_token": False},
        {"image_size": (16, 40), "channels": 1, "num_classes": 0},
        {"dropout_rate": 0.5, "stochastic_depth_rate": 0.5, "use_remat": True},
    ],
    ids=str,
)
def test_flops_of_a_vit_are_the_closed_form(changes):
    config = tiny_config(**changes)
    assert count_flops(VisionTransformer(config)) == forward_flops(config)


@pytest.mark.parametrize(
    "layer, multiplications",
    [
        (layers.Dense(10, use_bias=False), 8 * 6 * 4 * 10),
        (layers.Conv2D(10, (3, 5), padding="same"), 8 * 6 * 3 * 5 * 4 * 10),
        (layers.Conv2D(10, 2, strides=2), 4 * 3 * 4 * 4 * 10),
        (layers.Conv2D(10, 3, groups=2), 6 * 4 * 9 * 2 * 10),
        (layers.DepthwiseConv2D(3, depth_multiplier=2), 6 * 4 * 9 * 4 * 2),
        (layers.SeparableConv2D(10, 3), 6 * 4 * 9 * 4 + 6 * 4 * 4 * 10),
        (layers.EinsumDense("...c,cd->...d", 10), 8 * 6 * 4 * 10),
        (layers.Lambda(lambda x: tf.einsum("bhwc->bcw", x)), 0),
        (layers.Lambda(gram), 8 * 4 * 6 * 4),
        # The products inside a function that the graph calls.
        (layers.Lambda(lambda x: tf.function(gram)(x)), 8 * 4 * 6 * 4),
    ],
    ids=lambda value: getattr(value, "name", None),
)
def test_flops_of_one_layer(layer, multiplications):
    assert count_flops(model_of(layer)) == 2 * multiplications


def test_flops_of_a_model_of_any_size():
    choices = {"patch_size": 8, "image_size": (16, 40)}
    fixed = VisionTransformer(tiny_config(**choices))
    free = VisionTransformer(
        tiny_config(use_dynamic_image_size=True, **choices)
    )
    with pytest.raises(ValueError, match="`image_shape` must be given"):
        count_flops(free)
    assert count_flops(free, (16, 40, 3)) == count_flops(fixed)


@pytest.mark.slow
def test_flops_are_those_of_the_paper():
    """Zhai et al. 2022, arXiv:2106.04560, table 2, at 224 pixels."""
    tiny, base = (VARIANTS[name].config for name in ("Ti/16", "B/16"))
    assert round(count_flops(VisionTransformer(tiny)) / 1e9, 1) == 2.5
    # The closed form of any size, see above.
    assert round(forward_flops(base) / 1e9, 1) == 35.1


def test_peak_flops_are_of_this_machine():
    # From one core of long ago to a room of accelerators.
    rate = measure_peak_flops("bfloat16", "/device:CPU:1", seconds=0.02)
    assert 1e8 < rate < 1e16
