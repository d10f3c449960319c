"""Functions that keep little for their gradients, and cases without them."""

import dataclasses

import keras
import numpy as np
import pytest
from keras import ops

from keras_vit import VisionTransformer
from keras_vit.layers import (
    LayerNorm,
    MlpBlock,
    MultiHeadSelfAttention,
    RmsNorm,
)
from keras_vit.layers.attention import attend
from keras_vit.layers.kernels import activate
from keras_vit.layers.mlp import ACTIVATIONS
from tests.layers import references
from tests.tiny import noise, randomize, tiny_config

tf = pytest.importorskip("tensorflow")
kernels = pytest.importorskip("keras_vit.layers.kernels_tensorflow")
BACKEND = keras.backend.backend()
pytestmark = pytest.mark.skipif(
    BACKEND == "torch", reason="PyTorch keeps little by itself."
)
on_tensorflow = pytest.mark.skipif(
    BACKEND != "tensorflow", reason="XLA beside TensorFlow."
)
on_jax = pytest.mark.skipif(BACKEND != "jax", reason="Reads JAX's residuals.")
WIDTH = kernels.LEAST_WIDTH


def pull_back(function, tensors, upstream):
    """Return the result of a function, and the gradients of its arguments."""
    if BACKEND == "jax":
        import jax

        y, gradients_for = jax.vjp(function, *tensors)
        return y, gradients_for(upstream)
    with tf.GradientTape() as tape:
        tape.watch(tensors)
        y = function(*tensors)
    return y, tape.gradient(y, tensors, output_gradients=upstream)


def as_doubles(tensor):
    return ops.convert_to_numpy(ops.cast(tensor, "float32")).astype("float64")


def compiled_functions(function, *tensors):
    """Return the names of the functions that XLA compiles in a graph."""
    graph = tf.function(function).get_concrete_function(*tensors).graph
    return {
        row.signature.name
        for row in graph.as_graph_def().library.function
        if row.attr["_XlaMustCompile"].b
    }


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_and_gradients_are_those_of_the_formula(name, dtype):
    x = ops.cast(3 * noise(5, WIDTH, seed=1), dtype)
    upstream = ops.cast(noise(5, WIDTH, seed=2), dtype)
    y, [gradient] = pull_back(
        lambda x: activate(name, ACTIVATIONS[name], x, True), [x], upstream
    )
    formula, x = references.ACTIVATIONS[name], as_doubles(x)
    value = formula(x)
    slope = (formula(x + 1e-5) - formula(x - 1e-5)) / 2e-5
    assert y.dtype == gradient.dtype == dtype
    # One rounding of bfloat16 is at most 2^-8 of the number.
    near = {"rtol": 2**-7, "atol": 1e-3} if dtype == "bfloat16" else {}
    # The slope holds 1 - tanh^2: where tanh is almost 1, its last bit, 6e-8,
    # counts twice, times up to 43 at x = 9 and a gradient from above up to 4.
    near = near or {"rtol": 1e-5, "atol": 4e-5}
    np.testing.assert_allclose(as_doubles(y), value, **near)
    expected = slope * as_doubles(upstream)
    np.testing.assert_allclose(as_doubles(gradient), expected, **near)


def train_layer(layer):
    """Return the call of a layer in training, as a function of its weights."""

    def call(x, *weights):
        return layer.stateless_call(weights, [], x, training=True)[0]

    return call


@pytest.mark.parametrize("norm_class", [LayerNorm, RmsNorm])
@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16"])
def test_norms_and_gradients_are_those_of_the_formula(norm_class, dtype):
    layer = norm_class(epsilon=1e-3, dtype=dtype)
    layer.build((None, WIDTH))
    randomize(layer)
    x = ops.cast(3 * noise(6, WIDTH, seed=1) + 1, layer.compute_dtype)
    upstream = ops.cast(noise(6, WIDTH, seed=2), layer.compute_dtype)
    weights = [v.value for v in layer.trainable_variables]
    y, found = pull_back(train_layer(layer), [x, *weights], upstream)
    x, dy, gamma = map(as_doubles, (x, upstream, weights[0]))
    is_centered = norm_class is LayerNorm
    centered = x - is_centered * x.mean(-1, keepdims=True)
    root = np.sqrt((centered**2).mean(-1, keepdims=True) + 1e-3)
    unit = centered / root
    slope = dy * gamma
    dx = slope - unit * (slope * unit).mean(-1, keepdims=True)
    dx = (dx - is_centered * slope.mean(-1, keepdims=True)) / root
    expected = [dx, (dy * unit).sum(0), dy.sum(0)][: len(found)]
    value = unit * gamma
    if is_centered:
        value = value + as_doubles(weights[1])
    near = {"rtol": 1e-5, "atol": 1e-5}
    if dtype == "mixed_bfloat16":
        near = {"rtol": 2**-7, "atol": 2e-2}
    np.testing.assert_allclose(as_doubles(y), value, **near)
    for gradient, want in zip(found, expected, strict=True):
        np.testing.assert_allclose(as_doubles(gradient), want, **near)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("has_bias", [False, True])
def test_attention_and_gradients_are_those_that_the_backend_computes(
    dtype, has_bias
):
    qkv = [noise(2, WIDTH, 8, seed=seed) for seed in range(3)]
    upstream = noise(2, WIDTH, 8, seed=3)
    bias = noise(1, 2, WIDTH, WIDTH, seed=4) if has_bias else None

    def run(dtype, training):
        def compute(*tensors):
            return attend(*tensors, num_heads=2, bias=bias, training=training)

        tensors = [ops.cast(x, dtype) for x in qkv]
        y, found = pull_back(compute, tensors, ops.cast(upstream, dtype))
        assert all(x.dtype == dtype for x in (y, *found))
        return [*map(as_doubles, (y, *found))]

    near = {"rtol": 0, "atol": 1e-6}
    if dtype != "float32":  # Of which bfloat16 rounds by up to 2**-8.
        near = {"rtol": 2**-7, "atol": 0.03}
    for one, other in zip(run(dtype, True), run("float32", False)):
        np.testing.assert_allclose(one, other, **near)


def kept_by_jax(function, *tensors):
    """Return (type, shape) of what the gradient of a function needs."""
    import jax

    _, gradients_for = jax.vjp(function, *tensors)
    kept = jax.tree.leaves(gradients_for)
    return sorted((str(x.dtype), x.shape) for x in kept if x.ndim > 1)


@on_jax
@pytest.mark.parametrize("name", sorted(ACTIVATIONS.keys() - {"relu"}))
def test_an_activation_keeps_nothing_but_its_argument_on_jax(name):
    x = ops.cast(noise(5, 7), "bfloat16")
    kept = kept_by_jax(lambda x: activate(name, ACTIVATIONS[name], x, True), x)
    assert kept == [("bfloat16", (5, 7))]


@on_jax
@pytest.mark.parametrize("norm_class", [LayerNorm, RmsNorm])
def test_a_norm_keeps_nothing_but_its_tokens_on_jax(norm_class):
    layer = norm_class(dtype="mixed_bfloat16")
    layer.build((None, 7))
    weights = [v.value for v in layer.trainable_variables]
    x = ops.cast(noise(5, 7), "bfloat16")
    assert kept_by_jax(train_layer(layer), x, *weights) == [
        ("bfloat16", (5, 7))
    ]


@on_jax
def test_attention_keeps_its_scores_once_on_jax():
    """In bfloat16, and not also in float32, in which they are computed."""
    qkv = [ops.cast(noise(3, 5, 8, seed=seed), "bfloat16") for seed in range(3)]
    kept = kept_by_jax(
        lambda *qkv: attend(*qkv, num_heads=2, training=True), *qkv
    )
    large = [row for row in kept if row[1][-2:] == (5, 5)]
    assert {kind for kind, _ in large} == {"bfloat16"}


LAYERS = {
    "layer_norm": LayerNorm,
    "rms_norm": RmsNorm,
    "mlp": lambda: MlpBlock(mlp_dim=WIDTH),
}


@on_tensorflow
@pytest.mark.parametrize("name", LAYERS)
def test_only_training_of_wide_layers_is_compiled(name):
    wide, x = LAYERS[name](), tf.constant(noise(1, WIDTH, WIDTH))
    assert compiled_functions(lambda x: wide(x, training=True), x)
    assert not compiled_functions(lambda x: wide(x, training=False), x)
    assert not compiled_functions(wide, x)


@on_tensorflow
def test_only_the_gradient_of_the_softmax_is_compiled():
    layer, x = MultiHeadSelfAttention(2), tf.constant(noise(1, WIDTH, 8))

    def run(x, training):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = layer(x, training=training)
        return tape.gradient(y, x)

    assert not compiled_functions(lambda x: layer(x, training=True), x)
    assert compiled_functions(lambda x: run(x, True), x)
    assert not compiled_functions(lambda x: run(x, False), x)


@on_tensorflow
@pytest.mark.parametrize("layer_class", [LayerNorm, RmsNorm])
def test_narrow_layers_and_other_devices_are_left_to_tensorflow(
    monkeypatch, layer_class
):
    narrow, wide = layer_class(), layer_class()

    def train(layer, width):
        x = tf.constant(noise(1, 3, width))
        return compiled_functions(lambda x: layer(x, training=True), x)

    assert not train(narrow, WIDTH - 1)
    devices = tf.config.list_logical_devices()
    for kind in ("GPU", "TPU"):
        other = tf.config.LogicalDevice(f"/device:{kind}:0", kind)
        monkeypatch.setattr(
            tf.config,
            "list_logical_devices",
            lambda other=other: [*devices, other],
        )
        assert not train(wide, WIDTH)


def gradients_of(config, images, is_compiled, monkeypatch):
    least = WIDTH if is_compiled else 10**9
    monkeypatch.setattr(kernels, "LEAST_WIDTH", least)
    model = randomize(VisionTransformer(config))

    @tf.function
    def compute(images):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(images, training=True)))
        weights = [v.value for v in model.trainable_variables]
        return tape.gradient(loss, weights)

    return compute(images)


@on_tensorflow
@pytest.mark.parametrize("use_remat", [False, True])
@pytest.mark.parametrize("activation", ["tanh", "exact"])
def test_a_model_has_the_gradients_that_tensorflow_computes(
    monkeypatch, activation, use_remat
):
    config = dataclasses.replace(
        tiny_config(activation=activation, use_remat=use_remat),
        width=WIDTH,
        num_heads=2,
        mlp_dim=WIDTH,
    )
    images = tf.constant(noise(2, *config.image_size, config.channels))
    found, expected = (
        gradients_of(config, images, is_compiled, monkeypatch)
        for is_compiled in (True, False)
    )
    for one, other in zip(found, expected, strict=True):
        scale = np.abs(other.numpy()).max()
        np.testing.assert_allclose(
            one.numpy(), other.numpy(), rtol=0, atol=3e-5 * scale + 1e-9
        )
