"""Checkpoints of other libraries, read and written back."""

import json

import numpy as np
import pytest

from keras_vit import from_checkpoint, load_checkpoint, save_checkpoint
from keras_vit.models.vit import VisionTransformer
from keras_vit.weights.containers import open_file
from keras_vit.weights.write import WRITERS
from tests.tiny import randomize, to_numpy
from tests.weights.cases import (
    FOLDER,
    NAMES,
    arguments_of,
    family_of,
    model_of,
    path_of,
)
from tests.weights.test_golden_answers import (
    ONE_OF_EACH_FAMILY,
    answer,
    close,
    each_case,
)

WRITTEN = [name for name in NAMES if family_of(name) in WRITERS]
ENDINGS = {"official": ".npz", "big_vision": ".npz", "timm": ".safetensors"}
# What a family has no way to say, and the words of the error.
REFUSED = {
    ("official_pre_logits.npz", "timm"): "representation_size",
    ("official_pre_logits.npz", "huggingface"): "representation_size",
    ("official_hybrid.npz", "big_vision"): "stem",
    ("official_hybrid.npz", "huggingface"): "stem",
    ("official_hybrid_root_only.npz", "big_vision"): "stem",
    ("official_hybrid_root_only.npz", "huggingface"): "stem",
    ("big_vision_map.npz", "official"): "pooling",
    ("big_vision_map.npz", "huggingface"): "has no classifier",
    ("big_vision_sincos_rep.npz", "timm"): "representation_size",
    ("big_vision_sincos_rep.npz", "huggingface"): "representation_size",
    ("timm_avg.safetensors", "official"): "pooling",
    ("timm_avg.safetensors", "big_vision"): "pooling",
    ("timm_avg.safetensors", "huggingface"): "pooling",
    ("keras_hub", "timm"): "representation_size",
    ("keras_hub", "huggingface"): "representation_size",
    ("vit_keras.h5", "timm"): "representation_size",
    ("vit_keras.h5", "huggingface"): "representation_size",
}
# They hold the models of other files.
TWINS = {"keras_hub_whole.weights.h5", "vit_keras.weights.h5"}
# To its own family a model is written in the test above.
OTHERS = [
    (name, layout)
    for name in NAMES
    for layout in WRITERS
    if name not in TWINS and family_of(name) != layout
]


def arrays_of(path):
    with open_file(path) as checkpoint:
        return {name: checkpoint.read(name) for name in checkpoint.arrays}


def test_all_golden_checkpoints_are_cases():
    names = {path.name for path in FOLDER.iterdir()}
    ends = (".expected.npz", ".json", ".py", ".tsv", ".md")
    names = {name for name in names if not name.endswith(ends)}
    others = {"__pycache__", "position_resize.npz", "version_0_1"}
    others |= {"hf_vit_mae"}  # For tests/pretraining.
    others |= {"towers"}  # For test_text_towers.py.
    others |= {"dense"}  # For tests/models/test_dense.py.
    others |= {"transformers_4"}  # For test_transformers_4.py.
    assert names - others == set(NAMES)


@each_case
def test_nothing_is_left_over(name):
    report = model_of(name).load_report
    assert report.layout == family_of(name)
    assert not report.reset and not report.resized and not report.notes
    with open_file(path_of(name)) as checkpoint:
        stored = set(checkpoint.arrays)
    assert stored == set(report.used) | set(report.ignored)
    assert all("optimizer/" in entry for entry in report.ignored)


@pytest.mark.parametrize("name", WRITTEN)
def test_written_back_it_is_the_same_file(name, tmp_path):
    """Name by name and byte by byte, in the dialect that was read."""
    family = family_of(name)
    path = tmp_path / f"again{ENDINGS.get(family, '')}"
    save_checkpoint(model_of(name), path, layout=family)
    source, again = arrays_of(path_of(name)), arrays_of(path)
    assert again.keys() == source.keys()
    for key, array in source.items():
        assert again[key].shape == array.shape
        assert again[key].tobytes() == array.tobytes()


def test_the_configuration_of_hugging_face_is_the_same(tmp_path):
    save_checkpoint(model_of("hf_vit"), tmp_path, layout="huggingface")
    ours = json.loads((tmp_path / "config.json").read_text())
    theirs = json.loads((path_of("hf_vit") / "config.json").read_text())
    own = {"encoder_stride", "dtype", "transformers_version"}
    own |= {"pooler_act", "pooler_output_size"}
    for key in theirs.keys() - own:
        assert ours[key] == theirs[key], key


@pytest.mark.parametrize(("name", "layout"), OTHERS)
def test_from_family_to_family(name, layout, tmp_path):
    """Written for another family, the model still answers the same."""
    model = model_of(name)
    path = tmp_path / f"other{ENDINGS.get(layout, '')}"
    refused = REFUSED.get((name, layout))
    if refused:
        with pytest.raises(ValueError, match=refused):
            save_checkpoint(model, path, layout=layout)
        assert not path.exists()
        return
    save_checkpoint(model, path, layout=layout)
    again = from_checkpoint(path, **arguments_of(name))
    assert again.load_report.layout == layout
    assert again.config.activation == model.config.activation
    close(answer(again, name), answer(model, name), 1e-6)


@pytest.mark.parametrize("name", ONE_OF_EACH_FAMILY)
def test_loading_into_a_model_that_is_there(name):
    source = model_of(name)
    model = randomize(VisionTransformer(source.config))
    report = load_checkpoint(model, path_of(name), head="strict")
    assert not report.reset
    for ours, theirs in zip(model.weights, source.weights):
        np.testing.assert_array_equal(to_numpy(ours), to_numpy(theirs))
