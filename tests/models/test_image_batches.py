import dataclasses

import keras
import numpy as np
import pytest

from keras_vit import VisionTransformer
from keras_vit.analysis import (
    attention_maps,
    attention_relevance,
    attention_rollout,
    inspect_model,
    representation_similarity,
    token_norms,
)
from keras_vit.models.features import as_images, split_batches
from tests.tiny import noise, tiny_config

CONFIG = tiny_config(patch_size=4, image_size=(8, 4))
IMAGES = noise(5, 8, 4, 3)


@pytest.fixture(scope="module")
def model():
    return VisionTransformer(CONFIG)


def test_batches_are_all_images_in_their_order(model):
    parts = list(split_batches(model, IMAGES, np.int64(2)))
    assert [part for part, _ in parts] == [
        slice(0, 2),
        slice(2, 4),
        slice(4, 5),
    ]
    assert np.array_equal(np.concatenate([x for _, x in parts]), IMAGES)


def test_lists_are_arrays_and_tensors_stay(model):
    assert np.array_equal(as_images(IMAGES.tolist(), model), IMAGES)
    tensor = keras.ops.convert_to_tensor(IMAGES)
    assert as_images(tensor, model) is tensor
    assert as_images(IMAGES[:, :7]).shape == (5, 7, 4, 3)  # Of no model.


def test_a_model_of_any_size_reads_any_but_other_channels():
    config = dataclasses.replace(CONFIG, use_dynamic_image_size=True)
    any_size = VisionTransformer(config)
    assert as_images(IMAGES[:, :4], any_size) is not None
    with pytest.raises(ValueError, match=r"\(None, None, 3\).*\(5, 8, 4, 1\)"):
        as_images(IMAGES[..., :1], any_size)


@pytest.mark.parametrize(
    "look",
    [
        attention_maps,
        attention_relevance,
        attention_rollout,
        inspect_model,
        token_norms,
        lambda model, images: representation_similarity(model, model, images),
    ],
)
@pytest.mark.parametrize(
    ("images", "message"),
    [
        (None, r"with B > 0. Received: shape=\(\)"),
        ("photo.jpg", r"an array of numbers .*Received: str"),
        ([[1.0], [1.0, 2.0]], r"an array of numbers .*Received: list"),
        (IMAGES[0], r"with B > 0. Received: shape=\(8, 4, 3\)"),
        (IMAGES[:0], r"with B > 0. Received: shape=\(0, 8, 4, 3\)"),
        (IMAGES[:, :4], r"the model, \(8, 4, 3\). Received: .*\(5, 4, 4, 3\)"),
    ],
)
def test_what_is_no_image_is_named(look, images, message, model):
    with pytest.raises(ValueError, match=f"^`images` must .*{message}"):
        look(model, images)


@pytest.mark.parametrize("batch_size", [0, -1, 1.5, "4", None, True])
def test_what_is_no_number_of_images_is_named(batch_size, model):
    with pytest.raises(ValueError, match="`batch_size` must be .*batch_size="):
        token_norms(model, IMAGES, batch_size=batch_size)


def test_what_is_no_model_is_named():
    with pytest.raises(ValueError, match="`model` must be .*Received: str"):
        next(split_batches("B/16", IMAGES, 2))
