"""Compare tables of position embeddings: python -m benchmarks.position_tables.

Three models that differ in their epochs, learning rate and weight decay learn
scikit-learn's digits: figure 10 of the ViT paper (arXiv:2010.11929, appendix
D.4) on a small scale. The table shows medians over the seeds; the picture shows
the position embeddings of seed 0.
"""

import dataclasses
import statistics
import sys

import numpy as np

from benchmarks.study import (
    Arm,
    Study,
    StudyTrial,
    parse_options,
    reported_trials,
    run,
)
from benchmarks.study_figures import write_figure
from keras_vit.analysis import position_similarity
from keras_vit.analysis.plots.colorbars import color_bar
from keras_vit.analysis.plots.positions import (
    choose_colors,
    draw_position_tiles,
)
from keras_vit.analysis.plots.style import SMALL, new_figure, set_title
from keras_vit.tables import format_table
from trainers.train import Job


@dataclasses.dataclass(frozen=True)
class TableTrial(StudyTrial):
    """One training, and its position embeddings.

    Args:
        contrast: See `contrast_neighbours`.
        grid: Rows and columns of patches, such as "4x4".
        similarities: Those of the embeddings of any two patches, in the order
            of `position_similarity`, separated by spaces.
    """

    contrast: float
    grid: str
    similarities: str

    @property
    def similarity(self) -> np.ndarray:
        """The result of `position_similarity`, (h, w, h, w)."""
        grid = tuple(map(int, self.grid.split("x")))
        values = np.array(self.similarities.split(), "float32")
        return values.reshape(*grid, *grid)


def measure_table(job: Job) -> dict:
    """Return the values of a TableTrial for a trained job."""
    similarity = position_similarity(job.loop.model)
    return {
        "contrast": contrast_neighbours(similarity),
        "grid": "x".join(map(str, similarity.shape[:2])),
        "similarities": " ".join(f"{x:.3f}" for x in similarity.flat),
    }


def contrast_neighbours(
    similarity: np.ndarray, axis: int | None = None
) -> float:
    """Return how much more similar neighbours are than other patches.

    It is the mean over all pairs of patches that share a side, minus the mean
    over all pairs of two patches that do not.

    Shapes:
        similarity: (h, w, h, w), as from `position_similarity`.

    Args:
        similarity: Cosine similarities.
        axis: 0 for neighbours in a column alone, 1 for those in a row; None
            for both.
    """
    places = np.indices(similarity.shape)
    steps = np.abs(places[:2] - places[2:])  # (2, h, w, h, w)
    distances = steps.sum(axis=0)  # (h, w, h, w)
    chosen = distances == 1
    if axis is not None:
        chosen &= steps[axis] == 1
    others = similarity[distances > 1]
    return float(similarity[chosen].mean() - others.mean())


# The ratios of the paper: 7 or 14 epochs, the rate 2e-4 or 4e-4, and these
# weight decays.
STUDY = Study(
    name="position_tables",
    arms={
        "short, half the rate, decay 0.01": Arm(
            {"weight_decay": 0.01}, rate=0.5
        ),
        "short, decay 0.1": Arm({"weight_decay": 0.1}),
        "long, decay 0.1": Arm({"weight_decay": 0.1}, length=2),
    },
    rates=(3e-3,),
    chooses_rate=False,
    kind=TableTrial,
    measure=measure_table,
)


def main(arguments: list[str] | None = None) -> int:
    """Run the missing trials; print the table and draw the figure."""
    options = parse_options(STUDY, __doc__, arguments)
    trials = run(STUDY, options)
    print(describe(trials))
    write_figure(draw(trials), options.csv.with_suffix(".png"))
    return 0


def describe(trials: list[TableTrial]) -> str:
    """Return a table with the medians of each arm at each rate."""
    rows = []
    for arm, rate in dict.fromkeys((t.arm, t.learning_rate) for t in trials):
        own = reported_trials(trials, arm, rate)
        contrasts = [t.contrast for t in own]
        by_axis = [
            statistics.median(contrast_neighbours(t.similarity, k) for t in own)
            for k in (1, 0)
        ]
        rows.append(
            [
                arm,
                f"{own[0].updates:,}",
                f"{rate:g}",
                f"{100 * statistics.median(t.accuracy for t in own):.1f} %",
                f"{statistics.median(contrasts):.2f}",
                f"{min(contrasts):.2f} to {max(contrasts):.2f}",
                *(f"{contrast:.2f}" for contrast in by_axis),
            ]
        )
    titles = ["", "updates", "learning rate", "accuracy", "contrast"]
    titles += ["of the seeds", "in a row", "in a column"]
    return format_table(titles, rows)


def draw(trials: list[TableTrial]):
    """Draw the similarities of the position embeddings, a panel for each arm.

    The picture in row y and column x of a panel shows the similarity of the
    position embedding of this patch to that of each patch, of the first seed.
    """
    first = [t for t in trials if t.seed == 0]
    look = choose_colors(np.stack([t.similarity for t in first]))
    figure = new_figure(3 * len(first) + 0.9, 3.3, layout="compressed")
    panels = figure.subplots(1, len(first), squeeze=False)[0]
    for axes, trial in zip(panels, first):
        drawn = draw_position_tiles(axes, trial.similarity, *look)
        axes.set_xlabel("column of the patch", fontsize=SMALL)
        axes.set_ylabel("row of the patch", fontsize=SMALL)
        decay = STUDY.arms[trial.arm].fields["weight_decay"]
        set_title(
            axes,
            f"{trial.updates:,} updates, rate {trial.learning_rate:g}, "
            f"decay {decay:g}",
        )
    color_bar(drawn, "cosine similarity", ax=panels)
    return figure


if __name__ == "__main__":
    sys.exit(main())
