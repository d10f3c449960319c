"""Compare activations of the MLP: python -m benchmarks.activations.

GELU, ReLU and ELU, each with and without dropout, on scikit-learn's digits: the
experiment of Hendrycks and Gimpel 2016 (arXiv:1606.08415, section 3.1) with a
Vision Transformer. The table shows medians over the seeds.
"""

import sys

from benchmarks.study import Arm, Study, describe_arms, parse_options, run
from benchmarks.study_figures import draw_arms

STUDY = Study(
    name="activations",
    arms={
        f"{name}{text}": Arm({"mlp_activation": key, "dropout_rate": rate})
        for rate, text in ((0.0, ""), (0.1, ", dropout 0.1"))
        for name, key in (("GELU", "exact"), ("ReLU", "relu"), ("ELU", "elu"))
    },
    rates=(3e-4, 1e-3, 3e-3, 1e-2),
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
