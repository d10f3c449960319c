"""Files of LoRA updates: written, read, and refused where they do not fit."""

import json

import numpy as np
import pytest
import safetensors.numpy

from keras_vit import load_lora, save_lora
from keras_vit.weights import load_checkpoint
from tests.models.test_freezing import trained
from tests.tiny import make, noise, to_numpy

IMAGES = noise(2, 32, 32, 3)


def tuned(rank=2, layers=("qkv", "mlp_out"), keep=("head",), **choices):
    model = make(**choices)
    model.enable_lora(rank, layers, alpha=3, keep=keep)
    for index, weight in enumerate(model.trainable_weights):
        weight.assign(noise(*weight.shape, seed=[5, index], scale=0.2))
    return model


@pytest.fixture(scope="module")
def model():
    """Return the model whose file is `saved`; it must not be changed."""
    return tuned()


@pytest.fixture(scope="module")
def saved(model, tmp_path_factory):
    path = tmp_path_factory.mktemp("lora") / "saved.safetensors"
    save_lora(model, path)
    return path


@pytest.fixture
def path(tmp_path):
    return tmp_path / "lora.safetensors"


def test_the_file_has_what_is_trained_and_its_description(model, saved):
    arrays = safetensors.numpy.load_file(saved)
    assert arrays.keys() == trained(model)
    for weight in model.trainable_weights:
        np.testing.assert_array_equal(arrays[weight.path], to_numpy(weight))
    with safetensors.safe_open(saved, "numpy") as file:
        described = json.loads(file.metadata()["keras_vit"])["lora"]
    assert described == {"rank": 2, "alpha": 3, "layers": ["qkv", "mlp_out"]}


@pytest.mark.parametrize("keep", [("head",), (), ("norms", "biases")], ids=str)
def test_a_plain_model_becomes_the_tuned_one(path, keep):
    model = tuned(keep=keep)
    save_lora(model, path)
    again = make()
    load_lora(again, path)
    assert trained(again) == trained(model)
    np.testing.assert_array_equal(
        to_numpy(again(IMAGES)), to_numpy(model(IMAGES))
    )


def test_the_same_updates_are_replaced(model, saved):
    again = make()
    again.enable_lora(2, ("qkv", "mlp_out"), alpha=3)
    load_lora(again, saved)
    np.testing.assert_array_equal(
        to_numpy(again(IMAGES)), to_numpy(model(IMAGES))
    )


WRONG_MODELS = {
    "width": (
        {"width": 36},
        r"block_00/attention/qkv has for lora_kernel_a.*\(24, 2\) in the file "
        r"and \(36, 2\) in the model",
    ),
    "depth": (
        {"depth": 1},
        "layer block_01/attention/qkv has for lora_kernel_a.*and nothing in",
    ),
    "deeper": (
        {"depth": 3},
        "layer block_02/attention/qkv has for lora_kernel_a nothing in the",
    ),
    "classes": (
        {"num_classes": 5},
        r"predictions has for bias.*\(7,\).*\(5,\).*with_num_classes\(7\)",
    ),
}


@pytest.mark.parametrize("name", WRONG_MODELS)
def test_a_wrong_model_is_refused_and_not_changed(saved, name):
    choices, message = WRONG_MODELS[name]
    model = make(**choices)
    before = [to_numpy(weight) for weight in model.weights]
    with pytest.raises(ValueError, match=message):
        load_lora(model, saved)
    for weight, old in zip(model.weights, before, strict=True):
        np.testing.assert_array_equal(to_numpy(weight), old)
    assert len(trained(model)) == len(model.weights)


def test_other_updates_are_refused(saved):
    with pytest.raises(ValueError, match="no LoRA, or the same.*'rank': 1"):
        load_lora(tuned(rank=1), saved)


def test_a_model_without_lora_is_not_written(model, path):
    with pytest.raises(ValueError, match="add them with `model.enable_lora`"):
        save_lora(make(), path)
    with pytest.raises(ValueError, match=r"a \.safetensors file.*lora.npz"):
        save_lora(model, "lora.npz")
    assert not path.exists()


@pytest.mark.parametrize(
    "described",
    [
        None,
        {},
        {"lora": 3},
        {"lora": {"rank": "2", "alpha": 3, "layers": ["qkv"]}},
        {"lora": {"rank": 2, "alpha": 3}},
    ],
    ids=str,
)
def test_a_file_of_another_kind_is_refused(path, described):
    metadata = {}
    if described is not None:
        described = {"written_by": "keras_vit", **described}
        metadata = {"keras_vit": json.dumps(described)}
    safetensors.numpy.save_file({"a": np.zeros(3, "f4")}, path, metadata)
    with pytest.raises(ValueError, match="that `save_lora` has written"):
        load_lora(make(), path)


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"rank": 0}, "does not fit the model: `rank`.*=0"),
        ({"rank": True}, "does not fit the model: `rank`"),
        ({"alpha": float("nan")}, "`alpha` must be a positive number"),
        ({"layers": ["mlp"]}, "`layers` must be one of"),
        ({"layers": [["qkv"]]}, "`layers` must be one of"),
        ({"layers": ["qkv", "qkv"]}, "does not fit the model: the layer"),
        ({"rank": 3}, r"\(24, 2\) in the file and \(24, 3\) in the model"),
    ],
    ids=str,
)
def test_a_wrong_description_is_refused(saved, path, changes, message):
    arrays = safetensors.numpy.load_file(saved)
    described = {"rank": 2, "alpha": 3, "layers": ["qkv", "mlp_out"]}
    described = {"written_by": "keras_vit", "lora": described | changes}
    metadata = {"keras_vit": json.dumps(described)}
    safetensors.numpy.save_file(arrays, path, metadata)
    model = make()
    with pytest.raises(ValueError, match=message):
        load_lora(model, path)
    assert len(trained(model)) == len(model.weights)


def test_an_array_of_whole_numbers_is_refused(saved, path):
    with safetensors.safe_open(saved, "numpy") as file:
        metadata = file.metadata()
    arrays = safetensors.numpy.load_file(saved)
    name = next(name for name in arrays if name.endswith("lora_kernel_b"))
    arrays[name] = np.ones_like(arrays[name], "int32")
    safetensors.numpy.save_file(arrays, path, metadata)
    with pytest.raises(ValueError, match="has for lora_kernel_b <i4"):
        load_lora(make(), path)


def test_a_damaged_file_is_refused(saved, path):
    path.write_bytes(saved.read_bytes()[:-5])
    with pytest.raises(ValueError, match="lora.safetensors cannot be read"):
        load_lora(make(), path)


def test_the_file_is_no_checkpoint(saved):
    with pytest.raises(ValueError, match="LoRA"):
        load_checkpoint(make(), saved)
