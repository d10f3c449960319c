"""vit-keras: the names of its blocks in every version of Keras."""

import h5py
import numpy as np
import pytest

from keras_vit import from_checkpoint
from tests.tiny import noise, to_numpy
from tests.weights import forms
from tests.weights.cases import arguments_of, assert_answers, stored_in

# vit-keras named its blocks otherwise in every version of Keras.
H5_DIALECTS = {
    "slash": (r"Transformer_(encoder|posembed)", r"Transformer/\1"),
    "plain": (r"Transformer_(encoder|posembed)", r"\1"),
    "short": (r"/MlpBlock_3/Transformer_encoderblock_\d/?_?", "/"),
    "colon": (r"$", ":0"),
}


@pytest.mark.parametrize("dialect", H5_DIALECTS)
def test_the_dialects_of_vit_keras(dialect, load):
    arrays = stored_in("vit_keras.h5")
    change = H5_DIALECTS[dialect]
    arrays = forms.renamed(arrays, change)
    assert arrays.keys() != stored_in("vit_keras.h5").keys()
    model = load(arrays, num_heads=3, image_size=(32, 48))
    assert_answers(model, "vit_keras.h5")


@pytest.mark.parametrize("name", ["linear", "sigmoid"])
def test_the_activation_of_the_head_of_a_whole_model(name, load):
    head = {"name": "head", "activation": name}
    layers = [{"class_name": "Dense", "config": head}]
    config = {"class_name": "Functional", "config": {"layers": layers}}
    arrays = stored_in("vit_keras.h5")
    model = load(arrays, config, num_heads=3, image_size=(32, 48))
    expected = None if name == "linear" else name
    assert model.config.classifier_activation == expected


@pytest.mark.parametrize("name", ["head", "pre_logits", None])
def test_a_square_layer_is_the_head_or_the_pre_logits(name, tmp_path):
    """Keras calls both `dense`, and stores the name that vit-keras gives it."""
    kept = "vit_keras.weights.h5"
    arrays = stored_in(kept)
    arrays = {
        n: a for n, a in arrays.items() if not n.startswith("layers/dense_1/")
    }
    arrays |= {"layers/dense/vars/0": noise(24, 24)}
    arrays |= {"layers/dense/vars/1": noise(24)}
    with h5py.File(tmp_path / "m.weights.h5", "w") as file:
        for key, value in arrays.items():
            file[key] = value
        if name:
            file["layers/dense/vars"].attrs["name"] = name
    options = arguments_of(kept)
    if name is None:
        with pytest.warns(UserWarning, match="the file does not name it"):
            model = from_checkpoint(tmp_path / "m.weights.h5", **options)
    else:
        model = from_checkpoint(tmp_path / "m.weights.h5", **options)
    is_head = name == "head"
    assert model.config.num_classes == (24 if is_head else 0)
    assert model.config.representation_size == (None if is_head else 24)
    layer = model.get_layer("predictions" if is_head else "pre_logits")
    np.testing.assert_array_equal(
        to_numpy(layer.kernel), arrays["layers/dense/vars/0"]
    )
