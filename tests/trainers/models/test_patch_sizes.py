"""Runs with patches of several sizes, and models with another one."""

import dataclasses
import json

import numpy as np
import pytest

from keras_vit import VisionTransformer
from tests.tiny import noise, randomize, tiny_config
from tests.trainers.made import assert_same_weights
from trainers.models.factory import build_model, make_variants, with_patch_size
from trainers.training.loop import Interrupted
from trainers.training.memory import estimate_training_memory
from trainers.training.run_folder import RunFolder
from trainers.training.trainer import prepare


def test_each_variant_is_the_model_with_that_patch_size(recipe, digits):
    recipe = dataclasses.replace(recipe, patch_sizes="4,2,8", image_size=16)
    model = randomize(build_model(recipe, digits))
    variants = make_variants(recipe, model)
    assert [variant.patch_size for variant in variants] == [4, 2, 8]
    x = noise(3, *model.input_shape[1:])
    weights = [
        [variable.value for variable in variables]
        for variables in (
            model.trainable_variables,
            model.non_trainable_variables,
        )
    ]
    for variant in variants:
        other = with_patch_size(model, variant.patch_size)
        assert other.config.patch_size == variant.patch_size
        expected = other(x).numpy()
        np.testing.assert_allclose(variant(x), expected, atol=1e-5)
        outputs, _ = variant.stateless_call(*weights, x)
        np.testing.assert_allclose(outputs, expected, atol=1e-5)


def test_a_run_trains_all_sizes_and_can_be_interrupted(
    recipe, digits, tmp_path, monkeypatch
):
    recipe = dataclasses.replace(
        recipe, patch_sizes="2,4", total_steps=4, eval_split="test[:64]"
    )
    whole, parted = tmp_path / "whole", tmp_path / "parted"
    trainer = prepare(recipe, whole)
    assert len(trainer.loop.update.variants) == 2
    trainer.train()
    trainer = prepare(recipe, parted)
    steps = iter([False, True])
    trainer.loop.must_stop = lambda: next(steps, False)
    trainer = dataclasses.replace(
        trainer, recipe=dataclasses.replace(recipe, steps_per_loop=1)
    )
    with pytest.raises(Interrupted):
        trainer.train()
    trainer = prepare(recipe, parted)
    assert 0 < trainer.loop.step < 4
    trainer.train()
    one, other = (RunFolder(path).load_model() for path in (whole, parted))
    assert isinstance(one, VisionTransformer)
    assert one.config.patch_size == trainer.loop.model.config.patch_size
    assert_same_weights(one, other)
    saved = json.loads((whole / "recipe.json").read_text())
    assert saved["recipe"]["patch_sizes"] == "2,4"


def test_operations_are_the_mean_and_memory_the_most_of_the_sizes(
    recipe, tmp_path
):
    jobs = []
    for sizes in ("2", "4", "4,2"):
        changed = dataclasses.replace(recipe, patch_sizes=sizes)
        jobs.append(prepare(changed, tmp_path / sizes))
    counts = [trainer.flops_per_image for trainer in jobs]
    assert counts[0] > counts[1]
    assert counts[2] == round((counts[0] + counts[1]) / 2)
    needs = [estimate_training_memory(trainer).activations for trainer in jobs]
    assert needs[0] == needs[2] > needs[1]


def test_mistakes_are_named(recipe, digits):
    big = dataclasses.replace(recipe, patch_sizes="4,16")
    with pytest.raises(ValueError, match="at most the side.*image_size=8"):
        make_variants(big, build_model(recipe, digits))
    config = tiny_config(position_embedding="none", relative_positions="table")
    one_grid = VisionTransformer(config)
    small = dataclasses.replace(recipe, patch_sizes="4")
    with pytest.raises(ValueError, match="`patch_sizes` cannot be used.*table"):
        make_variants(small, one_grid)
    with pytest.raises(ValueError, match="`patch_size` must divide the image"):
        with_patch_size(VisionTransformer(tiny_config()), 5)
