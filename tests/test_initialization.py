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


def test_patch_kernel_is_lecun_normal(weights):
    kernel = weights["patch_encoder/kernel"]
    assert_truncated_normal(kernel, (PATCH_SIZE**2 * 3) ** -0.5)


def test_positions_are_normal_with_deviation_0_02(weights):
    assert_normal(weights["position_embedding/embedding"], 0.02)


@pytest.mark.parametrize(
    ("path", "count"),
    [
        ("block_00/attention/qkv/kernel", 3),
        ("block_00/attention/out/kernel", 1),
        ("pooling/query/kernel", 1),
        ("pooling/key_value/kernel", 2),
        ("pooling/out/kernel", 1),
    ],
)
def test_projections_are_glorot_uniform_each_by_itself(weights, path, count):
    kernel = weights[path]
    assert kernel.shape == (WIDTH, count * WIDTH)
    parts = np.split(kernel, count, axis=1)
    for part in parts:
        # Of the flattened (D, D) matrix; of the fused one it would be half.
        assert_uniform(part, np.sqrt(3 / WIDTH))
    for one, other in zip(parts, parts[1:]):
        assert abs(np.corrcoef(one.ravel(), other.ravel())[0, 1]) < 0.05


def test_q_k_v_and_the_blocks_do_not_share_their_draws():
    keras.utils.set_random_seed(0)
    config = ViTConfig(64, 2, 64, 2, patch_size=8, image_size=16)
    kernels = [
        array
        for path, array in by_path(VisionTransformer(config)).items()
        if path.startswith("block_") and path.endswith("kernel")
    ]
    for i, one in enumerate(kernels):
        for other in kernels[i + 1 :]:
            size = min(one.size, other.size)
            assert not np.allclose(one.ravel()[:size], other.ravel()[:size])


@pytest.mark.parametrize("owner", ["block_00/mlp", "pooling/mlp"])
def test_mlp_kernels_are_glorot_uniform(weights, owner):
    limit = np.sqrt(6 / (WIDTH + MLP_DIM))
    assert_uniform(weights[f"{owner}/hidden/kernel"], limit)
    assert_uniform(weights[f"{owner}/out/kernel"], limit)


@pytest.mark.parametrize("owner", ["block_00/mlp", "pooling/mlp"])
@pytest.mark.parametrize("layer", ["hidden", "out"])
def test_mlp_biases_are_normal_with_deviation_1e_6(weights, owner, layer):
    assert_normal(weights[f"{owner}/{layer}/bias"], 1e-6)


def test_probe_is_glorot_uniform_with_a_fan_in_of_one(weights):
    assert_uniform(weights["pooling/probe"], np.sqrt(6 / (1 + WIDTH)))


def test_pre_logits_kernel_is_lecun_normal(weights):
    assert_truncated_normal(weights["pre_logits/kernel"], WIDTH**-0.5)


@pytest.mark.parametrize(
    "path",
    [
        "class_token/token",
        "patch_encoder/bias",
        "block_00/attention/qkv/bias",
        "block_00/attention/out/bias",
        "block_00/attention_norm/beta",
        "block_00/mlp_norm/beta",
        "encoder_norm/beta",
        "pooling/query/bias",
        "pooling/key_value/bias",
        "pooling/out/bias",
        "pooling/norm/beta",
        "pre_logits/bias",
        "predictions/kernel",
    ],
)
def test_zeros(weights, path):
    assert not weights[path].any()


@pytest.mark.parametrize(
    "path",
    [
        "block_00/attention_norm/gamma",
        "block_00/mlp_norm/gamma",
        "encoder_norm/gamma",
        "pooling/norm/gamma",
    ],
)
def test_scales_of_layer_norms_are_one(weights, path):
    assert (weights[path] == 1).all()


def test_head_bias_is_the_chosen_constant(weights):
    assert (weights["predictions/bias"] == -10).all()


def test_every_parameter_of_the_model_is_tested(weights):
    # The paths above, by hand: a new weight needs a test here.
    assert len(weights) == 4 + 12 + 2 + 13 + 2 + 2


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
