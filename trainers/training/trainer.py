"""The trainer: from a recipe and a folder to a trained model.

`prepare` opens the data, builds the model and restores the newest checkpoint.
`Trainer.train` writes the folder, runs the loop of updates and evaluations
(`loop.py`) and keeps the model. `trainers/engine/update.py` says what an
update is. None of them knows a backend: what TensorFlow and JAX do differently
is in `trainers.engine`.
"""

import contextlib
import dataclasses
import functools
import math
from collections.abc import Callable, Sequence

import keras

from keras_vit.progress import scale
from trainers.augment.augmentation import try_operations
from trainers.data import batches
from trainers.data.datasets import ImageDataset, open_dataset
from trainers.data.decoding import BadExamples
from trainers.data.file_lists import is_file_list
from trainers.data.readers.folder import UNLABELLED
from trainers.engine.checkpoints import Checkpoints
from trainers.engine.cluster import ALONE, WorkerConfig
from trainers.engine.engine import Engine, Share
from trainers.engine.rendezvous import wait_for_service
from trainers.engine.strategies import make_engine
from trainers.engine.update import Update
from trainers.models.factory import (
    build_model,
    check_trainable,
    class_names_of,
    make_variants,
    plain_model,
)
from trainers.models.initial_model import (
    initial_preprocessing,
    read_initial_classes,
)
from trainers.optim.losses import LossScale
from trainers.optim.optimizers import make_optimizer
from trainers.optim.schedules import make_schedule
from trainers.paths import as_path, check_folder, check_writable
from trainers.plugins import CALLBACKS
from trainers.recipes.flags import ChosenRecipe
from trainers.recipes.recipe import CLASSIFY, PRECISIONS, Recipe
from trainers.training.flops import (
    TRAINING_PASSES,
    count_flops,
    measure_peak_flops,
)
from trainers.training.loop import Best, Loop
from trainers.training.memory import MemoryPlan, fit_to_memory, variable_bytes
from trainers.training.model_card import check_card, write_card
from trainers.training.objectives import make_distillation, make_loss
from trainers.training.pictures import (
    attention_pictures,
    draw_first_batch,
    plot_learning_curve,
    reconstructions,
)
from trainers.training.provenance import describe_origin
from trainers.training.report import MetricsFile, Progress
from trainers.training.run_folder import RunFolder, check_place
from trainers.training.trackers import check_trackers, tracking


def prepare(
    recipe: Recipe,
    run_dir: str,
    config: WorkerConfig = ALONE,
    force: bool = False,
    chosen: ChosenRecipe | None = None,
    build: Callable[[Recipe, ImageDataset], keras.Model] | None = None,
    callbacks: Sequence[keras.callbacks.Callback] = (),
) -> "Trainer":
    """Return a trainer that can start.

    An earlier run of the same recipe in the folder is continued.
    In this order: the engine, the data, the recipe that fits them, the model
    with its optimizer, the newest checkpoint.

    Args:
        recipe: The settings of the run.
        run_dir: The folder of the run; created if needed.
        config: How this process finds the other workers.
        force: Whether to continue a run with another recipe.
        chosen: The choice that `recipe` comes from. It replaces the recipe
            by one that fits the images and the memory, once they are known;
            None for the recipe as it is.
        build: Returns the model; None for that of the recipe.
        callbacks: See `Trainer`.

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
    check_trackers(recipe.tracker_names)
    run = RunFolder(as_path(run_dir))
    check_folder(run.folder, "run_dir")
    check_place(run, recipe.dataset)
    if recipe.data_service:
        wait_for_service(recipe.data_service, config.start_timeout)
    engine = make_engine(recipe.strategy, config, recipe.model_devices)
    if engine.is_writer:
        check_writable(run.folder, "run_dir")
    with engine.name_lost_workers(lambda: "before the first update"):
        engine.check_agreement("recipe", _shared_fields(recipe))
        dataset = dataclasses.replace(
            open_in_turn(recipe, engine), needs_labels=recipe.needs_labels
        )
        check_labels(recipe, dataset)
        # Class names that a run knows already keep their spelling.
        started = None if force else run.started_recipe()
        if started:
            dataset = dataset.with_forms_of(run.load_class_names())
        elif recipe.init_from:
            names = read_initial_classes(recipe.init_from)
            dataset = dataset.with_forms_of(names)
        replicas = engine.num_replicas
        free = ()  # The fields that follow from the memory.
        if chosen:
            num_images = dataset.num_examples(dataset.train_split)
            recipe = chosen.fit(
                num_images, started, replicas, dataset.has_several_labels
            )
            free = chosen.free_fields(started)
        recipe = _normalize(recipe, started, dataset.channels)
        dataset = dataset.with_pixels(recipe.pixel_options)
        recipe = fit_to_labels(recipe, dataset, chosen, started)
        for name in ("augment", "eval_preprocess"):
            line, has_maps = getattr(recipe, name), recipe.has_maps
            try_operations(line, name, dataset.channels, has_maps)
        if chosen:
            engine.check_agreement("recipe", _shared_fields(recipe))
        engine.check_agreement("data", _shared_data(dataset))
        steps_per_epoch, total_steps = count_steps(recipe, dataset)
        check_batch_size(recipe.batch_size, replicas, recipe.accumulation_steps)
        check_streams(recipe, dataset, engine)
        if not force:
            run.check_recipe(recipe, class_names_of(recipe, dataset))

        def make(recipe):
            return make_loop(recipe, dataset, engine, total_steps, build)

        if free:
            recipe, loop, plan = fit_to_memory(recipe, free, make)
        else:
            loop, plan = make(recipe), None
        loop.checkpoints = Checkpoints(
            str(run.checkpoints_path),
            loop.state,
            engine,
            recipe.num_checkpoints,
        )
        loop.resume()
        forgets = bool(force and loop.best and loop.step)
        forgets = forgets and not sees_the_same(run, recipe)
        if forgets:
            loop.best.forget()
        variables = [(v.path, v) for v in loop.model.variables]
        if loop.update.distillation:
            teacher = loop.update.distillation.teacher
            variables += [(f"teacher/{v.path}", v) for v in teacher.variables]
        engine.check_agreement(
            "weights", ((path, engine.content_of(v)) for path, v in variables)
        )
    return Trainer(
        recipe,
        run,
        dataset,
        loop,
        bad_examples=BadExamples(recipe.max_bad_examples),
        steps_per_epoch=steps_per_epoch,
        total_steps=total_steps,
        memory_plan=plan,
        callbacks=tuple(callbacks),
        forgets=forgets,
    )


def sees_the_same(run: RunFolder, recipe: Recipe) -> bool:
    """Return whether a run has been evaluated on the images of a recipe."""
    try:
        saved = run.started_recipe()
    except ValueError:  # Of another version, or of plug-ins.
        return False
    return saved and all(getattr(saved, n) == getattr(recipe, n) for n in SEEN)


# The fields that say by which images the best model was chosen.
SEEN = ("dataset", "eval_split", "eval_preprocess")


def _normalize(recipe, started, channels):
    """Return the recipe with the normalisation of its initial model.

    An old run saved its lines as they were typed, a new one as they were
    normalised; where they equal the typed ones, they stay. A run also keeps
    the range of pixels that it took from its initial model.
    """
    settings = initial_preprocessing(recipe, channels)
    lines = ("augment", "eval_preprocess")
    if started and all(
        getattr(started, n) == getattr(recipe, n) for n in lines
    ):
        if recipe.init_from and recipe.pixel_range is None:
            pixel_range = started.pixel_range
            recipe = dataclasses.replace(recipe, pixel_range=pixel_range)
        return recipe
    return recipe.normalized_for(settings)


def _shared_fields(recipe):
    """Yield the fields that must be equal on all workers."""
    for field in dataclasses.fields(recipe):
        if not field.metadata["is_local"]:
            yield field.name, repr(getattr(recipe, field.name)).encode()


def _shared_data(dataset):
    """Yield what must be equal of the data of all workers."""
    yield "class names", repr(dataset.class_names).encode()
    for split in ("train_split", "eval_split"):
        count = dataset.num_examples(getattr(dataset, split))
        yield f"number of images of {split}", str(count).encode()


def open_in_turn(recipe: Recipe, engine: Engine) -> ImageDataset:
    """Return the data set of `recipe`, which the chief prepares first."""
    if not engine.is_writer:
        engine.wait_for_all()
    dataset = open_dataset(
        recipe.dataset,
        recipe.data_dir,
        train_split=recipe.train_split,
        eval_split=recipe.eval_split,
        labels=recipe.label_options,
        pixels=recipe.pixel_options,
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


def fit_to_labels(
    recipe: Recipe,
    dataset: ImageDataset,
    chosen: ChosenRecipe | None = None,
    started: Recipe | None = None,
) -> Recipe:
    """Return the recipe for one class an image, or for several labels.

    Raises:
        ValueError: If the recipe, or the run, is for the other kind.
    """
    if recipe.objective != CLASSIFY:
        return recipe
    has_several = dataset.has_several_labels
    if chosen and has_several and chosen.given.get("loss") == "softmax":
        raise ValueError(
            "`loss` must be sigmoid, focal or asymmetric for several labels; "
            "--labels=one is for one class an image. Received: loss='softmax'"
        )
    recipe = recipe.for_labels(has_several)
    if started and started.labels not in ("auto", recipe.labels):
        raise ValueError(
            "`labels` must be those that the run was started with. Received: "
            f"{started.labels} there, {recipe.labels} here"
        )
    return recipe


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
        hint = ""
        if is_file_list(recipe.dataset):
            hint = (
                ". The settings of --recipe=photos follow from the number of "
                "images."
            )
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


def check_streams(recipe: Recipe, dataset: ImageDataset, engine: Engine):
    """Raise a ValueError if the batches cannot be made of so many streams."""
    batches.BatchSlots(
        recipe.batch_size,
        engine.num_replicas,
        num_workers=engine.num_processes,
        num_streams=recipe.num_streams,
    )
    num_images = dataset.num_examples(dataset.train_split)
    if recipe.num_streams > num_images:
        raise ValueError(
            "`num_streams` must not exceed the number of training images. "
            f"Received: num_streams={recipe.num_streams}, {num_images} images"
        )
    if recipe.data_service:
        bad = BadExamples(recipe.max_bad_examples)
        batches.check_data_service(dataset, recipe.num_streams, bad)


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
    # Here, because preparing a data set draws random numbers as well.
    keras.utils.set_random_seed(recipe.seed)
    is_read = bool(recipe.init_from)
    with engine.reading() if is_read else engine.scope():
        model = (build or build_model)(recipe, dataset)
    if is_read:
        engine.place(model)
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
    with engine.reading():
        distillation = make_distillation(recipe, dataset, model)
    if distillation:
        engine.place(distillation.teacher)
    update = Update(
        model=model,
        optimizer=optimizer,
        **make_loss(recipe, dataset, model),
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


FEW_IMAGES = 20_000  # Fewer get the hints for small data sets.


@dataclasses.dataclass(frozen=True)
class Trainer:
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
        callbacks: Keras callbacks of one's own, called after the others.
        forgets: Whether the best model was chosen by other images.
    """

    recipe: Recipe
    run: RunFolder
    dataset: ImageDataset
    loop: Loop
    bad_examples: BadExamples
    steps_per_epoch: int
    total_steps: int
    memory_plan: MemoryPlan | None = None
    callbacks: Sequence[keras.callbacks.Callback] = ()
    forgets: bool = False

    def train(
        self, finish: Callable[["Trainer"], None] = lambda trainer: None
    ) -> dict[str, float]:
        """Train, and write all files to the folder of the run.

        Args:
            finish: Called when the model is kept, by the process that writes;
                the others wait.

        Returns:
            The last logs: loss, accuracy, val_loss, val_accuracy, ...

        Raises:
            NonFiniteLossError: If the loss is not finite.
            Interrupted: If a signal stopped the run, after saving.
            WorkerLostError: If another process does not respond.
            CheckpointError: If the last state cannot be saved.
            ContentError: If a file of the folder is damaged.
            OSError: If a file cannot be written, the disk has no room for the
                checkpoints, or another process trains in the folder or has
                trained there since `prepare`.
        """
        recipe, run, loop = self.recipe, self.run, self.loop
        was_finished = self.is_finished
        with contextlib.ExitStack() as stack:
            callbacks = []
            if self.is_writer:
                stack.enter_context(run.claimed())
                self.check_newest()
            # A kill after the new recipe is written must not bring back what
            # is forgotten.
            if self.forgets:
                loop.checkpoints.save(loop.step)
            if self.is_writer:
                self.prepare_folder()
                trackers = () if was_finished else recipe.tracker_names
                settings = {
                    name: value
                    for name, value in dataclasses.asdict(recipe).items()
                    if value not in (None, "")
                }
                callbacks.append(
                    stack.enter_context(
                        tracking(trackers, run.folder, run.name, settings)
                    )
                )
            # Progress comes first: it adds to the logs.
            callbacks = [*self.make_callbacks(), *callbacks]
            if loop.best:
                loop.best.save = self.save_averages
            with self.bad_examples.named_errors():
                logs = loop.train(
                    self.train_batches,
                    self.eval_batches,
                    total_steps=self.total_steps,
                    steps_per_eval=self.steps_per_eval,
                    eval_steps=self.eval_steps,
                    steps_per_loop=recipe.steps_per_loop,
                    steps_per_checkpoint=recipe.steps_per_checkpoint,
                    callbacks=callbacks,
                )
            is_kept = loop.best and run.model_path.exists()
            loop.optimizer.assign_averages()
            with loop.name_lost_workers(), loop.engine.whole(loop.model):
                # A finished run keeps its model, which may be calibrated.
                if self.is_writer and not was_finished:
                    if not is_kept:
                        self.keep_model()
                    finish(self)
                    plot_learning_curve(
                        run.metrics_path, run.folder / "learning_curve.png"
                    )
                    # With LoRA or without labels, the saved model has fewer
                    # weights than the trained one.
                    is_other = recipe.lora_rank or not recipe.needs_labels
                    write_card(
                        run, run.load_model() if is_other else loop.model
                    )
                    run.save_finished_step(loop.step)
            loop.engine.part_from_all()
        return logs

    def check_newest(self):
        """Raise an OSError if another process has trained since `prepare`."""
        loop = self.loop
        newest = max(loop.checkpoints.steps(), default=0)
        if newest > max(loop.newest, loop.step):
            raise OSError(
                "`run_dir` was trained by another process after this one had "
                "read it; start again to go on from there. Received: "
                f"run_dir={str(self.run.folder)!r} with update {newest:,}"
            )

    @property
    def is_over(self) -> bool:
        """Whether no update is left, or patience has come to an end."""
        is_last = self.loop.step >= self.total_steps
        return is_last or bool(self.recipe.keep_best and self.loop.best.is_over)

    @property
    def stopped_early(self) -> bool:
        """Whether training ended before its last update."""
        return self.is_over and self.loop.step < self.total_steps

    @property
    def was_ended(self) -> bool:
        """Whether a callback has ended the run at this update."""
        step = self.loop.step
        if self.is_over or not step or not self.run.recipe_path.exists():
            return False
        return self.run.finished_step == step

    @property
    def is_finished(self) -> bool:
        """Whether the run has all files that it ends with."""
        run = self.run
        has_files = run.recipe_path.exists() and run.model_path.exists()
        return (
            self.is_over and has_files and run.finished_step == self.loop.step
        )

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
        """FLOPs of a forward pass of training; counting traces a graph."""
        runs = self.loop.update.variants or (self.loop.model,)
        training = self.recipe.patch_dropout_rate > 0
        counts = [
            count_flops(self.loop.model, run=run, training=training)
            for run in runs
        ]
        return round(sum(counts) / len(counts))

    def __str__(self):
        recipe, model = self.recipe, self.loop.model
        size, num_replicas = model.count_params(), self.loop.engine.num_replicas
        trained = sum(math.prod(v.shape) for v in model.trainable_weights)
        parameters = f"{scale(size)} parameters"
        if trained < size:
            parameters = f"{scale(trained).strip()} of {parameters} trained"
        height, width = model.input_shape[1:3]
        devices = "device" if num_replicas == 1 else "devices"
        parts = [
            f"{recipe.init_from or recipe.model}, {parameters}, "
            f"{scale(self.flops_per_image)}FLOP an image of {height}x{width}",
            recipe.dataset,
            f"{recipe.strategy} on {num_replicas} {devices}, "
            f"{recipe.precision}",
            f"updates {self.loop.step:,} to {self.total_steps:,}, "
            f"{recipe.batch_size:,} images each",
        ]
        return "; ".join(parts)

    def train_batches(self, share: Share):
        """Return the training batches of the replicas of this process."""
        recipe = self.recipe
        return batches.train_batches(
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
        return batches.eval_batches(
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
            ContentError: If a file that the model card quotes is damaged.
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
            self.run.check_space(max(missing, 1) * state + model)
        if self.is_finished:
            return  # Its files state the versions and data it was made with.
        names = class_names_of(self.recipe, self.dataset)
        origin = describe_origin(self.dataset)
        is_begun = self.loop.step > 0
        self.run.save_recipe(
            self.recipe, names, self.num_images, origin, is_begun
        )
        if not is_begun:
            draw_first_batch(self)

    def save_averages(self):
        """Save the averaged weights, and go on with the others."""
        loop = self.loop
        with loop.engine.whole(loop.model, loop.optimizer.averages):
            if self.is_writer:
                self.keep_model()

    def keep_model(self):
        """Write the model without LoRA, and the LoRA weights alone."""
        if self.recipe.lora_rank:
            self.run.save_lora(self.loop.model)
        self.run.save_model(plain_model(self.loop.model, self.recipe))

    def make_callbacks(self) -> list[keras.callbacks.Callback]:
        """Return the callbacks that show and record the training."""
        makers = []
        if self.recipe.log_attention:
            makers.append(attention_pictures)
        if not self.recipe.needs_labels:
            makers.append(reconstructions)
        optimizer = self.loop.optimizer
        pictures = self.of_writer(makers, lambda: optimizer.averages)
        # These may add to the logs, which others record.
        given = (lambda trainer, each=each: each for each in self.callbacks)
        more = self.of_writer([*CALLBACKS, *given], lambda: None)
        if not self.is_writer:
            return [*more, *pictures]
        board = []
        if "tensorboard" in self.recipe.tracker_names:
            place = self.run.folder / "tensorboard"
            board = [keras.callbacks.TensorBoard(place, write_graph=False)]
        return [
            Progress(
                self.total_steps,
                self.steps_per_eval,
                TRAINING_PASSES * self.flops_per_image,
                self.peak_flops,
                is_large=self.num_images >= FEW_IMAGES,
            ),
            *more,
            MetricsFile(self.run.metrics_path, first_step=self.loop.step),
            *board,
            *pictures,
        ]

    def of_writer(self, makers: Sequence[Callable], weights: Callable) -> list:
        """Return callbacks for the process that writes, with whole weights.

        All processes must take part in collecting weights that are in pieces.
        """
        loop = self.loop
        made = [make(self) if self.is_writer else None for make in makers]
        if not loop.engine.saves_together:
            return made if self.is_writer else []
        return [WithWholeWeights(each, loop.engine, weights) for each in made]

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


class WithWholeWeights(keras.callbacks.Callback):
    """Calls a callback of the writer, which has whole weights meanwhile.

    It has them when the training begins and when an epoch ends.

    All processes have one, because all must take part in collecting them.

    Args:
        callback: The callback of the writer; None on the other processes.
        engine: The processes.
        weights: Returns values to use in place of the trainable weights, or
            None for the weights.
    """

    def __init__(
        self,
        callback: keras.callbacks.Callback | None,
        engine: Engine,
        weights: Callable[[], list | None],
    ):
        super().__init__()
        self.callback = callback or keras.callbacks.Callback()
        self.engine = engine
        self.weights = weights

    def set_model(self, model):
        super().set_model(model)
        self.callback.set_model(model)

    def on_train_begin(self, logs=None):
        with self.engine.whole(self.model, self.weights()):
            self.callback.on_train_begin(logs)

    def on_epoch_end(self, epoch, logs=None):
        with self.engine.whole(self.model, self.weights()):
            self.callback.on_epoch_end(epoch, logs)

    def on_epoch_begin(self, epoch, logs=None):
        self.callback.on_epoch_begin(epoch, logs)

    def on_train_batch_begin(self, batch, logs=None):
        self.callback.on_train_batch_begin(batch, logs)

    def on_train_batch_end(self, batch, logs=None):
        self.callback.on_train_batch_end(batch, logs)

    def on_train_end(self, logs=None):
        self.callback.on_train_end(logs)
