"""The figures of the studies."""

import pathlib
import statistics

from benchmarks.study import Trial, reported
from keras_vit.files import atomic_write

COLORS = ("tab:blue", "tab:orange", "tab:green", "tab:red", "tab:purple")


def draw_arms(trials: list[Trial], path: pathlib.Path):
    """Draw the loss of each arm: a dot for each seed, and the median.

    The loss tells more than the accuracy, which is one of few values.
    """
    arms = list(dict.fromkeys(t.arm for t in trials))
    figure, axes = _axes(height=1 + 0.35 * len(arms))
    for row, arm in enumerate(arms):
        losses = [t.loss for t in reported(trials, arm)]
        axes.plot(losses, [row] * len(losses), "o", color="0.6", markersize=4)
        axes.plot(statistics.median(losses), row, "|", color="k", markersize=16)
    axes.set_yticks(range(len(arms)), arms)
    axes.margins(y=0.1)
    axes.invert_yaxis()
    axes.set_xlabel("loss on the test images")
    _save(figure, path)


def draw_rates(trials: list[Trial], path: pathlib.Path):
    """Draw the accuracy of each arm over the learning rate, with all seeds."""
    figure, axes = _axes(height=4)
    rates = sorted({t.learning_rate for t in trials})
    for arm, color in zip(dict.fromkeys(t.arm for t in trials), COLORS):
        found = [
            [100 * t.accuracy for t in reported(trials, arm, rate)]
            for rate in rates
        ]
        means = [statistics.mean(values) for values in found]
        axes.plot(rates, means, "o-", color=color, markersize=5, label=arm)
        for rate, values in zip(rates, found):
            dots = [rate] * len(values)
            axes.plot(dots, values, "o", color=color, markersize=3, alpha=0.4)
    axes.set_xscale("log")
    axes.set_xticks(rates, [f"{rate:g}" for rate in rates])
    axes.minorticks_off()
    axes.set(xlabel="learning rate", ylabel="test accuracy (%)")
    axes.legend(frameon=False)
    _save(figure, path)


def _axes(height):
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, height), dpi=120, layout="constrained")
    axes = figure.subplots()
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _save(figure, path):
    with atomic_write(path) as draft:
        figure.savefig(draft, format="png")
