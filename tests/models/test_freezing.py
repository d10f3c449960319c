"""Freezing: which weights are trained, before and after compile."""

import keras
import numpy as np
import pytest

from keras_vit import VisionTransformer
from tests.tiny import (
    LATER_KINDS,
    PAPER_POSITIONS,
    make,
    noise,
    tiny_config,
    to_numpy,
)


def trained(model):
    return {weight.path for weight in model.trainable_weights}


def of_layers(model, *names):
    return {w.path for w in model.weights if w.path.split("/")[0] in set(names)}


def fit(model, steps=1, compiles=True):
    """Train with SGD; return the paths of the weights that changed."""
    if compiles:
        model.compile(
            keras.optimizers.SGD(0.1),
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        )
    before = [to_numpy(weight) for weight in model.weights]
    images, labels = noise(4, 32, 32, 3), np.arange(4)
    model.fit(images, labels, batch_size=4, epochs=steps, verbose=0)
    return {
        weight.path
        for weight, old in zip(model.weights, before, strict=True)
        if (to_numpy(weight) != old).any()
    }


# Arguments of `freeze`, and the layers that stay trained.
CASES = {
    "head": ({}, ["predictions"]),
    "nothing": ({"keep": ()}, []),
    "last block": (
        {"num_last_blocks": 1},
        ["block_01", "encoder_norm", "pre_logits", "predictions"],
    ),
    "all blocks": (
        {"keep": ["positions"], "num_last_blocks": 2},
        [
            *("position_embedding", "block_00", "block_01", "encoder_norm"),
            *("pre_logits", "predictions"),
        ],
    ),
    "token": ({"keep": ["class_token"]}, ["class_token"]),
}


@pytest.mark.parametrize("case", CASES)
def test_the_named_parts_are_trained(case):
    arguments, layers = CASES[case]
    model = make(representation_size=16)
    model.freeze(**arguments)
    assert trained(model) == of_layers(model, *layers)
    has_weights = [layer for layer in model.layers if layer.weights]
    assert {layer.name for layer in has_weights if layer.trainable} == set(
        layers
    )
    model.unfreeze()
    assert trained(model) == {weight.path for weight in model.weights}


@pytest.mark.parametrize(
    ("kind", "arguments", "expected"),
    [
        ("dinov2", {"keep": ["class_token"]}, ["registers", "class_token"]),
        (
            "beit",
            {"keep": ["positions"]},
            ["relative_positions_00", "relative_positions_01"],
        ),
        (
            "every_block",
            {"keep": ["positions"]},
            ["position_embedding_00", "position_embedding_01"],
        ),
        (
            "every_block",
            {"keep": (), "num_last_blocks": 1},
            [
                "position_embedding_01",
                "block_01",
                "encoder_norm",
                "predictions",
            ],
        ),
        (
            "mixed",
            {"keep": (), "num_last_blocks": 1},
            ["rotary_positions_01", "block_01", "encoder_norm", "predictions"],
        ),
    ],
)
def test_parts_of_other_families(kind, arguments, expected):
    kinds = {**LATER_KINDS, **PAPER_POSITIONS}
    model = VisionTransformer(tiny_config(**kinds[kind]))
    model.freeze(**arguments)
    trained = {v.path.split("/")[0] for v in model.trainable_variables}
    assert trained == set(expected)


def test_norms_and_biases_are_trained_wherever_they_are():
    model = make(pooling="map", stem_stages=(1,), patch_size=2)
    model.freeze(keep=("norms", "biases"))
    assert {path.split("/")[-1] for path in trained(model)} == {
        *("gamma", "beta", "bias")
    }
    assert "pooling/norm/gamma" in trained(model)
    assert "block_01/attention/qkv/bias" in trained(model)


@pytest.mark.parametrize(
    "order", ["freeze first", "compile first", "fit first"]
)
def test_fit_trains_what_is_not_frozen(order):
    model = make()
    if order == "compile first":
        model.compile(
            keras.optimizers.SGD(0.1),
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        )
    elif order == "fit first":
        fit(model)
    model.freeze()
    changed = fit(model, compiles=order != "compile first")
    assert changed == {"predictions/kernel", "predictions/bias"}
    model.unfreeze()
    assert len(fit(model)) == len(model.weights)


COPIES = {
    "image size": lambda model: model.with_image_size(48),
    "remat": lambda model: model.with_remat(),
    "dtype": lambda model: model.with_dtype("mixed_bfloat16"),
}


@pytest.mark.parametrize("copy", COPIES)
@pytest.mark.parametrize(
    "arguments", [{"num_last_blocks": 1}, {"keep": ("head", "biases")}], ids=str
)
def test_copies_are_frozen_as_the_model(copy, arguments):
    model = make()
    model.freeze(**arguments)
    assert trained(COPIES[copy](model)) == trained(model)


def test_a_saved_model_is_frozen_as_it_was(tmp_path):
    for name, arguments in {
        "block": {"num_last_blocks": 1},
        "biases": {"keep": ("head", "biases")},
    }.items():
        model = make()
        model.freeze(**arguments)
        path = tmp_path / f"{name}.keras"
        model.save(path)
        assert trained(keras.saving.load_model(path)) == trained(model)
    model.unfreeze()
    assert "frozen_weights" not in model.get_config()


def test_a_new_head_is_trained():
    model = make()
    model.freeze(keep=())
    assert trained(model.with_num_classes(3)) == {
        *("predictions/kernel", "predictions/bias")
    }


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"keep": "head"}, "`keep` must be a sequence.*'head'"),
        ({"keep": ["heads"]}, "`keep` must be one of 'head'.*'heads'"),
        ({"num_last_blocks": 3}, "`num_last_blocks`.*number of blocks, 2.*=3"),
        ({"num_last_blocks": -1}, "`num_last_blocks` must be.*=-1"),
        ({"num_last_blocks": True}, "`num_last_blocks` must be.*=True"),
    ],
)
def test_errors_leave_the_model_as_it_was(arguments, message):
    model = make()
    with pytest.raises(ValueError, match=message):
        model.freeze(**arguments)
    assert trained(model) == {weight.path for weight in model.weights}
