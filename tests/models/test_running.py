import weakref

import keras
import numpy as np
import pytest

from keras_vit import VisionTransformer
from keras_vit.models.running import run_layers, runs_eagerly
from tests.tiny import LATER_KINDS, noise, randomize, tiny_config, to_numpy

pytestmark = pytest.mark.skipif(
    keras.backend.backend() != "torch", reason="Others compile their graph."
)


def build(**choices):
    return randomize(VisionTransformer(tiny_config(**choices)))


@pytest.mark.parametrize("kind", [None, *LATER_KINDS])
@pytest.mark.parametrize("training", [None, False, True])
def test_the_answer_is_that_of_keras(kind, training):
    model = build(**LATER_KINDS.get(kind, {}))
    images = noise(2, *model.config.image_size, 3)
    by_keras = super(VisionTransformer, model).call(
        keras.ops.convert_to_tensor(images), training=training
    )
    for answer in (
        model(images, training=training),
        run_layers(model, images, training),
    ):
        np.testing.assert_allclose(
            to_numpy(answer), to_numpy(by_keras), rtol=0, atol=1e-6
        )


def test_tokens_are_freed_when_they_have_been_read():
    model = build(depth=4)
    outputs, alive = [], []

    def look(layer, inputs, output):
        alive.append(sum(x() is not None for x in outputs))
        outputs.append(weakref.ref(output))

    import torch

    for layer in model.layers[1:]:
        layer.register_forward_hook(look)
    with torch.no_grad():
        model(noise(1, *model.config.image_size, 3))
    # What the layer reads. The class token that the head reads is a part of
    # the tokens.
    assert alive == [0, *[1] * (len(model.layers) - 3), 2]


@pytest.mark.parametrize("training", [False, True])
def test_dropout_is_told_of_training(training):
    model = build(dropout_rate=0.5)
    images = noise(2, *model.config.image_size, 3)
    first, second = (
        to_numpy(model(images, training=training)) for _ in range(2)
    )
    assert (first == second).all() != training


def test_symbolic_images_are_left_to_keras():
    assert not runs_eagerly(keras.KerasTensor((None, 16, 16, 3)))
    assert not runs_eagerly([np.zeros((1, 16, 16, 3))])
    model = build()
    images = keras.Input((*model.config.image_size, 3))
    nested = keras.Model(images, model(images))
    x = noise(1, *model.config.image_size, 3)
    np.testing.assert_array_equal(to_numpy(nested(x)), to_numpy(model(x)))


def test_images_of_another_size_are_refused_as_by_keras():
    with pytest.raises(ValueError, match="incompatible with the layer"):
        build()(noise(1, 7, 7, 3))


@pytest.mark.parametrize("kind", [None, *LATER_KINDS])
def test_torch_compiles_the_model_whole_and_once(kind):
    import torch

    torch._dynamo.reset()  # It counts the graphs of all models together.
    graphs = []

    def keep(graph, inputs):
        graphs.append(graph)
        return graph.forward

    model = build(**LATER_KINDS.get(kind, {}))
    compiled = torch.compile(model, backend=keep, fullgraph=True)
    for seed in range(3):
        images = keras.ops.convert_to_tensor(
            noise(2, *model.config.image_size, 3, seed=seed)
        )
        with torch.no_grad():
            np.testing.assert_allclose(
                to_numpy(compiled(images)),
                to_numpy(model(images)),
                rtol=0,
                atol=1e-6,
            )
    assert len(graphs) == 1
