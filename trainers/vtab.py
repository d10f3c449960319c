"""Measure a pre-trained model on VTAB-1k: 19 tasks of 1,000 images each.

Each task is fine-tuned on its own. With several learning rates, 800 of the
images are trained on and the other 200 choose the rate of the task; then all
1,000 are trained on, and the test split of the task is evaluated.

Example:
    python -m trainers.vtab --sweep_dir=saved_models/vtab
    python -m trainers.vtab --tasks=pets,eurosat --init_from=B/16-i21k
"""

if __name__ == "__main__":  # A mistyped flag is found before the slow imports.
    from trainers.command_line import begin

    begin("trainers.vtab")

from absl import flags

from trainers import sweep
from trainers.commands import (
    before_training,
    run_main,
    training,
    user_errors,
    worker_config_from_flags,
)
from trainers.recipes import flags as recipe_flags
from trainers.sweeps.vtab import (
    NUM_HELD_OUT,
    describe_scores,
    open_tasks,
    run_tasks,
)

FLAGS = flags.FLAGS


def main(arguments):
    """Run the command."""
    with before_training(arguments):
        chosen = recipe_flags.recipe_from_flags()
        folder = FLAGS.sweep_dir or f"saved_models/{chosen.name}_sweep"
        sweeps = open_tasks(
            chosen,
            folder,
            FLAGS.tasks,
            learning_rates=sweep.parse_rates(FLAGS.learning_rates),
            num_seeds=FLAGS.num_seeds,
            held_out=FLAGS.held_out or NUM_HELD_OUT,
            config=worker_config_from_flags(),
        )
        first = sweeps[0]
        if first.is_writer:
            print(f"VTAB: {len(sweeps)} tasks, each {first.num_runs} runs")
        if FLAGS.dry_run:
            sweep.dry_run_first(first)
            return
    with training(first.recipe.data_service) as must_stop:
        scores = run_tasks(sweeps, folder, must_stop, user_errors)
    if first.is_writer:
        print(f"\n{describe_scores(scores)}")
        print(f"\nFiles: {folder}, with vtab.csv and a folder for each task")


if __name__ == "__main__":
    run_main(main)
