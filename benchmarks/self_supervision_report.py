"""The table and the figure of benchmarks.self_supervision."""

import pathlib
import statistics

from keras_vit.files import atomic_write
from keras_vit.tables import format_table

STYLES = {
    "new weights": ("tab:gray", "o"),
    "masked patches": ("tab:blue", "s"),
    "autoencoder": ("tab:orange", "^"),
}


def describe(results: list) -> str:
    """Return the mean accuracies as a Markdown table.

    Args:
        results: A list of `Result`.
    """
    numbers, ways = _axes(results)
    rows = []
    for labels in numbers:
        cells = [f"{labels:,}"]
        for way in ways:
            found = accuracies(results, way, labels)
            deviation = statistics.stdev(found) if len(found) > 1 else 0.0
            cells.append(f"{statistics.mean(found):.1f} ± {deviation:.1f} %")
        rows.append(cells)
    return format_table(["labelled images", *ways], rows)


def accuracies(results: list, way: str, labels: int) -> list[float]:
    """Return the accuracies of the report in per cent, one for each seed."""
    return [
        100 * result.accuracy
        for result in results
        if result.purpose == "report"
        and (result.way, result.labels) == (way, labels)
    ]


def draw(results: list, path: pathlib.Path):
    """Draw the accuracy against the number of labels, with all seeds."""
    from matplotlib.figure import Figure

    numbers, ways = _axes(results)
    figure = Figure(figsize=(7, 4), dpi=120, layout="constrained")
    axes = figure.subplots()
    for way in ways:
        color, marker = STYLES[way]
        means = []
        for labels in numbers:
            found = accuracies(results, way, labels)
            means.append(statistics.mean(found))
            axes.plot(
                [labels] * len(found),
                found,
                marker,
                color=color,
                markersize=3,
                alpha=0.4,
            )
        axes.plot(
            numbers, means, color=color, marker=marker, markersize=5, label=way
        )
    axes.set_xscale("log")
    axes.set_xticks(numbers, [f"{number:,}" for number in numbers])
    axes.minorticks_off()
    axes.set(xlabel="labelled images", ylabel="test accuracy (%)")
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="lower right")
    with atomic_write(path) as draft:
        figure.savefig(draft, format="png")


def _axes(results):
    """Return the numbers of labels and the ways that the report has."""
    report = [result for result in results if result.purpose == "report"]
    numbers = sorted({result.labels for result in report})
    return numbers, [w for w in STYLES if any(r.way == w for r in report)]
