"""The contract of every layer: its cases and its checks.

A new layer needs one row in CASES, nothing else.
"""

from typing import NamedTuple

import keras
import numpy as np
from keras.src.testing import TestCase

from keras_vit import layers
from keras_vit.layers.resnet_stem import BottleneckUnit, StandardizedConv2D
from tests.tiny import noise, randomize, to_numpy


class Case(NamedTuple):
    """A layer, its arguments, and the shapes of its input and output.

    `is_beside` says that it stands beside the tokens: it computes something
    about their positions, which is the same for every image.
    """

    layer_class: type
    kwargs: dict
    input_shape: tuple
    output_shape: tuple
    is_beside: bool = False

    def make(self, **kwargs):
        """Return the layer, built, with random weights."""
        layer = self.layer_class(**self.kwargs, **kwargs)
        layer(self.inputs())
        return randomize(layer)

    def inputs(self, batch=2):
        """Return seeded random inputs."""
        return noise(batch, *self.input_shape[1:])


TOKENS = (2, 7, 12)
GRID_TOKENS = {"grid_size": (2, 3), "num_prefix_tokens": 1}
ROTARY = {"head_size": 8, **GRID_TOKENS}

CASES = {
    "image_preprocessor": Case(
        layers.ImagePreprocessor,
        {
            "image_size": (6, 4),
            "normalization": "clip",
            "resize_mode": "shortest",
            "interpolation": "bicubic",
            "crop_fraction": 0.8,
        },
        (2, 12, 9, 3),
        (2, 6, 4, 3),
    ),
    "patch_encoder": Case(
        layers.PatchEncoder,
        {"patch_size": 4, "width": 12},
        (2, 8, 12, 3),
        (2, 6, 12),
    ),
    "layer_norm": Case(layers.LayerNorm, {"epsilon": 1e-5}, TOKENS, TOKENS),
    "rms_norm": Case(layers.RmsNorm, {"epsilon": 1e-5}, TOKENS, TOKENS),
    "layer_scale": Case(
        layers.LayerScale, {"initial_value": 0.1}, TOKENS, TOKENS
    ),
    "class_token": Case(layers.ClassToken, {}, (2, 6, 12), TOKENS),
    "prefix_tokens": Case(
        layers.PrefixTokens, {"num_tokens": 3}, (2, 4, 12), TOKENS
    ),
    "distilled_head": Case(
        layers.DistilledHead,
        {"num_classes": 5, "activation": "softmax", "head_bias": 0.1},
        (2, 2, 12),
        (2, 5),
    ),
    "learned": Case(
        layers.LearnedPositionEmbedding, GRID_TOKENS, TOKENS, TOKENS
    ),
    "learned_2d": Case(
        layers.LearnedPositionEmbedding2D, GRID_TOKENS, TOKENS, TOKENS
    ),
    "sincos_1d": Case(
        layers.SinCosPositionEmbedding, GRID_TOKENS, TOKENS, TOKENS
    ),
    "sincos_2d": Case(
        layers.SinCosPositionEmbedding2D, GRID_TOKENS, TOKENS, TOKENS
    ),
    "attention": Case(
        layers.MultiHeadSelfAttention,
        {"num_heads": 3, "dropout_rate": 0.1},
        TOKENS,
        TOKENS,
    ),
    "mlp_tanh": Case(
        layers.MlpBlock,
        {"mlp_dim": 20, "dropout_rate": 0.1, "activation": "tanh"},
        TOKENS,
        TOKENS,
    ),
    "mlp_exact": Case(
        layers.MlpBlock, {"mlp_dim": 20, "activation": "exact"}, TOKENS, TOKENS
    ),
    "mlp_quick": Case(
        layers.MlpBlock, {"mlp_dim": 20, "activation": "quick"}, TOKENS, TOKENS
    ),
    "mlp_relu": Case(
        layers.MlpBlock, {"mlp_dim": 20, "activation": "relu"}, TOKENS, TOKENS
    ),
    "mlp_elu": Case(
        layers.MlpBlock, {"mlp_dim": 20, "activation": "elu"}, TOKENS, TOKENS
    ),
    "mlp_silu": Case(
        layers.MlpBlock,
        {
            "mlp_dim": 20,
            "activation": "silu",
            "is_gated": True,
            "use_inner_norm": True,
            "norm": "rms",
            "norm_epsilon": 1e-5,
            "use_bias": False,
        },
        TOKENS,
        TOKENS,
    ),
    "stochastic_depth": Case(
        layers.StochasticDepth, {"rate": 0.4, "seed": 3}, TOKENS, TOKENS
    ),
    "attention_with_norms": Case(
        layers.MultiHeadSelfAttention,
        {
            "num_heads": 3,
            "qkv_bias": "query_value",
            "use_out_bias": False,
            "qk_norm": "head",
            "use_inner_norm": True,
            "norm": "rms",
            "norm_epsilon": 1e-5,
            "rotary_pairs": "neighbours",
        },
        TOKENS,
        TOKENS,
    ),
    "transformer_block": Case(
        layers.TransformerBlock,
        {
            "num_heads": 3,
            "mlp_dim": 20,
            "dropout_rate": 0.1,
            "attention_dropout_rate": 0.1,
            "stochastic_depth_rate": 0.1,
            "activation": "exact",
            "layer_norm_epsilon": 1e-5,
            "use_remat": True,
        },
        TOKENS,
        TOKENS,
    ),
    "block_of_other_families": Case(
        layers.TransformerBlock,
        {
            "num_heads": 3,
            "mlp_dim": 20,
            "norm": "rms",
            "norm_placement": "after",
            "layer_scale_init": 0.1,
            "layer_scale_branches": "attention",
            "attention_options": {
                "qkv_bias": "none",
                "qk_norm": "width",
                "norm": "rms",
            },
            "mlp_options": {"is_gated": True},
        },
        TOKENS,
        TOKENS,
    ),
    "token": Case(layers.TokenPooling, {}, TOKENS, (2, 12)),
    "avg": Case(
        layers.AveragePooling, {"num_prefix_tokens": 1}, TOKENS, (2, 12)
    ),
    "max": Case(layers.MaxPooling, {"num_prefix_tokens": 1}, TOKENS, (2, 12)),
    "token_and_avg": Case(
        layers.TokenAndAveragePooling,
        {"num_prefix_tokens": 2},
        TOKENS,
        (2, 24),
    ),
    "distilled": Case(
        layers.DistilledPooling, {"num_classes": 5}, TOKENS, (2, 2, 12)
    ),
    "prefix": Case(layers.PrefixPooling, {"indices": [2, 0]}, TOKENS, (2, 24)),
    "map_patches": Case(
        layers.PatchAttentionPooling,
        {"num_heads": 3, "mlp_dim": 20, "num_prefix_tokens": 2},
        TOKENS,
        (2, 12),
    ),
    "probe": Case(layers.ProbePooling, {"num_heads": 3}, TOKENS, (2, 12)),
    "map": Case(
        layers.AttentionPooling,
        {
            "num_heads": 3,
            "mlp_dim": 20,
            "activation": "exact",
            "layer_norm_epsilon": 1e-5,
        },
        TOKENS,
        (2, 12),
    ),
    "axial": Case(
        layers.AxialRotaryPositions,
        {
            "temperature": 50.0,
            "axes": "xy",
            "reference_size": (4, 4),
            "offset": 1.0,
            **ROTARY,
        },
        TOKENS,
        (2, 7, 1, 8),
        is_beside=True,
    ),
    "axial_class": Case(
        layers.ClassRotaryPositions,
        {"temperature": 50.0, **ROTARY},
        TOKENS,
        (2, 7, 1, 8),
        is_beside=True,
    ),
    "centered": Case(
        layers.CenteredRotaryPositions,
        {"temperature": 50.0, **ROTARY},
        TOKENS,
        (2, 7, 1, 8),
        is_beside=True,
    ),
    "centered_bfloat16": Case(
        layers.RoundedRotaryPositions,
        {"temperature": 50.0, **ROTARY},
        TOKENS,
        (2, 7, 1, 8),
        is_beside=True,
    ),
    "mixed": Case(
        layers.MixedRotaryPositions,
        {"num_heads": 3, **ROTARY},
        TOKENS,
        (2, 7, 3, 8),
        is_beside=True,
    ),
    "table": Case(
        layers.RelativePositionTable,
        {"num_heads": 3, **GRID_TOKENS},
        TOKENS,
        (1, 3, 7, 7),
        is_beside=True,
    ),
    "mlp": Case(
        layers.RelativePositionMlp,
        {"num_heads": 3, "hidden_dim": 5, **GRID_TOKENS},
        TOKENS,
        (1, 3, 7, 7),
        is_beside=True,
    ),
    "keys": Case(
        layers.RelativePositionKeys,
        {"num_heads": 3, **GRID_TOKENS},
        TOKENS,
        (7, 7, 8),
        is_beside=True,
    ),
    "resnet_stem": Case(
        layers.ResNetStem, {"stages": (1, 1)}, (2, 16, 24, 3), (2, 2, 3, 512)
    ),
    "resnet_stem_root": Case(
        layers.ResNetStem,
        {"stages": (), "epsilons": "timm"},
        (2, 16, 24, 3),
        (2, 4, 6, 64),
    ),
    "bottleneck_unit": Case(
        BottleneckUnit,
        {"features": 32, "stride": 2},
        (2, 4, 6, 32),
        (2, 2, 3, 128),
    ),
    "pre_activation_unit": Case(
        layers.PreActivationUnit,
        {"features": 16, "stride": 2, "groups": 8},
        (2, 5, 6, 32),
        (2, 3, 3, 64),
    ),
    "pre_activation_unit_without_projection": Case(
        layers.PreActivationUnit,
        {"features": 32},
        (2, 4, 3, 128),
        (2, 4, 3, 128),
    ),
    "standardized_conv_symmetric": Case(
        StandardizedConv2D,
        {
            "filters": 8,
            "kernel_size": 3,
            "strides": 2,
            "epsilons": "bit",
            "use_symmetric_padding": True,
        },
        (2, 5, 6, 3),
        (2, 3, 3, 8),
    ),
    "standardized_conv": Case(
        StandardizedConv2D,
        {"filters": 8, "kernel_size": 3, "strides": 2},
        (2, 4, 6, 3),
        (2, 2, 3, 8),
    ),
}

# What mixed precision may cost, relative to the largest output: a few units
# in the last place of the type, summed over the products of a layer.
POLICIES = {"mixed_bfloat16": 0.06, "mixed_float16": 0.01}


def check_keras_layer_test(case):
    """Keras' own test: serialisation, shapes, types, a training step."""
    TestCase("run_layer_test").run_layer_test(
        case.layer_class,
        init_kwargs=case.kwargs,
        input_shape=case.input_shape,
        expected_output_shape=case.output_shape,
    )


def check_config_round_trip(case):
    """Each constructor argument survives get_config and from_config."""
    layer = case.layer_class(**case.kwargs, name="chosen")
    config = layer.get_config()
    assert case.layer_class.from_config(config).get_config() == config
    assert config["name"] == "chosen"
    for name, value in case.kwargs.items():
        assert _plain(config[name]) == _plain(value), name


def check_saved_model_is_exact(case, folder):
    """A reloaded functional model with the layer gives the same outputs."""
    model = _functional(case)
    model.save(folder / "model.keras")
    loaded = keras.saving.load_model(folder / "model.keras")
    x = case.inputs()
    np.testing.assert_array_equal(to_numpy(loaded(x)), to_numpy(model(x)))
    for ours, theirs in zip(model.weights, loaded.weights, strict=True):
        assert ours.path == theirs.path


def check_precision(case, policy):
    """Mixed precision keeps the weights, and the outputs within rounding."""
    expected = to_numpy(case.make()(case.inputs()))
    layer = case.make(dtype=policy)
    actual = layer(case.inputs())
    compute_dtype = policy.removeprefix("mixed_")
    assert keras.backend.standardize_dtype(actual.dtype) == compute_dtype
    assert {weight.dtype for weight in layer.weights} <= {"float32"}
    tolerance = POLICIES[policy] * np.abs(expected).max()
    np.testing.assert_allclose(
        to_numpy(actual), expected, rtol=0, atol=tolerance
    )


def check_gradients(case):
    """The loss depends on the input and on each trainable variable."""
    layer = case.make()
    if case.is_beside and not layer.trainable_variables:
        return
    for name, gradient in gradients(layer, case.inputs()).items():
        if case.is_beside and name == "the input":
            continue
        assert gradient is not None, f"no gradient reaches {name}"
        gradient = to_numpy(gradient)
        assert np.isfinite(gradient).all(), name
        assert np.abs(gradient).max() > 1e-6, f"zero gradient of {name}"


def check_graph_equals_eager(case, jit_compile):
    """tf.function and XLA give the same outputs as eager execution."""
    import tensorflow as tf

    layer = case.make()
    if jit_compile and not layer.supports_jit:
        return  # As Keras knows, which does not compile a model with it.
    graph = tf.function(lambda x: layer(x), jit_compile=jit_compile)
    x = tf.constant(case.inputs())
    expected = to_numpy(layer(x))
    np.testing.assert_allclose(
        to_numpy(graph(x)), expected, rtol=1e-5, atol=1e-5
    )


def check_partial_batch(case):
    """Five images in batches of two give the outputs of five at once."""
    model = _functional(case)
    x = case.inputs(batch=5)
    actual = model.predict(x, batch_size=2, verbose=0)
    assert actual.shape == (5, *case.output_shape[1:])
    np.testing.assert_allclose(actual, to_numpy(model(x)), rtol=1e-5, atol=1e-5)


def gradients(layer, x, **arguments):
    """Return {path: gradient of a loss} of each trainable variable, and of x.

    The loss weighs the outputs with random numbers: the plain sum of, say, a
    layer norm does not depend on its input.
    """
    weights = noise(*layer(x).shape, seed=9)
    names = [variable.path for variable in layer.trainable_variables]
    found = _GRADIENTS[keras.backend.backend()](layer, x, weights, **arguments)
    return dict(zip([*names, "the input"], found, strict=True))


def _tensorflow_gradients(layer, x, weights, **arguments):
    import tensorflow as tf

    x = tf.constant(x)
    with tf.GradientTape() as tape:
        tape.watch(x)
        loss = tf.reduce_sum(layer(x, **arguments) * weights)
    return tape.gradient(
        loss, [*(v.value for v in layer.trainable_variables), x]
    )


def _jax_gradients(layer, x, weights, **arguments):
    import jax

    def loss(trainable, x):
        outputs, _ = layer.stateless_call(
            trainable,
            [v.value for v in layer.non_trainable_variables],
            x,
            **arguments,
        )
        return (outputs * weights).sum()

    values = [v.value for v in layer.trainable_variables]
    # As users compile: conftest.py asks for less care, which costs a bit of
    # float32 in the slope of a tanh.
    gradient = jax.jit(
        jax.grad(loss, argnums=(0, 1)),
        compiler_options={"xla_backend_optimization_level": 2},
    )
    by_variable, by_input = gradient(values, x)
    return [*by_variable, by_input]


def _torch_gradients(layer, x, weights, **arguments):
    x = keras.ops.convert_to_tensor(x).requires_grad_()
    loss = (layer(x, **arguments) * keras.ops.convert_to_tensor(weights)).sum()
    loss.backward()
    return [*(v.value.grad for v in layer.trainable_variables), x.grad]


_GRADIENTS = {
    "tensorflow": _tensorflow_gradients,
    "jax": _jax_gradients,
    "torch": _torch_gradients,
}


def _functional(case):
    inputs = keras.Input(case.input_shape[1:])
    layer = case.layer_class(**case.kwargs, name="layer")
    return randomize(keras.Model(inputs, layer(inputs)))


def _plain(value):
    # Keras stores a kernel size of 3 as (3, 3), and tuples as lists.
    if isinstance(value, (tuple, list)):
        value = tuple(value)
        return value[0] if len(set(value)) == 1 else value
    return value
