"""What the layers of a block do beside their formulas."""

import collections
import pathlib

import keras
import numpy as np
import pytest

from keras_vit import VisionTransformer
from keras_vit.layers import (
    ACTIVATIONS,
    LayerNorm,
    LayerScale,
    MlpBlock,
    MultiHeadSelfAttention,
    RmsNorm,
    StochasticDepth,
    TransformerBlock,
)
from keras_vit.models.features import run_with_scores
from tests.contracts import gradients
from tests.layers import references
from tests.layers.cases import MASKS
from tests.layers.test_formulas import BLOCKS, make_block
from tests.tiny import noise, randomize, tensorflow_only, tiny_config, to_numpy

BACKEND = keras.backend.backend()
TOKENS = (2, 5, 12)


def test_defaults_of_new_layers():
    """Keras' own epsilon is 1e-3."""
    block = TransformerBlock(num_heads=3, mlp_dim=20)
    norms = (block.attention_norm, block.mlp_norm, LayerNorm(), RmsNorm())
    assert {norm.epsilon for norm in norms} == {1e-6}
    x = noise(*TOKENS)
    np.testing.assert_allclose(to_numpy(LayerScale()(x)), 1e-5 * x, rtol=1e-6)
    block = TransformerBlock(3, 20, layer_scale_init=0.0)
    np.testing.assert_array_equal(to_numpy(block(x)), x)


# Norms.


@pytest.mark.parametrize(
    "choices", [{"axis": 1}, {"scale": False}, {"center": False}], ids=str
)
def test_choices_of_keras_are_those_of_keras(choices):
    if "axis" in choices and BACKEND == "torch":
        pytest.skip("Keras' own layer fails there for any axis but the last.")
    ours = LayerNorm(epsilon=1e-3, **choices)
    other = keras.layers.LayerNormalization(epsilon=1e-3, **choices)
    x = noise(2, 7, 12)
    np.testing.assert_allclose(to_numpy(ours(x)), to_numpy(other(x)), atol=1e-6)


def test_large_numbers_do_not_cancel_or_overflow():
    layer = LayerNorm(epsilon=1e-3)
    # The difference of two squares would lose every digit here.
    shifted = np.float32(4096) + np.round(noise(2, 7, 12) * 64) / 64
    np.testing.assert_allclose(
        to_numpy(layer(shifted)),
        to_numpy(layer(shifted - np.float32(4096))),
        atol=1e-3,
    )
    y = RmsNorm(dtype="float16")(np.full((1, 1, 8), 6e4, "float16"))
    np.testing.assert_allclose(to_numpy(y), 1, rtol=1e-3)


# Attention.


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_softmax_is_computed_in_float32(policy, monkeypatch):
    # Seen from outside a CPU gives no sign of it: TensorFlow's own softmax of
    # bfloat16 sums in float32 there. Elsewhere it need not.
    softmax_of_keras, types = keras.ops.softmax, []

    def recording(x, axis=-1):
        types.append(keras.backend.standardize_dtype(x.dtype))
        return softmax_of_keras(x, axis=axis)

    layer = MultiHeadSelfAttention(3, dtype=policy)
    layer.build(TOKENS)
    monkeypatch.setattr(keras.ops, "softmax", recording)
    _, scores = run_with_scores(layer, noise(*TOKENS))
    assert types == ["float32"]
    assert keras.backend.standardize_dtype(scores.dtype) == policy[6:]


def test_a_mask_of_integers_is_a_mask_and_a_mask_of_pairs_ends():
    layer, x, mask = MultiHeadSelfAttention(3), noise(*TOKENS), MASKS["keys"]
    np.testing.assert_array_equal(
        to_numpy(layer(x, mask=mask.astype("int32"))),
        to_numpy(layer(x, mask=mask)),
    )
    for each in (layer, TransformerBlock(3, 20)):
        assert each.compute_mask(None, mask) is mask
        assert each.compute_mask(None, MASKS["pairs"]) is None
        assert each.compute_mask(None, None) is None


def test_a_mask_travels_through_blocks_of_a_functional_model():
    tokens = keras.Input(TOKENS[1:])
    masked = keras.layers.Masking(mask_value=9.0)(tokens)
    first, second = (TransformerBlock(3, 20, name=n) for n in ("a", "b"))
    model = randomize(keras.Model(tokens, second(first(masked))))
    x = noise(*TOKENS)
    x[0, 3:] = x[1, 1] = 9.0
    mask = ~np.all(x == 9.0, axis=-1)
    y = np.where(mask[..., None], x, 0)
    for block in (first, second):
        y, _ = references.block(block, y, mask)
    np.testing.assert_allclose(to_numpy(model(x)), y, atol=1e-5)


def test_heads_that_do_not_divide_the_width_are_an_error():
    for layer in (TransformerBlock(5, 20), MultiHeadSelfAttention(5)):
        with pytest.raises(ValueError, match="num_heads=5, width=12"):
            layer(noise(*TOKENS))


# Dropout and stochastic depth.


@pytest.mark.parametrize(
    "rate", ["dropout_rate", "attention_dropout_rate", "stochastic_depth_rate"]
)
def test_each_rate_acts_in_training_and_only_then(rate):
    keras.utils.set_random_seed(0)
    x = noise(8, *TOKENS[1:])
    block = make_block(x, **{rate: 0.5})
    trained = to_numpy(block(x, training=True))
    assert np.abs(trained - to_numpy(block(x))).max() > 0.1
    np.testing.assert_array_equal(
        to_numpy(block(x)), to_numpy(make_block(x)(x))
    )


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


def test_either_branch_is_dropped_by_itself():
    keras.utils.set_random_seed(1)
    x = np.repeat(noise(1, *TOKENS[1:]), 200, axis=0)
    y = to_numpy(make_block(x, stochastic_depth_rate=0.5)(x, training=True))
    # Each image has one of four fates: neither branch, either, both.
    fates, counts = np.unique(y[:, 0].round(3), axis=0, return_counts=True)
    assert len(fates) == 4
    assert counts.min() > 20
    always = make_block(x, stochastic_depth_rate=0.999)
    np.testing.assert_array_equal(to_numpy(always(x[:2], training=True)), x[:2])


@pytest.mark.parametrize("rate", [0.25, 0.5])
@pytest.mark.parametrize("shape", [(), (3, 2)])
def test_whole_images_are_dropped_and_the_rest_is_scaled(rate, shape):
    x = np.ones((4000, *shape), "float32")
    y = to_numpy(StochasticDepth(rate, seed=1)(x, training=True))
    by_image = y.reshape(4000, -1)
    # All numbers of an image share their fate.
    assert np.all(by_image == by_image[:, :1])
    kept = by_image[:, 0] != 0
    np.testing.assert_allclose(by_image[kept], 1 / (1 - rate), rtol=1e-6)
    # Four deviations of the mean of 4000 draws.
    four_sigma = 4 * (rate * (1 - rate) / 4000) ** 0.5
    assert abs(kept.mean() - (1 - rate)) < four_sigma


def test_one_seed_gives_one_sequence_of_different_draws():
    x = np.ones((64, 1), "float32")

    def draw_twice(seed):
        layer = StochasticDepth(0.5, seed=seed)
        return [to_numpy(layer(x, training=True)) for _ in range(2)]

    first, second = draw_twice(7)
    np.testing.assert_array_equal([first, second], draw_twice(7))
    assert not np.array_equal(first, second)
    assert not np.array_equal(first, draw_twice(8)[0])


# The MLP.


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("training", [True, False])
def test_gradient_equals_that_of_the_formula(activation, training):
    x = np.linspace(-6, 6, 240).reshape(2, 5, 24)
    layer = MlpBlock(mlp_dim=24, activation=activation)
    layer(x)
    layer.set_weights([np.eye(24), np.zeros(24), np.eye(24), np.zeros(24)])
    formula = references.ACTIVATIONS[activation]
    slope = (formula(x + 1e-5) - formula(x - 1e-5)) / 2e-5
    found = gradients(layer, x.astype("float32"), training=training)
    np.testing.assert_allclose(
        to_numpy(found["the input"]), slope * noise(2, 5, 24, seed=9), atol=1e-5
    )


def test_an_unknown_choice_is_an_error():
    for layer_class, name, options in (
        (MlpBlock, "activation", {}),
        (MlpBlock, "norm", {}),
        (TransformerBlock, "norm", {"num_heads": 3}),
        (TransformerBlock, "norm_placement", {"num_heads": 3}),
        (TransformerBlock, "layer_scale_branches", {"num_heads": 3}),
    ):
        with pytest.raises(ValueError, match=f"`{name}` must be one of"):
            layer_class(mlp_dim=8, **options, **{name: "erf"})


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
    if "avx512f" not in pathlib.Path("/proc/cpuinfo").read_text():
        pytest.skip("of processors with AVX-512")  # Others fuse otherwise.
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


@pytest.mark.skipif(BACKEND != "torch", reason="The others have no such thing.")
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("is_gated", [False, True])
def test_inference_in_place_changes_no_tensor_that_is_seen(
    activation, is_gated
):
    import torch

    layer = MlpBlock(mlp_dim=20, activation=activation, is_gated=is_gated)
    x = keras.ops.convert_to_tensor(noise(*TOKENS))
    expected, before = layer(x), x.clone()
    seen = []

    def check(found):
        # Inference rounds a GELU otherwise.
        np.testing.assert_allclose(
            to_numpy(found), to_numpy(expected), rtol=0, atol=1e-6
        )

    with torch.no_grad():
        check(layer(x))
        hook = layer.hidden.register_forward_hook(
            lambda layer, inputs, output: seen.append((output, output.clone()))
        )
        check(layer(x))
        hook.remove()
    np.testing.assert_array_equal(to_numpy(x), to_numpy(before))
    ((output, copy),) = seen
    np.testing.assert_array_equal(to_numpy(output), to_numpy(copy))


# Rematerialisation.

RATES = ("dropout_rate", "attention_dropout_rate", "stochastic_depth_rate")


def both_blocks(x, rate=0.3, **options):
    """Return a block, and one that recomputes, with equal weights and seeds."""
    for use_remat in (False, True):
        keras.utils.set_random_seed(0)
        rates = dict.fromkeys(RATES, rate)
        yield make_block(x, **{**rates, **options, "use_remat": use_remat})


@pytest.mark.parametrize("kind", ["tanh", "inner_norms", "all_at_once"])
def test_gradients_are_those_of_a_block_that_keeps_everything(kind):
    """With dropout: the second pass drops what the first one did."""
    x, bias = noise(8, *TOKENS[1:]), noise(1, 3, 5, 5, seed=7)
    options = {"training": True, "bias": bias, "is_exact": False}
    found = [
        gradients(block, x, **options).values()
        for block in both_blocks(x, **BLOCKS[kind])
    ]
    for expected, actual in zip(*found, strict=True):
        np.testing.assert_allclose(
            to_numpy(actual), to_numpy(expected), rtol=1e-4, atol=1e-5
        )


def test_calls_of_a_block_that_recomputes():
    x, mask = noise(8, *TOKENS[1:]), np.arange(40).reshape(8, 5) % 3 > 0
    plain, recomputed = both_blocks(x)
    np.testing.assert_array_equal(to_numpy(plain(x)), to_numpy(recomputed(x)))
    answers = [to_numpy(recomputed(x, training=True)) for _ in range(3)]
    for one, other in zip(answers, answers[1:]):
        assert np.abs(one - other).max() > 0.1
    plain, recomputed = both_blocks(x, rate=0.0)
    np.testing.assert_allclose(
        to_numpy(recomputed(x, mask=mask, training=True)),
        to_numpy(plain(x, mask=mask)),
        rtol=1e-5,
        atol=1e-6,
    )


@pytest.mark.filterwarnings("ignore:Layer .* does not have a `quantize`")
@pytest.mark.parametrize("rate", [0.0, 0.3])
def test_int8_kernels_are_not_taken_for_seeds(rate):
    x, results = noise(*TOKENS), []
    for block in both_blocks(x, rate=0.0, dropout_rate=rate):
        for inner in block._flatten_layers(include_self=False):
            if isinstance(inner, keras.layers.Dense):
                inner.quantize("int8")
        kernels = [to_numpy(v) for v in block.variables if v.dtype == "int8"]
        found = gradients(block, x, is_exact=False, training=True)
        results.append([to_numpy(gradient) for gradient in found.values()])
        after = [to_numpy(v) for v in block.variables if v.dtype == "int8"]
        assert len(kernels) == 4
        np.testing.assert_equal(after, kernels)
    for plain, recomputed in zip(*results, strict=True):
        np.testing.assert_allclose(recomputed, plain, rtol=1e-4, atol=1e-4)


def kept_in_tensorflow(use_remat):
    """Return how many numbers cross from the forward to the backward graph."""
    import tensorflow as tf

    x = tf.constant(noise(2, 65, 48))
    block = make_block(x, use_remat=use_remat)

    @tf.function
    def forward(x):
        return block(x, training=True)

    with tf.GradientTape() as tape:
        tape.watch(x)
        y = forward(x)
    # The outputs of the forward function: its result, and what is kept.
    tape.gradient(y, x)
    functions = forward.get_concrete_function(x)._delayed_rewrite_functions
    outputs = functions.forward().graph.outputs
    return sum(np.prod(t.shape.as_list() or [1]) for t in outputs)


@tensorflow_only
def test_less_is_kept_for_the_backward_pass():
    kept, recomputed = map(kept_in_tensorflow, (False, True))
    assert recomputed < 0.5 * kept
