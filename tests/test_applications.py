"""The builders have the interface of keras.applications."""

import inspect
import pickle
import re

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit import VARIANTS, VisionTransformer, ViT_B16
from keras_vit.applications import (
    BUILDERS,
    copy_own_weights,
    open_own_file,
)
from tests.tiny import noise, randomize, to_numpy

SMALL = {"width": 24, "depth": 1, "mlp_dim": 48, "num_heads": 3}
# The smallest image that is a whole number of patches for every builder: 16
# divides all but the patches of H/14 and its like, and the stems halve twice
# before patches of 8.
SIDE = {"14": 28, "16": 32, "32": 32, "8": 32}

each_builder = pytest.mark.parametrize("name", BUILDERS)
# One function makes them all: one of each kind of patches, pooling and stem
# stands for the others where sizes play no part.
KINDS = ["ViT_B8", "ViT_L32", "ViT_H14", "ViT_M16", "R_ViT_Ti16", "R26_ViT_S32"]
each_kind = pytest.mark.parametrize("name", KINDS)


def small(name, **arguments):
    """Return the model of a builder, with everything small but its kind."""
    choices = dict(SMALL)
    if name.startswith(("R26", "R50")):
        choices["stem_stages"] = (1,)  # In place of up to 16 units.
    return BUILDERS[name](**{**choices, **arguments})


def side(name):
    return next(SIDE[p] for p in ("14", "16", "32", "8") if name.endswith(p))


def shape(name, channels=3):
    return (side(name), side(name), channels)


@each_builder
def test_a_builder_is_a_public_function_of_the_package(name):
    """As if it were written out: for help, completion and pickles."""
    build = BUILDERS[name]
    assert getattr(keras_vit, name) is build
    assert name in keras_vit.__all__ and name in dir(keras_vit)
    assert build.__name__ == build.__qualname__ == name
    assert pickle.loads(pickle.dumps(build)) is build
    parameters = inspect.signature(build).parameters
    assert list(parameters)[:3] == ["include_top", "weights", "input_tensor"]
    assert parameters["name"].default == name.lower()


@each_builder
def test_a_builder_states_its_variant_and_size(name):
    """ViT_B16 is B/16, and R50_ViT_L32 is R50+L/32."""
    stem, size, patch = re.fullmatch(
        r"(R\d*_)?ViT_([A-Za-z]+\d*?m?)(\d+)", name
    ).groups()
    variant = f"{(stem or '').replace('_', '+')}{size}/{patch}"
    count = VARIANTS[variant].num_parameters
    first_line = BUILDERS[name].__doc__.splitlines()[0]
    assert first_line == f"Build the ViT {variant}, {count:,} parameters."


@each_kind
@pytest.mark.parametrize("channels", [1, 4])
def test_other_channels_without_top(name, channels):
    model = small(name, include_top=False, input_shape=shape(name, channels))
    assert model.input_shape == (None, *shape(name, channels))
    y = model(noise(1, *shape(name, channels)))
    assert tuple(y.shape) == model.output_shape[:0] + (
        1,
        *model.output_shape[1:],
    )
    assert model.output_shape[2] == 24
    assert np.isfinite(to_numpy(y)).all()


@each_kind
def test_any_image_size_without_top(name):
    model = small(
        name, include_top=False, input_shape=(None, None, 3), pooling="avg"
    )
    assert model.input_shape == (None, None, None, 3)
    assert model.output_shape == (None, 24)
    for factor in (1, 2):
        images = noise(1, side(name), factor * side(name), 3)
        assert tuple(model(images).shape) == (1, 24)


@each_kind
def test_answers_are_probabilities(name):
    model = randomize(small(name, input_shape=shape(name)))
    probabilities = to_numpy(model(noise(2, *shape(name))))
    np.testing.assert_allclose(probabilities.sum(axis=1), 1, rtol=1e-5)


@each_builder
def test_the_defaults_are_those_of_keras_applications(name):
    """And the input is the published one."""
    # The first lines of the graph only: the arguments, not the weights.
    with keras.StatelessScope(initialize_variables=False):
        model = BUILDERS[name](depth=1)
    last = model.layers[-1]
    assert model.input_shape == (None, 224, 224, 3)
    assert model.output_shape == (None, 1000)
    assert last.name == "predictions"
    assert last.activation is keras.activations.softmax
    assert model.name == name.lower()
    keras.backend.clear_session()


def build(**arguments):
    """Return a small B/16."""
    return ViT_B16(**{**SMALL, "input_shape": (32, 32, 3), **arguments})


@pytest.mark.parametrize("pooling", ["avg", "max"])
def test_pooling_without_top(pooling):
    tokens = randomize(build(include_top=False))
    pooled = randomize(build(include_top=False, pooling=pooling))
    x = noise(2, 32, 32, 3)
    patches = to_numpy(tokens(x))[:, 1:]
    expected = {"avg": np.mean, "max": np.max}[pooling](patches, axis=1)
    np.testing.assert_allclose(to_numpy(pooled(x)), expected, atol=1e-5)


def test_without_top_all_tokens_are_returned_class_token_first():
    model = randomize(build(include_top=False))
    assert model.output_shape == (None, 5, 24)
    x = noise(2, 32, 32, 3)
    token = randomize(build(include_top=False, pooling="token"))
    np.testing.assert_array_equal(to_numpy(model(x))[:, 0], to_numpy(token(x)))


@pytest.mark.parametrize("activation", [None, "softmax", "sigmoid"])
def test_the_activation_is_that_of_the_last_layer(activation):
    model = build(classifier_activation=activation, classes=5)
    assert model.layers[-1].activation is keras.activations.get(activation)
    logits = randomize(build(classifier_activation=None, classes=5))
    x = noise(2, 32, 32, 3)
    np.testing.assert_allclose(
        to_numpy(randomize(model)(x)),
        to_numpy(keras.activations.get(activation)(logits(x))),
        atol=1e-6,
    )


def test_an_input_tensor_is_spliced_in():
    images = keras.Input((30, 30, 3), name="raw")
    padded = keras.layers.ZeroPadding2D(1)(images)
    model = randomize(ViT_B16(input_tensor=padded, classes=5, **SMALL))
    assert model.input is images
    plain = build(classes=5)
    plain.set_weights(model.get_weights())
    x = noise(2, 30, 30, 3)
    np.testing.assert_allclose(
        to_numpy(model(x)),
        to_numpy(plain(np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0))))),
        atol=1e-6,
    )


def test_a_model_on_an_input_tensor_reloads_exactly(tmp_path):
    images = keras.Input((32, 32, 3))
    model = randomize(ViT_B16(input_tensor=images, classes=5, **SMALL))
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    x = noise(2, 32, 32, 3)
    np.testing.assert_array_equal(to_numpy(loaded(x)), to_numpy(model(x)))


def test_choices_reach_the_configuration():
    model = build(
        dropout_rate=0.2,
        representation_size=6,
        position_embedding="sincos_2d",
        activation="exact",
        pooling="map",
        classes=5,
    )
    assert isinstance(model, VisionTransformer)
    config = model.config
    assert (config.dropout_rate, config.representation_size) == (0.2, 6)
    assert (config.position_embedding, config.activation) == (
        "sincos_2d",
        "exact",
    )
    assert (config.pooling, config.num_classes) == ("map", 5)


@pytest.mark.parametrize("ending", [".weights.h5", ".keras"])
def test_weights_of_a_file(ending, tmp_path):
    """Given as a path or as a string; a head may be left out."""
    path = tmp_path / f"model{ending}"
    source = randomize(build(classes=5))
    source.save_weights(path) if "h5" in ending else source.save(path)
    features = keras.Model(source.input, source.get_layer("pooling").output)
    x = noise(2, 32, 32, 3)
    for model, expected in (
        (build(classes=5, weights=path), source),
        (build(classes=5, weights=str(path)), source),
        (build(include_top=False, pooling="token", weights=path), features),
    ):
        np.testing.assert_array_equal(to_numpy(model(x)), to_numpy(expected(x)))


def test_a_file_tells_what_the_arguments_do_not(tmp_path):
    """Also what leaves no trace in its weights."""
    path = tmp_path / "model.keras"
    choices = {"activation": "exact", "layer_norm_epsilon": 1e-5}
    choices |= {"norm_placement": "after", "preprocessing": "imagenet"}
    source = randomize(build(classes=5, **choices))
    source.save(path)
    model = ViT_B16(**SMALL, classes=5, weights=path)
    assert model.config == source.config
    x = noise(2, 32, 32, 3)
    np.testing.assert_array_equal(to_numpy(model(x)), to_numpy(source(x)))
    build(classes=5, class_names=tuple("abcde")).save(path)
    assert build(classes=5, weights=path).config.class_names == tuple("abcde")
    body = build(include_top=False, pooling="avg", weights=path)
    assert body.config.class_names is None and body.config.pooling == "avg"
    source.save(path)
    changed = build(classes=5, weights=path, activation="tanh")
    assert changed.config.activation == "tanh"
    with pytest.raises(ValueError, match="is not a ViT_B16: it has width="):
        ViT_B16(classes=5, weights=path)
    scaled = keras.Sequential([keras.layers.Rescaling(2.0), source])
    scaled.build((None, 32, 32, 3))
    scaled.save(path)
    with pytest.raises(ValueError, match="VisionTransformer.*a Sequential"):
        build(classes=5, weights=path)
    source.get_layer("encoder_norm").epsilon = 0.1
    source.save(path)
    with pytest.raises(ValueError, match=r"encoder_norm\.epsilon"):
        build(classes=5, weights=path)


def test_what_a_file_has_gives_way_to_the_arguments(tmp_path):
    path = tmp_path / "model.keras"
    build(classes=5, merged_tokens=1, patch_dropout_rate=0.5).save(path)
    assert build(classes=5, weights=path).config.merged_tokens == 1
    for choices in ({"include_top": False}, {"input_shape": (None, None, 3)}):
        config = build(**{"classes": 5, "weights": path, **choices}).config
        assert not config.merged_tokens and not config.patch_dropout_rate
    with pytest.raises(ValueError, match="Pass `classes=5`"):
        build(weights=path)
    build(classes=5, input_shape=(None, None, 3)).save(path)
    fixed = build(classes=5, weights=path, input_shape=(224, 224, 3))
    assert not fixed.config.use_dynamic_image_size
    # Of a model on a tensor, the weights alone are known.
    images = keras.Input((32, 32, 3))
    flat = randomize(build(classes=5, input_tensor=images))
    flat.save(path)
    x = noise(2, 32, 32, 3)
    again = build(classes=5, weights=path)
    np.testing.assert_array_equal(to_numpy(again(x)), to_numpy(flat(x)))


def test_weights_that_do_not_fit_are_an_error(tmp_path):
    path = tmp_path / "model.keras"
    build(include_top=False).save(path)
    fault = r"`weights`: .*model.keras has no predictions/kernel"
    with pytest.raises(ValueError, match=fault):
        build(classes=5, weights=path)
    build(classes=5).save(path)
    fault = r"position_embedding/embedding has the shape \(5, 24\) in .* "
    fault += r"and \(7, 24\) in this model.*`with_image_size`"
    with pytest.raises(ValueError, match=fault):
        build(classes=5, weights=path, input_shape=(32, 48, 3))


def test_bad_weights_leave_the_model_as_it_was(tmp_path):
    path = tmp_path / "model.keras"
    build(classes=5).save(path)
    model = randomize(build(classes=6))
    before = model.get_weights()
    with pytest.raises(ValueError, match="predictions/kernel has the shape"):
        copy_own_weights(model, open_own_file(str(path)), str(path))
    for old, new in zip(before, model.get_weights()):
        np.testing.assert_array_equal(old, new)


IMAGES = {"input_tensor": keras.Input((48, 48, 3))}
# Arguments, and what the message names.
ERRORS = [
    ({"weights": "imagenet"}, "`weights`.*'augreg'.*weights='imagenet'"),
    ({"weights": 3}, "`weights` must be None, the path"),
    ({"weights": "missing.weights.h5"}, "`weights`.*missing.weights.h5"),
    ({"weights": __file__}, f"{__file__} cannot be read"),
    ({"input_shape": (123, 123, 3)}, "`patch_size`.*123x123"),
    *(
        ({"input_shape": shape}, f"`input_shape`.*{re.escape(repr(shape))}")
        for shape in ((32, 32), (None, 32, 3), (32, 32, None), 32, "323")
    ),
    (
        {"input_tensor": np.zeros((1, 32, 32, 3)), "input_shape": None},
        "`input_tensor`.*ndarray",
    ),
    (IMAGES, r"`input_shape`.*\(32, 32, 3\).*\(48, 48, 3\)"),
    ({"pooling": "gap"}, "`pooling`.*'gap'"),
    ({"classes": -1}, "`classes`.*=-1"),
    ({"classes": "10"}, "`classes`.*='10'"),
    ({"classifier_activation": "sofmax"}, "sofmax"),
    ({"num_classes": 5}, "`classes` in place of `num_classes`"),
    ({"image_size": 32}, "`input_shape` in place of `image_size`"),
    ({"droput_rate": 0.1}, "Did you mean 'dropout_rate'?"),
    ({"clases": 3}, "Did you mean 'classes'?"),
    ({"qqq": 3}, "`qqq`.*input_shape, classes, width, depth"),
]


@pytest.mark.parametrize(("arguments", "message"), ERRORS, ids=str)
def test_a_bad_argument_is_an_error_that_names_it(arguments, message):
    with pytest.raises(ValueError, match=message):
        build(**arguments)


def test_weights_of_a_quantized_model_are_refused(tmp_path):
    """Their int8 codes would be read as floats."""
    small = {"depth": 1, "width": 24, "mlp_dim": 24, "input_shape": (32, 32, 3)}
    model = keras_vit.ViT_Ti16(**small)
    model.quantize("int8")
    model.save(tmp_path / "quantized.keras")
    with pytest.raises(ValueError, match="not quantised.*quantized.keras"):
        keras_vit.ViT_Ti16(**small, weights=tmp_path / "quantized.keras")
