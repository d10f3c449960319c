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
    checkpoint_of,
    path_of,
    stored_in,
)


def test_heads_come_from_the_argument(alone):
    path = alone(TIMM)
    with pytest.raises(ValueError, match=f"^{path}: timm .* does not store"):
        from_checkpoint(path)
    assert from_checkpoint(path, num_heads=3).config.num_heads == 3
    with pytest.raises(ValueError, match="`num_heads` must divide"):
        from_checkpoint(path, num_heads=5)


@pytest.mark.parametrize("name", [TOKEN, TIMM])
def test_heads_that_the_file_shows_are_not_overruled(name):
    with pytest.raises(ValueError, match=r"has 3 heads. .*num_heads=4"):
        from_checkpoint(path_of(name), num_heads=4)
    assert from_checkpoint(path_of(name), num_heads="published").config == (
        from_checkpoint(path_of(name)).config
    )


def test_the_published_number_of_heads_is_suggested_and_not_assumed():
    source = checkpoint_of("timm", VARIANTS["B/16"].config)
    # Only a configuration of timm, which names one of its own models, will do.
    for config in ({}, {"model_type": "vit"}):
        source.json = config
        with pytest.raises(ValueError, match="model of this size has 12"):
            find(source)
    source.json = {"architecture": "vit_base_patch16_224"}
    assert find(source).config.num_heads == 12


def test_the_published_number_of_heads_is_assumed_if_asked_for(alone):
    source = checkpoint_of("timm", VARIANTS["B/16"].config)
    with pytest.warns(UserWarning, match="number of heads: 12 are assumed"):
        found = find(source, Known("published"))
    assert found.config.num_heads == 12
    # No published model has this size.
    with pytest.raises(ValueError, match="does not store the number of heads"):
        from_checkpoint(alone(TIMM), num_heads="published")


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        *(("num_heads", v) for v in (0, "6", 3.0, True)),
        ("architecture", 3),
    ],
)
def test_an_argument_that_cannot_be_one(argument, value, alone):
    rule = f"^`{argument}` must be .*Received: {argument}={value!r}$"
    for read in (from_checkpoint, read_preprocessing):
        with pytest.raises(ValueError, match=rule):
            read(alone(TIMM), **{argument: value})


def test_a_damaged_array_is_outvoted_and_named(load):
    arrays = stored_in(TOKEN)
    arrays["embedding/kernel"] = np.zeros((8, 8, 3, 25), "float32")
    arrays["head/kernel"] = np.zeros((24, 8), "float32")
    with pytest.raises(ValueError) as error:
        load(arrays)
    for words in (
        "embedding/kernel (8, 8, 3, 25), expected (8, 8, 3, 24)",
        "head/kernel (24, 8), expected (24, 7)",
    ):
        assert words in str(error.value)


def test_a_norm_after_the_pooling_implies_averaging(load):
    """timm has fc_norm where it averages, the class token or not."""
    arrays = forms.renamed(stored_in(TIMM), (r"^norm\.", "fc_norm."))
    config = load(arrays, num_heads=3).config
    assert (config.pooling, config.use_pooling_norm) == ("avg", True)


def test_a_pooling_that_the_weights_belie_is_passed_over(load):
    assert load(stored_in(TOKEN), {"pool": "map"}).config.pooling == "token"
