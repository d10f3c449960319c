"""The figures of the studies."""

import dataclasses
import pathlib
import statistics

from benchmarks.study import StudyTrial, reported_trials
from keras_vit.files import atomic_write

COLORS = ("tab:blue", "tab:orange", "tab:green", "tab:red", "tab:purple")


def draw_arms(trials: list[StudyTrial], path: pathlib.Path):
    """Draw the loss of each arm: a dot for each seed, and the median.

    The loss tells more than the accuracy, which is one of few values.
    """
    arms = list(dict.fromkeys(t.arm for t in trials))
    figure, [axes] = _axes(height=1 + 0.35 * len(arms))
    for row, arm in enumerate(arms):
        losses = [t.loss for t in reported_trials(trials, arm)]
        axes.plot(losses, [row] * len(losses), "o", color="0.6", markersize=4)
        axes.plot(statistics.median(losses), row, "|", color="k", markersize=16)
    axes.set_yticks(range(len(arms)), arms)
    axes.margins(y=0.1)
    axes.invert_yaxis()
    axes.set_xlabel("loss on the test images")
    write_figure(figure, path)


@dataclasses.dataclass(frozen=True)
class Panel:
    """A chart: the values of all seeds, and a line for each curve.

    Args:
        xlabel, ylabel: What the axes show.
        curves: Name -> x -> the values. The line joins their means.
        lines: Name -> x -> y, of a line to draw in place of that one.
        shows_all_x: Whether every x has a label; else they are round numbers.
        yscale: "linear" or "log".
    """

    xlabel: str
    ylabel: str
    curves: dict[str, dict[float, list[float]]]
    lines: dict[str, dict[float, float]] = dataclasses.field(
        default_factory=dict
    )
    shows_all_x: bool = True
    yscale: str = "linear"


def draw_rates(trials: list[StudyTrial], path: pathlib.Path):
    """Draw the accuracy of each arm over the learning rate."""
    rates = sorted({t.learning_rate for t in trials})
    curves = {
        arm: {
            rate: [100 * t.accuracy for t in reported_trials(trials, arm, rate)]
            for rate in rates
        }
        for arm in dict.fromkeys(t.arm for t in trials)
    }
    draw_panels([Panel("learning rate", "test accuracy (%)", curves)], path)


def draw_panels(panels: list[Panel], path: pathlib.Path):
    """Draw panels side by side; their x axes are logarithmic."""
    figure, all_axes = _axes(height=4, number=len(panels))
    for panel, axes in zip(panels, all_axes):
        for (name, curve), color in zip(panel.curves.items(), COLORS):
            style = {"color": color, "markersize": 5, "label": name}
            means = {x: statistics.mean(ys) for x, ys in curve.items()}
            line = panel.lines.get(name)
            if line is None:
                axes.plot(means.keys(), means.values(), "o-", **style)
            else:
                axes.plot(means.keys(), means.values(), "o", **style)
                axes.plot(line.keys(), line.values(), color=color)
            for x, ys in curve.items():
                dots = {"color": color, "markersize": 3, "alpha": 0.4}
                axes.plot([x] * len(ys), ys, "o", **dots)
        axes.set(xlabel=panel.xlabel, ylabel=panel.ylabel)
        axes.set(xscale="log", yscale=panel.yscale)
        if panel.shows_all_x:
            xs = sorted({x for curve in panel.curves.values() for x in curve})
            axes.set_xticks(xs, [f"{x:,g}" for x in xs])
            axes.minorticks_off()
        else:
            _label_round_numbers(axes.xaxis)
        if panel.yscale == "log":
            _label_round_numbers(axes.yaxis)
        axes.legend(frameon=False)
    write_figure(figure, path)


def _label_round_numbers(axis):
    """Label 1, 2 and 5, and their powers of ten, of a logarithmic axis."""
    from matplotlib.ticker import LogLocator, NullLocator

    axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.set_major_formatter("{x:g}")
    axis.set_minor_locator(NullLocator())


def write_figure(figure, path: pathlib.Path):
    """Write a figure as a PNG file."""
    with atomic_write(path) as draft:
        figure.savefig(draft, format="png")


def _axes(height, number=1):
    from matplotlib.figure import Figure

    size = (7 if number == 1 else 5 * number, height)
    figure = Figure(figsize=size, dpi=120, layout="constrained")
    all_axes = figure.subplots(1, number, squeeze=False)[0]
    for axes in all_axes:
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    return figure, all_axes
