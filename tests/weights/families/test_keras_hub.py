"""keras-hub: reading its files, and refusing some."""

import json
import shutil

import h5py
import keras
import ml_dtypes
import numpy as np
import pytest

from keras_vit import from_checkpoint
from tests.tiny import noise, to_numpy
from tests.weights.cases import answer_of, expected_of, path_of


def test_an_average_over_the_class_token_is_refused(tmp_path):
    shutil.copytree(path_of("keras_hub"), tmp_path / "gap")
    task = json.loads((tmp_path / "gap/task.json").read_text())
    task["config"]["pooling"] = "gap"
    (tmp_path / "gap/task.json").write_text(json.dumps(task))
    with pytest.raises(ValueError, match="averages the class token"):
        from_checkpoint(tmp_path / "gap")


def edited_task(folder, **changes):
    """Copy the golden preset with other entries in task.json."""
    shutil.copytree(path_of("keras_hub"), folder)
    task = json.loads((folder / "task.json").read_text())
    task["config"] |= changes
    (folder / "task.json").write_text(json.dumps(task))
    return folder


OF_KERAS = {"module": "builtins", "class_name": "function"}
ACTIVATIONS = {
    None: lambda x: x,
    "linear": lambda x: x,
    "softmax": keras.ops.softmax,
    "sigmoid": keras.ops.sigmoid,
}


@pytest.mark.parametrize("is_function", [False, True])
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_the_activation_of_the_head(name, is_function, tmp_path):
    value = {**OF_KERAS, "config": name} if name and is_function else name
    folder = edited_task(tmp_path / "preset", activation=value)
    x = expected_of("keras_hub")["x"]
    expected = ACTIVATIONS[name](answer_of("keras_hub"))
    model = from_checkpoint(folder)
    np.testing.assert_allclose(to_numpy(model(x)), expected, atol=1e-5)
    logits = from_checkpoint(folder, classifier_activation="linear")
    assert logits.config.classifier_activation is None


def test_an_activation_that_keras_has_not_is_refused(tmp_path):
    folder = edited_task(tmp_path / "preset", activation="of_my_own")
    with pytest.raises(ValueError, match="of_my_own"):
        from_checkpoint(folder)


def rewrite(folder, change):
    """Replace the arrays of the head of a preset by `change` of them."""
    path = folder / "task.weights.h5"
    arrays = {}
    with h5py.File(path) as file:
        file.visititems(
            lambda name, item: (
                arrays.update({name: item[()]})
                if isinstance(item, h5py.Dataset)
                else None
            )
        )
    with h5py.File(path, "w") as file:
        for name, value in change(arrays).items():
            file.create_dataset(name, data=value)


def test_as_many_classes_as_features(tmp_path):
    folder = edited_task(tmp_path / "preset", num_classes=24)
    kernel = noise(24, 24)
    head = {"layers/dense/vars/0": kernel, "layers/dense/vars/1": noise(24)}
    rewrite(folder, lambda arrays: head)
    model = from_checkpoint(folder)
    assert model.config.representation_size is None
    kept = to_numpy(model.get_layer("predictions").kernel)
    np.testing.assert_array_equal(kept, kernel)


@pytest.mark.parametrize("rest", [{}, {"layers/dense/vars/1": np.ones(9)}])
def test_a_head_that_task_json_states_and_the_file_lacks(rest, tmp_path):
    folder = edited_task(tmp_path / "preset")
    rewrite(folder, lambda arrays: rest)
    with pytest.raises(ValueError, match="task.json is of|lacks the head"):
        from_checkpoint(folder)


def test_bfloat16_as_keras_stores_it(tmp_path):
    rounded = tmp_path / "rounded"
    shutil.copytree(path_of("keras_hub"), tmp_path / "preset")
    shutil.copytree(path_of("keras_hub"), rounded)
    for folder in (tmp_path / "preset", rounded):
        for path in folder.glob("*.weights.h5"):
            with h5py.File(path, "r+") as file:
                _round(file, is_opaque=folder is not rounded)
    ours, theirs = map(from_checkpoint, (tmp_path / "preset", rounded))
    for one, other in zip(ours.weights, theirs.weights):
        np.testing.assert_array_equal(to_numpy(one), to_numpy(other))


def _round(group, is_opaque):
    """Round the arrays of a group to bfloat16, stored as two bytes or not."""
    for name, item in list(group.items()):
        if isinstance(item, h5py.Group):
            _round(item, is_opaque)
        elif item.dtype.kind == "f":
            value = item[()].astype(ml_dtypes.bfloat16)
            del group[name]
            stored = value.view("V2") if is_opaque else value.astype("f4")
            group.create_dataset(name, data=stored)
