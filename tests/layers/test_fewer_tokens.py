"""Patches that training leaves out, and tokens that are merged."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_vit import VisionTransformer, save_checkpoint
from keras_vit.layers import POOLINGS, PatchDropout
from keras_vit.layers.fewer_tokens import merge_tokens
from keras_vit.models import (
    DenseConfig,
    FlexibleVisionTransformer,
    dense_predictor,
)
from keras_vit.models.features import enter_blocks, get_block, split_at_head
from keras_vit.pretraining import MaskedAutoencoder
from tests.tiny import LATER_KINDS, make, noise, tiny_config, to_numpy

ROTARY = {"position_embedding": "none", "rotary_positions": "axial"}


def merge_by_hand(tokens, sizes, keys, count, prefix):
    """One image, a token at a time, as in the paper."""
    keys = keys / np.linalg.norm(keys, axis=-1, keepdims=True)
    places = range(len(tokens))
    even, odd = (
        [i for i in places if i >= prefix and i % 2 == rest] for rest in (0, 1)
    )
    best = {i: max(odd, key=lambda j, i=i: keys[i] @ keys[j]) for i in even}
    ranked = sorted(even, key=lambda i: -(keys[i] @ keys[best[i]]))
    merged = set(ranked[:count])
    rows, weights = [], []
    for i in [*range(prefix), *(i for i in even if i not in merged), *odd]:
        group = [i, *(j for j in merged if best[j] == i and i in odd)]
        total = sum(sizes[j, 0] for j in group)
        rows.append(sum(tokens[j] * sizes[j, 0] for j in group) / total)
        weights.append([total])
    return np.array(rows), np.array(weights)


@pytest.mark.parametrize("prefix", [0, 1, 2, 3])
@pytest.mark.parametrize(("length", "count"), [(16, 5), (15, 1), (12, 50)])
def test_tokens_are_merged_as_by_hand(prefix, length, count):
    tokens = noise(3, prefix + length, 6)
    keys = noise(3, prefix + length, 4, seed=1)
    draws = np.random.default_rng(2)
    sizes = draws.integers(1, 9, (3, prefix + length, 1)).astype("float32")
    got = merge_tokens(
        *map(ops.convert_to_tensor, (tokens, sizes, keys)), count, prefix
    )
    rows = zip(tokens, sizes, keys)
    want = [
        merge_by_hand(*row, min(count, length // 2), prefix) for row in rows
    ]
    for x, y in zip(got, zip(*want)):
        np.testing.assert_allclose(to_numpy(x), np.stack(y), atol=1e-5)


def twins(dtype="float32"):
    """Images of 16 different patches, each beside its twin."""
    patches = np.repeat(noise(2, 2, 8, 8, 8, 3), 2, axis=2)  # (B, 2, 16, ...)
    rows = patches.transpose(0, 1, 3, 2, 4, 5).reshape(2, 16, 128, 3)
    return rows.astype(dtype)


@pytest.mark.parametrize(
    "pooling", [name for name in POOLINGS if name != "none"]
)
def test_merged_twins_change_nothing(pooling):
    """Larger tokens get as much attention as the patches that they are of."""
    needs = "use_distillation_token", pooling == "distilled"
    model = make(
        depth=3,
        image_size=(16, 128),
        position_embedding="none",
        pooling=pooling,
        num_registers=1 - needs[1],
        **dict([needs]),
    )
    merging = model.with_merged_tokens(16)
    assert merging.get_layer("block_01").output[0].shape[1] == 2 + 8
    images = twins()
    want = to_numpy(model(images))
    # In later blocks, other tokens than twins are merged.
    blocks = [merging.get_layer(f"block_{index:02d}") for index in (1, 2)]
    blocks[0].merged_tokens = blocks[1].merged_tokens = 0
    np.testing.assert_allclose(to_numpy(merging(images)), want, atol=2e-5)
    blocks[0].merged_tokens = 16
    assert np.abs(to_numpy(merging(images)) - want).max() > 1e-3


def test_merging_leaves_the_weights_and_the_files_alone(tmp_path):
    model, images = make(), noise(2, 32, 32, 3)
    merging = model.with_merged_tokens(3)
    want = to_numpy(merging(images))
    assert np.abs(want - to_numpy(model(images))).max() > 1e-3
    merging.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    assert again.config.merged_tokens == 3
    np.testing.assert_array_equal(to_numpy(again(images)), want)
    plain = again.with_merged_tokens(0)
    np.testing.assert_array_equal(
        to_numpy(plain(images)), to_numpy(model(images))
    )
    with pytest.raises(ValueError, match="merged_tokens"):
        save_checkpoint(merging, tmp_path / "model.npz")


def test_the_short_way_to_the_class_token_merges_the_same():
    model, images = make(merged_tokens=3), noise(2, 32, 32, 3)
    compute = split_at_head(model, has_head=True, is_short=True)
    features, outputs = compute(ops.convert_to_tensor(images))
    want = to_numpy(model(images))
    np.testing.assert_allclose(to_numpy(outputs), want, atol=1e-5)
    kernel, bias = map(to_numpy, model.get_layer("predictions").weights)
    got = to_numpy(features) @ kernel + bias
    np.testing.assert_allclose(got, want, atol=1e-5)


@pytest.mark.parametrize("dtype", ["mixed_bfloat16", "mixed_float16"])
def test_merging_in_half_precision(dtype):
    model, images = make(merged_tokens=3), noise(2, 32, 32, 3)
    got = to_numpy(model.with_dtype(dtype)(images))
    assert np.abs(got - to_numpy(model(images))).max() < 0.2


def test_recomputed_blocks_merge_the_same():
    model, images = make(merged_tokens=3), noise(2, 32, 32, 3)
    want = ops.stop_gradient(model(images, training=True))
    got = ops.stop_gradient(model.with_remat()(images, training=True))
    np.testing.assert_allclose(to_numpy(got), to_numpy(want), atol=1e-5)


def test_dropped_patches_are_other_ones_for_each_image_and_call():
    layer = PatchDropout(rate=0.6, num_prefix_tokens=2, seed=3)
    tokens = np.tile(np.arange(12.0, dtype="float32")[:, None], (4, 1, 2))
    got = [to_numpy(layer(tokens, training=True)) for _ in range(3)]
    for x in got:
        assert x.shape == (4, 2 + 4, 2)
        np.testing.assert_array_equal(x[:, :2, 0], [[0, 1]] * 4)
        rest = np.sort(x[:, 2:, 0])
        assert (np.diff(rest) > 0).all() and rest.min() >= 2  # None twice.
        assert len({tuple(row) for row in rest}) > 1
    assert np.ptp(got, axis=0).max() > 0
    again = PatchDropout(rate=0.6, num_prefix_tokens=2, seed=3)
    first = to_numpy(again(tokens, training=True))
    np.testing.assert_array_equal(first, got[0])
    np.testing.assert_array_equal(to_numpy(layer(tokens)), tokens)


def test_every_patch_is_dropped_as_often():
    layer = PatchDropout(rate=0.75, num_prefix_tokens=1, seed=0)
    tokens = np.tile(np.arange(9.0, dtype="float32")[:, None], (4000, 1, 1))
    kept = to_numpy(layer(tokens, training=True))[:, 1:].ravel()
    counts = np.bincount(kept.astype(int), minlength=9)[1:]
    np.testing.assert_allclose(counts / 1000, 1, atol=0.15)  # 5 deviations.


@pytest.mark.parametrize(
    "choices",
    [
        {},
        ROTARY,
        {**ROTARY, "rotary_positions": "mixed"},
        LATER_KINDS["beit"],
        {"position_placement": "every_block"},
        {"position_placement": "every_block_shared"},
    ],
    ids=["learned", "axial", "mixed", "bias", "each", "shared"],
)
def test_the_patches_that_stay_keep_their_positions(choices, monkeypatch):
    """As if all others were masked, which a block does by itself."""
    model = make(**{**choices, "pooling": "token", "use_pooling_norm": False})
    dropping = model.with_patch_dropout(0.5)
    images, order = noise(2, 32, 32, 3), np.argsort(noise(2, 16, seed=5))
    noises = np.argsort(order).astype("float32")
    monkeypatch.setattr(keras.random, "uniform", lambda *_, **__: noises)
    got = to_numpy(ops.stop_gradient(dropping(images, training=True)))
    assert np.abs(got - to_numpy(dropping(images))).max() > 1e-3
    mask = np.zeros((2, 17), bool)
    mask[:, 0] = True
    np.put_along_axis(mask, order[:, :8] + 1, True, axis=1)
    masked = with_mask(model, mask)
    want = to_numpy(masked(images))
    np.testing.assert_allclose(got, want, atol=2e-5)


def with_mask(model, mask):
    """Return the model whose tokens attend to some alone."""

    def run(images):
        x, rows = enter_blocks(model, images)
        for index, row in enumerate(rows):
            x = get_block(model, index)(x, mask=mask, **row)
        for name in ("encoder_norm", "pooling", "predictions"):
            x = model.get_layer(name)(x)
        return x

    return run


@pytest.mark.parametrize("name", ["merged_tokens", "patch_dropout_rate"])
def test_what_needs_all_patches_says_so(name):
    value = {"merged_tokens": 2, "patch_dropout_rate": 0.5}[name]
    model = VisionTransformer(tiny_config(**{name: value}))
    wrong = [
        lambda: FlexibleVisionTransformer(model),
        lambda: MaskedAutoencoder(model),
        lambda: model.features(model.input),
        lambda: tiny_config(**{name: value}, use_dynamic_image_size=True),
        lambda: tiny_config(**{name: value}, pooling="none"),
        lambda: tiny_config(**{name: value}, relative_positions="keys"),
        lambda: tiny_config(**{name: -value}),
        lambda: dense_predictor(model, DenseConfig(num_outputs=2)),
    ]
    for make_wrong in wrong:
        with pytest.raises(ValueError, match=name):
            make_wrong()
    if name == "merged_tokens":
        with pytest.raises(ValueError, match=name):
            model.features(noise(1, 32, 32, 3))
        with pytest.raises(ValueError, match=name):
            tiny_config(merged_tokens=2, **ROTARY)
    else:
        assert len(model.features(noise(1, 32, 32, 3))) == 2
