"""Job: a checked training run, and `train`, which runs it."""

import contextlib
import dataclasses
import errno
import functools
import math
import os

import keras

from keras_vit.files import DRAFT
from trainers.data.batches import eval_batches, train_batches
from trainers.data.datasets import ImageDataset
from trainers.data.decoding import BadExamples
from trainers.engine.engine import Share
from trainers.loop.flops import (
    TRAINING_PASSES,
    count_flops,
    measure_peak_flops,
)
from trainers.loop.loop import Loop
from trainers.loop.metrics import MetricsFile
from trainers.loop.progress import Progress
from trainers.models.factory import class_names_of, plain_model
from trainers.paths import Path, RemotePath
from trainers.recipes.recipe import PRECISIONS, Recipe
from trainers.runs.memory import MemoryPlan, variable_bytes
from trainers.runs.model_card import check_card, write_card
from trainers.runs.pictures import (
    attention_pictures,
    header,
    plot_learning_curve,
    reconstructions,
    scale,
    write_first_batch,
)
from trainers.runs.run import Run

# Errors which mean that a file of this size cannot be written.
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def check_space(folder: Path, num_bytes: int):
    """Raise an OSError unless `num_bytes` can be written to `folder`.

    Allocates a file of this size and removes it. Unlike the free space of the
    disk, this also respects quotas and limits. Does nothing for a bucket, or
    if the file system does not support allocation.

    Args:
        folder: The existing folder of a run.
        num_bytes: Size of the files to write.
    """
    if isinstance(folder, RemotePath) or not hasattr(os, "posix_fallocate"):
        return
    draft = folder / f"{DRAFT}space"
    try:
        with open(draft, "wb") as file:
            os.posix_fallocate(file.fileno(), 0, num_bytes)
    except OSError as error:
        if error.errno in NO_ROOM:
            raise OSError(
                f"`run_dir` must have room for {scale(num_bytes)}B of "
                "checkpoints and the model; free some space or choose another "
                f"folder. Received: run_dir={str(folder)!r} ({error.strerror})"
            ) from None
    finally:
        draft.unlink(missing_ok=True)


FEW_IMAGES = 20_000


@dataclasses.dataclass(frozen=True)
class Job:
    """A training run that has been checked and can start.

    Args:
        recipe: The settings of the run.
        run: The folder of the run.
        dataset: The data set to train on.
        loop: The model, the optimizer and the state, restored if there is a
            checkpoint.
        bad_examples: The images that could not be read.
        steps_per_epoch: Updates in one pass over the training split.
        total_steps: Total number of updates.
        memory_plan: How the batch fits into memory, if the run decided that.
    """

    recipe: Recipe
    run: Run
    dataset: ImageDataset
    loop: Loop
    bad_examples: BadExamples
    steps_per_epoch: int
    total_steps: int
    memory_plan: MemoryPlan | None = None

    @property
    def is_writer(self) -> bool:
        """Whether this process writes files and reports; only one does."""
        return self.loop.engine.is_writer

    @property
    def steps_per_eval(self) -> int:
        """Updates between two evaluations."""
        return max(round(self.steps_per_epoch * self.recipe.epochs_per_eval), 1)

    @property
    def num_images(self) -> int:
        """Number of training images."""
        return self.dataset.num_examples(self.dataset.train_split)

    @property
    def has_other_images(self) -> bool:
        """Whether their number changed since the run was last started."""
        if self.loop.step == 0:
            return False
        return self.run.load_num_images() not in (None, self.num_images)

    @property
    def eval_steps(self) -> int:
        """Number of evaluation batches."""
        num_images = self.dataset.num_examples(self.dataset.eval_split)
        return math.ceil(num_images / self.recipe.batch_size)

    @functools.cached_property
    def flops_per_image(self) -> int:
        """FLOPs of a forward pass; cached, because counting traces a graph."""
        runs = self.loop.update.variants or (self.loop.model,)
        counts = [count_flops(self.loop.model, run=run) for run in runs]
        return round(sum(counts) / len(counts))

    def __str__(self):
        recipe, model = self.recipe, self.loop.model
        return header(
            model=recipe.init_from or recipe.model,
            num_parameters=model.count_params(),
            num_trained=sum(
                math.prod(v.shape) for v in model.trainable_weights
            ),
            flops_per_image=self.flops_per_image,
            image_size=model.input_shape[1:3],
            dataset=recipe.dataset,
            strategy=recipe.strategy,
            num_devices=self.loop.engine.num_replicas,
            precision=recipe.precision,
            batch_size=recipe.batch_size,
            first_step=self.loop.step,
            total_steps=self.total_steps,
        )

    def train_batches(self, share: Share):
        """Return the training batches of the replicas of this process."""
        recipe = self.recipe
        return train_batches(
            self.dataset,
            image_size=self.loop.model.input_shape[1:3],
            batch_size=recipe.batch_size,
            augment=recipe.augment,
            seed=recipe.seed,
            first_step=self.loop.step,
            num_streams=recipe.num_streams,
            bad_examples=self.bad_examples,
            data_service=recipe.data_service,
            **share._asdict(),
        )

    def eval_batches(self, share: Share):
        """Return the evaluation batches of the replicas of this process."""
        return eval_batches(
            self.dataset,
            image_size=self.loop.model.input_shape[1:3],
            batch_size=self.recipe.batch_size,
            preprocess=self.recipe.eval_preprocess,
            bad_examples=self.bad_examples,
            **share._asdict(),
        )

    def prepare_folder(self):
        """Check the disk, write the recipe and draw the first batch.

        Raises:
            ContentError: If what the card takes up cannot be read.
            OSError: If the checkpoints do not fit on the disk.
        """
        check_card(self.run, self.recipe)
        checkpoints = self.loop.checkpoints
        checkpoints.remove_drafts()
        if self.loop.step < self.total_steps:
            model = sum(variable_bytes(v) for v in self.loop.model.variables)
            state = model + sum(self.loop.optimizer.count_bytes())
            # While one is written, the older ones are kept.
            missing = checkpoints.num_kept + 1 - len(checkpoints.steps())
            check_space(self.run.folder, max(missing, 1) * state + model)
        names = class_names_of(self.recipe, self.dataset)
        self.run.save_recipe(self.recipe, names, self.num_images)
        if self.loop.step == 0:
            self.draw_first_batch()

    def draw_first_batch(self):
        """Draw the next training images, as a PNG and for TensorBoard."""
        batches = self.train_batches(Share(self.loop.engine.num_replicas))
        with self.bad_examples.named_errors():
            images, labels, weights = next(iter(batches))
        is_readable = weights > 0
        self.run.folder.mkdir(parents=True, exist_ok=True)
        write_first_batch(
            images[is_readable],
            labels[is_readable],
            self.dataset.class_names,
            self.recipe.normalization,
            self.run.folder / "tensorboard",
            self.run.folder / "first_batch.png",
            step=self.loop.step,
        )

    def save_averages(self):
        """Save the averaged weights, and go on with the others."""
        variables = self.loop.model.trainable_variables
        before = [variable.numpy() for variable in variables]
        self.loop.optimizer.assign_averages()
        if self.is_writer:
            self.keep_model()
        for variable, value in zip(variables, before):
            variable.assign(value)

    def keep_model(self):
        """Write the model without LoRA, and the LoRA weights alone."""
        if self.recipe.lora_rank:
            self.run.save_lora(self.loop.model)
        self.run.save_model(plain_model(self.loop.model, self.recipe))

    def make_callbacks(self) -> list[keras.callbacks.Callback]:
        """Return the callbacks that show and record the training."""
        callbacks = [
            # First, because later callbacks record the logs that it adds.
            Progress(
                self.total_steps,
                self.steps_per_eval,
                TRAINING_PASSES * self.flops_per_image,
                self.peak_flops,
                is_large=self.num_images >= FEW_IMAGES,
            ),
            MetricsFile(self.run.metrics_path, first_step=self.loop.step),
            keras.callbacks.TensorBoard(
                self.run.folder / "tensorboard", write_graph=False
            ),
        ]
        if self.recipe.log_attention:
            callbacks.append(attention_pictures(self))
        if not self.recipe.needs_labels:
            callbacks.append(reconstructions(self))
        return callbacks

    @property
    def peak_flops(self) -> float:
        """Peak FLOP/s of all processors together, for MFU."""
        engine = self.loop.engine
        if self.recipe.peak_tflops:
            one = self.recipe.peak_tflops * 1e12
        else:
            one = measure_peak_flops(
                PRECISIONS[self.recipe.precision].peak_dtype,
                engine.devices[0],
            )
        return one * engine.num_processors


def train(job: Job) -> dict[str, float]:
    """Train, and write all files to the folder of the run.

    Args:
        job: The result of `prepare`.

    Returns:
        The last logs: loss, accuracy, val_loss, val_accuracy, ...

    Raises:
        NonFiniteLossError: If the loss is not finite.
        Interrupted: If a signal stopped the run, after saving.
        WorkerLostError: If another process does not respond.
        CheckpointError: If the last state cannot be saved.
        ContentError: If a file of the folder is damaged.
        OSError: If a file cannot be written, the disk has no room for the
            checkpoints, or another process trains in the folder.
    """
    recipe, run, loop = job.recipe, job.run, job.loop
    with run.claimed() if job.is_writer else contextlib.nullcontext():
        if job.is_writer:
            job.prepare_folder()
        callbacks = job.make_callbacks() if job.is_writer else []
        if loop.best:
            loop.best.save = job.save_averages
        with job.bad_examples.named_errors():
            logs = loop.train(
                job.train_batches,
                job.eval_batches,
                total_steps=job.total_steps,
                steps_per_epoch=job.steps_per_eval,
                eval_steps=job.eval_steps,
                steps_per_loop=recipe.steps_per_loop,
                steps_per_checkpoint=recipe.steps_per_checkpoint,
                callbacks=callbacks,
            )
        is_kept = loop.best and run.model_path.exists()
        loop.optimizer.assign_averages()
        if job.is_writer:
            if not is_kept:
                job.keep_model()
            plot_learning_curve(
                run.metrics_path, run.folder / "learning_curve.png"
            )
            # With LoRA or without labels, the saved model has fewer weights
            # than the trained one.
            is_other = recipe.lora_rank or not recipe.needs_labels
            write_card(run, run.load_model() if is_other else loop.model)
    return logs
