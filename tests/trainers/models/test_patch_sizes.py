"""Runs with patches of several sizes, and models with another one."""

import dataclasses

import keras
import numpy as np
import pytest

from keras_vit import VisionTransformer
from tests.tiny import noise, randomize, tiny_config
from tests.trainers.made import assert_same_weights
from trainers.models.factory import (
    build_model,
    make_variants,
    with_other_tokens,
)
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
        other = with_other_tokens(model, variant.patch_size)
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


def test_an_evaluation_and_an_export_may_merge_tokens(recipe, digits):
    model = randomize(build_model(recipe, digits))
    x = noise(3, *model.input_shape[1:])
    merging = with_other_tokens(model, merged_tokens=2)
    assert np.abs(merging(x).numpy() - model(x).numpy()).max() > 1e-4
    both = with_other_tokens(model, 2, merged_tokens=2)
    want = with_other_tokens(model, 2).with_merged_tokens(2)
    np.testing.assert_array_equal(both(x), want(x))
    again = with_other_tokens(merging, merged_tokens=0)
    np.testing.assert_array_equal(again(x), model(x))
    with pytest.raises(ValueError, match="`merged_tokens` needs"):
        with_other_tokens(keras.Sequential([keras.Input((1,))]), None, 2)


def test_a_run_that_leaves_out_patches_keeps_all_in_its_model(recipe, tmp_path):
    """Also one that starts from a model without."""
    first = prepare(recipe, tmp_path / "first")
    first.train()
    recipe = dataclasses.replace(
        recipe,
        init_from=str(tmp_path / "first"),
        patch_dropout_rate=0.5,
        merged_tokens=1,
    )
    trainer = prepare(recipe, tmp_path / "second")
    assert trainer.flops_per_image < first.flops_per_image
    trainer.train()
    model = trainer.run.load_model()
    assert model.config.patch_dropout_rate == 0.5
    assert model.config.merged_tokens == 1
    x = noise(3, *model.input_shape[1:])
    plain = model.with_patch_dropout(0)
    np.testing.assert_array_equal(model(x), plain(x))
    recipe = dataclasses.replace(recipe, log_attention=1)
    with pytest.raises(ValueError, match="log_attention.*merged_tokens=1"):
        prepare(recipe, tmp_path / "third")


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
        with_other_tokens(VisionTransformer(tiny_config()), 5)
