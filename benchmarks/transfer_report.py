"""Training curves of benchmarks.transfer: choice, tables, picture, file."""

import dataclasses
import pathlib
import statistics
from collections.abc import Iterable

from benchmarks.harness import read_csv
from benchmarks.study_figures import write_figure
from keras_vit.tables import format_table

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
        """The accuracy at the end."""
        return self.points[-1][1]


def choose_rate(curves: Iterable[Curve], arm: str) -> float:
    """Return the rate with the best mean of `arm` in the choice.

    Of equals the lowest.
    """
    by_rate = {}
    for curve in curves:
        if (curve.purpose, curve.arm) == ("choice", arm):
            by_rate.setdefault(curve.learning_rate, []).append(curve.accuracy)
    return max(sorted(by_rate), key=lambda rate: statistics.mean(by_rate[rate]))


def reported_curves(curves: Iterable[Curve], arm: str) -> dict[int, Curve]:
    """Return the curves of `arm` in the report, by seed."""
    return {
        curve.seed: curve
        for curve in curves
        if (curve.purpose, curve.arm) == ("report", arm)
    }


def transfer_wins(curves: list[Curve]) -> bool:
    """Return whether transfer does better, in the mean and mostly.

    A draw is not a win.
    """
    transfer, scratch = (
        [
            curve.accuracy
            for _, curve in sorted(reported_curves(curves, arm).items())
        ]
        for arm in ("transfer", "scratch")
    )
    wins = sum(t > s for t, s in zip(transfer, scratch))
    return statistics.mean(transfer) > statistics.mean(
        scratch
    ) and wins >= LEAST_WINS * len(transfer)


def describe(curves: list[Curve]) -> str:
    """Return two Markdown tables: the choice, and the report by seed."""
    rates = sorted({c.learning_rate for c in curves if c.purpose == "choice"})
    choice = [
        [ARMS[arm]]
        + [
            _percent(
                c.accuracy
                for c in curves
                if (c.purpose, c.arm, c.learning_rate) == ("choice", arm, rate)
            )
            for rate in rates
        ]
        for arm in ARMS
    ]
    arms = {arm: reported_curves(curves, arm) for arm in ARMS}
    chosen = [
        f"{ARMS[arm]}, rate {next(iter(arms[arm].values())).learning_rate:g}"
        for arm in ARMS
    ]
    report = [
        [seed, *(_percent([arms[arm][seed].accuracy]) for arm in ARMS)]
        for seed in sorted(arms["transfer"])
    ]
    means = [_percent(c.accuracy for c in arms[arm].values()) for arm in ARMS]
    return "\n\n".join(
        [
            format_table(
                ["learning rate", *(f"{rate:g}" for rate in rates)], choice
            ),
            format_table(["seed", *chosen], [*report, ["mean", *means]]),
        ]
    )


def _percent(accuracies):
    return f"{statistics.mean(accuracies):.2%}".replace("%", " %")


def draw(curves: list[Curve], path: pathlib.Path):
    """Draw the test accuracy over the updates: each seed, and the mean."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), dpi=120, layout="constrained")
    axes = figure.subplots()
    for arm, color in (("transfer", "tab:blue"), ("scratch", "tab:orange")):
        steps, lines = [], []
        for curve in reported_curves(curves, arm).values():
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
    write_figure(figure, path)


def csv_rows(curves: Iterable[Curve]) -> list[dict]:
    """Return one row an evaluation."""
    return [
        {
            "purpose": curve.purpose,
            "arm": curve.arm,
            "learning_rate": curve.learning_rate,
            "seed": curve.seed,
            "step": step,
            "accuracy": f"{accuracy:.6f}",
        }
        for curve in curves
        for step, accuracy in curve.points
    ]


def read_curves(path: pathlib.Path) -> list[Curve]:
    """Return the curves of a CSV file, accuracies to six places."""
    points = {}
    for row in read_csv(path):
        key = (
            row["purpose"],
            row["arm"],
            float(row["learning_rate"]),
            int(row["seed"]),
        )
        point = (int(row["step"]), float(row["accuracy"]))
        points.setdefault(key, []).append(point)
    return [Curve(*key, tuple(points[key])) for key in points]
