import collections
import math

import keras
import numpy as np
import pytest
from scipy.special import erf

from keras_vit import VisionTransformer
from keras_vit.layers import ACTIVATIONS, MlpBlock
from tests.contracts import gradients
from tests.tiny import (
    noise,
    randomize,
    tensorflow_only,
    tiny_config,
    to_numpy,
)

FORMULAS = {
    "relu": lambda x: np.maximum(x, 0),
    "elu": lambda x: np.where(x > 0, x, np.expm1(x)),
    "quick": lambda x: x / (1 + np.exp(-1.702 * x)),
    "silu": lambda x: x / (1 + np.exp(-x)),
    "exact": lambda x: 0.5 * x * (1 + erf(x / math.sqrt(2))),
    "tanh": lambda x: (
        0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    ),
}


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_activation_equals_its_formula(activation):
    x = np.linspace(-6, 6, 241, dtype="float32")
    np.testing.assert_allclose(
        to_numpy(ACTIVATIONS[activation](x)), FORMULAS[activation](x), atol=2e-6
    )


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("training", [True, False])
def test_gradient_equals_that_of_the_formula(activation, training):
    x = np.linspace(-6, 6, 240).reshape(2, 5, 24)
    layer = MlpBlock(mlp_dim=24, activation=activation)
    layer(x)
    layer.set_weights([np.eye(24), np.zeros(24), np.eye(24), np.zeros(24)])
    slope = (
        FORMULAS[activation](x + 1e-5) - FORMULAS[activation](x - 1e-5)
    ) / 2e-5
    found = gradients(layer, x.astype("float32"), training=training)
    np.testing.assert_allclose(
        to_numpy(found["the input"]), slope * noise(2, 5, 24, seed=9), atol=1e-5
    )


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_answers_the_same_in_training(activation):
    x = noise(2, 5, 12, scale=3)
    layer = MlpBlock(mlp_dim=20, activation=activation)
    layer(x)
    randomize(layer)
    np.testing.assert_allclose(
        to_numpy(layer(x, training=True)), to_numpy(layer(x)), atol=1e-5
    )


def test_the_gelu_forms_differ():
    x = np.linspace(-6, 6, 241, dtype="float32")
    difference = to_numpy(ACTIVATIONS["tanh"](x)) - to_numpy(
        ACTIVATIONS["exact"](x)
    )
    # The largest gap of the two curves, known to be 4.7e-4 at |x| = 2.7.
    assert 4e-4 < np.abs(difference).max() < 5e-4


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_equals_its_formula(activation):
    x = noise(2, 5, 12)
    layer = MlpBlock(mlp_dim=20, activation=activation)
    layer(x)
    randomize(layer)
    kernel1, bias1, kernel2, bias2 = layer.get_weights()
    expected = FORMULAS[activation](x @ kernel1 + bias1) @ kernel2 + bias2
    np.testing.assert_allclose(to_numpy(layer(x)), expected, atol=1e-5)


def test_dropout_follows_either_dense_layer():
    keras.utils.set_random_seed(0)
    layer = MlpBlock(mlp_dim=64, dropout_rate=0.5)
    x = np.ones((64, 1, 32), "float32")
    layer(x)
    # Hidden units answer 3 (gelu(3) is 3 to 0.5 %), and each is copied to an
    # output of its own: what is left is 0 or 4 times as large, 1/4 of it.
    layer.set_weights(
        [np.zeros((32, 64)), np.full(64, 3), np.eye(64, 32), np.zeros(32)]
    )
    y = to_numpy(layer(x, training=True))
    kept = np.isclose(y, 4 * 2.996, atol=0.02)
    assert np.all(kept | (y == 0))
    assert 0.2 < kept.mean() < 0.3
    np.testing.assert_allclose(to_numpy(layer(x)), 2.996, atol=0.005)


def test_an_unknown_activation_is_an_error():
    with pytest.raises(
        ValueError,
        match="`activation` must be one of 'tanh', 'exact', 'quick', 'silu', "
        "'relu', 'elu'. Received: activation='erf'",
    ):
        MlpBlock(mlp_dim=8, activation="erf")


def optimized_ops(model, images):
    """Return the operations of the graph that TensorFlow runs, with counts."""
    import tensorflow as tf
    from tensorflow.python.framework import convert_to_constants

    function = tf.function(lambda x: model(x, training=False))
    frozen = convert_to_constants.convert_variables_to_constants_v2(
        function.get_concrete_function(tf.TensorSpec(images.shape, tf.float32))
    )
    # A session tells what became of the graph; a function does not.
    options = tf.compat.v1.RunOptions(output_partition_graphs=True)
    metadata = tf.compat.v1.RunMetadata()
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        tf.import_graph_def(frozen.graph.as_graph_def(), name="")
        session.run(
            frozen.outputs[0].name,
            {frozen.inputs[0].name: images},
            options=options,
            run_metadata=metadata,
        )
    return collections.Counter(
        node.op for graph in metadata.partition_graphs for node in graph.node
    )


@tensorflow_only
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_tensorflow_fuses_both_kinds_of_gelu_with_the_product(dtype):
    counts = {}
    for activation in ("tanh", "exact"):
        model = VisionTransformer(
            tiny_config(activation=activation), dtype=dtype
        )
        # Biases of zero would be left out.
        counts[activation] = optimized_ops(
            randomize(model), noise(2, 32, 32, 3)
        )
    # Without oneDNN, neither is fused.
    assert counts["tanh"]["Tanh"] == counts["exact"]["Erf"]
    if counts["exact"]["_MklNativeFusedMatMul"]:
        assert counts["exact"]["Erf"] == 0


@pytest.mark.skipif(
    keras.backend.backend() != "torch", reason="The others have no such thing."
)
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("is_gated", [False, True])
def test_inference_in_place_changes_no_tensor_that_is_seen(
    activation, is_gated
):
    import torch

    layer = MlpBlock(mlp_dim=20, activation=activation, is_gated=is_gated)
    x = keras.ops.convert_to_tensor(noise(2, 5, 12))
    expected, before = layer(x), x.clone()
    seen = []
    with torch.no_grad():
        np.testing.assert_array_equal(to_numpy(layer(x)), to_numpy(expected))
        hook = layer.hidden.register_forward_hook(
            lambda layer, inputs, output: seen.append((output, output.clone()))
        )
        np.testing.assert_array_equal(to_numpy(layer(x)), to_numpy(expected))
        hook.remove()
    np.testing.assert_array_equal(to_numpy(x), to_numpy(before))
    ((output, copy),) = seen
    np.testing.assert_array_equal(to_numpy(output), to_numpy(copy))
