"""Blocks that recompute the tensors that other blocks keep."""

import sys

import keras
import numpy as np
import pytest

from keras_vit.layers import TransformerBlock
from tests import commands
from tests.contracts import gradients
from tests.tiny import noise, to_numpy

RATES = ("dropout_rate", "attention_dropout_rate", "stochastic_depth_rate")


def make_block(use_remat, **changes):
    """Return a block with random weights, the same ones each time."""
    keras.utils.set_random_seed(0)
    rates = dict.fromkeys(RATES, 0.3) | changes
    block = TransformerBlock(3, 48, use_remat=use_remat, **rates)
    block.build((None, 7, 24))
    for seed, weight in enumerate(block.trainable_variables):
        weight.assign(noise(*weight.shape, seed=seed))
    return block


def test_gradients_are_those_of_a_block_that_keeps_everything():
    """With dropout: the second pass drops what the first one did."""
    x = noise(8, 7, 24)
    plain, recomputed = (
        gradients(make_block(use_remat), x, training=True)
        for use_remat in (False, True)
    )
    for expected, actual in zip(
        plain.values(), recomputed.values(), strict=True
    ):
        np.testing.assert_allclose(
            to_numpy(actual), to_numpy(expected), rtol=1e-4, atol=1e-5
        )


def test_every_call_drops_something_else():
    block, x = make_block(use_remat=True), noise(8, 7, 24)
    answers = [to_numpy(block(x, training=True)) for _ in range(3)]
    for one, other in zip(answers, answers[1:]):
        assert np.abs(one - other).max() > 0.1


def test_inference_is_as_without():
    plain, recomputed = make_block(False), make_block(True)
    x = noise(2, 7, 24)
    np.testing.assert_array_equal(to_numpy(plain(x)), to_numpy(recomputed(x)))


@pytest.mark.filterwarnings("ignore:Layer .* does not have a `quantize`")
@pytest.mark.parametrize("dropout_rate", [0.0, 0.3])
def test_int8_kernels_are_not_taken_for_seeds(dropout_rate):
    x, results = noise(2, 7, 24), []
    for use_remat in (False, True):
        rates = dict.fromkeys(RATES, 0.0) | {"dropout_rate": dropout_rate}
        block = make_block(use_remat, **rates)
        for inner in block._flatten_layers(include_self=False):
            if isinstance(inner, keras.layers.Dense):
                inner.quantize("int8")
        kernels = [to_numpy(v) for v in block.variables if v.dtype == "int8"]
        results.append(
            [to_numpy(g) for g in gradients(block, x, training=True).values()]
        )
        after = [to_numpy(v) for v in block.variables if v.dtype == "int8"]
        assert len(kernels) == 4
        np.testing.assert_equal(after, kernels)
    for plain, recomputed in zip(*results, strict=True):
        np.testing.assert_allclose(recomputed, plain, rtol=1e-4, atol=1e-4)


def test_a_mask_is_heeded():
    x, mask = noise(2, 7, 24), np.arange(14).reshape(2, 7) % 3 > 0
    rates = dict.fromkeys(RATES, 0.0)
    block = make_block(use_remat=True, **rates)
    np.testing.assert_allclose(
        to_numpy(block(x, mask=mask, training=True)),
        to_numpy(make_block(use_remat=False, **rates)(x, mask=mask)),
        rtol=1e-5,
        atol=1e-6,
    )


@pytest.mark.skipif(
    keras.backend.backend() != "tensorflow", reason="fit of TensorFlow"
)
@pytest.mark.filterwarnings("error")
def test_fit_ends_with_the_same_weights():
    x, y = noise(16, 7, 24), noise(16, 7, 24, seed=1)
    ends = []
    for use_remat in (False, True):
        keras.utils.set_random_seed(0)
        rates = dict.fromkeys(RATES, 0.0)
        model = keras.Sequential(
            [make_block(use_remat, **rates), make_block(use_remat, **rates)]
        )
        model.compile("sgd", "mse")
        model.fit(x, y, batch_size=8, epochs=2, verbose=0, shuffle=False)
        ends.append(model.get_weights())
    for one, other in zip(*ends, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)


PEAK = """
import sys
import tensorflow as tf
from keras_vit import VARIANTS, VisionTransformer, ViTConfig
config = ViTConfig(
    width=192, depth=12, mlp_dim=768, num_heads=3, patch_size=16,
    image_size=224, num_classes=10, use_remat=sys.argv[1] == "remat",
)
model = VisionTransformer(config)
@tf.function
def gradients(images):
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(model(images, training=True) ** 2)
    return tape.gradient(loss, [v.value for v in model.trainable_variables])
def peak():
    # Not of getrusage, which counts the process that started this one.
    with open("/proc/self/status") as file:
        return int(file.read().split("VmHWM:")[1].split()[0])
before = peak()
gradients(tf.zeros((16, 224, 224, 3)))
print(peak() - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(
    keras.backend.backend() != "tensorflow" or sys.platform != "linux",
    reason="measures the peak memory of TensorFlow, as Linux counts it",
)
def test_less_than_half_the_memory_is_needed(subprocess_environment):
    kib = {}
    for mode in ("plain", "remat"):
        result = commands.run(["-c", PEAK, mode], subprocess_environment)
        assert result.returncode == 0, result.stderr
        kib[mode] = int(result.stdout.split()[-1])
    assert kib["remat"] < 0.5 * kib["plain"], kib
