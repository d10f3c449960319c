"""What all formats convert: the forward of a model, in float32."""

import keras
import numpy as np
import pytest

from keras_vit.export import DisagreementError, contract, export_file
from keras_vit.export.contract import compute_dtypes, in_float32, make_forward
from keras_vit.models.features import name_output, reads_one_token
from tests.export.conftest import make_model

CHOICES = [
    {},
    {"num_classes": 0},
    {"representation_size": 10},
    {"num_classes": 0, "representation_size": 10},
    {"classifier_activation": "softmax"},
    {"use_pooling_norm": True},
    {"depth": 1},
    {"pooling": "avg"},
    {"pooling": "map"},
    {"pooling": "avg", "use_class_token": False},
]


@pytest.mark.parametrize("choices", CHOICES, ids=str)
def test_answers_and_features_are_those_of_the_model(choices, images):
    model = make_model(**choices)
    answers = make_forward(model)(images[:3])
    assert set(answers) == {"features", name_output(model)}
    features = answers.pop("features")
    head = model.layers[-1]
    if answers:
        (found,) = answers.values()
        below = keras.Model(model.input, head.input)
    else:
        found, below = features, model
    np.testing.assert_allclose(found, model(images[:3]), atol=1e-5)
    np.testing.assert_allclose(features, below(images[:3]), atol=1e-5)
    assert reads_one_token(model) == ("pooling" not in choices)


def test_a_model_states_its_classes_and_its_probabilities():
    assert contract.Serving().for_model(make_model()).activation == "softmax"
    names = ("cat", "dog")
    model = make_model(
        num_classes=2, class_names=names, probabilities="sigmoid"
    )
    found = contract.Serving().for_model(model)
    assert (found.class_names, found.activation) == (names, "sigmoid")
    given = contract.Serving(class_names=["a", "b"], activation="softmax")
    assert given.for_model(model).class_names == ["a", "b"]
    assert given.for_model(model).activation == "softmax"
    body = model.with_num_classes(0)
    assert contract.Serving().for_model(body).class_names is None


@pytest.mark.parametrize("is_wrapped", [False, True])
def test_the_last_block_is_asked_for_one_token(is_wrapped, images, monkeypatch):
    model, seen = make_model(), {}
    layers = [model, keras.layers.Softmax()]
    outer = keras.Sequential(layers) if is_wrapped else model
    before = [len(layer._inbound_nodes) for layer in model.layers]
    for name in ("block_00", "block_01"):
        mlp = model.get_layer(name).mlp
        call = mlp.call

        def record(tokens, training=None, name=name, call=call):
            seen[name] = tokens.shape[1]
            return call(tokens, training=training)

        monkeypatch.setattr(mlp, "call", record)
    make_forward(outer)(images[:2])
    assert seen == {"block_00": 13, "block_01": 1}
    # The model remembers nothing of it.
    after = [len(layer._inbound_nodes) for layer in model.layers]
    assert after == before


def wrap(model, before=lambda x: x, behind=lambda x: x):
    pixels = keras.Input((32, 24, 3))
    return keras.Model(pixels, behind(model(before(pixels))))


WRAPPERS = {
    "sequential": lambda model: keras.Sequential([model]),
    "functional": wrap,
    "twice": lambda model: wrap(
        keras.Sequential([model]), behind=keras.layers.Dropout(0.5)
    ),
    "scaled": lambda model: wrap(
        model, keras.layers.Rescaling(1.0), keras.layers.Activation("linear")
    ),
    "softmax": lambda model: keras.Sequential([model, keras.layers.Softmax()]),
    "activation": lambda model: wrap(
        model, behind=keras.layers.Activation("sigmoid")
    ),
    "operations": lambda model: wrap(
        model, behind=lambda x: keras.ops.softmax(keras.ops.flip(x / 2, -1))
    ),
}


@pytest.mark.parametrize("num_classes", [7, 0])
@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_a_model_within_a_model(wrapper, num_classes, images):
    model = make_model(num_classes=num_classes, depth=1)
    outer = WRAPPERS[wrapper](model)
    outer.build((None, 32, 24, 3))
    inner = name_output(model)
    assert inner == ("logits" if num_classes else "features")
    is_plain = wrapper in ("sequential", "functional", "twice", "scaled")
    name = inner if is_plain else "probabilities"
    before = [len(layer._inbound_nodes) for layer in outer.layers]
    expected = outer.predict_on_batch(images[:3])
    body = model.with_num_classes(0)(images[:3])
    for is_short in (True, False):
        forward = make_forward(outer, is_short=is_short)
        answers = {key: x.numpy() for key, x in forward(images[:3]).items()}
        assert set(answers) == {"features", name}
        np.testing.assert_allclose(answers[name], expected, atol=1e-5)
        np.testing.assert_allclose(answers["features"], body, atol=1e-5)
    assert [len(layer._inbound_nodes) for layer in outer.layers] == before


def make_network(*layers):
    return keras.Sequential([keras.Input((32, 24, 3)), *layers])


def pool():
    return keras.layers.GlobalAveragePooling2D()


@pytest.mark.parametrize(
    "layers, name, size",
    [
        ([pool(), keras.layers.Dense(4)], "logits", 3),
        ([pool(), keras.layers.Dense(4, "softmax")], "probabilities", 3),
        ([pool(), keras.layers.Dense(4, "relu")], "features", 4),
        (
            [pool(), keras.layers.Dense(4), keras.layers.Softmax()],
            "probabilities",
            3,
        ),
        ([pool(), keras.layers.Dense(4), keras.layers.ReLU()], "features", 4),
        ([pool()], "features", 3),
        ([pool(), keras.layers.Softmax()], "probabilities", 3),
    ],
)
def test_what_the_last_layers_say(layers, name, size, images):
    model = make_network(*layers)
    assert name_output(model) == name
    answers = make_forward(model)(images[:2])
    assert answers["features"].shape == (2, size)
    np.testing.assert_allclose(answers[name], model(images[:2]), atol=1e-6)


def test_what_they_do_not_say_is_said(images):
    """A layer of no known kind; two heads of which the mean is taken."""
    norm = make_network(pool(), keras.layers.LayerNormalization())
    pixels = keras.Input((32, 24, 3))
    x = pool()(pixels)
    mean = keras.layers.Average()([keras.layers.Dense(3)(x) for _ in "ab"])
    means = np.mean(images[:2], (1, 2))
    for model, features in [(norm, means), (keras.Model(pixels, mean), None)]:
        assert name_output(model) == "features"
        answers = make_forward(model, "logits")(images[:2])
        expected = model.predict_on_batch(images[:2])
        np.testing.assert_allclose(answers["logits"], expected, atol=1e-6)
        # Of two heads there is no one input.
        expected = expected if features is None else features
        np.testing.assert_allclose(answers["features"], expected, atol=1e-6)
    embedding = make_model()
    assert list(make_forward(embedding, "features")(images[:2])) == ["features"]
    with pytest.raises(ValueError, match="'logits', 'prob.*output='scores'"):
        make_forward(embedding, "scores")


# Models of mixed precision, converted to float32.


def around(vit, dtype):
    """Return a functional model around a ViT, with layers of its own."""
    images = keras.Input(vit.input_shape[1:])
    x = keras.layers.Rescaling(1.0, dtype=dtype)(images)
    x = keras.layers.Dense(5, activation="tanh", dtype=dtype)(vit(x))
    head = keras.Sequential(
        [keras.Input((5,)), keras.layers.Dense(3, dtype=dtype)]
    )
    return keras.Model(images, head(x), name="around")


@pytest.mark.parametrize("dtype", ["mixed_bfloat16", "mixed_float16"])
def test_a_model_around_a_vit_is_rebuilt_in_float32(dtype, images):
    keras.utils.set_random_seed(0)
    mixed = around(make_model(dtype=dtype, depth=1), dtype)
    wide = in_float32(mixed)
    assert compute_dtypes(wide) == {"float32"} < compute_dtypes(mixed)
    for copy, weight in zip(wide.weights, mixed.weights, strict=True):
        np.testing.assert_array_equal(copy, weight)
    # The same as if it had been built in float32.
    keras.utils.set_random_seed(0)
    expected = around(make_model(depth=1), "float32")
    expected.set_weights(mixed.get_weights())
    np.testing.assert_allclose(
        wide.predict_on_batch(images),
        expected.predict_on_batch(images),
        atol=1e-6,
    )


def test_a_sequential_model_of_mixed_precision_goes_to_tflite(images, tmp_path):
    model = keras.Sequential([make_model(dtype="mixed_bfloat16", depth=1)])
    model.build((None, *images.shape[1:]))
    # The input is not rounded, either.
    wide = keras.Sequential([make_model(depth=1)])
    np.testing.assert_allclose(
        in_float32(model).predict_on_batch(images),
        wide.predict_on_batch(images),
        atol=1e-6,
    )
    choices = {"tflite_quantizations": ["float32"]}
    report = export_file(model, tmp_path / "x.tflite", images, **choices)
    assert report.max_difference < 1e-5


def test_a_wrong_copy_in_float32_is_a_fault(images, tmp_path, monkeypatch):
    """The file agrees with the copy that it was converted from."""
    model = keras.Sequential([make_model(dtype="mixed_bfloat16", depth=1)])
    model.build((None, *images.shape[1:]))

    def convert_wrongly(mixed):
        copy = in_float32(mixed)
        copy.set_weights([-w for w in copy.get_weights()])
        return copy

    monkeypatch.setattr(contract, "in_float32", convert_wrongly)
    choices = {"tflite_quantizations": ["float32"]}
    with pytest.raises(DisagreementError, match="the model in float32: "):
        export_file(model, tmp_path / "x.tflite", images, **choices)


def test_float32_models_are_returned_as_they_are(model):
    assert in_float32(model) is model


def test_a_layer_that_cannot_be_rebuilt_is_an_error_with_a_way_out():
    class Opaque(keras.layers.Layer):
        def __init__(self, function, **options):
            super().__init__(**options)
            self.function = function

        def call(self, x):
            return self.function(x)

    images = keras.Input((4, 4, 3))
    outputs = Opaque(keras.ops.tanh, dtype="bfloat16")(images)
    with pytest.raises(ValueError) as caught:
        in_float32(keras.Model(images, outputs, name="opaque"))
    for words in ("set_dtype_policy('float32')", "set_weights", "'opaque'"):
        assert words in str(caught.value)


def test_quantized_models_are_refused():
    quantized = make_model(dtype="mixed_bfloat16", depth=1)
    quantized.quantize("int8", filters="qkv")
    with pytest.raises(ValueError, match="quantized from. Received: .*vision"):
        in_float32(quantized)
