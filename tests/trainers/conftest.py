"""What the tests of the trainers share."""

import dataclasses

import pytest

from trainers.datasets import open_dataset
from trainers.recipes import RECIPES


@pytest.fixture(scope="session")
def digits():
    return open_dataset("digits")


@pytest.fixture
def recipe():
    """Return the digits recipe, cut down to one block and three updates."""
    return dataclasses.replace(
        RECIPES["digits"],
        model="mu/16",
        patch_size=2,
        total_steps=3,
        warmup_steps=0,
        batch_size=32,
        steps_per_loop=2,
    )
