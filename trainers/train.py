"""Train a Vision Transformer.

Example:
    python -m trainers.train --recipe=digits --run_dir=saved_models/digits
"""

if __name__ == "__main__":  # A mistyped flag is found before the slow imports.
    from trainers.command_line import begin

    begin("trainers.train")

import time

from absl import flags

from keras_vit.progress import format_seconds
from trainers.engine.rendezvous import watched_service
from trainers.loop.metrics import read_metrics
from trainers.models.factory import class_names_of
from trainers.models.initial_model import (
    explain_ignored_flags,
    explain_other_classes,
    explain_other_size,
)
from trainers.paths import as_path
from trainers.recipes import flags as recipe_flags
from trainers.recipes.flags import ChosenRecipe
from trainers.recipes.photos import RULES, describe_fit
from trainers.runs.command_line import (
    StopSignals,
    exit_hard,
    refuse_arguments,
    run_main,
    stop_at_once,
    training_errors,
    user_errors,
    worker_config_from_flags,
)
from trainers.runs.data_check import check_images
from trainers.runs.job import FEW_IMAGES, Job, train
from trainers.runs.memory import (
    available_bytes,
    describe_memory,
    describe_plan,
    describe_shortage,
    estimate_job_memory,
    held_bytes,
    measure_seconds_per_step,
    warn_of_shortage,
)
from trainers.runs.pictures import describe_skipped, final_table
from trainers.runs.preparation import prepare
from trainers.runs.run import Run, explain_repeating

__all__ = ["Job", "prepare", "train"]

FLAGS = flags.FLAGS


def main(arguments):
    """Run the command."""
    with stop_at_once(), training_errors(), user_errors():
        refuse_arguments(arguments)
        chosen = choose_recipe()
        run_dir = FLAGS.run_dir or f"saved_models/{chosen.name}"
        config = worker_config_from_flags()
        job = prepare(chosen.recipe, run_dir, config, FLAGS.force, chosen)
        if job.is_writer:
            print_start(job, chosen)
            check_images(job)
        if FLAGS.dry_run:
            if job.is_writer:
                dry_run(job)
            return
        if job.is_writer and not job.memory_plan:
            warn_of_shortage(job)
    job.loop.must_stop = StopSignals().were_received
    first_step, start_time = job.loop.step, time.perf_counter()
    with training_errors(), watched_service(job.recipe.data_service, exit_hard):
        train(job)
    bad = job.bad_examples.names
    if bad:
        print(describe_skipped(bad))
    if job.is_writer:
        seconds = time.perf_counter() - start_time
        # Of a run that goes on, this is the time of the last part alone.
        print_results(job, seconds if first_step == 0 else None)


def choose_recipe() -> ChosenRecipe:
    """Return the recipe of the command line.

    Raises:
        ValueError: If there is none. For a run that has begun, the message
            says how to go on with it.
    """
    try:
        return recipe_flags.recipe_from_flags()
    except ValueError:
        run = FLAGS.run_dir and Run(as_path(FLAGS.run_dir))
        if FLAGS.recipe is None and run and run.recipe_path.exists():
            raise ValueError(explain_repeating(run)) from None
        raise


def stopped_early(job: Job) -> bool:
    """Return whether a run is finished before its last update."""
    is_last = job.loop.step >= job.total_steps
    return job.recipe.keep_best and job.loop.best.is_over and not is_last


def print_start(job: Job, chosen: ChosenRecipe):
    """Print what is trained, from what and how, before the first update."""
    print(job, flush=True)
    if job.loop.step >= job.total_steps or stopped_early(job):
        print("This run is finished. To train again, use another run_dir.")
    if job.loop.step == 0:
        print_initial_weights(job, chosen)
    if job.has_other_images:
        print_other_images(job)
    if chosen.name in RULES:
        print_fit(job)


def print_results(job: Job, seconds: float | None):
    """Print the results of a run, and whether it learned anything."""
    rows = read_metrics(job.run.metrics_path)
    keep_best = job.recipe.keep_best
    if stopped_early(job):
        print(
            f"Stopped early, after {job.recipe.patience} evaluations in a row "
            "without a better one."
        )
    print(final_table(rows, seconds, str(job.run), keep_best))
    if not job.recipe.needs_labels:
        print(
            f"model.keras is the encoder. Learn classes with it: python -m "
            f"trainers.train --init_from={job.run.model_path}"
        )
        return
    num_classes = len(job.dataset.class_names)
    key = "val_accuracy"
    best = max((row[key] for row in rows if key in row), default=1)
    if best <= 1 / num_classes:
        print(
            f"Warning: this is no better than guessing one of {num_classes} "
            "classes. Try another --learning_rate, more --epochs or "
            "--init_from a pre-trained model."
        )


def print_initial_weights(job: Job, chosen: ChosenRecipe):
    """Print the origin of the initial weights of a new run, and its teacher."""
    if hasattr(job.loop.model, "load_report"):
        print(f"Initial weights: {job.loop.model.load_report}")
    names = class_names_of(job.recipe, job.dataset)
    for reason in (
        explain_other_classes(job.recipe, names),
        explain_other_size(job.recipe),
        explain_ignored_flags(
            chosen.given, job.recipe.init_from, job.loop.model
        ),
    ):
        if reason:
            print(f"Note: {reason}")
    if job.loop.update.distillation:
        print(job.loop.update.distillation.note)


def print_other_images(job: Job):
    """Print that a run goes on with other images than it had before."""
    print(
        f"Note: there are {job.num_images:,} training images now; there were "
        f"{job.run.load_num_images():,} when this run was last started. Its "
        "settings stay as they are. To fit them to the new images, start a new "
        "run, with another --run_dir."
    )


def print_fit(job: Job):
    """Print the settings that follow from the images and the memory."""
    recipe, plan = job.recipe, job.memory_plan
    print(describe_fit(recipe, job.num_images), flush=True)
    if plan:
        replicas = job.loop.engine.num_replicas
        print(describe_plan(plan, recipe.batch_size, replicas), flush=True)
        if not plan.fits and not FLAGS.dry_run:
            shortage = describe_shortage(plan.memory, plan.available, job)
            print(f"Warning: {shortage}", flush=True)
    if not recipe.init_from and job.num_images < FEW_IMAGES:
        print(
            "A new model learns little from few images. A pre-trained one is "
            "better: --init_from=S/16-augreg, for example.",
            flush=True,
        )


def dry_run(job: Job):
    """Print memory and time of training; draw the first batch of a new run."""
    if job.run.recipe_path.exists():
        first_batch = "see first_batch.png in the folder of the run."
    else:
        job.draw_first_batch()
        first_batch = job.run.folder / "first_batch.png"
    print(f"First batch: {first_batch}")
    memory = estimate_job_memory(job)
    available = available_bytes(job.loop.engine, held_bytes(job.loop))
    print(describe_memory(memory, available))
    shortage = describe_shortage(memory, available, job)
    if shortage:
        print(shortage)
        return
    if job.loop.engine.num_processes > 1:
        return  # The others do not take part in a dry run.
    num_updates = job.total_steps - job.loop.step
    seconds = measure_seconds_per_step(job)
    print(
        f"Time: {format_seconds(num_updates * seconds)} for {num_updates:,} "
        f"updates of {seconds:.3g} s each, without the start and the "
        "evaluations"
    )


if __name__ == "__main__":
    run_main(main)
