import dataclasses
import functools
import json
import pathlib

import keras
import numpy as np
import pytest

from keras_vit import VARIANTS, VisionTransformer
from keras_vit.layers import POOLINGS, POSITION_EMBEDDINGS, TransformerBlock
from keras_vit.layers.resize import resize_distances
from tests.tiny import (
    LATER_KINDS,
    PAPER_POSITIONS,
    make,
    noise,
    randomize,
    tensorflow_only,
    tiny_config,
    to_numpy,
)

NAMES = pathlib.Path(__file__).parents[1] / "golden" / "weight_names.json"

# Between them: every layer, every option that makes a weight.
CONFIGS = {
    "plain": {},
    "hybrid_map": {
        "image_size": 16,
        "patch_size": 1,
        "stem_stages": (1, 1),
        "pooling": "map",
        "representation_size": 5,
        "dropout_rate": 0.1,
        "attention_dropout_rate": 0.1,
        "stochastic_depth_rate": 0.1,
    },
    "learned_2d_avg": {
        "position_embedding": "learned_2d",
        "pooling": "avg",
        "use_class_token": False,
        "activation": "exact",
    },
    "sincos_features": {
        "position_embedding": "sincos_2d",
        "pooling": "none",
        "num_classes": 0,
    },
    **LATER_KINDS,
}
# Of every configuration in one type; the other types of these two, since types
# are of a layer, and tests/layers/test_contracts.py has every layer in each.
IN_EVERY_TYPE = ("plain", "hybrid_map")


def each_config(first_type, *other_types):
    """Run a test with the name of each configuration, and a type."""
    rows = [(name, first_type) for name in CONFIGS]
    rows += [(name, kind) for kind in other_types for name in IN_EVERY_TYPE]
    return pytest.mark.parametrize(("name", "dtype"), rows)


def images(model, batch=2):
    return noise(batch, *model.config.image_size, model.config.channels)


def assert_same_answer(actual, expected, x):
    np.testing.assert_array_equal(to_numpy(actual(x)), to_numpy(expected(x)))


@each_config("float32", "mixed_bfloat16")
def test_a_model_comes_back_in_every_way(name, dtype, tmp_path):
    config = tiny_config(**CONFIGS[name])
    model = randomize(VisionTransformer(config, dtype=dtype, name="chosen"))
    model.save(tmp_path / "model.keras")
    model.save_weights(tmp_path / "model.weights.h5")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    config = json.loads(json.dumps(model.get_config()))
    revived = VisionTransformer.from_config(config)
    revived.load_weights(tmp_path / "model.weights.h5")
    clone = keras.models.clone_model(model)
    clone.set_weights(model.get_weights())
    same = model.with_image_size(model.config.image_size)
    for other in (loaded, revived, clone, same):
        assert [w.path for w in other.weights] == [
            w.path for w in model.weights
        ]
        assert_same_answer(other, model, images(model))
    for other in (loaded, revived, same):
        assert type(other) is VisionTransformer
        assert other.config == model.config
        assert other.get_config() == model.get_config()
    # Names are an interface: checkpoints and users refer to them.
    golden = json.loads(NAMES.read_text())[name]
    # Order counts: set_weights and get_weights follow it.
    found = {w.path: list(w.shape) for w in model.weights}
    assert list(found.items()) == list(golden["weights"].items())
    assert names_in(tmp_path / "model.weights.h5") == golden["weights_h5"]


@pytest.mark.parametrize("kind", LATER_KINDS)
def test_another_image_size_of_other_families(kind):
    model = make(**LATER_KINDS[kind])
    other = model.with_image_size((48, 40))
    assert np.isfinite(to_numpy(other(images(other)))).all()
    assert other.config.grid_size == (6, 5)
    for name in ("relative_positions_00", "relative_positions_01"):
        if kind == "beit":
            old, new = (
                to_numpy(x.get_layer(name).table) for x in (model, other)
            )
            resize = model.config.position_resize
            expected = resize_distances(old, (4, 4), (6, 5), resize)
            np.testing.assert_array_equal(new, expected)
    again = other.with_image_size((48, 40))
    assert_same_answer(again, other, images(other))


@pytest.mark.parametrize(
    "choices",
    [
        *({"position_embedding": name} for name in POSITION_EMBEDDINGS),
        *({"pooling": name} for name in POOLINGS),
    ],
    ids=str,
)
def test_every_row_builds_and_answers(choices):
    is_distilled = choices.get("pooling") == "distilled"
    model = make(depth=1, use_distillation_token=is_distilled, **choices)
    length = model.config.num_prefix_tokens + 16
    expected = (2, length, 7) if choices.get("pooling") == "none" else (2, 7)
    y = to_numpy(model(images(model)))
    assert y.shape == expected
    assert model.output_shape == (None, *expected[1:])
    assert np.isfinite(y).all()


@pytest.mark.parametrize(
    "layer_name", ["patch_encoder", "block_00", "pre_logits"]
)
def test_a_submodel_by_layer_name_reloads_exactly(layer_name, tmp_path):
    model = make(representation_size=5)
    part = keras.Model(model.input, model.get_layer(layer_name).output)
    part.save(tmp_path / "part.keras")
    loaded = keras.saving.load_model(tmp_path / "part.keras")
    assert_same_answer(loaded, part, images(model))


def test_the_representation_layer_is_a_tanh_before_the_head():
    model = make(representation_size=5)
    features = keras.Model(model.input, model.get_layer("pooling").output)
    kernel, bias, head_kernel, head_bias = model.get_weights()[-4:]
    hidden = np.tanh(to_numpy(features(images(model))) @ kernel + bias)
    np.testing.assert_allclose(
        to_numpy(model(images(model))),
        hidden @ head_kernel + head_bias,
        atol=1e-5,
    )


def test_a_fresh_model_answers_with_the_bias_of_its_head():
    # The head starts at zero: a fresh sigmoid model says 1/22026 for all.
    config = tiny_config(head_bias=-10.0, classifier_activation="sigmoid")
    model = VisionTransformer(config)
    y = to_numpy(model(images(model)))
    np.testing.assert_allclose(y, 1 / (1 + np.exp(10.0)), rtol=1e-5)


def test_stochastic_depth_grows_linearly_to_its_rate():
    model = VisionTransformer(tiny_config(depth=5, stochastic_depth_rate=0.2))
    rates = [
        layer.stochastic_depth_rate
        for layer in model.layers
        if isinstance(layer, TransformerBlock)
    ]
    np.testing.assert_allclose(rates, [0, 0.05, 0.1, 0.15, 0.2])


def test_rates_reach_every_block_and_act_in_training_only():
    keras.utils.set_random_seed(0)
    model = make(dropout_rate=0.2, attention_dropout_rate=0.3)
    for name in ("block_00", "block_01"):
        block = model.get_layer(name)
        assert block.dropout_rate == block.mlp.dropout_rate == 0.2
        assert block.attention.dropout_rate == 0.3
    assert model.get_layer("dropout").rate == 0.2
    x = images(model)
    assert_same_answer(model, make(), x)
    difference = to_numpy(model(x, training=True)) - to_numpy(model(x))
    assert np.abs(difference).max() > 1e-2


# With another image size.


@pytest.mark.parametrize("position_embedding", POSITION_EMBEDDINGS)
def test_a_larger_square_to_a_rectangle_and_back(position_embedding):
    model = make(depth=1, position_embedding=position_embedding)
    before = model.get_weights()
    x = images(model)
    answer = to_numpy(model(x))
    # From n to 2n - 1 rows all old rows are among the new ones.
    rectangle = model.with_image_size((56, 80))
    assert rectangle.config.image_size == (56, 80)
    assert rectangle.config.grid_size == (7, 10)
    assert tuple(rectangle(noise(2, 56, 80, 3)).shape) == (2, 7)
    back = rectangle.with_image_size(32)
    np.testing.assert_allclose(to_numpy(back(x)), answer, atol=1e-5)
    # The source is as it was.
    assert model.config.image_size == (32, 32)
    for old, new in zip(before, model.get_weights()):
        np.testing.assert_array_equal(old, new)
    np.testing.assert_array_equal(to_numpy(model(x)), answer)


@pytest.mark.parametrize("position_embedding", POSITION_EMBEDDINGS)
@pytest.mark.parametrize("prefix", [True, False], ids=["token", "no_token"])
def test_an_open_image_size_equals_with_image_size(position_embedding, prefix):
    choices = {
        "position_embedding": position_embedding,
        "use_class_token": prefix,
        "pooling": "avg",
        "depth": 1,
    }
    fixed = make(**choices)
    dynamic = make(use_dynamic_image_size=True, **choices)
    assert dynamic.input_shape == (None, None, None, 3)
    for size in ((16, 48), (40, 40)):
        x = noise(2, *size, 3)
        expected = to_numpy(fixed.with_image_size(size)(x))
        np.testing.assert_allclose(to_numpy(dynamic(x)), expected, atol=1e-5)
        closed = dynamic.with_image_size(size)
        np.testing.assert_allclose(to_numpy(closed(x)), expected, atol=1e-5)


@tensorflow_only
def test_an_open_image_size_in_a_function_of_any_size():
    """tests/layers/test_positions.py has all kinds of positions."""
    import tensorflow as tf

    model = make(depth=1, use_dynamic_image_size=True)
    function = tf.function(
        lambda x: model(x),
        input_signature=[tf.TensorSpec((None, None, None, 3))],
    )
    for size in ((32, 32), (16, 48)):
        x = noise(2, *size, 3)
        np.testing.assert_allclose(
            to_numpy(function(x)), to_numpy(model(x)), atol=1e-5
        )


def test_an_open_image_size_of_a_hybrid_equals_with_image_size():
    choices = {"image_size": 32, "patch_size": 1, "stem_stages": (1,)}
    dynamic = make(use_dynamic_image_size=True, **choices)
    x = noise(1, 16, 24, 3)
    expected = to_numpy(make(**choices).with_image_size((16, 24))(x))
    np.testing.assert_allclose(to_numpy(dynamic(x)), expected, atol=1e-4)


def test_a_resized_model_keeps_what_is_frozen_and_its_type():
    model = make(dtype="mixed_bfloat16")
    model.get_layer("block_00").trainable = False
    resized = model.with_image_size(16)
    assert not resized.get_layer("block_00").trainable
    assert resized.get_layer("block_01").trainable
    assert resized.get_layer("block_01").compute_dtype == "bfloat16"
    assert resized.name == model.name


def test_a_subclass_keeps_its_class_or_is_told_what_it_lacks():
    class Tagged(VisionTransformer):
        def __init__(self, config, tag="", **kwargs):
            super().__init__(config, **kwargs)
            self.tag = tag

        def get_config(self):
            return {**super().get_config(), "tag": self.tag}

    class Fixed(VisionTransformer):
        def __init__(self, **kwargs):
            kwargs.pop("config", None)
            super().__init__(tiny_config(), **kwargs)

    copy = Tagged(tiny_config(), tag="mine").with_image_size(48)
    assert isinstance(copy, Tagged)
    assert (copy.tag, copy.config.image_size) == ("mine", (48, 48))
    with pytest.raises(ValueError, match="class Fixed must build its model"):
        Fixed().with_image_size(48)


def test_an_image_size_of_parts_of_patches_is_an_error():
    with pytest.raises(ValueError, match="`patch_size` must divide the image"):
        make().with_image_size((32, 36))


# Wrong images.


@tensorflow_only
def test_another_image_size_is_an_error_in_a_graph():
    import tensorflow as tf

    model = make()
    function = tf.function(
        lambda x: model(x),
        input_signature=[tf.TensorSpec((None, None, None, 3))],
    )
    assert function(noise(1, 32, 32, 3)).shape == (1, 7)
    # As many pixels as one image of the right size.
    with pytest.raises(tf.errors.InvalidArgumentError):
        function(noise(4, 16, 16, 3))


# Types.


@each_config("mixed_bfloat16", "mixed_float16")
def test_logits_are_float32_under_mixed_precision(name, dtype):
    model = make(dtype=dtype, **CONFIGS[name])
    reference = make(**CONFIGS[name])
    x = images(model)
    y, expected = model(x), to_numpy(reference(x))
    if model.config.num_classes:
        assert keras.backend.standardize_dtype(y.dtype) == "float32"
    assert {w.dtype for w in model.weights} == {"float32"}
    tolerance = 0.1 if dtype == "mixed_bfloat16" else 0.02
    assert (
        np.abs(to_numpy(y) - expected).max()
        < tolerance * np.abs(expected).max()
    )


def test_the_global_policy_is_the_default():
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        model = VisionTransformer(tiny_config())
        assert model.get_layer("block_00").compute_dtype == "bfloat16"
        assert model.get_layer("predictions").compute_dtype == "float32"
    finally:
        keras.config.set_dtype_policy(before)


# Quantised. Other packages' models cannot be reloaded.


QUANTIZED = {
    "plain": {},
    "map": {"pooling": "map", "representation_size": 5},
    "hybrid": {"image_size": 16, "patch_size": 1, "stem_stages": (1,)},
}


@functools.cache
def quantized(name):
    model = make(**QUANTIZED[name])
    reference = to_numpy(model(images(model)))
    model.quantize("int8")
    y = to_numpy(model(images(model)))
    assert "int8" in {w.dtype for w in model.weights}
    assert 0 < np.abs(y - reference).max() < 0.2 * np.abs(reference).max()
    return model


@pytest.mark.parametrize("name", QUANTIZED)
def test_a_quantized_model_reloads_exactly(name, tmp_path):
    model = quantized(name)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert [w.dtype for w in loaded.weights] == [w.dtype for w in model.weights]
    assert_same_answer(loaded, model, images(model))


@pytest.mark.parametrize("layer_name", ["block_00", "pooling", "pre_logits"])
def test_a_submodel_of_a_quantized_model_reloads_exactly(layer_name, tmp_path):
    model = quantized("map")
    part = keras.Model(model.input, model.get_layer(layer_name).output)
    part.save(tmp_path / "part.keras")
    loaded = keras.saving.load_model(tmp_path / "part.keras")
    assert_same_answer(loaded, part, images(model))


def test_a_quantized_model_gets_no_head_that_cannot_learn():
    model = quantized("map")
    with pytest.raises(ValueError, match="`model` is quantised; give"):
        model.with_num_classes(4)
    assert model.with_num_classes(0).config.num_classes == 0


@pytest.mark.parametrize("mode", ["int8", "int4", "float8"])
def test_the_copy_of_a_quantized_model_keeps_every_weight(mode):
    """Keras has those of float8 in another order, once it builds them anew."""
    model = make()
    model.freeze(["biases"])
    model.quantize(mode)
    copy = model.with_image_size(48)
    weights = {w.path: w for w in model.weights}
    assert sorted(weights) == sorted(w.path for w in copy.weights)
    for weight in copy.weights:
        if not weight.path.startswith("position_embedding"):
            expected = to_numpy(weights[weight.path])
            np.testing.assert_array_equal(to_numpy(weight), expected)
        assert weight.trainable == weights[weight.path].trainable
    same = model.with_image_size(model.config.image_size)
    assert_same_answer(same, model, images(model))


def names_in(path):
    """Return the path and shape of each weight in the file."""
    import h5py

    found = {}
    with h5py.File(path) as file:
        file.visititems(
            lambda name, item: (
                found.update({name: list(item.shape)})
                if isinstance(item, h5py.Dataset)
                else None
            )
        )
    return found


def test_registered_names_stay_as_they_are():
    model = VisionTransformer(tiny_config(**CONFIGS["hybrid_map"]))
    classes = {type(model)} | {type(x) for x in model._flatten_layers()}
    registered = {keras.saving.get_registered_name(c) for c in classes}
    assert {name for name in registered if ">" in name} == {
        "keras_vit>AttentionPooling",
        "keras_vit>BottleneckUnit",
        "keras_vit>ClassToken",
        "keras_vit>GroupNormalization",
        "keras_vit>LayerNorm",
        "keras_vit>LearnedPositionEmbedding",
        "keras_vit>MlpBlock",
        "keras_vit>MultiHeadSelfAttention",
        "keras_vit>PatchEncoder",
        "keras_vit>ResNetStem",
        "keras_vit>StandardizedConv2D",
        "keras_vit>StochasticDepth",
        "keras_vit>TransformerBlock",
        "keras_vit>VisionTransformer",
    }


@pytest.mark.parametrize("kind", ["every_block", "every_block_shared"])
def test_positions_are_added_before_every_block(kind):
    model = make(**PAPER_POSITIONS[kind])
    names = {x.name for x in model.layers if "position" in x.name}
    own = [f"position_embedding_{index:02d}" for index in range(2)]
    shared = ["position_embedding"] * 2
    chosen = own if kind == "every_block" else shared
    assert names == set(chosen)
    x = images(model)
    start = keras.Model(model.input, model.get_layer("class_token").output)
    tokens = start(x)
    for index, name in enumerate(chosen):
        table = model.get_layer(name).embedding  # (17, 24)
        tokens = model.get_layer(f"block_{index:02d}")(tokens + table)
    for name in ("encoder_norm", "pooling", "predictions"):
        tokens = model.get_layer(name)(tokens)
    np.testing.assert_allclose(to_numpy(model(x)), to_numpy(tokens), atol=1e-5)
    larger = model.with_image_size((48, 32))
    assert np.isfinite(to_numpy(larger(images(larger)))).all()
    old, new = (
        to_numpy(each.get_layer(chosen[1]).embedding)
        for each in (model, larger)
    )
    assert new.shape == (25, 24)
    np.testing.assert_array_equal(new[0], old[0])
    dynamic = make(use_dynamic_image_size=True, **PAPER_POSITIONS[kind])
    assert tuple(dynamic(noise(1, 48, 32, 3)).shape) == (1, 7)


def test_relative_keys_belong_to_one_grid():
    model = make(**PAPER_POSITIONS["relative_keys"])
    with pytest.raises(ValueError, match="belong to one grid of patches"):
        model.with_image_size(48)
    x, same = images(model), model.with_image_size(32)
    np.testing.assert_array_equal(to_numpy(same(x)), to_numpy(model(x)))


@pytest.mark.parametrize("kind", PAPER_POSITIONS)
def test_other_positions_are_saved_and_trained(kind, tmp_path, without_xla):
    model = make(**PAPER_POSITIONS[kind])
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    x = images(model)
    np.testing.assert_array_equal(to_numpy(again(x)), to_numpy(model(x)))
    before = {w.path: to_numpy(w) for w in model.weights}
    model.compile("sgd", "mse")
    model.fit(x, np.ones((len(x), 7), "float32"), verbose=0)
    for weight in model.weights:
        if "position" in weight.path:
            assert (to_numpy(weight) != before[weight.path]).any()


def test_fit_lowers_the_loss():
    keras.utils.set_random_seed(0)
    model = VisionTransformer(tiny_config(depth=1))
    model.compile(
        keras.optimizers.Adam(1e-2),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    x, y = noise(16, 32, 32, 3), np.arange(16) % 7
    history = model.fit(x, y, batch_size=16, epochs=8, verbose=0)
    loss = history.history["loss"]
    # A zero head says 1/7 for each class.
    np.testing.assert_allclose(loss[0], np.log(7), atol=1e-4)
    assert loss[-1] < 0.8 * loss[0]


@tensorflow_only
def test_gradients_repeat_to_the_bit():
    # At this size most of the gradients of TensorFlow's own tanh GELU differ,
    # each time in other bits.
    config = VARIANTS["Pico/2"].config
    config = dataclasses.replace(config, image_size=16, depth=1)
    model = randomize(VisionTransformer(config))
    x = noise(64, 16, 16, 1)
    import tensorflow as tf

    @tf.function(autograph=False)
    def gradient(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(model(x, training=True) ** 2)
        return tape.gradient(loss, [v.value for v in model.trainable_variables])

    first, *others = (
        [g.numpy().tobytes() for g in gradient(x)] for _ in range(6)
    )
    assert all(other == first for other in others)


def test_a_new_head_on_a_frozen_model_is_trained():
    model = VisionTransformer(tiny_config())
    model.trainable = False
    names = [v.path for v in model.with_num_classes(3).trainable_variables]
    assert names == ["predictions/kernel", "predictions/bias"]


def test_another_activation_keeps_the_weights():
    model = make()
    softmax = model.with_classifier_activation("softmax")
    logits = to_numpy(model(noise(2, 32, 32, 3)))
    np.testing.assert_allclose(
        to_numpy(softmax(noise(2, 32, 32, 3))),
        to_numpy(keras.ops.softmax(logits)),
        atol=1e-6,
    )


def test_another_epsilon_keeps_the_weights():
    model = make()
    other = model.with_layer_norm_epsilon(1e-2)
    built = VisionTransformer(tiny_config(layer_norm_epsilon=1e-2))
    built.set_weights(model.get_weights())
    x = noise(2, 32, 32, 3)
    np.testing.assert_array_equal(to_numpy(other(x)), to_numpy(built(x)))
    assert np.abs(to_numpy(other(x)) - to_numpy(model(x))).max() > 1e-3
    with pytest.raises(ValueError, match="`layer_norm_epsilon` must be posit"):
        model.with_layer_norm_epsilon(0)
