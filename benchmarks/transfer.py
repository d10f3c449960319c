"""Measure the benefit of pre-training: python -m benchmarks.transfer.

A model learns the digits 0 to 4 (recipe `digits_pretrain`) and is fine-tuned
on 5 to 9 at twice the resolution, its position table resized from 4x4 to 8x8
(recipe `digits_transfer`). Beside it the same model learns 5 to 9 from
scratch: by the same recipe but for `init_from`, with the same number of
updates, of the same images in the same order.

Each arm has the learning rate that does best for it, of one grid: judged by a
fifth of the training split that is held out, with seeds that are not reported.
What is reported is the test split, after training on the whole training
split. A seed stands for a pre-training of its own as well.
"""

import argparse
import contextlib
import dataclasses
import io
import pathlib
import sys
import tempfile
from collections.abc import Iterator

import keras

from benchmarks.harness import add_csv_option, make_parser, write_table
from benchmarks.transfer_report import (
    ARMS,
    LEAST_WINS,
    Curve,
    choose_rate,
    csv_rows,
    describe,
    draw,
    read_curves,
    transfer_wins,
)
from trainers.loop.metrics import read_metrics
from trainers.recipes.recipes import RECIPES
from trainers.recipes.schema import Recipe
from trainers.train import prepare, train

RATES = (3e-3, 1e-2, 3e-2)
CHOICE_SEEDS = (100, 101)
# The splits to choose the rate by, with one evaluation at the end. TFDS has
# shuffled the examples.
CHOICE = {
    "train_split": "train[:80%]",
    "eval_split": "train[80%:]",
    "epochs_per_eval": 1000,
}


def main(arguments: list[str] | None = None) -> int:
    """Run all, print the table, write CSV and picture.

    Args:
        arguments: Those of the command line, None for the real ones.

    Returns:
        The exit code: 1 if transfer has to win, and does not.
    """
    options = parse(arguments)
    if options.redraw:
        curves = read_curves(options.csv)
    else:
        curves = []
        with tempfile.TemporaryDirectory() as folder:
            for curve in measure(options.seeds, pathlib.Path(folder)):
                curves.append(curve)
                # After each, so that an interrupted run keeps its results.
                write_table(options.csv, csv_rows(curves))
    print(describe(curves))
    draw(curves, options.picture)
    return int(options.require and not transfer_wins(curves))


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Return the options of the command line."""
    parser = make_parser(__doc__)
    add = parser.add_argument
    add("--seeds", type=int, default=5, help="number of them, from 0")
    add_csv_option(add, "transfer")
    add(
        "--picture",
        type=pathlib.Path,
        default="docs/images/transfer.png",
        help="PNG file to write",
    )
    add(
        "--redraw",
        action="store_true",
        help="train nothing, read the CSV file that is there",
    )
    add(
        "--require",
        action="store_true",
        help="exit with 1 unless transfer wins in the mean and with "
        f"{LEAST_WINS:.0%} of the seeds",
    )
    return parser.parse_args(arguments)


def measure(num_seeds: int, folder: pathlib.Path) -> Iterator[Curve]:
    """Yield the curves of the choice, then those of the report.

    Args:
        num_seeds: Seeds to report, from 0.
        folder: Where the runs are kept.
    """
    choice = []
    for seed in CHOICE_SEEDS:
        initial = pretrain(seed, folder)
        for arm in ARMS:
            for rate in RATES:
                choice.append(learn("choice", arm, rate, seed, initial, folder))
                yield choice[-1]
    best = {arm: choose_rate(choice, arm) for arm in ARMS}
    for seed in range(num_seeds):
        initial = pretrain(seed, folder)
        for arm in ARMS:
            yield learn("report", arm, best[arm], seed, initial, folder)


def pretrain(seed: int, folder: pathlib.Path) -> str:
    """Return the path of a model that has learnt the digits 0 to 4."""
    run_dir = folder / f"pretrain_{seed}"
    recipe = dataclasses.replace(RECIPES["digits_pretrain"], seed=seed)
    points = run(recipe, run_dir)
    print(f"pre-training, seed {seed}: {points[-1][1]:.2%}", flush=True)
    return str(run_dir / "model.keras")


def learn(
    purpose: str,
    arm: str,
    learning_rate: float,
    seed: int,
    initial: str,
    folder: pathlib.Path,
) -> Curve:
    """Return the curve of an arm on the digits 5 to 9.

    Args:
        purpose: See Curve.
        arm: A key of ARMS.
        learning_rate: The highest.
        seed: Of everything.
        initial: Path of the pre-trained model.
        folder: Where the runs are kept.
    """
    recipe = arm_recipe(purpose, arm, learning_rate, seed, initial)
    points = run(recipe, folder / f"{purpose}_{arm}_{learning_rate}_{seed}")
    curve = Curve(purpose, arm, learning_rate, seed, tuple(points))
    print(
        f"{purpose}, {arm}, rate {learning_rate:g}, seed {seed}: "
        f"{curve.accuracy:.2%}",
        flush=True,
    )
    return curve


def arm_recipe(
    purpose: str, arm: str, learning_rate: float, seed: int, initial: str
) -> Recipe:
    """Return the recipe of a run; the arms differ in where they start."""
    start = {
        "transfer": {"init_from": initial},
        "scratch": {"init_from": None, "init_head": "auto"},
    }[arm]
    changes = CHOICE if purpose == "choice" else {}
    return dataclasses.replace(
        RECIPES["digits_transfer"],
        learning_rate=learning_rate,
        seed=seed,
        **start,
        **changes,
    )


def run(recipe: Recipe, run_dir: pathlib.Path) -> list[tuple[int, float]]:
    """Train, and return (updates, accuracy) of each evaluation."""
    keras.backend.clear_session()
    # The rate of the machine is of no interest here: 1 is not measured.
    recipe = dataclasses.replace(recipe, peak_tflops=1.0)
    with contextlib.redirect_stdout(io.StringIO()):
        job = prepare(recipe, str(run_dir))
        train(job)
    return [
        (int(row["step"]), row["val_accuracy"])
        for row in read_metrics(job.run.metrics_path)
    ]


if __name__ == "__main__":
    sys.exit(main())
