"""Compare ViTs, ResNets and hybrids: python -m benchmarks.compute.

Three families of models learn the moved digits, in three sizes and for several
lengths: figure 5 of the ViT paper (arXiv:2010.11929, section 4.4) on a small
scale. A power law of the compute is fitted to the errors of each family.
"""

import dataclasses
import statistics
import sys

from benchmarks import study_images
from benchmarks.power_law import PowerLaw, fit_power_law
from benchmarks.study import (
    Arm,
    Study,
    StudyTrial,
    parse_options,
    reported_trials,
    run,
)
from benchmarks.study_figures import Panel, draw_panels
from benchmarks.study_models import STUDY_MODELS
from keras_vit.tables import format_table
from trainers.loop.flops import TRAINING_PASSES
from trainers.train import Job

# The learning rates of a family are --rates times this.
RATE_FACTORS = {"ViT": 1.0, "ResNet": 3.0, "hybrid": 1.0}
# FLOPs within those of all families, at which the laws are compared.
PREDICTED = (4e10, 3e11)
# Size and length of the trainings of a family, the length as a multiple of
# --updates. The learning rate of all is chosen with the first.
TRAININGS = (
    ("medium", 1),
    ("small", 1),
    ("small", 3),
    ("medium", 3),
    ("large", 2),
)


@dataclasses.dataclass(frozen=True)
class CountedTrial(StudyTrial):
    """One training, and its arithmetic.

    Args:
        flops: Of all updates.
    """

    flops: float


def count_training(job: Job) -> dict:
    """Return the FLOPs of all updates of a job."""
    images = job.recipe.batch_size * job.total_steps
    return {"flops": float(TRAINING_PASSES * job.flops_per_image * images)}


def name_arm(family: str, size: str, length: int) -> str:
    """Return a name such as "ViT, small, length 3"."""
    return f"{family}, {size}, length {length}"


# Arm -> family.
FAMILIES = {
    name_arm(family, *training): family
    for training in TRAININGS
    for family in STUDY_MODELS
}
STUDY = Study(
    name="compute",
    arms={
        name_arm(family, size, length): Arm(
            build=STUDY_MODELS[family][size],
            length=length,
            rate=RATE_FACTORS[family],
            rate_of=name_arm(family, *TRAININGS[0]),
        )
        for size, length in TRAININGS
        for family in STUDY_MODELS
    },
    rates=(3e-4, 1e-3, 3e-3, 1e-2),
    recipe=study_images.RECIPE,
    splits=study_images.PICTURE_SPLITS,
    kind=CountedTrial,
    measure=count_training,
    seeds=3,
    updates=600,
)


def main(arguments: list[str] | None = None) -> int:
    """Run the missing trials; print the tables and draw the figure."""
    options = parse_options(STUDY, __doc__, arguments)
    trials = run(STUDY, options)
    curves = collect_errors(trials)
    laws = fit_laws(curves)
    print(describe_trainings(trials), describe_laws(laws), sep="\n\n")
    lines = {
        family: {flops: law.error_at(flops) for flops in curves[family]}
        for family, law in laws.items()
    }
    panel = Panel(
        "FLOPs of the training",
        "test error (%)",
        curves,
        lines,
        shows_all_x=False,
        yscale="log",
    )
    draw_panels([panel], options.csv.with_suffix(".png"))
    return 0


def collect_errors(trials: list[CountedTrial]) -> dict:
    """Return the errors in per cent of all seeds, by family and FLOPs."""
    curves = {}
    for arm in dict.fromkeys(t.arm for t in trials):
        own = reported_trials(trials, arm)
        errors = [100 * (1 - t.accuracy) for t in own]
        curves.setdefault(FAMILIES[arm], {})[own[0].flops] = errors
    return {family: dict(sorted(c.items())) for family, c in curves.items()}


def fit_laws(curves: dict) -> dict[str, PowerLaw]:
    """Return the law of each family of three trainings or more."""
    return {
        family: fit_power_law(
            {flops: statistics.mean(errors) for flops, errors in curve.items()}
        )
        for family, curve in curves.items()
        if len(curve) > 2
    }


def describe_trainings(trials: list[CountedTrial]) -> str:
    """Return a table of the FLOPs and the mean accuracy of each arm."""
    rows = []
    arms = dict.fromkeys(t.arm for t in trials)
    for arm in sorted(
        arms, key=lambda arm: list(STUDY_MODELS).index(FAMILIES[arm])
    ):
        own = reported_trials(trials, arm)
        found = [100 * t.accuracy for t in own]
        rows.append(
            [
                arm,
                f"{own[0].flops / 1e9:,.0f}",
                f"{own[0].learning_rate:g}",
                f"{statistics.mean(found):.1f} %",
                f"{min(found):.1f} to {max(found):.1f} %",
            ]
        )
    titles = ["", "GFLOPs", "learning rate", "accuracy", "of the seeds"]
    return format_table(titles, rows)


def describe_laws(laws: dict[str, PowerLaw]) -> str:
    """Return a table of the laws, with the error that they predict."""
    rows = [
        [
            family,
            f"{law.exponent:.2f} ± {law.margin:.2f}",
            *(f"{law.error_at(flops):.1f} %" for flops in PREDICTED),
        ]
        for family, law in laws.items()
    ]
    predicted = [f"error at {flops / 1e9:g} GFLOPs" for flops in PREDICTED]
    return format_table(["", "exponent", *predicted], rows)


if __name__ == "__main__":
    sys.exit(main())
