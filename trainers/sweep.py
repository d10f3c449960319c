"""Choose a learning rate on held-out images, then train with several seeds.

The images are held out of the training split. The chosen rate is trained on
the whole training split, and the test split is read only then.

Example:
    python -m trainers.sweep --recipe=cifar10_b16
    python -m trainers.sweep --recipe=digits --learning_rates=0.001,0.003,0.01
"""

if __name__ == "__main__":  # A mistyped flag is found before the slow imports.
    from trainers.command_line import begin

    begin("trainers.sweep")

from absl import flags

from trainers.commands import (
    before_training,
    run_main,
    training,
    user_errors,
    worker_config_from_flags,
)
from trainers.recipes import flags as recipe_flags
from trainers.sweeps.sweeping import (
    CHOICE,
    Sweep,
    Trial,
    describe_choice,
    describe_edge,
    describe_report,
    open_sweep,
    prepare_case,
    run_sweep,
)
from trainers.train import dry_run

FLAGS = flags.FLAGS


def main(arguments):
    """Run the command."""
    with before_training(arguments):
        chosen = recipe_flags.recipe_from_flags()
        sweep = open_sweep(
            chosen.recipe,
            FLAGS.sweep_dir or f"saved_models/{chosen.name}_sweep",
            learning_rates=parse_rates(FLAGS.learning_rates),
            num_seeds=FLAGS.num_seeds,
            held_out=FLAGS.held_out,
            config=worker_config_from_flags(),
            chosen=chosen,
        )
        if sweep.is_writer:
            print(sweep, flush=True)
        if FLAGS.dry_run:
            dry_run_first(sweep)
            return
    with training(sweep.recipe.data_service) as must_stop:
        trials = run_sweep(sweep, must_stop, user_errors)
    if sweep.is_writer:
        print_tables(sweep, trials)


def dry_run_first(sweep: Sweep):
    """Print the memory and the time that the first run of a sweep needs."""
    trainer = prepare_case(sweep, next(sweep.cases([])))
    if sweep.is_writer:
        print(f"\nThe first run: {trainer}")
        dry_run(trainer)


def parse_rates(words: list[str] | None) -> list[float] | None:
    """Return the learning rates that a flag lists, if it was given."""
    if words is None:
        return None
    try:
        return [float(word) for word in words]
    except ValueError:
        raise ValueError(
            "`learning_rates` must be numbers, separated by commas. Received: "
            f"learning_rates={','.join(words)}"
        ) from None


def print_tables(sweep: Sweep, trials: list[Trial]):
    """Print the tables of a sweep."""
    choice = [trial for trial in trials if trial.purpose == CHOICE]
    best = sweep.best_rate(trials)
    if choice:
        print(f"\n{describe_choice(choice, best)}")
        print(describe_edge(sweep.grid.learning_rates, best), end="")
    print(f"\nLearning rate {best:g}:\n")
    print(describe_report(trials[len(choice) :]))
    print(f"\nFiles: {sweep.run}, with sweep.csv and a folder for each run")


if __name__ == "__main__":
    run_main(main)
