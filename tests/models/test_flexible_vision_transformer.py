"""Patches of any size in any grid: against plain models of that size."""

import keras
import numpy as np
import pytest

from keras_vit import FlexibleVisionTransformer, VisionTransformer
from keras_vit.layers.resize import RESIZES
from keras_vit.models import cut_patches
from tests.tiny import LATER_KINDS, noise, randomize, tiny_config, to_numpy

OF_ONE_GRID = ("beit", "relative_mlp")
KINDS = {
    "plain": {},
    "none": {"position_embedding": "none"},
    "learned_2d": {"position_embedding": "learned_2d"},
    "sincos_1d": {"position_embedding": "sincos_1d"},
    "sincos_2d": {"position_embedding": "sincos_2d"},
    "max": {"pooling": "max", "representation_size": 10},
    "map": {"pooling": "map"},
    "probe": {"pooling": "probe"},
    "tokens": {"pooling": "none"},
    **{k: v for k, v in LATER_KINDS.items() if k not in OF_ONE_GRID},
}
each_kind = pytest.mark.parametrize("kind", KINDS)


def make(**choices):
    model = randomize(VisionTransformer(tiny_config(**choices)))
    return model, FlexibleVisionTransformer(model)


def close(actual, expected):
    np.testing.assert_allclose(
        to_numpy(actual), to_numpy(expected), rtol=0, atol=2e-5
    )


@each_kind
def test_patches_of_its_own_size_are_the_model(kind):
    model, flexible = make(**KINDS[kind])
    x = noise(2, 32, 32, 3)
    close(flexible(x), model(x))
    close(flexible(x, patch_size=8), model(x))


# Kinds of positions.
PLACED = ("plain", "learned_2d", "sincos_2d", "eva02", "perception", "mixed")


@pytest.mark.parametrize(
    ("kind", "image_size", "patch_size"),
    [
        *((kind, (32, 48), 16) for kind in KINDS),
        *((kind, (32, 32), 4) for kind in PLACED),
        *((kind, (24, 40), 8) for kind in (*PLACED, "dinov3")),
    ],
)
def test_it_is_the_model_of_another_size(kind, image_size, patch_size):
    model, flexible = make(**KINDS[kind])
    other = model.with_image_size(image_size, patch_size=patch_size)
    assert other.config.patch_size == patch_size
    x = noise(2, *image_size, 3)
    close(flexible(x, patch_size=patch_size), other(x))


@pytest.mark.parametrize("rule", RESIZES)
def test_positions_are_resized_by_the_rule_of_the_model(rule):
    model, flexible = make(position_resize=rule)
    x = noise(2, 48, 16, 3)
    close(flexible(x), model.with_image_size((48, 16))(x))


@each_kind
def test_each_image_of_a_batch_has_its_own_grid(kind):
    model, flexible = make(**KINDS[kind])
    # What padding holds must not matter.
    batch = {
        "patches": noise(3, 10, 192, scale=100.0),
        "coordinates": np.zeros((3, 10, 2), "int32"),
        "mask": np.zeros((3, 10), bool),
    }
    expected = []
    for index, size in enumerate([(16, 40), (24, 24), (8, 32)]):
        image = noise(1, *size, 3, seed=index)
        expected.append(to_numpy(flexible(image)))
        found = cut_patches(image, 8)
        count = found["patches"].shape[1]
        for key, value in found.items():
            batch[key][index, :count] = to_numpy(value)[0]
        batch["mask"][index, :count] = True
    answer = to_numpy(flexible(batch))
    if model.config.pooling == "none":
        answer = [row[: len(one[0])] for row, one in zip(answer, expected)]
        expected = [one[0] for one in expected]
        for one, other in zip(answer, expected):
            close(one, other)
    else:
        close(answer, np.concatenate(expected))


def test_the_order_of_patches_does_not_matter():
    _, flexible = make(rotary_positions="axial")
    found = {
        k: to_numpy(v) for k, v in cut_patches(noise(1, 24, 40, 3), 8).items()
    }
    turned = {key: value[:, ::-1] for key, value in found.items()}
    close(flexible(turned), flexible(found))


def test_square_positions_keep_the_aspect_ratio():
    model, _ = make(pooling="avg", position_resize="bicubic_antialias")
    flexible = FlexibleVisionTransformer(model, use_square_positions=True)
    # The patches of the first rows of a square image, as far as they are given.
    found = cut_patches(noise(1, 48, 48, 3), 8)
    part = {key: value[:, :12] for key, value in found.items()}
    square = VisionTransformer(model.config)
    square.set_weights(model.get_weights())
    square = square.with_image_size(48)
    table = to_numpy(square.get_layer("position_embedding").embedding)
    narrow = model.with_image_size((16, 48))
    layer = narrow.get_layer("position_embedding")
    layer.embedding.assign(table[: 1 + 12])
    image = to_numpy(noise(1, 48, 48, 3))[:, :16]
    close(flexible(part), narrow(image))


def test_training_it_trains_the_model():
    model, flexible = make(pooling="avg")
    before = [to_numpy(weight) for weight in model.weights]
    flexible.compile("sgd", "mse")
    x, y = noise(4, 40, 40, 3), noise(4, 7)
    history = flexible.fit(x, y, epochs=3, verbose=0).history["loss"]
    assert history[-1] < history[0]
    assert [w.path for w in flexible.trainable_weights] == [
        w.path for w in model.trainable_weights
    ]
    # The class token is there, but an average over the patches reads it too.
    for old, weight in zip(before, model.weights):
        assert np.abs(to_numpy(weight) - old).max() > 0, weight.path


def test_dropout_is_for_training_alone():
    _, flexible = make(dropout_rate=0.5, stochastic_depth_rate=0.5)
    x = noise(2, 32, 32, 3)
    close(flexible(x), flexible(x, training=False))
    change = to_numpy(flexible(x, training=True)) - to_numpy(flexible(x))
    assert np.abs(change).max() > 0.01


def test_it_is_saved_and_comes_back(tmp_path):
    model, _ = make(rotary_positions="axial")
    flexible = FlexibleVisionTransformer(model, "bicubic", True)
    flexible.save(tmp_path / "m.keras")
    again = keras.saving.load_model(tmp_path / "m.keras")
    assert again.get_config() == flexible.get_config()
    x = noise(2, 20, 40, 3)
    close(again(x, patch_size=5), flexible(x, patch_size=5))


def test_mixed_precision_is_that_of_the_model():
    model = randomize(VisionTransformer(tiny_config(), dtype="mixed_bfloat16"))
    flexible = FlexibleVisionTransformer(model)
    assert flexible.compute_dtype == "bfloat16"
    x = noise(2, 32, 32, 3)
    # Positions are read in float32, so the last digit may differ.
    np.testing.assert_allclose(
        to_numpy(flexible(x)), to_numpy(model(x)), atol=0.1
    )


@pytest.mark.parametrize(
    ("choices", "name"),
    [
        ({"stem_stages": (), "patch_size": 4}, "stem_stages=()"),
        (LATER_KINDS["beit"], "relative_positions='table'"),
    ],
)
def test_what_belongs_to_one_grid_is_refused(choices, name):
    with pytest.raises(ValueError, match="which belong to one grid") as error:
        make(**choices)
    assert name in str(error.value)


def test_mistakes_are_named():
    _, flexible = make()
    with pytest.raises(ValueError, match="at least one patch.*patch_size=64"):
        flexible(noise(1, 32, 32, 3), patch_size=64)
    with pytest.raises(ValueError, match="cut already. Received: patch_size=4"):
        flexible(cut_patches(noise(1, 32, 32, 3), 8), patch_size=4)
    for size in (0, -4, 8.5):
        with pytest.raises(ValueError, match=f"`patch_size`.*={size}"):
            flexible(noise(1, 32, 32, 3), patch_size=size)
    with pytest.raises(ValueError, match="of 3 channels.*16, 64"):
        flexible(noise(1, 32, 32, 1))
    found = cut_patches(noise(1, 32, 32, 3), 8)
    for wrong in (
        {"patches": found["patches"]},
        {**found, "masks": np.ones((1, 16), bool)},
        {**found, "patches": found["patches"][..., :100]},
        {**found, "coordinates": found["coordinates"][..., :1]},
        {**found, "coordinates": found["coordinates"][:, :10]},
        {**found, "mask": np.ones((1, 10), bool)},
        {**found, "mask": np.ones((1, 16, 1), bool)},
        [found["patches"], found["coordinates"]],
        noise(32, 32, 3),
    ):
        with pytest.raises(ValueError, match=r"'patches' \(B, N, 192\), 'coor"):
            flexible(wrong)
    with pytest.raises(ValueError, match="must be a keras_vit.VisionTransf"):
        FlexibleVisionTransformer(keras.Sequential())
