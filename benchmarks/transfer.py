"""Measure what pre-training is worth: python -m benchmarks.transfer.

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
import csv
import dataclasses
import io
import pathlib
import statistics
import sys
import tempfile
from collections.abc import Iterable, Iterator

import keras

from trainers.loop.metrics import read_metrics
from trainers.recipes.recipes import RECIPES
from trainers.recipes.schema import Recipe
from trainers.train import prepare, train

RATES = (3e-3, 1e-2, 3e-2)
CHOICE_SEEDS = (100, 101)
# For the choice of the rate, judged at the end alone. TFDS has shuffled the
# examples.
CHOICE = {
    "train_split": "train[:80%]",
    "eval_split": "train[80%:]",
    "epochs_per_eval": 1000,
}
ARMS = {"transfer": "pre-trained on 0 to 4", "scratch": "from scratch"}
LEAST_WINS = 0.8  # Share of the seeds.


@dataclasses.dataclass(frozen=True)
class Curve:
    """A training run: the accuracy at each evaluation.

    Args:
        purpose: What it is for: "choice" of the rate, or "report".
        arm: A key of ARMS.
        learning_rate: The highest.
        seed: Of the weights, the order, the augmentation, and pre-training.
        points: (updates made, accuracy), in the order of the updates.
    """

    purpose: str
    arm: str
    learning_rate: float
    seed: int
    points: tuple[tuple[int, float], ...]

    @property
    def accuracy(self) -> float:
        """That of the end."""
        return self.points[-1][1]


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
        options.csv.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory() as folder:
            for curve in measure(options.seeds, pathlib.Path(folder)):
                curves.append(curve)
                # After each, so that an interrupted run leaves what it has.
                write_curves(options.csv, curves)
    print(describe(curves))
    draw(curves, options.picture)
    return int(options.require and not transfer_wins(curves))


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--seeds", type=int, default=5, help="number of them, from 0")
    add(
        "--csv",
        type=pathlib.Path,
        default="benchmarks/results/transfer.csv",
        help="file to write",
    )
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


def choose_rate(curves: Iterable[Curve], arm: str) -> float:
    """Return the rate with the best mean of `arm` in the choice.

    Of equals the lowest.
    """
    by_rate = {}
    for curve in curves:
        if (curve.purpose, curve.arm) == ("choice", arm):
            by_rate.setdefault(curve.learning_rate, []).append(curve.accuracy)
    return max(sorted(by_rate), key=lambda rate: statistics.mean(by_rate[rate]))


def reported(curves: Iterable[Curve], arm: str) -> dict[int, Curve]:
    """Return what is reported of `arm`, by seed."""
    return {
        curve.seed: curve
        for curve in curves
        if (curve.purpose, curve.arm) == ("report", arm)
    }


def transfer_wins(curves: list[Curve]) -> bool:
    """Return whether transfer does better, in the mean and mostly.

    A draw is no win.
    """
    transfer, scratch = (
        [curve.accuracy for _, curve in sorted(reported(curves, arm).items())]
        for arm in ("transfer", "scratch")
    )
    wins = sum(t > s for t, s in zip(transfer, scratch))
    return statistics.mean(transfer) > statistics.mean(
        scratch
    ) and wins >= LEAST_WINS * len(transfer)


def describe(curves: list[Curve]) -> str:
    """Return two Markdown tables: the choice, and the report by seed."""
    rates = sorted({c.learning_rate for c in curves if c.purpose == "choice"})
    lines = [_row("learning rate", *(f"{rate:g}" for rate in rates))]
    lines.append(_row(*["---"] * (1 + len(rates))))
    for arm in ARMS:
        cells = [
            _percent(
                c.accuracy
                for c in curves
                if (c.purpose, c.arm, c.learning_rate) == ("choice", arm, rate)
            )
            for rate in rates
        ]
        lines.append(_row(ARMS[arm], *cells))
    arms = {arm: reported(curves, arm) for arm in ARMS}
    chosen = [
        f"{ARMS[arm]}, rate {next(iter(arms[arm].values())).learning_rate:g}"
        for arm in ARMS
    ]
    lines += ["", _row("seed", *chosen), _row(*["---"] * (1 + len(arms)))]
    for seed in sorted(arms["transfer"]):
        cells = [_percent([arms[arm][seed].accuracy]) for arm in ARMS]
        lines.append(_row(str(seed), *cells))
    means = [_percent(c.accuracy for c in arms[arm].values()) for arm in ARMS]
    return "\n".join([*lines, _row("mean", *means)])


def _row(*cells):
    return f"| {' | '.join(cells)} |"


def _percent(accuracies):
    return f"{statistics.mean(accuracies):.2%}".replace("%", " %")


def draw(curves: list[Curve], path: pathlib.Path):
    """Draw the test accuracy over the updates: each seed, and the mean."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), dpi=120, layout="constrained")
    axes = figure.subplots()
    for arm, color in (("transfer", "tab:blue"), ("scratch", "tab:orange")):
        steps, lines = [], []
        for curve in reported(curves, arm).values():
            steps, accuracies = zip(*curve.points)
            lines.append([100 * accuracy for accuracy in accuracies])
            axes.plot(steps, lines[-1], color=color, alpha=0.35, linewidth=0.9)
        mean = [statistics.mean(values) for values in zip(*lines)]
        axes.plot(
            steps,
            mean,
            color=color,
            linewidth=2.4,
            marker=".",
            markersize=9,
            clip_on=False,
        )
        axes.annotate(
            f"{ARMS[arm]}\nmean {mean[-1]:.1f} %",
            (steps[-1], mean[-1]),
            (8, 0),
            textcoords="offset points",
            va="center",
            color=color,
            fontsize=9,
            annotation_clip=False,
        )
    axes.set(xlabel="update", ylabel="test accuracy on the digits 5 to 9 (%)")
    axes.set_xlim(left=0, right=steps[-1])
    axes.set_ylim(top=100)
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path)


def write_curves(path: pathlib.Path, curves: Iterable[Curve]):
    """Write one row an evaluation."""
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        for curve in curves:
            for step, accuracy in curve.points:
                writer.writerow(
                    [
                        curve.purpose,
                        curve.arm,
                        curve.learning_rate,
                        curve.seed,
                        step,
                        f"{accuracy:.6f}",
                    ]
                )


def read_curves(path: pathlib.Path) -> list[Curve]:
    """Return what `write_curves` wrote, accuracies to six places."""
    points = {}
    with open(path, newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            key = (
                row["purpose"],
                row["arm"],
                float(row["learning_rate"]),
                int(row["seed"]),
            )
            point = (int(row["step"]), float(row["accuracy"]))
            points.setdefault(key, []).append(point)
    return [Curve(*key, tuple(points[key])) for key in points]


COLUMNS = ("purpose", "arm", "learning_rate", "seed", "step", "accuracy")

if __name__ == "__main__":
    sys.exit(main())
