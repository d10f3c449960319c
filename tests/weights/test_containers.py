"""The content of a checkpoint file and of the JSON beside it."""

import json
import shutil

import numpy as np
import pytest
from safetensors.numpy import save_file

from keras_vit import from_checkpoint, save_checkpoint
from keras_vit.weights.containers import open_file
from tests.tiny import make
from tests.weights.cases import TIMM, path_of, stored_in

pytestmark = pytest.mark.filterwarnings("ignore:.*preprocess_input:UserWarning")
TIMM_JSON = {
    "architecture": "vit_base_patch16_224",
    "model_args": {"num_heads": 3, "embed_dim": 24, "act_layer": "relu"},
    "pretrained_cfg": {"mean": [0.1, 0.2, 0.3], "std": [0.3, 0.2, 0.1]},
}


def write_timm(folder, name="model.safetensors", config=TIMM_JSON):
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    path = folder / name
    if path.suffix == ".npz":
        np.savez(path, **stored_in(TIMM))
    else:
        shutil.copy(path_of(TIMM), path)
    return path


@pytest.mark.parametrize("is_folder", [False, True])
@pytest.mark.parametrize(
    "name",
    [
        "model.safetensors",
        "model.fp16.safetensors",
        "pytorch_model.safetensors",
        "checkpoint-9.safetensors",
        "vit.npz",
    ],
)
def test_a_configuration_describes_a_file_of_any_name(
    name, is_folder, tmp_path
):
    path = write_timm(tmp_path, name)
    model = from_checkpoint(tmp_path if is_folder else path)
    assert model.config.activation == "relu"
    assert model.config.preprocessing.mean == (0.1, 0.2, 0.3)


def test_the_images_of_a_file_of_another_name(tmp_path):
    path = write_timm(tmp_path, "other.safetensors", {})
    images = {"image_mean": [0.1, 0.2, 0.3], "image_std": [0.3, 0.2, 0.1]}
    beside = tmp_path / "preprocessor_config.json"
    beside.write_text(json.dumps(images))
    with pytest.warns(UserWarning, match="preprocess_input"):
        model = from_checkpoint(path, num_heads=3)
    assert model.config.preprocessing.mean == (0.1, 0.2, 0.3)


def test_a_configuration_that_may_be_of_another_file_is_a_warning(tmp_path):
    write_timm(tmp_path, "a.safetensors")
    path = write_timm(tmp_path, "b.safetensors")
    with pytest.warns(UserWarning, match="config.json is not read for b.safe"):
        model = from_checkpoint(path, num_heads=3)
    assert model.config.activation == "exact"
    with pytest.raises(ValueError, match="Pass the path of one"):
        from_checkpoint(tmp_path)


def test_other_json_in_the_folder_describes_no_model(tmp_path):
    path = write_timm(tmp_path, "other.safetensors", {"num_heads": 3})
    with pytest.raises(ValueError, match="does not store the number of heads"):
        from_checkpoint(path)


def halves(arrays):
    return list(arrays)[::2], list(arrays)[1::2]


def write_shards(folder, index="model.safetensors.index.json", lost=()):
    """Write a file of timm as two shards; the index lacks some arrays."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(TIMM_JSON))
    arrays, weight_map = stored_in(TIMM), {}
    stem = "model.fp16" if "fp16" in index else "model"
    for number, names in enumerate(halves(arrays), 1):
        file = f"{stem}-0000{number}-of-00002.safetensors"
        save_file({name: arrays[name] for name in names}, folder / file)
        weight_map |= dict.fromkeys(names, file)
    weight_map = {k: v for k, v in weight_map.items() if not k.startswith(lost)}
    (folder / index).write_text(json.dumps({"weight_map": weight_map}))
    return arrays


@pytest.mark.parametrize(
    ("index", "lost"),
    [
        ("model.safetensors.index.json", ()),
        ("model.safetensors.index.json", ("blocks.0.", "norm.")),
        ("model.safetensors.index.fp16.json", ("head.",)),
        ("model.fp16.safetensors.index.json", ()),
    ],
)
def test_shards_with_a_variant_and_an_index_that_lacks_arrays(
    index, lost, tmp_path
):
    arrays = write_shards(tmp_path, index, lost)
    model = from_checkpoint(tmp_path)
    assert set(model.load_report.used) == set(arrays)
    assert model.config.activation == "relu"


def test_an_index_that_lacks_a_whole_shard(tmp_path):
    write_shards(tmp_path, lost=tuple(halves(stored_in(TIMM))[1]))
    with pytest.raises(ValueError, match="does not name model-00002-of-00002"):
        from_checkpoint(tmp_path)


def test_links_to_files_are_followed(tmp_path):
    arrays = write_shards(tmp_path)
    file = tmp_path / "model-00001-of-00002.safetensors"
    file.rename(tmp_path / "blob")
    file.symlink_to(tmp_path / "blob")
    with open_file(tmp_path) as checkpoint:
        assert set(checkpoint.arrays) == set(arrays)
        for name, array in arrays.items():
            np.testing.assert_array_equal(checkpoint.read(name), array)


@pytest.mark.parametrize("file", ["/a.safetensors", "", "config.json", 5])
def test_an_index_that_points_elsewhere(tmp_path, file):
    index = {"weight_map": dict.fromkeys(write_shards(tmp_path), file)}
    path = tmp_path / "model.safetensors.index.json"
    path.write_text(json.dumps(index))
    with pytest.raises(ValueError, match="is not the name of a .safetensors"):
        from_checkpoint(tmp_path)


INDEX = "model.safetensors.index.json"
FIRST = b'"model-00001-of-00002.safetensors"'


@pytest.mark.parametrize(
    ("file", "text", "words"),
    [
        (INDEX, b"[]", "not a JSON object"),
        (INDEX, b'{"weight_map": []}', "no weight_map"),
        (INDEX, b'{"weight_map": {"a": "9.safetensors"}}', "No such file"),
        (INDEX, b'{"weight_map": {"a": ' + FIRST + b"}}", "does not name"),
        ("config.json", b"", "config.json cannot be read"),
        ("config.json", b"{" + b" " * 2**24 + b"}", "bytes of JSON"),
        ("config.json", b'{"a": "\xff"}', "utf-8"),
        ("config.json", b'{"a":' + b"[" * 100_000, "recursion"),
    ],
    ids=range(8),
)
def test_a_bad_json_file(tmp_path, file, text, words):
    write_shards(tmp_path)
    (tmp_path / file).write_bytes(text)
    with pytest.raises(ValueError, match=words) as caught:
        from_checkpoint(tmp_path)
    assert str(tmp_path) in str(caught.value)


def test_an_array_that_an_index_names_and_its_files_lack(tmp_path):
    write_shards(tmp_path)
    index = json.loads((tmp_path / INDEX).read_text())
    index["weight_map"]["a"] = "model-00001-of-00002.safetensors"
    (tmp_path / INDEX).write_text(json.dumps(index))
    with pytest.raises(ValueError, match="lack a"):
        from_checkpoint(tmp_path)


@pytest.mark.parametrize("value", ["NaN", "-1", "[null, null, 3]"])
def test_senseless_hints_are_passed_over(tmp_path, value):
    shutil.copytree(path_of("hf_vit"), tmp_path / "hf")
    keys = ("num_attention_heads", "image_size", "layer_norm_eps")
    keys += ("pooling", "posemb", "hidden_act")
    config = "{" + ",".join(f'"{key}": {value}' for key in keys) + "}"
    (tmp_path / "hf/config.json").write_text(config)
    config = from_checkpoint(tmp_path / "hf", num_heads=3).config
    assert config.activation == "exact"
    assert config.layer_norm_epsilon == 1e-12


@pytest.mark.parametrize(
    ("name", "has_model"),
    [("adapter_model.safetensors", False), ("adapter_model.bin", True)],
)
def test_a_folder_of_an_adapter_says_to_merge_it(name, has_model, tmp_path):
    if has_model:
        write_timm(tmp_path)
    (tmp_path / "adapter_config.json").write_text('{"peft_type": "LORA"}')
    (tmp_path / name).write_bytes(b"")
    with pytest.raises(ValueError, match=f"{name} is an adapter.*merge_and_u"):
        from_checkpoint(tmp_path)


POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n"


PAGE = b"\n<!DOCTYPE html><html><title>Sign in</title>"
XML = b"<?xml version='1.0'?><Error>AccessDenied</Error>"
ERROR = b'{"error": "Invalid username or password."}'
ENTRY = b"Entry not found"


@pytest.mark.parametrize(
    ("name", "data", "words"),
    [
        ("m.npz", POINTER, "m.npz is a pointer of Git LFS"),
        ("m.safetensors", PAGE, "m.safetensors is a web page"),
        ("m.h5", XML, "m.h5 is a web page"),
        ("m.npz", ERROR, "m.npz is text, not weights.*Invalid username"),
        ("f/model.safetensors", ENTRY, "is text, not weights"),
        ("f/model.weights.h5", POINTER, "is a pointer of Git LFS"),
        ("f/config.json", PAGE, "config.json is a web page"),
        ("f/config.json", ENTRY, "config.json cannot be read"),
        ("f/config.json", ERROR, "config.json .*server: 'Invalid username"),
        ("f/model.safetensors.index.json", POINTER, "is a pointer of Git LFS"),
        ("f/model-00001-of-00002.safetensors", PAGE, "is a web page"),
    ],
)
def test_what_stands_in_place_of_a_file_is_named(name, data, words, tmp_path):
    path, folder = tmp_path / name, tmp_path / "f"
    if "index" in name or "0001" in name:
        write_shards(folder)
    elif name.startswith("f/"):
        write_timm(folder)
    if name == "f/model.weights.h5":
        (folder / "model.safetensors").unlink()
    path.write_bytes(data)
    with pytest.raises(ValueError, match=words) as caught:
        from_checkpoint(folder if name.startswith("f/") else path)
    assert path.name in str(caught.value)


def test_what_a_file_says_of_itself_goes_before_what_lies_beside(tmp_path):
    path = tmp_path / "m.safetensors"
    save_checkpoint(make(activation="tanh"), path, layout="timm")
    path.with_suffix(".json").write_text('{"activation": "exact"}')
    assert from_checkpoint(path).config.activation == "tanh"
