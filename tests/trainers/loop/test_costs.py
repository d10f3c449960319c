import textwrap

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

from benchmarks.flops import forward_flops
from keras_vit.models import VARIANTS, VisionTransformer
from tests import commands
from tests.tiny import tiny_config
from trainers.distribute.strategies import make_strategy
from trainers.loop.costs import count_flops, estimate_memory, measure_peak_flops


def model_of(*stack, shape=(8, 6, 4)):
    return keras.Sequential([keras.Input(shape), *stack])


def gram(x):
    return tf.matmul(x, x, transpose_a=True)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"pooling": "avg", "use_class_token": False},
        {"image_size": (16, 40), "channels": 1},
        {"num_classes": 0, "mlp_dim": 31, "depth": 3},
        {"patch_size": 4, "dropout_rate": 0.5, "stochastic_depth_rate": 0.5},
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
        (layers.Conv2D(10, 3), 6 * 4 * 9 * 4 * 10),
        (layers.Conv2D(10, 2, strides=2), 4 * 3 * 4 * 4 * 10),
        (layers.Conv2D(10, 3, groups=2), 6 * 4 * 9 * 2 * 10),
        (layers.DepthwiseConv2D(3, depth_multiplier=2), 6 * 4 * 9 * 4 * 2),
        (layers.SeparableConv2D(10, 3), 6 * 4 * 9 * 4 + 6 * 4 * 4 * 10),
        (layers.EinsumDense("...c,cd->...d", 10), 8 * 6 * 4 * 10),
        (layers.EinsumDense("...c,cd->...d", 10), 8 * 6 * 4 * 10),
        (layers.Lambda(lambda x: tf.einsum("bhwc->bcw", x)), 0),
        (layers.Lambda(gram), 8 * 4 * 6 * 4),
        # The products inside a function that the graph calls.
        (layers.Lambda(lambda x: tf.function(gram)(x)), 8 * 4 * 6 * 4),
        (layers.ReLU(), 0),
    ],
    ids=lambda value: getattr(value, "name", None),
)
def test_flops_of_one_layer(layer, multiplications):
    assert count_flops(model_of(layer)) == 2 * multiplications


def test_flops_of_keras_attention():
    # It multiplies by tf.einsum: q, k, v and the output; scores and values.
    images = keras.Input((8, 6, 4))
    tokens = layers.Reshape((48, 4))(images)
    attended = layers.MultiHeadAttention(2, 5)(tokens, tokens)
    model = keras.Model(images, attended)
    products = 4 * 48 * 4 * 10 + 2 * 48 * 48 * 10
    assert count_flops(model) == 2 * products


def test_flops_of_a_model_of_any_size():
    choices = {"patch_size": 8, "image_size": (16, 40)}
    fixed = VisionTransformer(tiny_config(**choices))
    free = VisionTransformer(
        tiny_config(use_dynamic_image_size=True, **choices)
    )
    with pytest.raises(ValueError, match="`image_shape` must be given"):
        count_flops(free)
    with pytest.raises(ValueError, match="`image_shape` must be given"):
        estimate_memory(free, 2)
    assert count_flops(free, (16, 40, 3)) == count_flops(fixed)


@pytest.mark.slow
@pytest.mark.parametrize(
    "variant, gflops",
    # Zhai et al. 2022, arXiv:2106.04560, table 2, at 224 pixels.
    [("Ti/16", 2.5), ("S/16", 9.2), ("B/16", 35.1)],
)
def test_flops_are_those_of_the_paper(variant, gflops):
    model = VisionTransformer(VARIANTS[variant].config)
    assert round(count_flops(model) / 1e9, 1) == gflops


@pytest.mark.slow
def test_flops_of_resnet50_are_those_of_its_paper():
    # He et al. 2015, arXiv:1512.03385, table 1: 3.8e9 multiply-adds. Ours has
    # the projections of the shortcuts as well.
    model = keras.applications.ResNet50(weights=None)
    assert count_flops(model) == pytest.approx(2 * 3.8e9, rel=0.03)


def test_peak_flops_by_a_clock_of_our_own(monkeypatch):
    # Products of 256 rows in 1, of 512 in 8 and of 1024 in 60 and 64 seconds:
    # the third is no less than a tenth of the time, and as large as they get.
    took = iter([0.0, 1.0, 10.0, 18.0, 20.0, 84.0, 90.0, 150.0, 160.0, 224.0])
    rate = measure_peak_flops(seconds=190.0, clock=lambda: next(took))
    assert rate == 2 * 1024**3 / 60
    assert next(took, None) is None


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_peak_flops_are_of_this_machine(dtype):
    # From one core of long ago to a room of accelerators.
    assert 1e8 < measure_peak_flops(dtype, seconds=0.02) < 1e16


def chain(depth):
    """Return a model whose every layer keeps its output for the way back."""
    stack = [layers.Dense(64, "tanh") for _ in range(depth)]
    return model_of(layers.Flatten(), *stack, shape=(8, 8, 1))


def test_memory_of_weights_and_what_goes_with_them():
    model = model_of(
        layers.Dense(10, trainable=False), layers.Dense(5), layers.Flatten()
    )
    memory = estimate_memory(model, 2, use_average=True)
    assert memory[:4] == (4 * (50 + 55), 4 * 55, 8 * 55, 4 * 55)
    memory = estimate_memory(model, 2, optimizer_slots_per_weight=1)
    assert memory[:4] == (4 * (50 + 55), 4 * 55, 4 * 55, 0)
    assert memory.total == 4 * 4 * 55 - 4 * 5 + memory.activations


def test_memory_grows_by_what_a_layer_keeps():
    kept = [estimate_memory(chain(n), 16).activations for n in (3, 4, 7)]
    # One output a layer, of 16 rows of 64 numbers.
    assert np.diff(kept).tolist() == [16 * 64 * 4, 3 * 16 * 64 * 4]


def test_memory_of_a_chain_is_the_closed_form():
    # At the top of three layers: the images, three outputs, the gradient of
    # the last one and that of what is under its tanh.
    assert estimate_memory(chain(3), 16).activations == 6 * 16 * 64 * 4


def test_memory_of_an_update_in_parts():
    whole, half, parts = (
        estimate_memory(chain(3), *batch, accumulation_steps=n)
        for *batch, n in ((16, 1), (8, 1), (16, 2))
    )
    assert parts.activations == half.activations < whole.activations
    assert parts.gradients == 2 * whole.gradients


@pytest.mark.parametrize("rate", [0.0, 0.1])
def test_a_rematerialised_block_keeps_its_input_only(rate):
    two, three = (
        estimate_memory(
            VisionTransformer(
                tiny_config(depth=n, dropout_rate=rate, use_remat=True)
            ),
            8,
        ).activations
        for n in (2, 3)
    )
    assert three - two == 8 * 17 * 24 * 4
    config = tiny_config(use_remat=True)
    assert count_flops(VisionTransformer(config)) == forward_flops(config)


def test_memory_is_in_proportion_to_the_batch():
    model = VisionTransformer(tiny_config())
    one, four = (estimate_memory(model, n).activations for n in (8, 32))
    assert four == pytest.approx(4 * one, rel=0.01)


def test_memory_of_mixed_precision_is_less():
    full, half = (
        estimate_memory(VisionTransformer(tiny_config(), dtype=dtype), 32)
        for dtype in ("float32", "mixed_bfloat16")
    )
    assert half[:4] == full[:4]
    # Norms and softmax keep float32.
    assert 0.5 < half.activations / full.activations < 0.8


def test_estimating_draws_no_numbers_and_changes_no_weight():
    model = VisionTransformer(tiny_config(dropout_rate=0.5))
    before = [v.numpy() for v in model.variables]
    estimate_memory(model, 2)
    count_flops(model)
    for old, variable in zip(before, model.variables):
        np.testing.assert_array_equal(old, variable.numpy())


def test_costs_of_a_model_on_several_devices():
    strategy = make_strategy("mirrored")
    alone = VisionTransformer(tiny_config())
    with strategy.scope():
        mirrored = VisionTransformer(tiny_config())
    assert count_flops(mirrored) == count_flops(alone)
    assert estimate_memory(mirrored, 8) == estimate_memory(alone, 8)


@pytest.mark.slow
def test_memory_is_that_of_a_real_step(subprocess_environment):
    program = """
        import dataclasses
        import resource

        import keras
        import tensorflow as tf

        from keras_vit.models import VARIANTS, VisionTransformer
        from trainers.loop.costs import estimate_memory

        model = VisionTransformer(
            dataclasses.replace(VARIANTS["Ti/16"].config, dropout_rate=0.1)
        )

        @tf.function
        def compute_gradients(images):
            with tf.GradientTape() as tape:
                logits = model(images, training=True)
            weights = [v.value for v in model.trainable_variables]
            gradients = tape.gradient(logits, weights)
            return tf.clip_by_global_norm(gradients, 1.0)

        images = tf.random.normal((16, 224, 224, 3))
        compute_gradients.get_concrete_function(images)
        with open("/proc/self/statm") as file:
            before = int(file.read().split()[1]) * resource.getpagesize()
        compute_gradients(images)
        # Not of getrusage, which counts the process that started this one.
        with open("/proc/self/status") as file:
            peak = 1024 * int(file.read().split("VmHWM:")[1].split()[0])
        memory = estimate_memory(model, 16)
        print(peak - before, memory.gradients + memory.activations)
    """
    words = ["-c", textwrap.dedent(program)]
    result = commands.run(words, subprocess_environment)
    assert result.returncode == 0, result.stderr[-2000:]
    measured, estimated = map(int, result.stdout.split())
    assert 0.85 * estimated < measured < 1.25 * estimated + 0.3e9
