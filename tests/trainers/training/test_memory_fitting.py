import dataclasses

import keras
import numpy as np
import pytest

from tests.trainers.made import write_photos
from trainers.recipes.flags import ChosenRecipe
from trainers.training import memory as memory_fitting
from trainers.training.memory import (
    GATHERED_BYTES,
    Memory,
    estimate_memory,
    has_batch_statistics,
    least_available_bytes,
)
from trainers.training.run_folder import RunFolder
from trainers.training.trainer import prepare

SMALL = {"image_size": 64, "model": "mu/16", "batch_size": 16}
SMALL |= {"total_steps": 2, "peak_tflops": 1.0, "augment": "flip_lr"}
SMALL["steps_per_loop"] = 2

LITTLE = 3 * 2**19  # Bytes, enough for 4 of its 16 images at once.


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    """Return the name of a data set of 24 photos of two classes."""
    folder = tmp_path_factory.mktemp("photos")
    write_photos(folder, 12 * ("cat", "dog"))
    return f"folder:{folder}"


@pytest.fixture
def start(dataset, tmp_path, monkeypatch):
    """Return a function that prepares a run with so much memory."""

    def prepare_run(available, folder="run", force=False, **given):
        monkeypatch.setattr(
            memory_fitting, "available_bytes", lambda *_: available
        )
        chosen = ChosenRecipe("photos", {"dataset": dataset, **SMALL, **given})
        folder = str(tmp_path / folder)
        return prepare(chosen.recipe, folder, force=force, chosen=chosen)

    return prepare_run


def needs(trainer, images):
    """Return the need of a number of images at once, without accumulation."""
    return estimate_memory(trainer.loop.model, images, trainer.loop.optimizer)


def ways(trainer):
    return trainer.recipe.accumulation_steps, trainer.recipe.use_remat


def test_the_batch_is_computed_in_the_fewest_parts_that_fit(start):
    whole = start(10**12)
    assert ways(whole) == (1, False)
    assert whole.memory_plan.memory == needs(whole, 16)
    # By hand: in four parts, the activations of 4 images and the sum of the
    # gradients as well.
    four = needs(whole, 4)
    available = four.total + four.gradients + GATHERED_BYTES
    assert needs(whole, 8).total + four.gradients > available
    parts = start(available)
    assert ways(parts) == (4, False)
    assert parts.loop.update.accumulation_steps == 4
    same = dataclasses.replace(parts.recipe, accumulation_steps=1)
    assert same == whole.recipe


def estimate_made_up(model, images, optimizer, accumulation_steps, **more):
    """Return a MB for each image, and an eighth of it if rematerialized."""
    size = images // accumulation_steps * 2**20
    return Memory(0, 0, 0, 0, size // (8 if model.config.use_remat else 1))


def test_rematerialization_is_next_and_flags_win(start, monkeypatch):
    monkeypatch.setattr(memory_fitting, "estimate_memory", estimate_made_up)
    both = start(2**19)
    assert ways(both) == (4, True)
    assert both.loop.model.config.use_remat
    assert ways(start(2**19, use_remat=False)) == (16, False)
    assert ways(start(2**19, accumulation_steps=2)) == (2, True)


def test_replicas_share_the_batch(start):
    trainer = start(10**12, strategy="mirrored")
    two = needs(trainer, 2)
    available = two.total + two.gradients + GATHERED_BYTES
    trainer = start(available, strategy="mirrored")
    assert ways(trainer) == (4, False)  # Of the 8 images of a replica.
    assert ways(start(available)) == (8, False)


def test_a_run_that_continues_keeps_its_way(start):
    first = start(LITTLE)
    assert first.recipe.accumulation_steps > 1
    run = RunFolder(first.run.folder)
    run.save_recipe(first.recipe, first.dataset.class_names)
    run.checkpoints_path.mkdir()
    again = start(10**12)
    assert again.recipe == first.recipe
    assert again.memory_plan is None
    assert ways(start(10**12, accumulation_steps=4)) == (4, False)
    assert ways(start(10**12, force=True)) == (1, False)


def test_the_worker_with_the_least_memory_decides(monkeypatch):
    asked = []

    class Engine:
        def gather(self, row):
            asked.append(row)
            return np.array([[9], row, [3]], "int32")

    monkeypatch.setattr(memory_fitting, "available_bytes", lambda *_: 2**30 + 5)
    assert least_available_bytes(Engine()) == 3 * GATHERED_BYTES
    assert asked[0].tolist() == [2**30 // GATHERED_BYTES]


@pytest.mark.parametrize("trainable", [True, False])
def test_batch_normalization_needs_the_whole_batch(trainable):
    inner = keras.Sequential(
        [keras.Input((4,)), keras.layers.BatchNormalization()]
    )
    inner.trainable = trainable
    model = keras.Sequential([keras.Input((4,)), inner, keras.layers.Dense(1)])
    assert has_batch_statistics(model) is trainable
    assert not has_batch_statistics(keras.Sequential(model.layers[1:]))
