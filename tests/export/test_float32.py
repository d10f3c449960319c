"""Models of mixed precision, converted to float32."""

import keras
import numpy as np
import pytest

from keras_vit.export import DisagreementError, contract, export_file
from keras_vit.export.contract import compute_dtypes, in_float32
from tests.export.conftest import make_model


def wrap(vit, dtype):
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
    mixed = wrap(make_model(dtype=dtype), dtype)
    wide = in_float32(mixed)
    assert compute_dtypes(wide) == {"float32"} < compute_dtypes(mixed)
    for copy, weight in zip(wide.weights, mixed.weights, strict=True):
        np.testing.assert_array_equal(copy, weight)
    # The same as if it had been built in float32.
    keras.utils.set_random_seed(0)
    expected = wrap(make_model(), "float32")
    expected.set_weights(mixed.get_weights())
    np.testing.assert_allclose(
        wide.predict_on_batch(images),
        expected.predict_on_batch(images),
        atol=1e-6,
    )


def test_a_sequential_model_of_mixed_precision_goes_to_tflite(images, tmp_path):
    model = keras.Sequential([make_model(dtype="mixed_bfloat16")])
    model.build((None, *images.shape[1:]))
    # The input is not rounded, either.
    wide = keras.Sequential([make_model()])
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
    model = keras.Sequential([make_model(dtype="mixed_bfloat16")])
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
    quantized = make_model(dtype="mixed_bfloat16")
    quantized.quantize("int8", filters="qkv")
    with pytest.raises(ValueError, match="quantized from. Received: .*vision"):
        in_float32(quantized)
