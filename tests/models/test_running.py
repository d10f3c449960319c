"""Models on PyTorch, where they are modules."""

import math
import weakref

import keras
import numpy as np
import pytest

from keras_vit import VisionTransformer
from keras_vit.layers.kernels import run_graph
from tests.tiny import LATER_KINDS, make, noise, tiny_config, to_numpy
from tests.weights.peers import import_peer

pytestmark = pytest.mark.skipif(
    keras.backend.backend() != "torch", reason="Others compile their graph."
)


@pytest.mark.parametrize("kind", [None, *LATER_KINDS])
@pytest.mark.parametrize("training", [None, False, True])
def test_the_answer_is_that_of_keras(kind, training):
    model = make(**LATER_KINDS.get(kind, {}))
    images = noise(2, *model.config.image_size, 3)
    by_keras = super(VisionTransformer, model).call(
        keras.ops.convert_to_tensor(images), training=training
    )
    for answer in (
        model(images, training=training),
        run_graph(model, images, training),
    ):
        np.testing.assert_allclose(
            to_numpy(answer), to_numpy(by_keras), rtol=0, atol=1e-6
        )


def test_tokens_are_freed_when_they_have_been_read():
    model = make(depth=4)
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


def kept_numbers(call, weights):
    """Return how many numbers `call` keeps for its gradient, beside weights."""
    import torch

    own = {weight.untyped_storage().data_ptr() for weight in weights}
    kept = {}

    def keep(tensor):
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = tensor, storage.nbytes() // 4
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
        call()
    return sum(size for place, (_, size) in kept.items() if place not in own)


def kept_by_ours(depth):
    model = make(depth=depth)
    images = noise(1, *model.config.image_size, 3)
    weights = [variable.value for variable in model.weights]
    return kept_numbers(lambda: model(images, training=True), weights)


def kept_by_timm(depth):
    import torch

    config = tiny_config()
    model = import_peer("timm").models.VisionTransformer(
        img_size=config.image_size,
        patch_size=config.patch_size,
        embed_dim=config.width,
        depth=depth,
        num_heads=config.num_heads,
        mlp_ratio=config.mlp_dim / config.width,
    )
    images = torch.zeros(1, 3, *config.image_size)
    return kept_numbers(lambda: model(images), model.parameters())


def test_a_block_keeps_only_what_its_gradient_needs():
    config = tiny_config()
    num_tokens = 1 + math.prod(config.grid_size)
    # In and out of two norms, queries, keys, values, attention; in and out of
    # the GELU; mean and deviation of the norms; the sums of the softmax.
    each = 8 * config.width + 2 * config.mlp_dim + 4 + config.num_heads
    for kept in (kept_by_ours, kept_by_timm):
        assert kept(depth=3) - kept(depth=2) == num_tokens * each


@pytest.mark.parametrize("training", [False, True])
def test_dropout_is_told_of_training(training):
    model = make(dropout_rate=0.5)
    images = noise(2, *model.config.image_size, 3)
    first, second = (
        to_numpy(model(images, training=training)) for _ in range(2)
    )
    assert (first == second).all() != training


def test_symbolic_images_are_left_to_keras():
    model = make()
    assert run_graph(model, keras.KerasTensor((None, 16, 16, 3)), None) is None
    assert run_graph(model, [np.zeros((1, 16, 16, 3))], None) is None
    images = keras.Input((*model.config.image_size, 3))
    nested = keras.Model(images, model(images))
    x = noise(1, *model.config.image_size, 3)
    np.testing.assert_array_equal(to_numpy(nested(x)), to_numpy(model(x)))


@pytest.mark.parametrize("shape", [(7, 7, 3), (16, 16, 4), (16, 16, 1)])
def test_images_of_another_shape_are_refused_as_by_keras(shape):
    with pytest.raises(ValueError, match="incompatible with the layer"):
        make()(noise(1, *shape))


@pytest.mark.parametrize("kind", [None, *LATER_KINDS])
def test_torch_compiles_the_model_whole_and_once(kind):
    import torch

    torch._dynamo.reset()  # It counts the graphs of all models together.
    graphs = []

    def keep(graph, inputs):
        graphs.append(graph)
        return graph.forward

    model = make(**LATER_KINDS.get(kind, {}))
    compiled = torch.compile(model, backend=keep, fullgraph=True)
    for seed in range(3):
        images = keras.ops.convert_to_tensor(
            noise(2, *model.config.image_size, 3, seed=seed)
        )
        with torch.no_grad():
            expected = to_numpy(model(images))
            np.testing.assert_allclose(
                to_numpy(compiled(images)),
                expected,
                rtol=0,
                atol=1e-6 * max(1, np.abs(expected).max()),
            )
    assert len(graphs) == 1


@pytest.mark.parametrize("mode", [True, False])
def test_dropout_is_active_where_the_call_says_so(mode):
    """As docs/backends.md says."""
    model, images = make(dropout_rate=0.5), noise(2, 32, 32, 3)
    expected = model(images)
    model.train(mode)
    assert model(images).equal(expected)
    assert not model(images, training=True).equal(expected)


def test_converted_weights_are_refused():
    model = make()
    model.half()
    with pytest.raises(RuntimeError, match="dtype"):
        model(noise(2, 32, 32, 3))


def test_a_float32_head_is_computed_with_its_own_weights():
    """Not with weights in the 16 bits of the other layers."""
    model = make("mixed_bfloat16", representation="unit", num_classes=5)
    images = keras.ops.convert_to_tensor(noise(2, *model.config.image_size, 3))
    head = model.get_layer("predictions")
    seen = []
    hook = head.register_forward_pre_hook(
        lambda layer, inputs: seen.append(to_numpy(inputs[0]))
    )
    expected = to_numpy(model(images))
    hook.remove()
    kernel, bias = head.get_weights()
    np.testing.assert_allclose(expected, seen[0] @ kernel + bias, atol=1e-6)
    # Without the hook, which lets Keras call the layer.
    np.testing.assert_allclose(to_numpy(model(images)), expected, atol=1e-6)
