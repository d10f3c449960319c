"""Products whose gradient computes their input again, on TensorFlow."""

import keras
import numpy as np
import pytest

from keras_vit.layers import ACTIVATIONS, MlpBlock, fusion
from tests.layers.test_fusion import FORMULAS
from tests.tiny import noise, randomize

tf = pytest.importorskip("tensorflow")
pytestmark = pytest.mark.skipif(
    keras.backend.backend() != "tensorflow", reason="Only TensorFlow needs it."
)
WIDTH = fusion.LEAST_WIDTH


def train(layer, x, upstream):
    """Return the output of a layer and its gradients, computed by a graph."""
    weights = [v.value for v in layer.trainable_variables]

    @tf.function
    def compute():
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = layer(x, training=True)
        change = tf.cast(upstream, y.dtype)
        return y, *tape.gradient(y, [x, *weights], output_gradients=change)

    return [tensor.numpy().astype("float64") for tensor in compute()]


def by_formula(layer, x, upstream):
    """Return the same for one image, in float64."""
    kernel, bias, out, out_bias = (
        w.astype("float64") for w in layer.get_weights()
    )
    hidden = x @ kernel + bias
    value, slope = FORMULAS[layer.activation](hidden)
    if layer.is_gated:
        (gate, other), (slope, _) = (
            np.split(array, 2, axis=-1) for array in (hidden, slope)
        )
        gate, _ = np.split(value, 2, axis=-1)
        value, slopes = gate * other, (slope * other, gate)
    else:
        slopes = (slope,)
    change = np.concatenate([upstream @ out.T * s for s in slopes], axis=-1)
    gradients = (
        change @ kernel.T,
        x.T @ change,
        change.sum(0),
        value.T @ upstream,
        upstream.sum(0),
    )
    return value @ out + out_bias, *gradients


@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16"])
@pytest.mark.parametrize("is_gated", [False, True])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_value_and_gradients_are_those_of_the_formula(
    activation, is_gated, dtype
):
    layer = MlpBlock(
        WIDTH, activation=activation, is_gated=is_gated, dtype=dtype
    )
    layer.build((1, 5, 12))
    randomize(layer)
    x, upstream = noise(5, 12, seed=1), noise(5, 12, seed=2)
    found = train(layer, tf.constant(x[None]), tf.constant(upstream[None]))
    expected = by_formula(
        layer, x.astype("float64"), upstream.astype("float64")
    )
    for one, other in zip(found, expected, strict=True):
        # bfloat16 has 8 bits, of the weights and of each intermediate tensor.
        size = np.abs(other).max() * (0.03 if dtype != "float32" else 1e-5)
        np.testing.assert_allclose(one.reshape(other.shape), other, atol=size)
