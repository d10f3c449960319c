"""Train a Vision Transformer.

Example:
    python -m trainers.train --recipe=digits --run_dir=saved_models/digits
"""

if __name__ == "__main__":  # A mistyped flag is found before the slow imports.
    from trainers.command_line import begin

    begin("trainers.train")

import dataclasses
import shlex
import time
from collections.abc import Sequence

import keras
from absl import flags

from keras_vit.progress import format_seconds
from trainers.commands import (
    before_training,
    load_plugins,
    run_main,
    training,
    worker_config_from_flags,
)
from trainers.data.inspection import (
    Finding,
    find,
    find_unread,
    inspect_images,
    judge_labels,
    write_data_page,
)
from trainers.data.readers.image_files import ImageFiles
from trainers.engine.cluster import ALONE, WorkerConfig
from trainers.evaluation.calibration import calibrate
from trainers.models.factory import class_names_of
from trainers.models.initial_model import (
    explain_ignored_flags,
    explain_other_classes,
    explain_other_size,
)
from trainers.paths import as_path
from trainers.recipes import flags as recipe_flags
from trainers.recipes.flags import ChosenRecipe
from trainers.recipes.photos import describe_fit
from trainers.recipes.recipe import Recipe
from trainers.training.memory import (
    available_bytes,
    describe_memory,
    describe_plan,
    describe_shortage,
    estimate_training_memory,
    held_bytes,
    measure_seconds_per_step,
    warn_of_shortage,
)
from trainers.training.pictures import (
    describe_skipped,
    draw_first_batch,
    final_table,
)
from trainers.training.report import read_metrics
from trainers.training.run_folder import RunFolder
from trainers.training.trainer import FEW_IMAGES, Trainer, prepare

__all__ = ["Trainer", "prepare", "train"]

FLAGS = flags.FLAGS

MOST_CHECKED = 1000  # Images before the training; more take minutes.


def main(arguments):
    """Run the command."""
    with before_training(arguments):
        trainer = prepare_and_check(
            recipe_of_command(),
            FLAGS.run_dir,
            worker_config_from_flags(),
            FLAGS.force,
            FLAGS.dry_run,
        )
        if FLAGS.dry_run:
            if trainer.is_writer:
                dry_run(trainer)
            return
    first_step, start_time = trainer.loop.step, time.perf_counter()
    with training(trainer.recipe.data_service) as must_stop:
        trainer.loop.must_stop = must_stop
        trainer.train(choose_thresholds)
    print_end(trainer, first_step, time.perf_counter() - start_time)


def train(
    recipe: str | Recipe | None = None,
    run_dir: str | None = None,
    *,
    callbacks: Sequence[keras.callbacks.Callback] = (),
    plugins: Sequence[str] = (),
    config: WorkerConfig = ALONE,
    force: bool = False,
    **fields,
) -> Trainer:
    """Train from Python, as `python -m trainers.train` does.

    A run that was stopped goes on when this is called again.

    Args:
        recipe: The name of a recipe, the path of a .json or .yaml file, or a
            recipe; None for photos, if `dataset` is a folder or a table.
        run_dir: The folder of the run. Default: saved_models/<recipe>.
        callbacks: Keras callbacks. An epoch is what lies between two
            evaluations, and a batch a call of the compiled function; what
            they add to the logs of an epoch is recorded in metrics.csv. With
            several processes, those of the one that writes are called.
        plugins: Modules or .py files, as of --plugins.
        config: How this process finds other workers.
        force: Whether to continue a run with a different recipe.
        **fields: Fields of the recipe, such as `epochs=3`.

    Returns:
        The trainer: `trainer.run` is the folder of the run, with
        `load_model()`, and `trainer.loop.model` the trained model.

    Raises:
        ValueError, OSError: If the training is not possible, see `prepare`.
        NonFiniteLossError, CheckpointError: See `Trainer.train`.

    Example:
        from trainers.train import train

        trainer = train("digits", epochs=2)
        model = trainer.run.load_model()
    """
    load_plugins(plugins)
    Recipe.check_names(fields)
    if isinstance(recipe, Recipe):
        given = recipe_flags.settle_given(fields)
        chosen = ChosenRecipe("recipe", given, recipe)
    else:
        chosen = recipe_flags.choose_recipe(recipe, fields)
    trainer = prepare_and_check(
        chosen, run_dir, config, force, callbacks=callbacks
    )
    first_step, start_time = trainer.loop.step, time.perf_counter()
    trainer.train(choose_thresholds)
    print_end(trainer, first_step, time.perf_counter() - start_time)
    return trainer


def prepare_and_check(
    chosen: ChosenRecipe,
    run_dir: str | None,
    config: WorkerConfig,
    force: bool,
    is_dry_run: bool = False,
    callbacks: Sequence[keras.callbacks.Callback] = (),
) -> Trainer:
    """Return a trainer whose data were checked, and print what it trains."""
    run_dir = run_dir or f"saved_models/{chosen.name}"
    trainer = prepare(
        chosen.recipe, run_dir, config, force, chosen, callbacks=callbacks
    )
    if trainer.is_writer:
        print_start(trainer, chosen, is_dry_run)
        check_images(trainer)
        if not is_dry_run and not trainer.memory_plan:
            warn_of_shortage(trainer)
    return trainer


def print_end(trainer: Trainer, first_step: int, seconds: float):
    """Print what a training skipped, and its results."""
    bad = trainer.bad_examples.names
    if bad:
        print(describe_skipped(bad))
    if trainer.is_writer:
        # Of a run that goes on, this is the time of the last part alone.
        print_results(trainer, seconds if first_step == 0 else None)


def recipe_of_command() -> ChosenRecipe:
    """Return the recipe of the command line.

    Raises:
        ValueError: If there is none, or it is not possible. Without one for a
            run that has begun, the message says how to go on with it.
    """
    try:
        return recipe_flags.recipe_from_flags()
    except recipe_flags.NoRecipeError:
        run = FLAGS.run_dir and RunFolder(as_path(FLAGS.run_dir))
        if run and run.recipe_path.exists():
            words = [f"--recipe={run.recipe_path}", f"--run_dir={run}"]
            raise ValueError(
                "`recipe` must be given to go on with a run. This goes on as "
                f"it was begun: keras-vit train {shlex.join(words)}. Received: "
                f"recipe=None, run_dir={str(run)!r}"
            ) from None
        raise


def choose_thresholds(trainer: Trainer):
    """Choose the thresholds of several labels for the model that is kept."""
    if trainer.recipe.labels == "several":
        calibrate(
            trainer.run,
            trainer.dataset,
            trainer.recipe.threshold_goal,
            batch_size=trainer.recipe.batch_size,
            bad_examples=trainer.bad_examples,
        )


def print_start(
    trainer: Trainer, chosen: ChosenRecipe, is_dry_run: bool = False
):
    """Print what is trained, from what and how, before the first update."""
    print(trainer, flush=True)
    if trainer.is_over:
        print("This run is finished. To train again, use another run_dir.")
    elif trainer.was_ended:
        print("A callback ended this run before its last update; it goes on.")
    if trainer.loop.step == 0:
        print_initial_weights(trainer, chosen)
    if trainer.dataset.has_several_labels:
        print(f"An image may have several labels: {trainer.recipe.loss} loss.")
    if trainer.has_other_images:
        print_other_images(trainer)
    if chosen.is_fitted:
        print_fit(trainer, is_dry_run)


def print_results(trainer: Trainer, seconds: float | None):
    """Print the results of a run, and whether it learned anything."""
    rows = read_metrics(trainer.run.metrics_path)
    keep_best = trainer.recipe.keep_best
    if trainer.stopped_early:
        print(
            f"Stopped early, after {trainer.recipe.patience} evaluations in a "
            "row without a better one."
        )
    print(final_table(rows, seconds, str(trainer.run), keep_best))
    if not trainer.recipe.needs_labels:
        print(
            f"model.keras is the encoder. Learn classes with it: python -m "
            f"trainers.train --init_from={trainer.run.model_path}"
        )
        return
    if trainer.dataset.has_several_labels or trainer.dataset.maps:
        return  # Guessing all labels of an image is not one in C.
    num_classes = len(trainer.dataset.class_names)
    key = "val_accuracy"
    best = max((row[key] for row in rows if key in row), default=1)
    if best <= 1 / num_classes:
        print(
            f"Warning: this is no better than guessing one of {num_classes} "
            "classes. Try another --learning_rate, more --epochs or "
            "--init_from a pre-trained model."
        )


def print_initial_weights(trainer: Trainer, chosen: ChosenRecipe):
    """Print the origin of the initial weights of a new run, and its teacher."""
    if hasattr(trainer.loop.model, "load_report"):
        print(f"Initial weights: {trainer.loop.model.load_report}")
    names = class_names_of(trainer.recipe, trainer.dataset)
    for reason in (
        explain_other_classes(trainer.recipe, names),
        explain_other_size(trainer.recipe),
        explain_ignored_flags(
            chosen.given, trainer.recipe.init_from, trainer.loop.model
        ),
    ):
        if reason:
            print(f"Note: {reason}")
    if trainer.loop.update.distillation:
        print(trainer.loop.update.distillation.note)


def print_other_images(trainer: Trainer):
    """Print that a run goes on with other images than it had before."""
    print(
        f"Note: there are {trainer.num_images:,} training images now; there "
        f"were {trainer.run.load_num_images():,} when this run was last "
        "started. Its settings stay as they are. To fit them to the new "
        "images, start a new run, with another --run_dir."
    )


def print_fit(trainer: Trainer, is_dry_run: bool):
    """Print the settings that follow from the images and the memory."""
    recipe, plan = trainer.recipe, trainer.memory_plan
    print(describe_fit(recipe, trainer.num_images), flush=True)
    if plan:
        replicas = trainer.loop.engine.num_replicas
        print(describe_plan(plan, recipe.batch_size, replicas), flush=True)
        if not plan.fits and not is_dry_run:
            shortage = describe_shortage(plan.memory, plan.available, trainer)
            print(f"Warning: {shortage}", flush=True)
    if not recipe.init_from and trainer.num_images < FEW_IMAGES:
        print(
            "A new model learns little from few images. A pre-trained one is "
            "better: --init_from=S/16-augreg, for example.",
            flush=True,
        )


def check_images(trainer: Trainer):
    """Check the images of a new run, or new images, and print the findings.

    Writes `data.html` into the folder of the run, a page with the findings and
    the images. Up to MOST_CHECKED images are checked, unless any of several
    classes is right for one.

    Raises:
        ValueError: If a class of image files has none in a split, or more
            images are unreadable than allowed.
        DataError: If a file of records is damaged.
    """
    dataset = trainer.dataset
    is_known = trainer.loop.step and not trainer.has_other_images
    has_alternatives = (
        not dataset.maps
        and dataset.has_several_classes(dataset.train_split)
        and not dataset.has_several_labels
    )
    if is_known or has_alternatives:
        return
    splits = (dataset.train_split, dataset.eval_split)
    number = sum(dataset.num_examples(split) for split in splits)
    unread = find_unread(dataset)
    if number > MOST_CHECKED:
        findings = [*judge_labels(dataset), *unread]
        for finding in findings:
            print(finding)
        print(
            f"{number:,} images: not checked. To check them, run python -m "
            f"trainers.inspect_data {describe_data(trainer.recipe)} --out=DIR"
        )
        stop_on_errors(findings, trainer.recipe.max_bad_examples)
        return
    print(f"Checking {number:,} images:")
    with trainer.bad_examples.named_errors():
        images = inspect_images(dataset)
    is_balanced = trainer.recipe.class_weights == "balanced"
    findings = find(images, dataset.class_names, unread, is_balanced)
    if not isinstance(dataset.reader, ImageFiles):
        # Data sets of TFDS and of records declare their classes, and a slice
        # of a split may have no images of some.
        findings = [
            dataclasses.replace(finding, level="warning")
            if finding.level == "error" and not finding.groups
            else finding
            for finding in findings
        ]
    trainer.run.folder.mkdir(parents=True, exist_ok=True)
    page = trainer.run.folder / "data.html"
    write_data_page(page, dataset.name, images, dataset.class_names, findings)
    for finding in findings:
        if finding.level != "note":
            print(finding)
    print(f"Images and findings: {page}", flush=True)
    stop_on_errors(findings, trainer.recipe.max_bad_examples)


def describe_data(recipe: Recipe) -> str:
    """Return the arguments with which `trainers.inspect_data` reads the data.

    Example:
        >>> describe_data(Recipe(dataset="folder:my photos", data_dir="d"))
        "'folder:my photos' --data_dir=d"
        >>> describe_data(Recipe(dataset="csv:a.csv", channels=16))
        'csv:a.csv --channels=16'
    """
    words = [recipe.dataset]
    names = ["data_dir", "train_split", "eval_split", "label_separator"]
    names += ["channels", "pixel_range"]
    names += ["objective", "depth_unit"] if recipe.has_maps else []
    for name in names:
        value = getattr(recipe, name)
        words += [] if value is None else [f"--{name}={value}"]
    if recipe.labels == "several":
        words.append("--labels=several")
    return shlex.join(words)


def stop_on_errors(findings: list[Finding], max_bad_examples: int):
    """Raise a ValueError unless training is possible."""
    errors = [finding for finding in findings if finding.level == "error"]
    bad = sum(len(group) for finding in errors for group in finding.groups)
    missing = [finding.text for finding in errors if not finding.groups]
    if bad > max_bad_examples:
        missing.append(
            f"{bad} images are unreadable; --max_bad_examples={bad} skips them"
        )
    if missing:
        raise ValueError(
            f"`dataset` must have readable images of each class: "
            f"{'; '.join(missing)}"
        )


def dry_run(trainer: Trainer):
    """Print memory and time of training; draw the first batch of a new run."""
    if trainer.run.recipe_path.exists():
        first_batch = "see first_batch.png in the folder of the run."
    else:
        first_batch = "see the warning."
        if draw_first_batch(trainer):
            first_batch = trainer.run.folder / "first_batch.png"
    print(f"First batch: {first_batch}")
    memory = estimate_training_memory(trainer)
    available = available_bytes(trainer.loop.engine, held_bytes(trainer.loop))
    print(describe_memory(memory, available))
    shortage = describe_shortage(memory, available, trainer)
    if shortage:
        print(shortage)
        return
    if trainer.loop.engine.num_processes > 1:
        return  # The others do not take part in a dry run.
    num_updates = trainer.total_steps - trainer.loop.step
    seconds = measure_seconds_per_step(trainer)
    print(
        f"Time: {format_seconds(num_updates * seconds)} for {num_updates:,} "
        f"updates of {seconds:.3g} s each, without the start and the "
        "evaluations"
    )


if __name__ == "__main__":
    run_main(main)
