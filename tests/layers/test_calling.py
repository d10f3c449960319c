import keras
import numpy as np
import pytest
from keras import ops

from keras_vit.layers import LayerNorm, TransformerBlock
from keras_vit.layers.kernels import call, reshape
from keras_vit.layers.kernels import dense as product
from tests.tiny import noise, randomize, to_numpy

torch_only = pytest.mark.skipif(
    keras.backend.backend() != "torch", reason="Others compile their graph."
)


def dense(dtype=None, **options):
    layer = keras.layers.Dense(4, dtype=dtype, **options)
    layer.build((None, 6))
    return randomize(layer)


@pytest.mark.parametrize("use_bias", [True, False])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "mixed_bfloat16"])
def test_a_projection_equals_the_dense_layer(dtype, use_bias):
    layer = dense(dtype, use_bias=use_bias)
    x = ops.cast(noise(5, 6), layer.compute_dtype)
    y, expected = product(layer, x), layer(x)
    assert y.dtype == expected.dtype
    np.testing.assert_allclose(
        to_numpy(ops.cast(y, "float32")),
        to_numpy(ops.cast(expected, "float32")),
        atol=1e-6 if dtype == "float32" else 2e-2,
    )


def test_a_projection_has_the_lora_update():
    layer = dense()
    layer.enable_lora(2)
    randomize(layer, seed=3)
    x = ops.convert_to_tensor(noise(5, 6))
    np.testing.assert_allclose(
        to_numpy(product(layer, x)), to_numpy(layer(x)), atol=1e-5
    )


def test_a_quantized_projection_is_computed_as_such():
    layer = dense()
    layer.quantize("int8")
    x = ops.convert_to_tensor(noise(5, 6))
    np.testing.assert_array_equal(
        to_numpy(product(layer, x)), to_numpy(layer(x))
    )


def test_a_symbolic_input_makes_a_node_of_the_layer():
    inputs, layer = keras.KerasTensor((2, 6)), LayerNorm()
    layer.build((2, 6))
    outputs = call(layer, reshape(inputs, (2, 6)))
    assert outputs._keras_history.operation is layer


@torch_only
def test_hooks_of_sublayers_are_called():
    block, x = TransformerBlock(3, mlp_dim=8), noise(1, 2, 12)
    block(x)
    for layer in (block.attention, block.mlp.hidden, block.attention_norm):
        seen = []
        hook = layer.register_forward_hook(
            lambda layer, inputs, output, seen=seen: seen.append(layer)
        )
        block(x)
        hook.remove()
        block(x)
        assert seen == [layer]


@torch_only
def test_sublayers_are_called_without_the_checks_of_keras(monkeypatch):
    block, x = TransformerBlock(3, mlp_dim=8), noise(1, 2, 12)
    expected = to_numpy(block(x))
    called = []
    original = keras.layers.Layer.__call__

    def record(layer, *args, **kwargs):
        called.append(layer)
        return original(layer, *args, **kwargs)

    monkeypatch.setattr(keras.layers.Layer, "__call__", record)
    np.testing.assert_array_equal(to_numpy(block(x)), expected)
    assert called == [block]
