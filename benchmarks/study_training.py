"""Training without checkpoints, with one evaluation at the end."""

import dataclasses
import tempfile
from collections.abc import Callable, Iterable

import keras

from trainers.recipes.schema import Recipe
from trainers.train import Job, prepare


def train_once(
    recipe: Recipe,
    build: Callable | None = None,
    measure: Callable[[Job], dict] = lambda job: {},
) -> dict:
    """Train without checkpoints; return the results of the evaluation.

    Args:
        recipe: A recipe with `total_steps`.
        build: See `prepare`.
        measure: Maps the trained job to what is returned in addition.
    """
    keras.backend.clear_session()
    recipe = dataclasses.replace(recipe, peak_tflops=1.0)  # Not measured.
    with tempfile.TemporaryDirectory() as folder:
        job = prepare(recipe, folder, build=build)
        return {**train_job(job), **measure(job)}


def train_job(
    job: Job, callbacks: Iterable[keras.callbacks.Callback] = ()
) -> dict:
    """Train a job without checkpoints, and evaluate it once, at the end.

    Args:
        job: Of a recipe with `total_steps`.
        callbacks: Called during the training.
    """
    job.loop.checkpoints = None
    return job.loop.train(
        job.train_batches,
        job.eval_batches,
        total_steps=job.recipe.total_steps,
        steps_per_epoch=job.recipe.total_steps,
        eval_steps=job.eval_steps,
        steps_per_loop=job.recipe.steps_per_loop,
        callbacks=callbacks,
    )
