"""Train a Vision Transformer.

Example:
    python -m trainers.train --recipe=digits --run_dir=saved_models/digits
"""

import dataclasses
import functools
import math
import time

import keras
import tensorflow as tf
from absl import flags

from keras_vit import from_checkpoint
from keras_vit.analysis.callbacks import AttentionPictures
from keras_vit.models import VARIANTS, VisionTransformer
from trainers.data.bad_examples import BadExamples
from trainers.data.batches import eval_batches, train_batches
from trainers.data.datasets import ImageDataset, open_dataset
from trainers.distribute.rendezvous import reach_service, watched_service
from trainers.distribute.strategies import (
    ALONE,
    Place,
    is_chief,
    make_strategy,
    name_lost_workers,
    wait_for_all,
)
from trainers.loop.checkpoints import Checkpoints
from trainers.loop.costs import (
    TRAINING_PASSES,
    count_flops,
    estimate_memory,
    measure_peak_flops,
)
from trainers.loop.loop import Loop
from trainers.loop.metrics import MetricsFile, read_metrics
from trainers.loop.progress import Progress
from trainers.models.baselines import BASELINES, build_baseline
from trainers.optim.loss_scaling import LossScale
from trainers.optim.losses import LOSSES, smooth_labels
from trainers.optim.optimizers import make_optimizer
from trainers.optim.schedules import WarmupSchedule
from trainers.paths import as_path
from trainers.recipes import recipes
from trainers.recipes.recipes import (
    PRECISIONS,
    Recipe,
    define_flags,
    recipe_from_flags,
)
from trainers.runs.command_line import (
    StopSignals,
    exit_hard,
    refuse_arguments,
    start,
    stop_at_once,
    training_errors,
    user_errors,
)
from trainers.runs.pictures import plot_learning_curve
from trainers.runs.reports import final_table, header, scale, write_first_batch
from trainers.runs.run import Run

FLAGS = flags.FLAGS


def build_model(recipe: Recipe, dataset: ImageDataset) -> keras.Model:
    """Return the model of `recipe`, new or from a file, for `dataset`.

    Raises:
        ValueError: If the model cannot be built, or `init_from` is not one of
            ours or for images of other channels.
    """
    num_classes = len(dataset.class_names)
    dtype = PRECISIONS[recipe.precision]
    if recipe.model in BASELINES and not recipe.init_from:
        return build_baseline(
            recipe.model,
            image_size=recipe.image_size,
            channels=dataset.channels,
            num_classes=num_classes,
            dtype=dtype,
        )
    for_training = {
        "dropout_rate": recipe.dropout_rate,
        "stochastic_depth_rate": recipe.stochastic_depth_rate,
        "head_bias": recipe.head_bias,
        "use_remat": recipe.use_remat,
    }
    if recipe.init_from and not recipe.init_from.endswith(".keras"):
        return from_checkpoint(
            recipe.init_from,
            image_size=recipe.image_size,
            classes=num_classes,
            channels=dataset.channels,
            dtype=dtype,
            head=recipe.init_head,
            **given(for_training),
            # A new head comes without the tanh layer of the old one, as in
            # the official fine-tuning, or with one of its own.
            **(
                {"representation_size": recipe.representation_size}
                if recipe.init_head == "reset"
                else {}
            ),
        )
    if recipe.init_from:
        model = load_initial_model(
            recipe.init_from,
            recipe.image_size,
            num_classes,
            dataset.channels,
            recipe.init_head,
        )
        return model.with_dtype(dtype).with_remat(recipe.use_remat)
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


def load_initial_model(path, image_size, num_classes, channels, head="auto"):
    """Return the model in a file, at another size and with a fitting head."""
    if not as_path(path).is_file():
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
    if model.config.num_classes != num_classes or head == "reset":
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
        bad_examples: The images that could not be read.
        steps_per_epoch: Updates of one pass over the training split.
        total_steps: Updates in all.
    """

    recipe: Recipe
    run: Run
    dataset: ImageDataset
    loop: Loop
    bad_examples: BadExamples
    steps_per_epoch: int
    total_steps: int

    @property
    def is_writer(self) -> bool:
        """Whether this process writes files and reports; one of all does."""
        return is_chief(self.loop.strategy)

    @functools.cached_property
    def flops_per_image(self) -> int:
        """Operations of a forward pass, counted once: it takes a tracing."""
        return count_flops(self.loop.model)

    def __str__(self):
        recipe, model = self.recipe, self.loop.model
        return header(
            model=recipe.init_from or recipe.model,
            num_parameters=model.count_params(),
            flops_per_image=self.flops_per_image,
            image_size=model.input_shape[1:3],
            dataset=recipe.dataset,
            strategy=recipe.strategy,
            num_devices=self.loop.strategy.num_replicas_in_sync,
            precision=recipe.precision,
            batch_size=recipe.batch_size,
            first_step=self.loop.step,
            total_steps=self.total_steps,
        )

    def draw_first_batch(self):
        """Draw the next images to train on, as a PNG and for TensorBoard."""
        replicas = self.loop.strategy.num_replicas_in_sync
        batches = self.train_batches(
            tf.distribute.InputContext(num_replicas_in_sync=replicas)
        )
        with self.bad_examples.named_errors():
            images, labels, _ = next(iter(batches))
        self.run.folder.mkdir(parents=True, exist_ok=True)
        write_first_batch(
            images,
            labels,
            self.dataset.class_names,
            self.recipe.value_range,
            self.run.folder / "tensorboard",
            self.run.folder / "first_batch.png",
            step=self.loop.step,
        )

    def train_batches(self, context: tf.distribute.InputContext):
        """Return what the replicas of this process train on."""
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
            **_share(context),
        )

    def eval_batches(self, context: tf.distribute.InputContext):
        """Return what the replicas of this process evaluate on."""
        return eval_batches(
            self.dataset,
            image_size=self.loop.model.input_shape[1:3],
            batch_size=self.recipe.batch_size,
            preprocess=self.recipe.eval_preprocess,
            bad_examples=self.bad_examples,
            **_share(context),
        )

    def attention_pictures(self) -> AttentionPictures:
        """Return what draws the attention to the first test images."""
        recipe = self.recipe
        batches = eval_batches(
            self.dataset,
            image_size=self.loop.model.input_shape[1:3],
            batch_size=recipe.log_attention,
            preprocess=recipe.eval_preprocess,
            bad_examples=self.bad_examples,
        )
        with self.bad_examples.named_errors():
            images, _, weights = next(iter(batches))
        return AttentionPictures(
            images[weights > 0],
            self.run.folder / "tensorboard",
            self.run.positions_path,
            class_names=self.dataset.class_names,
            activation=recipe.activation,
            value_range=recipe.value_range,
            # What is evaluated, and saved in the end.
            averages=lambda: self.loop.optimizer.averages,
            first_step=self.loop.step,
        )


def _share(context):
    """Return the part of the batches that one of several processes reads."""
    return {
        "num_replicas": context.num_replicas_in_sync,
        "worker": context.input_pipeline_id,
        "num_workers": context.num_input_pipelines,
    }


def prepare(
    recipe: Recipe, run_dir: str, place: Place = ALONE, force: bool = False
) -> Job:
    """Return what `train` needs, everything that was asked for checked.

    Goes on where an earlier run of the same recipe in that folder stopped.

    Args:
        recipe: What to train, and how.
        run_dir: The folder of the run; made if there is none.
        place: This process among several.
        force: Go on even if the folder holds a run of another recipe.

    Raises:
        ValueError: If the recipe cannot be run, or the folder cannot be one
            or holds a run of another recipe. Nothing is written then.
        CheckpointError: If the run has checkpoints and none can be read.
        WorkerLostError: If another process or the data service does not come
            or does not answer.
    """
    run = Run(as_path(run_dir))
    run.check_folder()
    if recipe.data_service:
        reach_service(recipe.data_service, place.start_timeout)
    strategy = make_strategy(recipe.strategy, place)
    with name_lost_workers(strategy, lambda: "before the first update"):
        return _prepare(recipe, run, strategy, force)


def _prepare(recipe, run, strategy, force):
    dataset = open_in_turn(recipe, strategy)
    num_train = dataset.num_examples(dataset.train_split)
    steps_per_epoch = max(round(num_train / recipe.batch_size), 1)
    total_steps = recipe.total_steps or math.ceil(
        recipe.epochs * steps_per_epoch
    )
    check_batch_size(
        recipe.batch_size,
        strategy.num_replicas_in_sync,
        recipe.accumulation_steps,
    )
    if not force:
        run.check_recipe(recipe, dataset.class_names)
    # Not before: a data set that is prepared first draws numbers as well.
    keras.utils.set_random_seed(recipe.seed)
    loop = make_loop(recipe, dataset, strategy, total_steps)
    loop.checkpoints = Checkpoints(
        str(run.checkpoints_path),
        loop.state,
        num_kept=recipe.num_checkpoints,
        is_writer=is_chief(strategy),
    )
    loop.resume()
    bad_examples = BadExamples(recipe.max_bad_examples)
    return Job(
        recipe, run, dataset, loop, bad_examples, steps_per_epoch, total_steps
    )


def open_in_turn(recipe, strategy) -> ImageDataset:
    """Return the data set of `recipe`; the chief prepares it before others."""
    first = is_chief(strategy)
    if not first:
        wait_for_all(strategy)
    dataset = open_dataset(
        recipe.dataset,
        recipe.data_dir,
        train_split=recipe.train_split,
        eval_split=recipe.eval_split,
    )
    if first:
        wait_for_all(strategy)
    return dataset


def train(job: Job) -> dict[str, float]:
    """Train, and leave everything in the folder of the run.

    Args:
        job: What `prepare` returned.

    Returns:
        The last logs: loss, accuracy, val_loss, val_accuracy, ...

    Raises:
        NonFiniteLossError: If the loss is not finite.
        Interrupted: If it was asked to stop, after saving.
        WorkerLostError: If another process does not answer.
        CheckpointError: If the last state could not be saved.
        OSError: If a file cannot be written, or another process trains there.
    """
    if not job.is_writer:
        return _train(job)
    with job.run.claimed():
        job.loop.checkpoints.remove_drafts()
        return _train(job)


def _train(job):
    recipe, run, loop = job.recipe, job.run, job.loop
    steps_per_eval = max(round(job.steps_per_epoch * recipe.epochs_per_eval), 1)
    num_eval = job.dataset.num_examples(job.dataset.eval_split)
    callbacks = []
    if job.is_writer:
        run.save_recipe(recipe, job.dataset.class_names)
        if loop.step == 0:
            job.draw_first_batch()
        callbacks = make_callbacks(job, steps_per_eval)
    with job.bad_examples.named_errors():
        logs = loop.train(
            job.train_batches,
            job.eval_batches,
            total_steps=job.total_steps,
            steps_per_epoch=steps_per_eval,
            eval_steps=math.ceil(num_eval / recipe.batch_size),
            steps_per_loop=recipe.steps_per_loop,
            steps_per_checkpoint=recipe.steps_per_checkpoint,
            callbacks=callbacks,
        )
    loop.use_averages()
    if job.is_writer:
        run.save_model(loop.model)
        plot_learning_curve(run.metrics_path, run.folder / "learning_curve.png")
    return logs


def make_callbacks(job, steps_per_eval) -> list[keras.callbacks.Callback]:
    """Return what shows and writes how the training goes, in this order."""
    recipe, strategy = job.recipe, job.loop.strategy
    if recipe.peak_tflops:
        peak_flops = recipe.peak_tflops * 1e12
    else:
        is_half = recipe.precision != "float32"
        peak_flops = measure_peak_flops("bfloat16" if is_half else "float32")
    # Logical CPUs are one processor.
    has_cpus = not tf.config.list_logical_devices("GPU")
    devices = 1 if has_cpus else strategy.num_replicas_in_sync
    callbacks = [
        # In front of those that write what it adds.
        Progress(
            job.total_steps,
            steps_per_eval,
            TRAINING_PASSES * job.flops_per_image,
            peak_flops * devices,
        ),
        MetricsFile(job.run.metrics_path, first_step=job.loop.step),
        keras.callbacks.TensorBoard(
            job.run.folder / "tensorboard", write_graph=False
        ),
    ]
    if recipe.log_attention:
        callbacks.append(job.attention_pictures())
    return callbacks


def make_loop(recipe, dataset, strategy, total_steps) -> Loop:
    """Return the loop with its model and optimizer."""
    with strategy.scope():
        model = build_model(recipe, dataset)
    if len(model.output_shape) != 2 or not model.trainable_variables:
        raise ValueError(
            "The model must give one answer an image and have weights that "
            f"are not frozen. Received: output_shape={model.output_shape}, "
            f"{len(model.trainable_variables)} trainable weights "
            f"(pooling={recipe.pooling!r}, init_from={recipe.init_from!r})"
        )
    if recipe.log_attention and not isinstance(model, VisionTransformer):
        raise ValueError(
            "`log_attention` needs a VisionTransformer. Received: "
            f"log_attention={recipe.log_attention}, model={recipe.model!r}"
        )
    schedule = WarmupSchedule(
        recipe.learning_rate,
        total_steps,
        recipe.warmup_steps,
        recipe.schedule,
        cooldown_steps=recipe.cooldown_steps,
        final_fraction=recipe.final_fraction,
        timescale=recipe.timescale,
    )
    with strategy.scope():
        optimizer = make_optimizer(
            recipe.optimizer,
            model.trainable_variables,
            learning_rate=schedule,
            weight_decay=recipe.weight_decay,
            layer_decay=recipe.layer_decay,
            accumulator_dtype=recipe.accumulator_dtype,
            average_decay=recipe.average_decay,
            use_average_debias=recipe.use_average_debias,
        )
        loss_scale = LossScale() if recipe.precision == "float16" else None
    per_image = LOSSES[recipe.loss]

    def loss(labels, logits):
        return per_image(smooth_labels(labels, recipe.label_smoothing), logits)

    return Loop(
        model=model,
        optimizer=optimizer,
        loss=loss,
        strategy=strategy,
        clip_norm=recipe.clip_norm or None,
        accumulation_steps=recipe.accumulation_steps,
        seed=recipe.seed,
        loss_scale=loss_scale,
        use_xla=recipe.use_xla,
    )


def check_batch_size(batch_size: int, num_replicas: int, num_parts: int):
    """Raise a ValueError unless every part of a batch gets as many images."""
    if batch_size % (num_replicas * num_parts):
        raise ValueError(
            "`batch_size` must be a multiple of replicas times "
            f"`accumulation_steps`, {num_replicas} x {num_parts}. "
            f"Received: batch_size={batch_size}"
        )


def main(arguments):
    """Run the command."""
    with stop_at_once(), training_errors(), user_errors():
        refuse_arguments(arguments)
        run_dir = FLAGS.run_dir or f"saved_models/{FLAGS.recipe}"
        job = prepare(
            recipe_from_flags(),
            run_dir,
            Place(
                FLAGS.workers,
                FLAGS.worker_index,
                FLAGS.tpu,
                FLAGS.start_timeout,
            ),
            FLAGS.force,
        )
        if job.is_writer:
            print(job, flush=True)
        if FLAGS.dry_run:
            if job.is_writer:
                dry_run(job)
            return
    job.loop.must_stop = StopSignals().were_received
    start_time = time.perf_counter()
    with training_errors(), watched_service(job.recipe.data_service, exit_hard):
        train(job)
    bad = job.bad_examples.names
    if bad:
        print(f"Left out, not readable: {len(bad)} images, {', '.join(bad)}")
    if job.is_writer:
        seconds = time.perf_counter() - start_time
        rows = read_metrics(job.run.metrics_path)
        print(final_table(rows, seconds, run_dir))


def dry_run(job: Job):
    """Say what the training would need; draw its first batch if it is new."""
    recipe = job.recipe
    memory = estimate_memory(
        job.loop.model,
        recipe.batch_size // job.loop.strategy.num_replicas_in_sync,
        accumulation_steps=recipe.accumulation_steps,
        optimizer_slots_per_weight=1 if recipe.optimizer == "sgd" else 2,
        use_average=recipe.average_decay > 0,
    )
    print("Memory of a device, estimated:")
    for name, size in (memory._asdict() | {"total": memory.total}).items():
        print(f"  {name:12s} {scale(size)}B")
    if job.run.recipe_path.exists():
        print("First batch: as the run has drawn it, which has begun.")
        return
    job.draw_first_batch()
    print(f"First batch: {job.run.folder / 'first_batch.png'}")


def define_more_flags():
    """Define the flags that are not of the recipe."""
    flags.DEFINE_string(
        "run_dir",
        None,
        "Folder of the run, or an address of a bucket such as gs://bucket/run. "
        "Default: saved_models/<recipe>.",
    )
    flags.DEFINE_bool(
        "dry_run",
        False,
        "Say what would be done and what memory it needs, draw the first "
        "batch, and stop.",
    )
    flags.DEFINE_bool(
        "force", False, "Go on with a run although its recipe was another."
    )
    flags.DEFINE_string(
        "workers",
        None,
        "For --strategy=multi_worker: host:port of all processes, separated "
        "by commas. Default: from TF_CONFIG or Slurm.",
    )
    flags.DEFINE_integer(
        "worker_index", None, "Number of this process in --workers, from 0."
    )
    flags.DEFINE_float(
        "start_timeout",
        Place.start_timeout,
        "Seconds to wait at the start for the other processes and for the "
        "data service.",
        lower_bound=0.0,
    )
    flags.DEFINE_string(
        "tpu", None, "For --strategy=tpu: its name or address, if not local."
    )


if __name__ == "__main__":
    define_flags()
    flags.adopt_module_key_flags(recipes)  # So that --help lists them.
    define_more_flags()
    start(main)
