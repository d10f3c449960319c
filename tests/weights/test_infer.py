"""The configuration, from names, shapes, hints and arguments."""

import numpy as np
import pytest

from keras_vit import VARIANTS, from_checkpoint
from keras_vit.weights.families.inference import Known
from keras_vit.weights.find import find
from keras_vit.weights.read import read_preprocessing
from tests.weights import forms
from tests.weights.cases import (
    TIMM,
    TOKEN,
    change,
    checkpoint_of,
    path_of,
    stored_in,
)


def test_heads_come_from_the_argument(alone):
    path = alone(TIMM)
    with pytest.raises(ValueError, match="does not store the number of heads"):
        from_checkpoint(path)
    assert from_checkpoint(path, num_heads=3).config.num_heads == 3
    with pytest.raises(ValueError, match="`num_heads` must divide"):
        from_checkpoint(path, num_heads=5)


def test_heads_that_the_file_shows_are_not_overruled():
    with pytest.raises(ValueError, match=r"has 3 heads. .*num_heads=4"):
        from_checkpoint(path_of(TOKEN), num_heads=4)
    with pytest.raises(ValueError, match=r"has 3 heads. .*num_heads=4"):
        from_checkpoint(path_of(TIMM), num_heads=4)


def test_the_published_number_of_heads_is_suggested_and_not_assumed():
    source = checkpoint_of("timm", VARIANTS["B/16"].config)
    # Only a configuration of timm, which names one of its own models, will do.
    for config in ({}, {"model_type": "vit"}):
        source.json = config
        with pytest.raises(ValueError, match="model of this size has 12"):
            find(source)
    source.json = {"architecture": "vit_base_patch16_224"}
    assert find(source).config.num_heads == 12


def test_the_published_number_of_heads_is_assumed_if_asked_for():
    source = checkpoint_of("timm", VARIANTS["B/16"].config)
    with pytest.warns(UserWarning, match="number of heads: 12 are assumed"):
        found = find(source, Known("published"))
    assert found.config.num_heads == 12


def test_heads_of_no_published_model_are_not_assumed(alone):
    with pytest.raises(ValueError, match="does not store the number of heads"):
        from_checkpoint(alone(TIMM), num_heads="published")


@pytest.mark.parametrize("value", [0, -2, "6", "publish", 3.0, True])
def test_a_number_of_heads_that_cannot_be_one(value, alone):
    received = f"Received: num_heads={value!r}"
    rule = f"`num_heads` must be a whole .* or 'published'. {received}$"
    for read in (from_checkpoint, read_preprocessing):
        with pytest.raises(ValueError, match=f"^{rule}"):
            read(alone(TIMM), num_heads=value)
    with pytest.raises(ValueError, match=f"^{rule}"):
        find(checkpoint_of("timm", VARIANTS["B/16"].config), Known(value))


def test_an_architecture_that_is_no_name(alone):
    rule = "^`architecture` must be a name, such as .*architecture=3$"
    with pytest.raises(ValueError, match=rule):
        from_checkpoint(alone(TIMM), architecture=3)


def test_what_is_asked_follows_a_colon_after_the_file(alone):
    path = alone(TIMM)
    with pytest.raises(ValueError, match=f"^{path}: timm .* does not store"):
        from_checkpoint(path)


def test_heads_that_the_file_shows_need_no_published_model():
    model = from_checkpoint(path_of(TOKEN), num_heads="published")
    assert model.config.num_heads == 3


def test_a_damaged_array_is_outvoted_and_named(tmp_path):
    def edit(arrays):
        wide = np.zeros((8, 8, 3, 25), "float32")
        arrays["embedding/kernel"] = wide
        arrays["head/kernel"] = np.zeros((24, 8), "float32")

    path = change(tmp_path, TOKEN, edit)
    with pytest.raises(ValueError) as error:
        from_checkpoint(path)
    for words in (
        "embedding/kernel (8, 8, 3, 25), expected (8, 8, 3, 24)",
        "head/kernel (24, 8), expected (24, 7)",
    ):
        assert words in str(error.value)


def test_a_norm_after_the_pooling_implies_averaging(tmp_path):
    """timm has fc_norm where it averages, the class token or not."""
    arrays = forms.renamed(stored_in(TIMM), (r"^norm\.", "fc_norm."))
    np.savez(tmp_path / "m.npz", **arrays)
    config = from_checkpoint(tmp_path / "m.npz", num_heads=3).config
    assert (config.pooling, config.use_pooling_norm) == ("avg", True)


def test_a_pooling_that_the_weights_belie_is_passed_over(tmp_path):
    np.savez(tmp_path / "m.npz", **stored_in(TOKEN))
    (tmp_path / "m.json").write_text('{"pool": "map"}')
    assert from_checkpoint(tmp_path / "m.npz").config.pooling == "token"
