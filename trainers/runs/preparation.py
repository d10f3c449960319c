"""`prepare`: check all requirements of a run, and build or restore it."""

import dataclasses
import math
from collections.abc import Callable

import keras
import numpy as np
from keras import ops

from keras_vit.models import VisionTransformer
from keras_vit.pretraining import PretrainingModel
from trainers.data.datasets import ImageDataset, open_dataset
from trainers.data.decoding import BadExamples
from trainers.data.file_lists import is_file_list
from trainers.data.readers.folder import UNLABELLED
from trainers.engine.cluster import ALONE, WorkerConfig
from trainers.engine.engine import Engine
from trainers.engine.rendezvous import wait_for_service
from trainers.engine.strategies import make_engine
from trainers.engine.update import Update
from trainers.loop.checkpoints import Checkpoints
from trainers.loop.loop import Best, Loop
from trainers.models.factory import (
    build_model,
    class_names_of,
    loss_and_hits,
    make_variants,
)
from trainers.models.initial_model import (
    initial_preprocessing,
    read_initial_classes,
)
from trainers.optim.losses import (
    LOSSES,
    LossScale,
    is_best_class,
    smooth_labels,
)
from trainers.optim.optimizers import make_optimizer
from trainers.optim.schedules import WarmupSchedule
from trainers.paths import as_path, check_folder, check_writable
from trainers.recipes.flags import ChosenRecipe
from trainers.recipes.recipe import PRECISIONS, Recipe
from trainers.runs.job import Job
from trainers.runs.memory import build_loop
from trainers.runs.run import Run, check_place
from trainers.runs.teacher import make_distillation


def make_loss(
    recipe: Recipe, dataset: ImageDataset, model: keras.Model
) -> tuple[Callable, Callable | None]:
    """Return the functions `loss` and `hits` of a `Step` for a recipe.

    Args:
        recipe: The recipe, with smoothed labels and class weights.
        dataset: The data set.
        model: The model to train.
    """
    if isinstance(model, PretrainingModel):
        return loss_and_hits(model)
    per_image = LOSSES[recipe.loss].function
    class_weights = None
    if recipe.class_weights == "balanced":
        class_weights = balance_classes(dataset)

    def loss(labels, logits):
        smoothed = smooth_labels(labels, recipe.label_smoothing)
        losses = per_image(smoothed, logits)
        if class_weights is None:
            return losses
        return losses * ops.matmul(labels, class_weights)

    return loss, is_best_class


def balance_classes(dataset: ImageDataset) -> np.ndarray:
    """Return weights with which all classes count equally.

    The weight of a class is inversely proportional to its number of training
    images; the mean over the images is 1.

    Shapes:
        returns: (C,), float32.

    Raises:
        ValueError: If a class has no training images, or an image several
            classes.
    """
    if dataset.has_several_classes(dataset.train_split):
        raise ValueError(
            "`class_weights` must be 'none' if images have several classes. "
            f"Received: dataset={dataset.name!r}"
        )
    labels = dataset.labels(dataset.train_split)
    counts = np.bincount(labels, minlength=len(dataset.class_names))
    empty = [name for name, n in zip(dataset.class_names, counts) if not n]
    if empty:
        raise ValueError(
            "`class_weights` must be 'none' unless each class has training "
            f"images. Received: dataset={dataset.name!r} without any of "
            f"{', '.join(map(repr, empty))}"
        )
    return (counts.sum() / (len(counts) * counts)).astype("float32")


SETTINGS_FOR_IMAGES = (
    ". The settings of --recipe=photos follow from the number of images."
)


def prepare(
    recipe: Recipe,
    run_dir: str,
    config: WorkerConfig = ALONE,
    force: bool = False,
    chosen: ChosenRecipe | None = None,
    build: Callable[[Recipe, ImageDataset], keras.Model] | None = None,
) -> Job:
    """Return a checked Job for `train`.

    If the folder contains an earlier run of the same recipe, the job continues
    it.

    Args:
        recipe: The settings of the run.
        run_dir: The folder of the run; created if needed.
        config: How this process finds the other workers.
        force: Whether to continue a run with another recipe.
        chosen: The choice that `recipe` comes from, which fits it to the
            images and to the memory; None for the recipe as it is.
        build: Returns the model; None for that of the recipe.

    Raises:
        ValueError: If the recipe is not possible, the folder is invalid or
            contains a run with another recipe, or the workers have different
            recipes or weights. Nothing is written.
        OSError: If the folder of the run cannot be written.
        CheckpointError: If the run has checkpoints, but none can be read.
        WorkerLostError: If another process or the data service cannot be
            reached or does not respond.
    """
    recipe.check_operations()
    run = Run(as_path(run_dir))
    check_folder(run.folder, "run_dir")
    check_place(run, recipe.dataset)
    if recipe.data_service:
        wait_for_service(recipe.data_service, config.start_timeout)
    engine = make_engine(recipe.strategy, config, recipe.model_devices)
    if engine.is_writer:
        check_writable(run.folder, "run_dir")
    with engine.name_lost_workers(lambda: "before the first update"):
        engine.check_agreement("recipe", _shared_fields(recipe))
        dataset = open_in_turn(recipe, engine)
        check_labels(recipe, dataset)
        started = None if force else run.started_recipe()
        if started:
            dataset = dataset.with_forms_of(run.load_class_names())
        elif recipe.init_from:
            names = read_initial_classes(recipe.init_from)
            dataset = dataset.with_forms_of(names)
        replicas = engine.num_replicas
        recipe, free = _fit(recipe, chosen, dataset, started, replicas)
        recipe = _normalize(recipe, started, dataset.channels)
        if chosen:
            engine.check_agreement("recipe", _shared_fields(recipe))
        steps = count_steps(recipe, dataset)
        check_batch_size(recipe.batch_size, replicas, recipe.accumulation_steps)
        if not force:
            run.check_recipe(recipe, class_names_of(recipe, dataset))
        recipe, loop, plan = build_loop(
            recipe,
            free,
            lambda recipe: make_loop(recipe, dataset, engine, steps[1], build),
        )
        loop.checkpoints = Checkpoints(
            str(run.checkpoints_path),
            loop.state,
            num_kept=recipe.num_checkpoints,
            engine=engine,
        )
        loop.resume()
        engine.check_agreement("weights", _weights(loop.model))
    bad_examples = BadExamples(recipe.max_bad_examples)
    return Job(recipe, run, dataset, loop, bad_examples, *steps, plan)


def _fit(recipe, chosen, dataset, started, replicas):
    """Return the recipe for the images, and the fields that memory decides."""
    if not chosen:
        return recipe, ()
    num_images = dataset.num_examples(dataset.train_split)
    fit = chosen.fit(num_images, started, replicas)
    return fit, chosen.free_fields(started)


def _normalize(recipe, started, channels):
    """Return the recipe with the normalisation of its initial model.

    A run of an older version goes on without it.
    """
    settings = initial_preprocessing(recipe, channels)
    lines = ("augment", "eval_preprocess")
    if started and all(
        getattr(started, n) == getattr(recipe, n) for n in lines
    ):
        return recipe
    return recipe.normalized_for(settings)


def _shared_fields(recipe):
    """Yield the fields that must be equal on all workers."""
    for field in dataclasses.fields(recipe):
        if not field.metadata["is_local"]:
            yield field.name, repr(getattr(recipe, field.name)).encode()


def _weights(model):
    for variable in model.variables:
        value = keras.ops.convert_to_numpy(variable)
        yield variable.path, value.tobytes()


def open_in_turn(recipe: Recipe, engine: Engine) -> ImageDataset:
    """Return the data set of `recipe`, which the chief prepares first."""
    if not engine.is_writer:
        engine.wait_for_all()
    dataset = open_dataset(
        recipe.dataset,
        recipe.data_dir,
        train_split=recipe.train_split,
        eval_split=recipe.eval_split,
    )
    if engine.is_writer:
        engine.wait_for_all()
    return dataset


def check_labels(recipe: Recipe, dataset: ImageDataset):
    """Raise a ValueError if the labels that a recipe needs are missing."""
    if recipe.needs_labels and dataset.class_names == [UNLABELLED]:
        raise ValueError(
            "`dataset` must have labels, unless --objective=autoencoder or "
            f"masked_patches. Received: dataset={recipe.dataset!r}"
        )


def count_steps(recipe: Recipe, dataset: ImageDataset) -> tuple[int, int]:
    """Return the number of updates per epoch, and in total.

    Raises:
        ValueError: If the warm-up is as long as the training or longer.
    """
    num_images = dataset.num_examples(dataset.train_split)
    steps_per_epoch = max(round(num_images / recipe.batch_size), 1)
    all_epochs = math.ceil(recipe.epochs * steps_per_epoch)
    total_steps = recipe.total_steps or all_epochs
    if recipe.warmup_steps >= total_steps:
        hint = SETTINGS_FOR_IMAGES if is_file_list(recipe.dataset) else ""
        raise ValueError(
            f"`warmup_steps` must be fewer than the {total_steps:,} updates of "
            f"the training. Received: warmup_steps={recipe.warmup_steps:,}, "
            f"{num_images:,} training images, batch_size={recipe.batch_size:,}"
            f"{hint}"
        )
    return steps_per_epoch, total_steps


def check_batch_size(batch_size: int, num_replicas: int, num_parts: int):
    """Raise a ValueError unless all parts of a batch have equal sizes."""
    if batch_size % (num_replicas * num_parts):
        raise ValueError(
            "`batch_size` must be a multiple of replicas times "
            f"`accumulation_steps`, {num_replicas} x {num_parts}. "
            f"Received: batch_size={batch_size}"
        )


def make_loop(
    recipe: Recipe,
    dataset: ImageDataset,
    engine: Engine,
    total_steps: int,
    build: Callable[[Recipe, ImageDataset], keras.Model] | None = None,
) -> Loop:
    """Return the loop with its model and optimizer.

    Raises:
        ValueError: If the model, the schedule or the optimizer is not
            possible, or the model cannot be trained.
    """
    with engine.scope():
        model = (build or build_model)(recipe, dataset)
    check_trainable(model, recipe)
    schedule = make_schedule(recipe, total_steps)
    with engine.scope():
        optimizer = make_optimizer(
            recipe.optimizer,
            model.trainable_variables,
            learning_rate=schedule,
            weight_decay=recipe.weight_decay,
            layer_decay=recipe.layer_decay,
            accumulator_dtype=recipe.accumulator_dtype,
            average_decay=recipe.average_decay,
            use_average_debias=recipe.use_average_debias,
            model_variables=model.variables,
            beta2=recipe.adam_beta2,
        )
        must_scale = PRECISIONS[recipe.precision].scales_loss
        scale = LossScale() if must_scale else None
        distillation = make_distillation(recipe, dataset, model)
    loss, hits = make_loss(recipe, dataset, model)
    update = Update(
        model=model,
        optimizer=optimizer,
        loss=loss,
        hits=hits,
        clip_norm=recipe.clip_norm or None,
        accumulation_steps=recipe.accumulation_steps,
        seed=recipe.seed,
        loss_scale=scale,
        use_xla=recipe.use_xla,
        gradient_dtype=recipe.gradient_dtype,
        distillation=distillation,
        variants=make_variants(recipe, model),
    )
    best = Best(patience=recipe.patience) if recipe.keep_best else None
    return Loop(update, engine, best=best)


def make_schedule(recipe: Recipe, total_steps: int) -> WarmupSchedule:
    """Return the learning rates of all updates."""
    return WarmupSchedule(
        recipe.learning_rate,
        total_steps,
        recipe.warmup_steps,
        recipe.schedule,
        cooldown_steps=recipe.cooldown_steps,
        final_fraction=recipe.final_fraction,
        timescale=recipe.timescale,
        milestones=recipe.milestone_shares,
    )


def check_trainable(model: keras.Model, recipe: Recipe):
    """Raise a ValueError if `model` cannot be trained or drawn."""
    is_classifier = recipe.needs_labels and len(model.output_shape) == 2
    if recipe.needs_labels != is_classifier or not model.trainable_variables:
        raise ValueError(
            "The model must give one prediction an image and have weights that "
            f"are not frozen. Received: output_shape={model.output_shape}, "
            f"{len(model.trainable_variables)} trainable weights "
            f"(pooling={recipe.pooling!r}, init_from={recipe.init_from!r})"
        )
    if recipe.log_attention and not isinstance(model, VisionTransformer):
        raise ValueError(
            "`log_attention` needs a VisionTransformer. Received: "
            f"log_attention={recipe.log_attention}, model={recipe.model!r}"
        )
