"""Freezing and LoRA of a recipe in a run that is stopped and resumed."""

import dataclasses
import itertools
import json

import keras
import numpy as np
import pytest

import keras_vit
from tests.trainers.made import assert_same_weights
from trainers.models.factory import build_model
from trainers.training.loop import Interrupted
from trainers.training.run_folder import RunFolder
from trainers.training.trainer import prepare

LORA = {"lora_rank": 2, "lora_layers": "qkv,mlp_out", "lora_alpha": 4.0}


def trained_layers(model):
    return sorted({w.path.split("/")[0] for w in model.trainable_weights})


@pytest.mark.parametrize(
    "changes, layers",
    [
        (
            {"train_only": "last_blocks:1,positions"},
            ["block_00", "encoder_norm", "position_embedding", "predictions"],
        ),
        (LORA, ["block_00", "predictions"]),
        (
            LORA | {"train_only": "positions"},
            ["block_00", "position_embedding"],
        ),
    ],
    ids=str,
)
def test_the_flags_reach_the_model(recipe, digits, changes, layers):
    recipe = dataclasses.replace(recipe, **changes)
    model = build_model(recipe, digits)
    assert trained_layers(model) == layers
    if recipe.lora_rank:
        dense = model.get_layer("block_00").mlp.out
        assert (dense.lora_rank, dense.lora_alpha) == (2, 4.0)


def test_what_the_initial_model_froze_stays_frozen_unless_asked(
    recipe, digits, tmp_path
):
    model = build_model(recipe, digits)
    model.freeze()
    path = str(tmp_path / "frozen.keras")
    model.save(path)
    recipe = dataclasses.replace(recipe, init_from=path)
    assert len(build_model(recipe, digits).trainable_weights) == 2
    recipe = dataclasses.replace(recipe, train_only="all")
    again = build_model(recipe, digits)
    assert len(again.trainable_weights) == len(model.weights)
    recipe = dataclasses.replace(recipe, train_only="last_blocks:3")
    with pytest.raises(ValueError, match="train_only='last_blocks:3'"):
        build_model(recipe, digits)


@pytest.fixture(scope="module")
def whole(trained, tmp_path_factory):
    """Return the trainer of a finished run with LoRA from another run."""
    folder = tmp_path_factory.mktemp("lora") / "run"
    return start(trained, folder)


def start(trained, folder):
    recipe = dataclasses.replace(short_recipe(trained), **LORA)
    trainer = prepare(recipe, str(folder))
    trainer.train()
    return trainer


def short_recipe(trained):
    """Return the recipe of a run of four updates from another run."""
    return dataclasses.replace(
        RunFolder(trained).load_recipe(),
        init_from=str(trained / "model.keras"),
        learning_rate=0.1,
        average_decay=0.5,
        weight_decay=0.1,
        layer_decay=0.5,
        batch_size=64,
        total_steps=4,
        eval_split="test[:64]",
        steps_per_loop=1,
        peak_tflops=1.0,
    )


def test_a_run_keeps_the_merged_model_and_the_updates_alone(whole, trained):
    tuned = whole.loop.model
    model = whole.run.load_model()
    start = keras.saving.load_model(trained / "model.keras")
    paths = [weight.path for weight in start.weights]
    assert [weight.path for weight in model.weights] == paths
    assert len(model.trainable_weights) == len(paths)
    images = np.random.default_rng(0).normal(size=(2, 8, 8, 1))
    want = tuned(images)
    np.testing.assert_allclose(model(images), want, atol=1e-5)
    assert np.abs(np.asarray(start(images)) - want).max() > 1e-2
    keras_vit.load_lora(start, whole.run.lora_path)
    np.testing.assert_array_equal(start(images), want)


def test_the_optimizer_has_slots_for_what_is_trained(whole, trained):
    tuned = whole.loop.model
    start = keras.saving.load_model(trained / "model.keras")
    before = {weight.path: weight.numpy() for weight in start.weights}
    for weight in tuned.non_trainable_weights:  # They do not change.
        if weight.path in before:
            np.testing.assert_array_equal(before[weight.path], weight.numpy())
    number = sum(np.prod(w.shape) for w in tuned.trainable_weights)
    slots, averages = whole.loop.optimizer.count_bytes()
    assert (slots, averages) == (2 * 4 * number, 4 * number)
    total = tuned.count_params()
    sizes = f"{number} of {total / 1000:.1f} k"
    assert f", {sizes} parameters trained, " in str(whole)


def test_layer_decay_counts_all_blocks_of_the_model(recipe, tmp_path):
    """The head alone has no block, and is still the last layer."""
    recipe = dataclasses.replace(recipe, layer_decay=0.5, train_only="head")
    trainer = prepare(recipe, str(tmp_path))
    rates = [p.layer_rate for p in trainer.loop.optimizer.parameters]
    assert rates == [1.0, 1.0]


def test_a_stopped_run_continues_to_the_bit(whole, tmp_path):
    recipe, folder = whole.recipe, tmp_path / "stopped"
    trainer = prepare(recipe, str(folder))
    calls = itertools.count()
    trainer.loop.must_stop = lambda: next(calls) >= 1
    with pytest.raises(Interrupted):
        trainer.train()
    trainer = prepare(recipe, str(folder))
    assert 0 < trainer.loop.step < recipe.total_steps
    trainer.train()
    assert_same_weights(whole.loop.model, trainer.loop.model)
    name = "lora.safetensors"
    lora = (folder / name).read_bytes()
    assert lora == (whole.run.folder / name).read_bytes()
    first, second = (
        json.loads(run.recipe_path.read_text())
        for run in (whole.run, trainer.run)
    )
    for content in (first, second):
        del content["origin"]["date"]  # When it was started.
    assert first == second
