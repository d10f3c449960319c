"""Compare position embeddings: python -m benchmarks.positions.

None, 1-D, 2-D and relative positions, and the 1-D and 2-D ones before every
block, with a table for each or one for all, on scikit-learn's digits: table 8
of the ViT paper (arXiv:2010.11929, appendix D.4) on a small scale. The table
shows medians over the seeds.
"""

import sys

from benchmarks.study import Arm, Study, describe_arms, parse_options, run
from benchmarks.study_figures import draw_arms

PLACEMENTS = {
    "": "stem",
    ", every block": "every_block",
    ", every block, shared": "every_block_shared",
}
STUDY = Study(
    name="positions",
    arms={
        "none": Arm({"position_embedding": "none"}),
        **{
            f"{name}{text}": Arm(
                {"position_embedding": kind, "position_placement": placement}
            )
            for name, kind in (("1-D", "learned"), ("2-D", "learned_2d"))
            for text, placement in PLACEMENTS.items()
        },
        "relative": Arm(
            {"position_embedding": "none", "relative_positions": "keys"}
        ),
    },
    rates=(3e-4, 1e-3, 3e-3, 1e-2),
    seeds=3,
)


def main(arguments: list[str] | None = None) -> int:
    """Run the missing trials; print the table and draw the figure."""
    options = parse_options(STUDY, __doc__, arguments)
    trials = run(STUDY, options)
    print(describe_arms(trials))
    draw_arms(trials, options.csv.with_suffix(".png"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
