"""Runs with patches of several sizes, and models with another one."""

import dataclasses

import numpy as np
import pytest

from keras_vit import VisionTransformer
from tests.tiny import noise, randomize, tiny_config
from tests.trainers.made import assert_same_weights
from trainers.models.factory import build_model, make_variants, with_patch_size
from trainers.training.memory import estimate_training_memory
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


def test_a_run_trains_all_sizes(recipe, tmp_path):
    """Which one, the number of the update decides, see test_update.py."""
    recipe = dataclasses.replace(recipe, patch_sizes="2,4")
    trainer = prepare(recipe, tmp_path)
    assert len(trainer.loop.update.variants) == 2
    trainer.train()
    model = trainer.run.load_model()
    assert isinstance(model, VisionTransformer)
    assert model.config.patch_size == trainer.loop.model.config.patch_size
    assert_same_weights(model, trainer.loop.model)
    assert trainer.run.load_recipe().patch_sizes == "2,4"


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
