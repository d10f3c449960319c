"""What the tests of the trainers share."""

import dataclasses

import pytest

from trainers.datasets import open_dataset
from trainers.recipes import RECIPES


@pytest.fixture(scope="session")
def data_dir(tmp_path_factory):
    """Return a folder in which TFDS prepares the digits, once."""
    return str(tmp_path_factory.mktemp("tensorflow_datasets"))


@pytest.fixture(scope="session")
def digits(data_dir):
    return open_dataset("digits", data_dir)


@pytest.fixture
def recipe(data_dir):
    """Return the digits recipe, cut down to one block and three updates."""
    return dataclasses.replace(
        RECIPES["digits"],
        data_dir=data_dir,
        model="mu/16",
        patch_size=2,
        total_steps=3,
        warmup_steps=0,
        batch_size=32,
        steps_per_loop=2,
    )
