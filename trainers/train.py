"""Train a Vision Transformer.

Example:
    python -m trainers.train --recipe=digits --run_dir=saved_models/digits
"""

import dataclasses
import math
import pathlib
import sys

import keras
import tensorflow as tf
from absl import flags

from keras_vit import from_checkpoint
from keras_vit.models import VARIANTS, VisionTransformer
from trainers import recipes
from trainers.command_line import refuse_arguments, start, user_errors
from trainers.datasets import (
    ImageDataset,
    eval_batches,
    open_dataset,
    train_batches,
)
from trainers.loop import Loop, NonFiniteLossError
from trainers.losses import LOSSES, smooth_labels
from trainers.optimizers import make_optimizer
from trainers.pictures import plot_learning_curve
from trainers.recipes import (
    PRECISIONS,
    Recipe,
    define_flags,
    recipe_from_flags,
)
from trainers.runs import Run
from trainers.schedules import WarmupSchedule
from trainers.strategies import make_strategy

FLAGS = flags.FLAGS


def build_model(recipe: Recipe, dataset: ImageDataset) -> keras.Model:
    """Return the model of `recipe`, new or from a file, for `dataset`.

    Raises:
        ValueError: If the model cannot be built, or `init_from` is not one of
            ours or for images of other channels.
    """
    num_classes = len(dataset.class_names)
    dtype = PRECISIONS[recipe.precision]
    for_training = {
        "dropout_rate": recipe.dropout_rate,
        "stochastic_depth_rate": recipe.stochastic_depth_rate,
        "head_bias": recipe.head_bias,
    }
    if recipe.init_from and not recipe.init_from.endswith(".keras"):
        return from_checkpoint(
            recipe.init_from,
            image_size=recipe.image_size,
            classes=num_classes,
            channels=dataset.channels,
            dtype=dtype,
            **given(for_training),
        )
    if recipe.init_from:
        return load_initial_model(
            recipe.init_from, recipe.image_size, num_classes, dataset.channels
        ).with_dtype(dtype)
    changes = {
        "image_size": recipe.image_size,
        "channels": dataset.channels,
        "num_classes": num_classes,
        "patch_size": recipe.patch_size,
        "pooling": recipe.pooling,
        "position_embedding": recipe.position_embedding,
        "gelu": recipe.gelu,
        "representation_size": recipe.representation_size,
        **for_training,
    }
    config = dataclasses.replace(
        VARIANTS[recipe.model].config,
        **given(changes),
    )
    return VisionTransformer(config, dtype=dtype)


def given(choices: dict) -> dict:
    """Return the choices that a recipe makes; the others are the model's."""
    return {name: x for name, x in choices.items() if x is not None}


def load_initial_model(path, image_size, num_classes, channels):
    """Return the model in a file, at another size and with a fitting head."""
    if not pathlib.Path(path).is_file():
        raise ValueError(
            "`init_from` must be the path of an existing .keras file. "
            f"Received: init_from={path!r}"
        )
    model = keras.saving.load_model(path, compile=False)
    if not isinstance(model, VisionTransformer):
        raise ValueError(
            "`init_from` must hold a VisionTransformer. "
            f"Received: {type(model).__name__} in {path!r}"
        )
    if model.config.channels != channels:
        raise ValueError(
            f"`init_from` holds a model for images of {model.config.channels} "
            f"channels; those of the data set have {channels}."
        )
    model = model.with_image_size(image_size)
    model = model.with_classifier_activation(None)  # The losses take logits.
    if model.config.num_classes != num_classes:
        model = model.with_num_classes(num_classes)
    return model


@dataclasses.dataclass(frozen=True)
class Job:
    """A training run that has been checked and can start.

    Args:
        recipe: What to train, and how.
        run: The folder of the run.
        dataset: What to train on.
        loop: The model and all that trains it, restored if there was a
            checkpoint.
        steps_per_epoch: Updates of one pass over the training split.
        total_steps: Updates in all.
    """

    recipe: Recipe
    run: Run
    dataset: ImageDataset
    loop: Loop
    steps_per_epoch: int
    total_steps: int

    def __str__(self):
        recipe, model = self.recipe, self.loop.model
        height, width = model.input_shape[1:3]
        return (
            f"{recipe.init_from or recipe.model}, "
            f"{model.count_params():,} parameters, "
            f"{height}x{width} pixels; {recipe.dataset}; "
            f"{self.loop.strategy.num_replicas_in_sync} replica(s), "
            f"{recipe.precision}; updates {self.loop.step:,} to "
            f"{self.total_steps:,} of {recipe.batch_size} images"
        )


def prepare(recipe: Recipe, run_dir: str) -> Job:
    """Return what `train` needs, everything that was asked for checked.

    Goes on where an earlier run of the same recipe in that folder stopped.

    Args:
        recipe: What to train, and how.
        run_dir: The folder of the run; made if there is none.

    Raises:
        ValueError: If the recipe cannot be run, or the folder holds a run of
            another one. Nothing is written then.
    """
    run = Run(pathlib.Path(run_dir))
    keras.utils.set_random_seed(recipe.seed)
    dataset = open_dataset(recipe.dataset, recipe.data_dir)
    num_train = dataset.num_examples(dataset.train_split)
    steps_per_epoch = max(round(num_train / recipe.batch_size), 1)
    total_steps = recipe.total_steps or math.ceil(
        recipe.epochs * steps_per_epoch
    )
    strategy = make_strategy(recipe.strategy)
    check_batch_size(recipe.batch_size, strategy.num_replicas_in_sync)
    with strategy.scope():
        loop = make_loop(recipe, dataset, strategy, total_steps, run)
    run.save_recipe(recipe, dataset.class_names)
    loop.resume()
    return Job(recipe, run, dataset, loop, steps_per_epoch, total_steps)


def train(job: Job) -> dict[str, float]:
    """Train, and leave everything in the folder of the run.

    Args:
        job: What `prepare` returned.

    Returns:
        The last logs: loss, accuracy, val_loss, val_accuracy, ...

    Raises:
        NonFiniteLossError: If the loss is not finite.
    """
    recipe, run, loop = job.recipe, job.run, job.loop
    size = loop.model.input_shape[1:3]
    batches = train_batches(
        job.dataset,
        image_size=size,
        batch_size=recipe.batch_size,
        augment=recipe.augment,
        seed=recipe.seed,
        first_step=loop.step,
    )
    logs = loop.train(
        batches,
        eval_batches(
            job.dataset, image_size=size, batch_size=recipe.batch_size
        ),
        total_steps=job.total_steps,
        steps_per_epoch=job.steps_per_epoch * recipe.epochs_per_eval,
        steps_per_loop=recipe.steps_per_loop,
        callbacks=[
            keras.callbacks.ProgbarLogger(),
            keras.callbacks.CSVLogger(run.metrics_path, append=loop.step > 0),
            keras.callbacks.TensorBoard(
                run.folder / "tensorboard", write_graph=False
            ),
        ],
    )
    run.save_model(loop.model)
    plot_learning_curve(run.metrics_path, run.folder / "learning_curve.png")
    return logs


def make_loop(recipe, dataset, strategy, total_steps, run) -> Loop:
    """Return the loop with its model and optimizer, in the current scope."""
    model = build_model(recipe, dataset)
    if len(model.output_shape) != 2 or not model.trainable_variables:
        raise ValueError(
            "The model must give one answer an image and have weights that "
            f"are not frozen. Received: output_shape={model.output_shape}, "
            f"{len(model.trainable_variables)} trainable weights "
            f"(pooling={recipe.pooling!r}, init_from={recipe.init_from!r})"
        )
    schedule = WarmupSchedule(
        recipe.learning_rate,
        total_steps,
        recipe.warmup_steps,
        recipe.schedule,
    )
    optimizer = make_optimizer(
        recipe.optimizer,
        schedule,
        recipe.weight_decay,
        model.trainable_variables,
    )
    per_image = LOSSES[recipe.loss]
    # What dropout draws from; tf.train.Checkpoint does not find it by itself.
    weights = {id(weight) for weight in model.weights}
    seeds = [v.value for v in model.variables if id(v) not in weights]

    def loss(labels, logits):
        return per_image(smooth_labels(labels, recipe.label_smoothing), logits)

    return Loop(
        model=model,
        optimizer=optimizer,
        loss=loss,
        strategy=strategy,
        checkpoints=tf.train.CheckpointManager(
            tf.train.Checkpoint(model=model, optimizer=optimizer, seeds=seeds),
            run.checkpoints_path,
            max_to_keep=2,
        ),
        clip_norm=recipe.clip_norm or None,
        use_xla=recipe.use_xla,
    )


def check_batch_size(batch_size: int, num_replicas: int):
    """Raise a ValueError unless every replica gets as many images."""
    if batch_size % num_replicas:
        raise ValueError(
            f"`batch_size` must be a multiple of the {num_replicas} replicas. "
            f"Received: batch_size={batch_size}"
        )


def main(arguments):
    """Run the command."""
    with user_errors():
        refuse_arguments(arguments)
        run_dir = FLAGS.run_dir or f"saved_models/{FLAGS.recipe}"
        job = prepare(recipe_from_flags(), run_dir)
    print(job, flush=True)
    try:
        logs = train(job)
    except NonFiniteLossError as error:
        sys.exit(f"Error: {error}")
    print(
        f"Test accuracy {logs['val_accuracy']:.4f}. Everything is in {run_dir}."
    )


if __name__ == "__main__":
    define_flags()
    flags.adopt_module_key_flags(recipes)  # So that --help lists them.
    flags.DEFINE_string(
        "run_dir", None, "Folder of the run. Default: saved_models/<recipe>."
    )
    start(main)
