"""Compare class token and average: python -m benchmarks.pooling.

Both over a range of learning rates, on scikit-learn's digits: figure 9 of the
ViT paper (arXiv:2010.11929, appendix D.3) on a small scale. The table shows
means over the seeds.
"""

import argparse
import statistics
import sys

from benchmarks.study import (
    Arm,
    Study,
    StudyTrial,
    parse_options,
    reported_trials,
    run,
)
from benchmarks.study_figures import draw_rates
from keras_vit.tables import format_table

STUDY = Study(
    name="pooling",
    arms={
        "class token": Arm({"pooling": "token"}),
        "average": Arm({"pooling": "avg"}),
    },
    rates=(3e-4, 1e-3, 3e-3, 1e-2, 3e-2),
    chooses_rate=False,
    seeds=3,
)


def main(arguments: list[str] | None = None) -> int:
    """Run the missing trials; print the table and draw the figure."""
    options = parse_options(STUDY, __doc__, arguments)
    trials = run(STUDY, options)
    print(describe(trials, options))
    draw_rates(trials, options.csv.with_suffix(".png"))
    return 0


def describe(trials: list[StudyTrial], options: argparse.Namespace) -> str:
    """Return a table of the mean accuracy at each rate."""
    rows = []
    for arm in STUDY.arms:
        means = (
            statistics.mean(
                t.accuracy for t in reported_trials(trials, arm, rate)
            )
            for rate in options.rates
        )
        rows.append([arm, *(f"{100 * mean:.1f} %" for mean in means)])
    return format_table(
        ["learning rate", *map("{:g}".format, options.rates)], rows
    )


if __name__ == "__main__":
    sys.exit(main())
