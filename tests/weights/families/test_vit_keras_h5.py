"""vit-keras: the names of its blocks in every version of Keras."""

import json

import numpy as np
import pytest

from keras_vit import from_checkpoint
from tests.weights import forms
from tests.weights.cases import assert_answers, stored_in

# vit-keras named its blocks otherwise in every version of Keras.
H5_DIALECTS = {
    "slash": (r"Transformer_(encoder|posembed)", r"Transformer/\1"),
    "plain": (r"Transformer_(encoder|posembed)", r"\1"),
    "short": (r"/MlpBlock_3/Transformer_encoderblock_\d/?_?", "/"),
    "colon": (r"$", ":0"),
}


@pytest.mark.parametrize("dialect", H5_DIALECTS)
def test_the_dialects_of_vit_keras(dialect, tmp_path):
    arrays = stored_in("vit_keras.h5")
    change = H5_DIALECTS[dialect]
    arrays = forms.renamed(arrays, change)
    assert arrays.keys() != stored_in("vit_keras.h5").keys()
    np.savez(tmp_path / "m.npz", **arrays)
    model = from_checkpoint(
        tmp_path / "m.npz", num_heads=3, image_size=(32, 48)
    )
    assert_answers(model, "vit_keras.h5")


@pytest.mark.parametrize("name", ["linear", "sigmoid"])
def test_the_activation_of_the_head_of_a_whole_model(name, tmp_path):
    path = tmp_path / "m.npz"
    np.savez(path, **stored_in("vit_keras.h5"))
    head = {"name": "head", "activation": name}
    layers = [{"class_name": "Dense", "config": head}]
    config = {"class_name": "Functional", "config": {"layers": layers}}
    path.with_suffix(".json").write_text(json.dumps(config))
    model = from_checkpoint(path, num_heads=3, image_size=(32, 48))
    expected = None if name == "linear" else name
    assert model.config.classifier_activation == expected
