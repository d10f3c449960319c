"""Inspection: each array is the result of the function it refers to."""

import dataclasses

import keras
import numpy as np
import pytest
from scipy.special import expit, softmax

from keras_vit import VisionTransformer
from keras_vit.analysis import (
    attention_distances,
    attention_maps,
    attention_relevance,
    attention_rollout,
    embedding_filters,
    head_grid,
    inspect_model,
    position_similarity,
    to_pixels,
    token_norms,
)
from keras_vit.models import features
from tests.analysis.cases import CHOICES, images_of, model_of
from tests.tiny import make, to_numpy

# Each kind of tokens and of readers; the functions are tested on all models.
SOME = ("token", "rectangle", "average", "registers", "every_token", "map")
SOME = [name for name in (*SOME, "open_hybrid") if name in CHOICES]


@pytest.mark.parametrize("name", SOME)
def test_arrays_are_those_of_the_functions(name):
    model, images = model_of(name), images_of(name)
    seen = inspect_model(model, images)
    maps = attention_maps(model, images)
    np.testing.assert_allclose(seen.maps, maps, rtol=1e-3, atol=1e-6)
    rollout = attention_rollout(model, images)
    np.testing.assert_allclose(seen.rollouts, rollout, atol=1e-5)
    np.testing.assert_allclose(
        seen.read_grid(seen.rollouts),
        head_grid(model, images, rollout),
        atol=1e-5,
    )
    np.testing.assert_allclose(
        seen.token_norms, token_norms(model, images), rtol=1e-5
    )
    np.testing.assert_allclose(
        seen.distances, attention_distances(model, images), rtol=1e-5
    )
    np.testing.assert_array_equal(seen.similarity, position_similarity(model))
    h, w = seen.grid_size
    tokens = seen.num_prefix_tokens + h * w
    assert seen.maps.shape[-2:] == (tokens, tokens)
    assert (h * seen.patch_size, w * seen.patch_size) == tuple(
        -(-n // seen.patch_size) * seen.patch_size for n in images.shape[1:3]
    )
    if model.config.stem_stages:
        assert seen.filters is None
    else:
        expected = embedding_filters(model, len(seen.filters.filters))
        np.testing.assert_array_equal(seen.filters.filters, expected.filters)


def test_the_activation_of_an_edited_head_is_applied_once():
    model = make()
    images = images_of("token")
    logits = to_numpy(model(images))
    model.layers[-1].activation = keras.activations.sigmoid
    seen = inspect_model(model, images)
    np.testing.assert_allclose(seen.probabilities, expit(logits), atol=1e-5)


@pytest.mark.parametrize("name", ["token", "average", "softmax"])
def test_relevance_is_of_the_likeliest_classes(name):
    model, images = model_of(name), images_of(name)
    seen = inspect_model(model, images, num_classes=2)
    answers = to_numpy(model(images))
    if name != "softmax":
        answers = softmax(answers, axis=-1)
    np.testing.assert_allclose(seen.probabilities, answers, atol=1e-6)
    assert seen.top_classes.shape == (2, 2)
    for i, j in np.ndindex(2, 2):
        chosen = int(np.argsort(-answers[i])[j])
        assert seen.top_classes[i, j] == chosen
        np.testing.assert_allclose(
            seen.relevances[i, j],
            attention_relevance(model, images[i : i + 1], chosen)[0],
            rtol=1e-4,
            atol=1e-5,
        )


def test_an_image_passes_the_model_once(monkeypatch):
    """For its maps, its classes and the relevance for each of them."""
    model, images = model_of("token"), images_of("token")
    run = features.run_with_scores
    blocks, steps = [], []

    def run_and_note(block, *arguments, **options):
        blocks.append(block.name)
        return run(block, *arguments, **options)

    monkeypatch.setattr(features, "run_with_scores", run_and_note)
    inspect_model(model, images, report=lambda *step: steps.append(step))
    each = [f"block_{i:02}" for i in range(model.config.depth)]
    assert blocks == each * len(images)
    assert steps == [(1, 2), (2, 2)]


def test_a_model_without_a_head_has_no_classes():
    model = model_of("token").with_num_classes(0)
    seen = inspect_model(model, images_of("token"), class_names=["a"])
    assert seen.probabilities is None
    assert seen.top_classes is None
    assert seen.relevances is None


def test_what_the_caller_knows_is_used():
    model, images = model_of("token"), images_of("token")
    classes = [f"class {i}" for i in range(model.config.num_classes)]
    seen = inspect_model(
        model,
        images,
        image_names=["a", "b"],
        class_names=classes,
        activation="sigmoid",
        normalization="zero_one",
        num_classes=0,
    )
    assert seen.image_names == ("a", "b")
    assert seen.class_name(1) == "class 1"
    logits = to_numpy(model(images))
    np.testing.assert_allclose(seen.probabilities, expit(logits), atol=1e-6)
    np.testing.assert_array_equal(seen.pixels, to_pixels(images, "zero_one"))
    assert seen.relevances is None
    config = dataclasses.replace(
        model.config, class_names=tuple(classes), probabilities="sigmoid"
    )
    copy = VisionTransformer(config)
    copy.set_weights(model.get_weights())
    stated = inspect_model(copy, images, num_classes=0)
    assert stated.class_name(1) == "class 1"
    np.testing.assert_array_equal(stated.probabilities, seen.probabilities)
    seen = inspect_model(model, images, num_classes=0)
    assert seen.image_names == ("image 1", "image 2")
    assert seen.class_name(1) == "1"
    np.testing.assert_array_equal(seen.pixels, to_pixels(images))


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"image_names": ["a"]}, "`image_names`"),
        ({"class_names": ["a"]}, "`class_names`"),
        ({"activation": "relu"}, "`activation`"),
        ({"num_classes": -1}, "num_classes=-1"),
        ({"num_classes": 1.5}, "num_classes=1.5"),
    ],
)
def test_bad_arguments_are_named(options, match):
    with pytest.raises(ValueError, match=match):
        inspect_model(model_of("token"), images_of("token"), **options)


def test_pixels_of_other_ranges_and_channels():
    images = np.linspace(0, 1, 8, dtype="float32").reshape(1, 2, 2, 2)
    np.testing.assert_array_equal(
        to_pixels(images, (0, 1))[..., 0], np.round(255 * images.mean(axis=-1))
    )


def test_a_model_of_nan_is_named():
    model = make(depth=1)
    model.get_layer("patch_encoder").bias.assign(np.full(24, np.nan))
    with pytest.raises(ValueError, match="finite attention.*'broken'"):
        inspect_model(model, images_of("token"), model_name="broken")
