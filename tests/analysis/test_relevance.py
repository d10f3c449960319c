"""Relevance, against finite differences of a model written in numpy."""

import keras
import numpy as np
import pytest
from scipy.special import log_softmax, softmax

from keras_vit import VisionTransformer
from keras_vit.analysis import attention_maps, attention_relevance, head_grid
from keras_vit.models.features import record_pass
from tests.analysis.cases import CHOICES, images_of, model_of
from tests.layers.references import ACTIVATIONS, normalize
from tests.tiny import noise, randomize, tiny_config, to_numpy

TINY = {"width": 8, "num_heads": 2, "mlp_dim": 10, "image_size": (8, 24)}


def tiny_model(dtype=None, **choices):
    """Return a model of four tokens for images of `tiny_images`."""
    config = tiny_config(**{**TINY, **choices})
    return randomize(VisionTransformer(config, dtype=dtype), seed=3)


def tiny_images(model):
    return noise(2, *model.config.image_size, 3)


def weights_of(layer):
    return [w.astype("float64") for w in layer.get_weights()]


def logits_in_numpy(model, tokens, shifts):
    """Return the logits of one image (T, D), its attention shifted."""
    for index, shift in enumerate(shifts):
        block = model.get_layer(f"block_{index:02d}")
        x = normalize(tokens, *weights_of(block.attention_norm))
        kernel, bias, out_kernel, out_bias = weights_of(block.attention)
        q, k, v = ((x @ kernel + bias).reshape(-1, 3, 2, 4)).swapaxes(0, 1)
        scores = np.einsum("qhd,khd->hqk", q, k) / 4**0.5
        mixed = np.einsum("hqk,khd->qhd", softmax(scores, -1) + shift, v)
        tokens = tokens + mixed.reshape(-1, 8) @ out_kernel + out_bias
        kernel1, bias1, kernel2, bias2 = weights_of(block.mlp)
        x = normalize(tokens, *weights_of(block.mlp_norm))
        hidden = ACTIVATIONS[block.activation](x @ kernel1 + bias1)
        tokens = tokens + hidden @ kernel2 + bias2
    x = normalize(tokens, *weights_of(model.get_layer("encoder_norm")))
    x = x[0] if model.config.use_class_token else x.mean(axis=0)
    kernel, bias = weights_of(model.get_layer("predictions"))
    return x @ kernel + bias


@pytest.mark.parametrize(
    "choices",
    [
        {},
        {"pooling": "avg", "use_class_token": False, "image_size": (8, 32)},
        {"classifier_activation": "softmax"},
    ],
    ids=["token", "average", "softmax"],
)
def test_equals_finite_differences(choices):
    model = tiny_model(**choices)
    images = tiny_images(model)
    start = keras.Model(model.input, model.get_layer("block_00").input)
    tokens = to_numpy(start(images)).astype("float64")
    maps = attention_maps(model, images)
    logits = np.stack([logits_in_numpy(model, x, [0, 0]) for x in tokens])
    answer = to_numpy(model(images))
    if "classifier_activation" in choices:
        answer, logits = np.log(answer), log_softmax(logits, axis=-1)
    np.testing.assert_allclose(answer, logits, atol=1e-5)

    classes, step = [2, 5], 1e-5
    gradients = np.zeros_like(maps, "float64")
    for index in np.ndindex(maps.shape):
        layer, image, *entry = index
        moved = []
        for sign in (1, -1):
            shifts = np.zeros((2, *maps.shape[2:]))
            shifts[(layer, *entry)] = sign * step
            logits = logits_in_numpy(model, tokens[image], shifts)
            moved.append(logits[classes[image]])
        gradients[index] = (moved[0] - moved[1]) / (2 * step)
    recorded = record_pass(model, images)
    actual = recorded.score_gradients(np.array(classes))
    for layer in range(2):
        np.testing.assert_allclose(
            to_numpy(actual[layer]), gradients[layer], rtol=1e-4, atol=1e-5
        )
        np.testing.assert_allclose(
            to_numpy(recorded.scores[layer]), maps[layer], atol=1e-6
        )
    expected = relevance_in_numpy(maps, gradients)
    relevance = attention_relevance(model, images, classes)
    np.testing.assert_allclose(relevance, expected, rtol=1e-4, atol=1e-5)
    # It says something: more than the identity it began with.
    assert np.abs(relevance - np.eye(relevance.shape[-1])).max() > 1e-3


def relevance_in_numpy(maps, gradients):
    layers, batch, heads, length, _ = maps.shape
    relevances = []
    for image in range(batch):
        relevance = np.eye(length)
        for layer in range(layers):
            step = np.zeros((length, length))
            for head in range(heads):
                product = (
                    maps[layer, image, head] * gradients[layer, image, head]
                )
                step += np.where(product > 0, product, 0) / heads
            relevance = relevance + step @ relevance
        relevances.append(relevance)
    return np.stack(relevances)


def test_no_class_means_the_most_probable_one():
    model = tiny_model()
    images = tiny_images(model)
    predicted = to_numpy(model(images)).argmax(axis=-1)
    np.testing.assert_allclose(
        attention_relevance(model, images),
        attention_relevance(model, images, predicted),
        rtol=1e-6,
    )
    np.testing.assert_array_equal(
        attention_relevance(model, images, 3, batch_size=1)[1],
        attention_relevance(model, images[1:], [3])[0],
    )
    # Of another class it is another.
    other = attention_relevance(model, images, (predicted + 1) % 7)
    assert np.abs(other - attention_relevance(model, images)).max() > 1e-3


def test_patches_that_the_head_cannot_see_are_irrelevant():
    # In a model of one block whose class token attends, but whose values are
    # zero, no attention matters.
    model = tiny_model(depth=1)
    qkv = model.get_layer("block_00").attention.qkv
    kernel, bias = qkv.get_weights()
    kernel[:, 16:], bias[16:] = 0, 0
    qkv.set_weights([kernel, bias])
    relevance = attention_relevance(model, tiny_images(model), 1)
    np.testing.assert_array_equal(relevance[0], np.eye(4))


@pytest.mark.parametrize("name", [n for n in CHOICES if n != "every_token"])
def test_any_model_has_a_grid_of_relevance(name):
    if keras.backend.backend() == "jax":
        pytest.skip("JAX compiles for a minute what differs in shape only.")
    model, images = model_of(name), images_of(name)
    before = to_numpy(model(images))
    relevance = attention_relevance(model, images, 4)
    assert np.isfinite(relevance).all() and (relevance >= 0).all()
    grid = head_grid(model, images, relevance)
    assert grid.shape[0] == 2 and grid.max() > 0
    np.testing.assert_array_equal(to_numpy(model(images)), before)


def test_mixed_precision():
    model, mixed = tiny_model(), tiny_model("mixed_bfloat16")
    images = tiny_images(model)
    np.testing.assert_allclose(
        attention_relevance(mixed, images, 4),
        attention_relevance(model, images, 4),
        atol=0.05,
    )


@pytest.mark.parametrize("choices", [{"num_classes": 0}, {"pooling": "none"}])
def test_a_model_without_an_answer_is_an_error(choices):
    with pytest.raises(ValueError, match="`model`"):
        attention_relevance(tiny_model(**choices), noise(1, 8, 24, 3))


@pytest.mark.parametrize("classes", [7, -1, [0, 7], [0], 1.0, [[0, 1]]])
def test_unknown_classes_are_an_error(classes):
    with pytest.raises(ValueError, match="`classes`"):
        attention_relevance(tiny_model(), noise(2, 8, 24, 3), classes)
