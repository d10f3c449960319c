"""Files of the TensorFlow and Flax classes of transformers 4."""

import json
import shutil

import h5py
import keras
import numpy as np
import pytest
from safetensors.numpy import save_file

from keras_vit import from_checkpoint
from keras_vit.convert import convert
from keras_vit.weights.containers import OPENERS, open_file
from tests.golden import FOLDER
from tests.tiny import to_numpy

GOLDEN = FOLDER / "transformers_4"
NAMES = sorted(path.name for path in GOLDEN.iterdir() if path.is_dir())
each_case = pytest.mark.parametrize("name", NAMES)
both = pytest.mark.parametrize("name", ["tf_vit", "flax_vit"])
# A folder of weights need not say how its images are read; CLIP is known.
pytestmark = pytest.mark.filterwarnings("ignore:.*preprocess_input:UserWarning")


def weights_of(name):
    [path] = {*(GOLDEN / name).iterdir()} - {GOLDEN / name / "config.json"}
    return path


def raw_arrays(name):
    """Return the arrays under the names in the file."""
    path = weights_of(name)
    with OPENERS[path.suffix](path) as file:
        return {key: file.read(key) for key in file.arrays}


def arrays_of(path):
    with open_file(path) as file:
        return {key: file.read(key) for key in file.arrays}


def assert_same(arrays, expected):
    assert arrays.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_array_equal(arrays[name], array, strict=True)


def assert_answers(model, name):
    """Assert that a model has the output of the class of transformers."""
    with np.load(GOLDEN / f"{name}.expected.npz") as file:
        images = file["x"]
        [(key, expected)] = [(k, file[k]) for k in file.files if k != "x"]
    if key in ("hidden", "last_hidden_state"):
        names = [layer.name for layer in model.layers]
        is_normed = key != "hidden" and "encoder_norm" in names
        last = model.get_layer("encoder_norm" if is_normed else "block_00")
        model = keras.Model(model.input, last.output)
    outputs = to_numpy(model(images))
    if key == "image_embeds":
        outputs = outputs / np.linalg.norm(outputs, axis=-1, keepdims=True)
    np.testing.assert_allclose(outputs, expected, rtol=0, atol=1e-5)


@each_case
def test_the_model_answers_as_its_class(name):
    model = from_checkpoint(GOLDEN / name)
    assert not model.load_report.reset and not model.load_report.resized
    assert_answers(model, name)


@each_case
def test_arrays_are_those_of_the_class_of_pytorch(name):
    arrays = arrays_of(GOLDEN / name)
    expected = arrays_of(GOLDEN / f"{name}.torch.safetensors")
    for rows in (arrays, expected):
        # A scalar in PyTorch, and (1,) in TensorFlow; and constants.
        rows.pop("logit_scale", None)
        for key in [key for key in rows if key.endswith("position_ids")]:
            del rows[key]
    if name.startswith("tf") and name.endswith("model"):
        # Their base models have the prefix that PyTorch drops.
        arrays = {key.partition(".")[2]: x for key, x in arrays.items()}
    assert_same(arrays, expected)


@both
def test_the_file_alone_beside_its_configuration(name, tmp_path):
    source = weights_of(name)
    for file in (source.name, f"mine{source.suffix}"):
        folder = tmp_path / file
        folder.mkdir()
        shutil.copy(source.parent / "config.json", folder)
        shutil.copy(source, folder / file)
        assert_answers(from_checkpoint(folder / file), name)


def test_a_repository_with_the_files_of_all_libraries(tmp_path):
    for name in ("tf_vit", "flax_vit"):
        shutil.copytree(GOLDEN / name, tmp_path, dirs_exist_ok=True)
    (tmp_path / "pytorch_model.bin").write_bytes(b"\x80\2.")
    assert_answers(from_checkpoint(tmp_path), "tf_vit")
    path = tmp_path / "flax_model.msgpack"
    assert_answers(from_checkpoint(path), "flax_vit")


@both
def test_the_safetensors_of_these_classes(name, tmp_path):
    """`save_pretrained` could write them with their names and kernels."""
    shutil.copy(GOLDEN / name / "config.json", tmp_path)
    arrays = {
        key.partition("/")[2].partition("/")[2]
        if name == "tf_vit"
        else key.replace("/", "."): array
        for key, array in raw_arrays(name).items()
    }
    save_file(arrays, tmp_path / "model.safetensors")
    assert_same(arrays_of(tmp_path), arrays_of(GOLDEN / name))
    assert_answers(from_checkpoint(tmp_path), name)


def write_array(array):
    """Return an array of float32 as Flax writes it into MessagePack."""
    sizes = b"".join(b"\xcd" + n.to_bytes(2, "big") for n in array.shape)
    data = array.tobytes()
    content = bytes([0x93, 0x90 + array.ndim]) + sizes + b"\xa7float32"
    content += b"\xc6" + len(data).to_bytes(4, "big") + data
    return b"\xc9" + len(content).to_bytes(4, "big") + b"\1" + content


def write_msgpack(arrays):
    rows = b"".join(
        b"\xd9" + bytes([len(key)]) + key.encode() + write_array(array)
        for key, array in arrays.items()
    )
    return b"\xde" + len(arrays).to_bytes(2, "big") + rows


@both
def test_shards(name, tmp_path):
    shutil.copy(GOLDEN / name / "config.json", tmp_path)
    arrays, weight_map, whole = raw_arrays(name), {}, weights_of(name)
    for number in (1, 2):
        file = f"{whole.stem}-0000{number}-of-00002{whole.suffix}"
        part = {key: arrays[key] for key in [*arrays][number % 2 :: 2]}
        if name == "tf_vit":
            # Without the names of the layer and of the model; the index has
            # the latter.
            part = {key.partition("/")[2]: x for key, x in part.items()}
            with h5py.File(tmp_path / file, "w") as shard:
                for key, array in part.items():
                    shard[key.partition("/")[2]] = array
        else:
            (tmp_path / file).write_bytes(write_msgpack(part))
        weight_map |= dict.fromkeys(part, file)
    index = tmp_path / f"{whole.name}.index.json"
    index.write_text(json.dumps({"weight_map": weight_map}))
    assert_same(arrays_of(tmp_path), arrays_of(GOLDEN / name))
    assert_answers(from_checkpoint(tmp_path), name)


@both
def test_converted_for_pytorch(name, tmp_path):
    convert(str(GOLDEN / name), str(tmp_path / "new"), "huggingface")
    expected = arrays_of(GOLDEN / f"{name}.torch.safetensors")
    assert_same(arrays_of(tmp_path / "new"), expected)


def test_a_name_that_is_stored_twice(tmp_path):
    arrays = {
        **raw_arrays("flax_vit"),
        "vit.layernorm.weight": np.ones(12, "f"),
    }
    path = tmp_path / "flax_model.msgpack"
    path.write_bytes(write_msgpack(arrays))
    with pytest.raises(ValueError, match="flax_model.*vit.layernorm.weight"):
        open_file(path)


def test_changed_bytes_of_messagepack_are_read_or_refused(tmp_path):
    """Whatever they claim, no error but a ValueError that names the file."""
    good = weights_of("flax_beit").read_bytes()
    draws, path = np.random.default_rng(0), tmp_path / "m.msgpack"
    num_refused = 0
    for trial in range(200):
        data = bytearray(good)
        for at in draws.integers(0, len(data), 1 + trial % 3 * 40):
            data[at] = draws.integers(256)
        path.write_bytes(
            data[: draws.integers(len(data))] if trial % 4 else data
        )
        try:
            with open_file(path) as file:
                for key, array in file.arrays.items():
                    assert file.read(key).shape == array.shape
        except ValueError as error:
            assert str(path) in str(error)
            num_refused += 1
    assert num_refused > 150
