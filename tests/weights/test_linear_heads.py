"""Linear heads of DINOv2 and DINOv3, by NumPy."""

import json

import keras
import numpy as np
import pytest
from safetensors.numpy import save_file

from keras_vit.models import DenseConfig, dense_predictor
from keras_vit.weights import load_dense_head
from tests.models.test_dense import make_dense
from tests.tiny import make, noise, to_numpy

IMAGES = noise(2, 32, 32, 3)


def arrays_of(norm, conv, inputs, outputs):
    """Return random arrays as PyTorch has them."""
    found = {
        f"{conv}.weight": noise(outputs, inputs, 1, 1, seed=1),
        f"{conv}.bias": noise(outputs, seed=2),
    }
    if norm:
        found |= {
            f"{norm}.weight": 1 + noise(inputs, seed=3, scale=0.1),
            f"{norm}.bias": noise(inputs, seed=4),
            f"{norm}.running_mean": noise(inputs, seed=5),
            f"{norm}.running_var": np.abs(noise(inputs, seed=6)) + 0.5,
            f"{norm}.num_batches_tracked": np.array(9),
        }
    return found


DINOV2 = {"norm": "decode_head.bn", "conv": "decode_head.conv_seg"}
DINOV3 = {
    "norm": "segmentation_model.1.batchnorm_layer",
    "conv": "segmentation_model.1.conv",
}
DEPTH = {"norm": None, "conv": "decode_head.conv_depth"}
CLASSES = {"num_outputs": 5, "use_batch_norm": True}
DEPTHS = {
    "num_outputs": 1,
    "readout": "join",
    "depth_bins": 16,
    "depth_range": (0.001, 80),
}


def enlarge(maps, size):
    """Return maps resized as PyTorch does without aligned corners."""
    for axis in (1, 2):
        count = maps.shape[axis]
        places = (np.arange(size) + 0.5) * count / size - 0.5
        places = np.clip(places, 0, count - 1)[:, None]
        matrix = np.maximum(1 - np.abs(places - np.arange(count)), 0)
        maps = np.moveaxis(np.tensordot(matrix, maps, (1, axis)), 0, axis)
    return maps


def features_of(encoder, head):
    rows = encoder.features(
        IMAGES, head.blocks, norm=head.use_norm, with_prefix=True
    )
    for patches, prefix in rows:
        patches, token = to_numpy(patches), to_numpy(prefix)[:, 0]
        yield patches
        if head.readout == "join":
            yield np.broadcast_to(token[:, None, None], patches.shape)


@pytest.mark.parametrize("blocks", [(-1,), (0, 2)], ids=str)
@pytest.mark.parametrize("layout", [DINOV2, DINOV3], ids=["v2", "v3"])
def test_a_head_for_classes(tmp_path, layout, blocks):
    encoder = make(depth=3, num_registers=2)
    head = DenseConfig(**CLASSES, blocks=blocks)
    model = dense_predictor(encoder, head)
    width = 24 * len(blocks)
    arrays = arrays_of(**layout, inputs=width, outputs=5)
    save_file(arrays, tmp_path / "head.safetensors")
    load_dense_head(model, tmp_path / "head.safetensors")
    x = np.concatenate([*features_of(encoder, head)], -1)
    norm, conv = layout["norm"], layout["conv"]
    x = x - arrays[f"{norm}.running_mean"]
    x = x / np.sqrt(arrays[f"{norm}.running_var"] + 1e-5)
    x = x * arrays[f"{norm}.weight"] + arrays[f"{norm}.bias"]
    x = x @ arrays[f"{conv}.weight"][:, :, 0, 0].T + arrays[f"{conv}.bias"]
    np.testing.assert_allclose(
        to_numpy(model(IMAGES)), enlarge(x, 32), atol=1e-3
    )


@pytest.mark.parametrize("use_norm", [True, False])
@pytest.mark.parametrize("blocks", [(-1,), (0, 2)], ids=str)
def test_a_head_for_depths(tmp_path, blocks, use_norm):
    encoder = make(depth=3)
    head = DenseConfig(**DEPTHS, blocks=blocks, use_norm=use_norm)
    model = dense_predictor(encoder, head)
    arrays = arrays_of(**DEPTH, inputs=48 * len(blocks), outputs=16)
    save_file(arrays, tmp_path / "head.safetensors")
    load_dense_head(model, tmp_path / "head.safetensors")
    # The features are enlarged there, four times.
    x = enlarge(np.concatenate([*features_of(encoder, head)], -1), 16)
    x = x @ arrays["decode_head.conv_depth.weight"][:, :, 0, 0].T
    x = np.maximum(x + arrays["decode_head.conv_depth.bias"], 0) + 0.1
    x = x / x.sum(-1, keepdims=True)
    depths = x @ np.linspace(0.001, 80, 16)
    expected = enlarge(depths[..., None], 32)
    found = to_numpy(model(IMAGES))
    np.testing.assert_allclose(found, expected, rtol=1e-4)
    assert model.task == "depth" and found.std() > 1
    model.save(tmp_path / "dense.keras")
    again = keras.saving.load_model(tmp_path / "dense.keras")
    np.testing.assert_array_equal(to_numpy(again(IMAGES)), found)


REFUSED = {
    "other width": (CLASSES, DINOV2, 48, "conv_seg.weight has the shape"),
    "no batch norm": ({"num_outputs": 5}, DINOV2, 24, "bn.bias is not expec"),
    "no bins": (CLASSES, DEPTH, 24, "for depths in bins.*depth_bins=None"),
    "no classes": (DEPTHS, DINOV2, 48, "for classes.*depth_bins=16"),
    "another head": (
        CLASSES,
        {"norm": None, "conv": "decode_head.project"},
        24,
        "must be a linear head of DINOv2 or DINOv3",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_does_not_fit_is_refused(tmp_path, case):
    choices, layout, width, words = REFUSED[case]
    model = dense_predictor(make(), DenseConfig(**choices))
    before = [to_numpy(weight) for weight in model.weights]
    outputs = model.head.depth_bins or model.head.num_outputs
    arrays = arrays_of(**layout, inputs=width, outputs=outputs)
    save_file(arrays, tmp_path / "head.safetensors")
    with pytest.raises(ValueError, match=words) as error:
        load_dense_head(model, tmp_path / "head.safetensors")
    assert str(tmp_path) in str(error.value)
    for weight, value in zip(model.weights, before):
        np.testing.assert_array_equal(to_numpy(weight), value)


def test_other_models_are_refused(tmp_path):
    tuned = dense_predictor(make(), DenseConfig(5))
    tuned.enable_lora(2)
    for model, words in (
        (make(), "must be a DensePredictor"),
        (make_dense("classes"), "with head='linear'"),
        (tuned, "no LoRA updates"),
    ):
        with pytest.raises(ValueError, match=words):
            load_dense_head(model, tmp_path / "none.safetensors")


@pytest.mark.parametrize(
    "choices, words",
    [
        ({"depth_bins": 0}, "`depth_bins` must be positive"),
        ({"num_outputs": 2}, "unless num_outputs=1.*num_outputs=2"),
        ({"activation": "relu"}, "unless activation=None.*'relu'"),
        ({"head": "dpt", "blocks": (0, 0, 1, 1)}, "unless head='linear'"),
        ({"depth_range": (10, 1)}, r"`depth_range` must .*=\(10, 1\)"),
        ({"depth_range": 10}, "`depth_range` must .*=10"),
    ],
    ids=json.dumps,
)
def test_invalid_depths_are_refused(choices, words):
    with pytest.raises(ValueError, match=words):
        DenseConfig(**{**DEPTHS, **choices})
