"""The features before the head of a model."""

import keras
import numpy as np
import pytest

from keras_vit.models.features import without_head
from tests.tiny import make, noise, to_numpy


def make_vit(**choices):
    return make(depth=1, **choices)


@pytest.mark.parametrize("size", [None, 16])
def test_features_of_a_vit_are_those_before_its_head(size):
    """By the headless model, and by the head's own weights."""
    model = make_vit(representation_size=size, dropout_rate=0.5)
    images = noise(3, 32, 32, 3)
    features = to_numpy(without_head(model)(images))
    headless = model.with_num_classes(0)
    assert without_head(headless) is headless
    np.testing.assert_allclose(features, to_numpy(headless(images)), atol=1e-6)
    kernel, bias = model.get_layer("predictions").get_weights()
    np.testing.assert_allclose(
        features @ kernel + bias, to_numpy(model(images)), atol=1e-4
    )


def functional(*steps):
    pixels = x = keras.Input((32, 32, 3))
    for step in steps:
        x = step(x)
    return keras.Model(pixels, x)


WRAPPERS = {
    "sequential": lambda vit: keras.Sequential([vit]),
    "softmax": lambda vit: keras.Sequential([vit, keras.layers.Softmax()]),
    "functional": lambda vit: functional(keras.layers.Rescaling(1.0), vit),
    "twice": lambda vit: functional(
        keras.Sequential([vit]), keras.layers.Dropout(0.5)
    ),
}


# The softmax of features would be a head of its own.
@pytest.mark.parametrize(
    ("wrapper", "num_classes"),
    [(name, 7) for name in WRAPPERS]
    + [(name, 0) for name in WRAPPERS if name != "softmax"],
)
def test_features_of_a_wrapped_vit_are_those_before_its_own_head(
    wrapper, num_classes
):
    """Not those before the last layer of the wrapper."""
    vit = make_vit(num_classes=num_classes)
    model = WRAPPERS[wrapper](vit)
    images = noise(3, 32, 32, 3)
    model(images)
    nodes = [len(layer._inbound_nodes) for layer in vit.layers]
    features = without_head(model)(images)
    np.testing.assert_allclose(
        to_numpy(features), to_numpy(vit.with_num_classes(0)(images)), atol=1e-5
    )
    assert [len(layer._inbound_nodes) for layer in vit.layers] == nodes


def test_a_dense_layer_behind_a_vit_is_the_head():
    vit = make_vit(num_classes=0)
    model = functional(vit, keras.layers.Dense(5, "softmax"))
    images = noise(3, 32, 32, 3)
    np.testing.assert_allclose(
        to_numpy(without_head(model)(images)), to_numpy(vit(images)), atol=1e-5
    )


def test_a_model_that_is_not_a_graph_is_refused():
    class Subclassed(keras.Model):
        def call(self, images):
            return images

    model = Subclassed()
    model(np.zeros((1, 4)))
    with pytest.raises(ValueError, match="Sequential model.*Subclassed"):
        without_head(model)
