"""Each parameter starts as in the official code, by its distribution.

The numbers are those of google-research/vision_transformer; the probe of the
attention pooling is big_vision's.
"""

import keras
import numpy as np
import pytest

from keras_vit import VisionTransformer, ViTConfig
from keras_vit.layers import ResNetStem

WIDTH, MLP_DIM, PATCH_SIZE = 192, 768, 16
# Of a normal distribution cut at two deviations: Keras and Flax widen it so
# that its deviation is the one asked for.
TRUNCATION = 2 / 0.87962566


@pytest.fixture(scope="module")
def weights():
    """The weights of a fresh model of one block, by path."""
    keras.utils.set_random_seed(0)
    config = ViTConfig(
        width=WIDTH,
        depth=1,
        mlp_dim=MLP_DIM,
        num_heads=3,
        patch_size=PATCH_SIZE,
        pooling="map",
        representation_size=128,
        num_classes=10,
        head_bias=-10.0,
    )
    return by_path(VisionTransformer(config))


def by_path(layer):
    return {
        weight.path: keras.ops.convert_to_numpy(weight)
        for weight in layer.weights
    }


def assert_uniform(x, limit):
    assert np.abs(x).max() <= limit
    # Of n uniform draws the largest is below 0.99 with probability 0.99^n.
    assert np.abs(x).max() > 0.99 * limit
    assert_moments(x, limit / np.sqrt(3))


def assert_truncated_normal(x, deviation):
    limit = TRUNCATION * deviation
    assert np.abs(x).max() > 0.98 * limit
    # Keras on PyTorch lets a few of a million draws through.
    assert np.mean(np.abs(x) > limit * (1 + 1e-6)) < 1e-4
    assert_moments(x, deviation)
    # A uniform distribution of this deviation is bounded much earlier.
    assert np.mean(np.abs(x) < deviation / 2) < 0.45


def assert_normal(x, deviation):
    assert_moments(x, deviation)
    # Not truncated: 4.6 % of it lies beyond two deviations.
    beyond = np.mean(np.abs(x) > 2 * deviation)
    assert abs(beyond - 0.0455) < 5 * np.sqrt(0.0455 / x.size)


def assert_moments(x, deviation):
    # Five standard errors of the mean and of the deviation.
    assert abs(x.mean()) < 5 * deviation / np.sqrt(x.size)
    assert abs(x.std() / deviation - 1) < 5 / np.sqrt(2 * x.size)


def assert_constant(x, value):
    assert (x == value).all()


def assert_projections(x, count):
    """Glorot-uniform, each of the (D, D) matrices by itself."""
    parts = np.split(x, count, axis=1)
    for part in parts:
        # Of the flattened (D, D) matrix; of the fused one it would be half.
        assert_uniform(part, np.sqrt(3 / WIDTH))
    for one, other in zip(parts, parts[1:]):
        assert abs(np.corrcoef(one.ravel(), other.ravel())[0, 1]) < 0.05


MLP_LIMIT = np.sqrt(6 / (WIDTH + MLP_DIM))
# How each weight of the model is distributed: a check and its number.
WEIGHTS = {
    "patch_encoder/kernel": (
        assert_truncated_normal,
        (PATCH_SIZE**2 * 3) ** -0.5,
    ),
    "patch_encoder/bias": (assert_constant, 0),
    "class_token/token": (assert_constant, 0),
    "position_embedding/embedding": (assert_normal, 0.02),
    "encoder_norm/gamma": (assert_constant, 1),
    "encoder_norm/beta": (assert_constant, 0),
    # With a fan-in of one.
    "pooling/probe": (assert_uniform, np.sqrt(6 / (1 + WIDTH))),
    "pre_logits/kernel": (assert_truncated_normal, WIDTH**-0.5),
    "pre_logits/bias": (assert_constant, 0),
    "predictions/kernel": (assert_constant, 0),
    "predictions/bias": (assert_constant, -10),
}
for _path, _count in {
    "block_00/attention/qkv": 3,
    "block_00/attention/out": 1,
    "pooling/query": 1,
    "pooling/key_value": 2,
    "pooling/out": 1,
}.items():
    WEIGHTS[f"{_path}/kernel"] = (assert_projections, _count)
    WEIGHTS[f"{_path}/bias"] = (assert_constant, 0)
for _path in ("block_00/mlp", "pooling/mlp"):
    for _layer in ("hidden", "out"):
        WEIGHTS[f"{_path}/{_layer}/kernel"] = (assert_uniform, MLP_LIMIT)
        WEIGHTS[f"{_path}/{_layer}/bias"] = (assert_normal, 1e-6)
for _path in ("block_00/attention_norm", "block_00/mlp_norm", "pooling/norm"):
    WEIGHTS[f"{_path}/gamma"] = (assert_constant, 1)
    WEIGHTS[f"{_path}/beta"] = (assert_constant, 0)


@pytest.mark.parametrize("path", WEIGHTS)
def test_distribution_of_each_weight(weights, path):
    check, number = WEIGHTS[path]
    check(weights[path], number)


def test_every_weight_has_a_row(weights):
    assert set(weights) == set(WEIGHTS)


def test_q_k_v_and_the_blocks_do_not_share_their_draws():
    keras.utils.set_random_seed(0)
    config = ViTConfig(64, 2, 64, 2, patch_size=8, image_size=16)
    arrays = [
        array
        for path, array in by_path(VisionTransformer(config)).items()
        if path.startswith("block_")
        and (path.endswith("kernel") or "mlp" in path and path.endswith("bias"))
    ]
    for i, one in enumerate(arrays):
        for other in arrays[i + 1 :]:
            size = min(one.size, other.size)
            assert not np.allclose(
                one.ravel()[:size], other.ravel()[:size], atol=0
            )


def test_learned_2d_positions_are_normal_with_deviation_0_02():
    keras.utils.set_random_seed(0)
    config = ViTConfig(
        768,
        1,
        8,
        12,
        patch_size=16,
        image_size=(224, 160),
        position_embedding="learned_2d",
    )
    weights = by_path(VisionTransformer(config))
    assert_normal(weights["position_embedding/rows"], 0.02)
    assert_normal(weights["position_embedding/columns"], 0.02)


def test_stem():
    keras.utils.set_random_seed(0)
    stem = ResNetStem((1, 1), name="stem")
    stem.build((None, 64, 64, 3))
    weights = by_path(stem)
    for path, array in weights.items():
        if path.endswith("kernel"):
            fan_in = np.prod(array.shape[:3])
            assert_truncated_normal(array, fan_in**-0.5)
        elif path.endswith("norm3/gamma"):
            # A new unit passes on what comes through its shortcut.
            assert not array.any()
        elif path.endswith("gamma"):
            assert (array == 1).all()
        else:
            assert path.endswith("beta")
            assert not array.any()
    assert sum(path.endswith("norm3/gamma") for path in weights) == 2
