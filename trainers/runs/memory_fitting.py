"""Fitting a training into the available memory, with the same updates."""

import dataclasses
import gc
from collections.abc import Callable, Collection

import keras
import numpy as np
import tensorflow as tf

from keras_vit.models import VisionTransformer
from trainers.distribute.workers import gather_rows
from trainers.loop.loop import Loop
from trainers.loop.memory import estimate_memory
from trainers.recipes.recipe import Recipe
from trainers.runs.memory_plan import MemoryPlan, plan_memory
from trainers.runs.resources import (
    available_bytes,
    held_bytes,
    teachers_of,
)

GATHERED_BYTES = 2**16  # The unit in which workers compare their memory.


def build_loop(
    recipe: Recipe, free: Collection[str], make: Callable[[Recipe], Loop]
) -> tuple[Recipe, Loop, MemoryPlan | None]:
    """Return the recipe, its loop and, if memory decided, the plan.

    Args:
        recipe: The recipe.
        free: The fields that follow from the memory.
        make: Returns the loop of a recipe.
    """

    def build(recipe):
        # Set here, because preparing a data set draws random numbers as well.
        keras.utils.set_random_seed(recipe.seed)
        return make(recipe)

    if free:
        return fit_to_memory(recipe, free, build)
    return recipe, build(recipe), None


def fit_to_memory(
    recipe: Recipe, free: Collection[str], build: Callable[[Recipe], Loop]
) -> tuple[Recipe, Loop, MemoryPlan]:
    """Return a recipe that fits into memory, its loop, and why it is so.

    The batch and the number of updates stay. An update in parts is that of the
    whole batch, except for batch normalization, so such a model is not
    computed in parts.

    Args:
        recipe: The recipe as it would be with enough memory.
        free: The fields to choose: `accumulation_steps`, `use_remat`.
        build: Returns the loop of a recipe.
    """
    loop = build(recipe)
    images = recipe.batch_size // loop.strategy.num_replicas_in_sync
    parts, remat = [recipe.accumulation_steps], [recipe.use_remat]
    if "accumulation_steps" in free and not has_batch_statistics(loop.model):
        parts = [n for n in range(1, images + 1) if images % n == 0]
    if "use_remat" in free and isinstance(loop.model, VisionTransformer):
        remat = [False, True]

    def estimate(num_parts, use_remat):
        nonlocal recipe, loop
        if use_remat != recipe.use_remat:
            recipe = dataclasses.replace(recipe, use_remat=use_remat)
            loop = None
            gc.collect()  # The other model would need memory as well.
            loop = build(recipe)
        return estimate_memory(
            loop.model,
            images,
            loop.optimizer,
            accumulation_steps=num_parts,
            runs=loop.variants,
            frozen=teachers_of(loop),
        )

    available = least_available_bytes(loop.strategy, held_bytes(loop))
    plan = plan_memory(estimate, available, parts, remat)
    chosen = {"accumulation_steps": plan.accumulation_steps}
    return (
        dataclasses.replace(recipe, **chosen),
        dataclasses.replace(loop, **chosen),
        plan,
    )


def has_batch_statistics(model: keras.Model) -> bool:
    """Return whether a layer of a model computes statistics of a batch."""
    return any(
        isinstance(layer, keras.layers.BatchNormalization) and layer.trainable
        for layer in model._flatten_layers()
    )


def least_available_bytes(
    strategy: tf.distribute.Strategy, held: int = 0
) -> int:
    """Return the memory for a replica of the worker that has the least.

    Args:
        strategy: The strategy of the run.
        held: See `available_bytes`.
    """
    count = available_bytes(strategy, held) // GATHERED_BYTES
    rows = gather_rows(strategy, np.array([count], "int32"))
    return int(rows.min()) * GATHERED_BYTES
