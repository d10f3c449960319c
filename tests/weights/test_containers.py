"""The content of a checkpoint file and of the JSON beside it."""

import shutil

import numpy as np
import pytest

from keras_vit import from_checkpoint, save_checkpoint
from tests.tiny import to_numpy
from tests.weights import forms
from tests.weights.cases import (
    TIMM,
    TOKEN,
    answer_of,
    expected_of,
    make,
    path_of,
    stored_in,
)


def test_bfloat16_stored_as_two_bytes_of_no_type(tmp_path):
    arrays = stored_in(TOKEN)
    np.savez(tmp_path / "short.npz", **forms.as_bfloat16(arrays))
    np.savez(tmp_path / "long.npz", **forms.rounded_to_bfloat16(arrays))
    short = from_checkpoint(tmp_path / "short.npz")
    long = from_checkpoint(tmp_path / "long.npz")
    for ours, theirs in zip(short.weights, long.weights):
        np.testing.assert_array_equal(to_numpy(ours), to_numpy(theirs))
    x = expected_of(TOKEN)["x"]
    difference = to_numpy(short(x)) - answer_of(TOKEN)
    assert 1e-5 < np.abs(difference).max() < 0.1


def test_the_configuration_of_another_file_is_not_read(tmp_path):
    """config.json belongs to model.safetensors alone."""
    path = tmp_path / "other.safetensors"
    shutil.copy(path_of(TIMM), path)
    (tmp_path / "config.json").write_text('{"num_heads": 3}')
    with pytest.raises(ValueError, match="does not store the number of heads"):
        from_checkpoint(path)
    path.rename(tmp_path / "model.safetensors")
    model = from_checkpoint(tmp_path / "model.safetensors")
    assert model.config.num_heads == 3


def test_what_a_file_says_of_itself_goes_before_what_lies_beside(tmp_path):
    path = tmp_path / "m.safetensors"
    save_checkpoint(make(activation="tanh"), path, layout="timm")
    path.with_suffix(".json").write_text('{"activation": "exact"}')
    assert from_checkpoint(path).config.activation == "tanh"
