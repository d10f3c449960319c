"""DensePredictor: its heads by NumPy and by transformers, and its files."""

import dataclasses
import json
import shutil

import keras
import numpy as np
import pytest

from keras_vit.models import (
    DenseConfig,
    DensePredictor,
    dense_predictor,
    predict_windows,
)
from keras_vit.models.dense import Resample
from keras_vit.weights import dense_from_checkpoint
from tests.golden import FOLDER
from tests.tiny import make, noise, randomize, to_numpy

GOLDEN = FOLDER / "dense"
NAMES = sorted(x.name for x in GOLDEN.iterdir() if x.is_dir())
SMALL = {"width": 6, "stage_widths": (3, 4, 5, 6), "blocks": (0, 1, 2, 3)}
CONFIGS = {
    "linear": DenseConfig(5),
    "joined": DenseConfig(
        5, blocks=(2, 0), use_norm=False, use_batch_norm=True, dropout_rate=0.5
    ),
    "bins": DenseConfig(1, blocks=(1, 3), readout="join", depth_bins=8),
    "depth": DenseConfig(
        1, head="dpt", activation="sigmoid", output_scale=20, **SMALL
    ),
    "classes": DenseConfig(
        5,
        head="dpt",
        output_width=None,
        readout="project",
        has_exact_sizes=False,
        **SMALL,
    ),
}


def make_dense(name, dtype=None, **choices):
    encoder = make(dtype, depth=4, num_registers=2, **choices)
    model = randomize(dense_predictor(encoder, CONFIGS[name]))
    for weight in model.weights:
        if weight.path.endswith("moving_variance"):
            weight.assign(keras.ops.abs(weight) + 0.5)
    return model


# Depth Anything reads other pixels than the default.
quiet = pytest.mark.filterwarnings("ignore:.*preprocess_input:UserWarning")


@quiet
@pytest.mark.parametrize("name", NAMES)
def test_answers_are_those_of_transformers(name):
    with np.load(GOLDEN / f"{name}.expected.npz") as golden:
        golden = dict(golden)
    model = dense_from_checkpoint(GOLDEN / name)
    found = to_numpy(model(golden["x"]))
    scale = np.abs(golden["y"]).max()
    np.testing.assert_allclose(found / scale, golden["y"] / scale, atol=1e-5)
    report = model.load_report
    arrays = {*report.used, *report.ignored}
    assert len(arrays) == len(report.used) + len(report.ignored)
    assert all(
        "residual_layer1" in x
        or "aux" in x
        or "num_batches" in x
        or "mask_token" in x
        for x in report.ignored
    ), report.ignored


@quiet
def test_relative_depths_are_scaled_too(tmp_path):
    """As transformers 5.24 does, though its documentation says otherwise."""
    shutil.copytree(GOLDEN / "depth_anything", tmp_path / "three")
    path = tmp_path / "three/config.json"
    path.write_text(
        json.dumps({**json.loads(path.read_text()), "max_depth": 3})
    )
    images = noise(1, 42, 42, 3)
    one, three = (
        to_numpy(dense_from_checkpoint(folder)(images))
        for folder in (GOLDEN / "depth_anything", tmp_path / "three")
    )
    np.testing.assert_allclose(three, 3 * one, rtol=1e-5)


def test_the_blocks_are_read_in_their_order(tmp_path):
    """As in transformers, whatever the order of `backbone_out_indices`."""
    shutil.copytree(GOLDEN / "dpt", tmp_path / "dpt")
    path = tmp_path / "dpt/config.json"
    content = json.loads(path.read_text())
    content["backbone_out_indices"].reverse()
    path.write_text(json.dumps(content))
    assert dense_from_checkpoint(tmp_path / "dpt").head.blocks == (0, 1, 2, 3)


@quiet
def test_another_image_size_keeps_the_other_weights():
    model = dense_from_checkpoint(GOLDEN / "depth_anything", image_size=56)
    assert tuple(model(noise(1, 56, 56, 3)).shape) == (1, 56, 56, 1)
    old = dense_from_checkpoint(GOLDEN / "depth_anything")
    old = {weight.path: to_numpy(weight) for weight in old.weights}
    for weight in model.weights:
        if "position_embedding" not in weight.path:
            np.testing.assert_array_equal(to_numpy(weight), old[weight.path])


@pytest.mark.parametrize(
    "change, words",
    [
        ({"model_type": "vit"}, "config.json of DPT or Depth Anything"),
        ({"is_hybrid": True}, "is_hybrid=True"),
        ({"hidden_act": "relu"}, "hidden_act='relu'"),
        ({"fusion_hidden_size": 7}, r"neck\.convs\.0\.weight has the shape"),
        ({"readout_type": "ignore"}, r"readout_projects\S* is not expected"),
        ({"neck_hidden_sizes": [3, 4, 5]}, "`stage_widths` must have 4"),
        ({"backbone_config": {"out_indices": [0, 3, 6, 9]}}, "'stem'"),
        ({"backbone_config": {"out_features": ["stem", "stage1"]}}, "'stem'"),
    ],
)
def test_other_files_are_refused(tmp_path, change, words):
    shutil.copytree(GOLDEN / "dpt", tmp_path / "dpt")
    path = tmp_path / "dpt/config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(ValueError, match=words) as error:
        dense_from_checkpoint(tmp_path / "dpt")
    assert str(tmp_path) in str(error.value)


def test_a_linear_head_projects_the_features_of_blocks():
    model = make_dense("joined")
    encoder = make(depth=4, num_registers=2)
    for weight in encoder.weights:
        for other in model.weights:
            if other.path == weight.path and "predictions" not in weight.path:
                weight.assign(other)
    images = noise(2, 32, 32, 3)
    maps = encoder.features(images, blocks=(2, 0), norm=False)
    x = np.concatenate([to_numpy(one) for one in maps], -1)
    gamma, beta, mean, variance = map(
        to_numpy, model.get_layer("head_norm").weights
    )
    x = (x - mean) / np.sqrt(variance + 1e-5) * gamma + beta
    kernel, bias = map(to_numpy, model.get_layer("predictions").weights)
    x = x @ kernel[0, 0] + bias
    rows = np.clip((np.arange(32) + 0.5) / 8 - 0.5, 0, 3)
    matrix = np.maximum(1 - np.abs(rows[:, None] - np.arange(4)), 0)
    expected = np.einsum("ai,bj,nijc->nabc", matrix, matrix, x)
    np.testing.assert_allclose(to_numpy(model(images)), expected, atol=1e-4)


def test_the_encoder_is_copied_up_to_the_last_block_that_is_read():
    encoder = make(depth=4)
    model = dense_predictor(encoder, DenseConfig(3, blocks=(1,)))
    assert model.config.depth == 2
    found = {w.path: to_numpy(w) for w in model.weights}
    for weight in encoder.weights:
        if weight.path in found and "predictions" not in weight.path:
            np.testing.assert_array_equal(found[weight.path], to_numpy(weight))
    before = to_numpy(encoder.weights[0])
    model.weights[0].assign(model.weights[0] + 1)
    np.testing.assert_array_equal(to_numpy(encoder.weights[0]), before)


@pytest.mark.parametrize("name", CONFIGS)
def test_a_reloaded_model_is_the_same(tmp_path, name):
    model = make_dense(name)
    model.get_layer("block_01").trainable = False
    model.save(tmp_path / "dense.keras")
    again = keras.saving.load_model(tmp_path / "dense.keras")
    images = noise(2, 32, 32, 3)
    np.testing.assert_array_equal(
        to_numpy(again(images)), to_numpy(model(images))
    )
    assert again.config == model.config and again.head == model.head
    trained = [[w.path for w in m.trainable_weights] for m in (model, again)]
    assert trained[0] == trained[1]


@pytest.mark.parametrize("name", CONFIGS)
def test_any_image_size(name):
    model = make_dense(name, use_dynamic_image_size=True)
    fixed = make_dense(name)
    fixed.set_weights(model.get_weights())
    images = noise(1, 32, 32, 3)
    np.testing.assert_allclose(
        to_numpy(model(images)), to_numpy(fixed(images)), atol=1e-5
    )
    outputs = CONFIGS[name].num_outputs
    assert model(noise(1, 40, 24, 3)).shape == (1, 40, 24, outputs)


@pytest.mark.parametrize("name", CONFIGS)
def test_half_precision_answers_in_float32(name):
    half = make_dense(name, "mixed_bfloat16")
    full = make_dense(name)
    full.set_weights(half.get_weights())
    images = noise(1, 32, 32, 3)
    found, expected = half(images), to_numpy(full(images))
    assert keras.backend.standardize_dtype(found.dtype) == "float32"
    scale = np.abs(expected).max()
    assert np.abs(to_numpy(found) - expected).max() < 0.1 * scale


def test_aligned_corners_keep_a_ramp():
    """Its ends stay, and it is as steep everywhere."""
    ramp = np.linspace(0, 1, 3, dtype="float32")
    maps = (ramp[:, None] + 10 * ramp)[None, ..., None]
    found = to_numpy(Resample(2, is_aligned=True)(maps))[0, ..., 0]
    ramp = np.linspace(0, 1, 6)
    np.testing.assert_allclose(found, ramp[:, None] + 10 * ramp, atol=1e-5)


@pytest.mark.parametrize("sizes", [(7, 9), (2, 3), (5, 4)])
def test_other_corners_are_those_of_keras(sizes):
    maps, like = noise(2, 5, 4, 3), noise(2, *sizes, 1)
    expected = keras.ops.image.resize(maps, sizes, "bilinear", antialias=False)
    np.testing.assert_allclose(
        to_numpy(Resample()(maps, like)), to_numpy(expected), atol=1e-5
    )


def test_windows_are_averaged():
    """Of a model that adds a constant for each place in a window.

    Places count by their distance from its border: 1, 2, 2, 1.
    """
    ramp = np.array([1, 2, 2, 1.0])
    weights = (ramp[:, None] * ramp)[..., None]
    places = np.arange(16, dtype="float32").reshape(4, 4, 1)
    inputs = keras.Input((4, 4, 1))
    model = keras.Model(inputs, inputs + places)
    images = noise(3, 7, 10, 1)
    found = predict_windows(model, images, batch_size=4)
    total, count = np.zeros((7, 10, 1)), np.zeros((7, 10, 1))
    for top in (0, 2, 3):  # (7 - 4) / 2 steps, as even as whole numbers are.
        for left in (0, 2, 4, 6):
            window = np.s_[top : top + 4, left : left + 4]
            total[window] += weights * places
            count[window] += weights
    np.testing.assert_allclose(found, images + total / count, atol=1e-5)
    for wrong, words in (
        ({"images": images[:, :3]}, r"`images` must be .*=\(3, 3, 10, 1\)"),
        ({"images": images, "overlap": 1}, "`overlap` must .* overlap=1"),
        ({"images": images, "batch_size": -1}, "`batch_size` must be positive"),
    ):
        with pytest.raises(ValueError, match=words):
            predict_windows(model, **wrong)


@pytest.mark.parametrize(
    "choices, words",
    [
        ({"num_outputs": 0}, "num_outputs=0"),
        ({"head": "conv"}, "'conv'"),
        ({"head": "dpt"}, r"`blocks` must have 4 .*=\(-1,\)"),
        ({"blocks": ()}, r"blocks=\(\)"),
        ({"dropout_rate": 1.0}, "dropout_rate=1.0"),
        ({"activation": "tanh"}, "'tanh'"),
    ],
)
def test_invalid_configurations(choices, words):
    with pytest.raises(ValueError, match=words):
        DenseConfig(**{"num_outputs": 2, **choices})


def test_what_the_encoder_lacks_is_named():
    encoder = make(use_class_token=False, pooling="avg")
    config = dataclasses.replace(CONFIGS["classes"], blocks=(0, 0, 1, 1))
    with pytest.raises(ValueError, match="readout='project'"):
        dense_predictor(encoder, config)
    with pytest.raises(ValueError, match="blocks"):
        DensePredictor(encoder.config, DenseConfig(2, blocks=(9,)))


def test_a_block_counted_from_the_end_stays_the_same_when_reloaded(tmp_path):
    """Though the blocks behind it are left out."""
    head = DenseConfig(3, blocks=(-3, -2))
    model = randomize(dense_predictor(make(depth=4), head))
    assert model.config.depth == 3
    model.save(tmp_path / "dense.keras")
    again = keras.saving.load_model(tmp_path / "dense.keras")
    images = noise(1, 32, 32, 3)
    np.testing.assert_array_equal(
        to_numpy(again(images)), to_numpy(model(images))
    )


@pytest.mark.parametrize("depth, block", [(4, 1), (4, 0), (1, 0)])
def test_blocks_keep_their_stochastic_depth(depth, block):
    """Though those behind them are left out."""
    encoder = make(depth=depth, stochastic_depth_rate=0.3)
    model = dense_predictor(encoder, DenseConfig(2, blocks=(block,)))
    again = DensePredictor.from_config(model.get_config())
    name = f"block_{block:02d}"
    rates = [
        each.get_layer(name).stochastic_depth_rate
        for each in (encoder, model, again)
    ]
    np.testing.assert_allclose(rates, [0.1 * block] * 3)


def test_a_norm_behind_the_pooling_is_not_applied():
    encoder = make(use_class_token=False, pooling="avg", use_pooling_norm=True)
    model = dense_predictor(encoder, DenseConfig(24))
    model.get_layer("predictions").set_weights(
        [np.eye(24, dtype="float32")[None, None], np.zeros(24, "float32")]
    )
    images = noise(1, 32, 32, 3)
    [grid] = encoder.features(images, blocks=[-1])
    found = Resample()(grid, images)
    np.testing.assert_allclose(
        to_numpy(model(images)), to_numpy(found), atol=1e-5
    )


def test_what_is_frozen_in_the_encoder_is_frozen_here():
    encoder = make()
    encoder.trainable = False
    model = dense_predictor(encoder, DenseConfig(2))
    names = [weight.path for weight in model.trainable_weights]
    assert names == ["predictions/kernel", "predictions/bias"]


def test_edits_of_the_classifier_are_not_of_the_head():
    encoder = make()
    encoder.get_layer("predictions").activation = keras.activations.relu
    encoder.get_layer("encoder_norm").epsilon = 0.1
    model = dense_predictor(encoder, DenseConfig(2))
    assert model.get_layer("predictions").activation != keras.activations.relu
    images = noise(1, 32, 32, 3)
    [expected] = encoder.features(images, blocks=[-1])
    grid = keras.Model(model.input, model.get_layer("encoder_norm").output)
    np.testing.assert_allclose(
        to_numpy(grid(images))[:, 1:].reshape(expected.shape),
        to_numpy(expected),
        atol=1e-5,
    )


@quiet
@pytest.mark.parametrize("name", ["classes", "depth"])
def test_channels_are_last_whatever_keras_is_told(name):
    model = make_dense(name)
    before = keras.config.image_data_format()
    keras.config.set_image_data_format("channels_first")
    try:
        other = make_dense(name)
    finally:
        keras.config.set_image_data_format(before)
    x = noise(1, 32, 32, 3)
    np.testing.assert_array_equal(to_numpy(other(x)), to_numpy(model(x)))


def test_updates_that_would_be_lost_are_refused():
    encoder = make()
    encoder.enable_lora(2)
    with pytest.raises(ValueError, match="must not have LoRA updates"):
        dense_predictor(encoder, DenseConfig(2))
