"""The augmentation of VTAB's tasks, by its effect on images."""

import numpy as np
import pytest
import tensorflow as tf

from trainers.augment.augmentation import parse_augmentation
from trainers.data.readers.vtab import VTAB_TASKS
from trainers.recipes.flags import ChosenRecipe, flag_fields
from trainers.recipes.recipes import RECIPES

# arXiv:1912.11370, supplement F.
NOT_FLIPPED = {"dsprites_orientation", "smallnorb_azimuth", "dsprites_location"}
NOT_CROPPED = {"clevr_count", "clevr_distance", "dmlab", "kitti_distance"}
NOT_CROPPED |= {"dsprites_location"}


def augmented(recipe, number=8):
    """Return some versions of an image whose halves and borders differ."""
    rows = tf.linspace(0.0, 250.0, 448)[:, None, None]
    image = tf.repeat(rows / 10 + tf.transpose(rows, (1, 0, 2)) / 2, 3, -1)
    augment = parse_augmentation(recipe.augment, (384, 384))
    return np.stack([augment.image(image, (0, seed)) for seed in range(number)])


@pytest.mark.parametrize("dataset", VTAB_TASKS)
def test_no_task_is_augmented_against_its_labels(dataset):
    task = dataset.partition(":")[2]
    recipe = ChosenRecipe("vtab_l16", {"dataset": dataset}).recipe
    images = augmented(recipe)
    assert images.shape == (8, 384, 384, 3)
    # The image is brighter on the right, unless it is flipped.
    flipped = images[:, 0, 0, 0] > images[:, 0, -1, 0]
    assert flipped.any() == (task not in NOT_FLIPPED)
    assert not flipped.all()
    upright = np.where(flipped[:, None, None, None], images[:, :, ::-1], images)
    is_cropped = np.ptp(upright, axis=0).max() > 1
    assert is_cropped == (task not in NOT_CROPPED)


def test_only_the_augmentation_depends_on_the_task():
    given = {"dataset": "vtab:clevr_count", "total_steps": 500}
    recipe = ChosenRecipe("vtab_l16", given).recipe
    base = RECIPES["vtab_l16"]
    changed = {
        field.name
        for field in flag_fields()
        if getattr(recipe, field.name) != getattr(base, field.name)
    }
    assert changed == {"dataset", "total_steps", "augment"}
    given |= {"augment": "flip_lr"}
    assert ChosenRecipe("vtab_l16", given).recipe.augment == "flip_lr"
    del given["augment"]
    line = RECIPES["pets_b16"].augment
    assert ChosenRecipe("pets_b16", given).recipe.augment == line
