"""Compare ViTs and a ResNet on more and more images: benchmarks.data_size.

    python -m benchmarks.data_size

Two ViTs and a BiT ResNet learn growing parts of the moved digits: figures 3 and
4 of the ViT paper (arXiv:2010.11929, section 4.3) on a small scale. All make
the same number of updates. Two tables show means over the seeds: the accuracy
of the classifiers, and that of linear classifiers fitted to ten images per
class.
"""

import dataclasses
import statistics
import sys

from benchmarks import study_images
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
from keras_vit.models.features import without_head
from keras_vit.tables import format_table
from trainers.evaluation.probes import ProbeChoices, few_shot
from trainers.evaluation.probing import extract_features
from trainers.train import Job

COMPARED_MODELS = {
    "ViT, small": STUDY_MODELS["ViT"]["small"],
    "ViT, medium": STUDY_MODELS["ViT"]["medium"],
    "ResNet": STUDY_MODELS["ResNet"]["medium"],
}
# The learning rate is chosen with the most images.
SUBSET_SIZES = (10_000, 3_000, 1_000, 300, 100)
SHOTS = 10


@dataclasses.dataclass(frozen=True)
class ProbedTrial(StudyTrial):
    """One training, and a probe of its features.

    Args:
        few_shot: Accuracy of linear classifiers fitted to few images.
    """

    few_shot: float


def probe_features(job: Job) -> dict:
    """Return the few-shot accuracy of the features of a trained model.

    The few images have other handwritten digits than those that the model
    learned.
    """
    dataset = dataclasses.replace(
        job.dataset, train_split="validation", eval_split="test"
    )
    features = extract_features(without_head(job.loop.model), dataset)
    [accuracies] = few_shot(features, ProbeChoices(shots=(SHOTS,))).values()
    return {"few_shot": statistics.mean(accuracies)}


def name_arm(model: str, num_images: int) -> str:
    """Return a name such as "ViT, small, 500 images"."""
    return f"{model}, {num_images:,} images"


STUDY = Study(
    name="data_size",
    arms={
        name_arm(model, number): Arm(
            {"train_split": f"train[:{number}]"},
            build,
            rate_of=name_arm(model, SUBSET_SIZES[0]),
        )
        for model, build in COMPARED_MODELS.items()
        for number in SUBSET_SIZES
    },
    rates=(1e-3, 3e-3, 1e-2),
    recipe=study_images.RECIPE,
    splits=study_images.PICTURE_SPLITS,
    kind=ProbedTrial,
    measure=probe_features,
    seeds=3,
    updates=3000,
)
VALUES = {
    "test accuracy": lambda trial: 100 * trial.accuracy,
    f"{SHOTS}-shot accuracy": lambda trial: 100 * trial.few_shot,
}


def main(arguments: list[str] | None = None) -> int:
    """Run the missing trials; print the tables and draw the figure."""
    options = parse_options(STUDY, __doc__, arguments)
    trials = run(STUDY, options)
    panels = make_panels(trials)
    for panel in panels:
        print(describe(panel), end="\n\n")
    draw_panels(panels, options.csv.with_suffix(".png"))
    return 0


def make_panels(trials: list[ProbedTrial]) -> list[Panel]:
    """Return a panel for each of VALUES, with a curve for each model."""
    known = {t.arm for t in trials}
    panels = []
    for label, value in VALUES.items():
        curves = {
            model: {
                number: [value(t) for t in reported_trials(trials, arm)]
                for number in sorted(SUBSET_SIZES)
                if (arm := name_arm(model, number)) in known
            }
            for model in COMPARED_MODELS
        }
        curves = {model: curve for model, curve in curves.items() if curve}
        panels.append(Panel("training images", f"{label} (%)", curves))
    return panels


def describe(panel: Panel) -> str:
    """Return a table of the means and the ranges of a panel."""
    rows = []
    for number in sorted({x for curve in panel.curves.values() for x in curve}):
        cells = [f"{number:,}"]
        for curve in panel.curves.values():
            found = curve[number]
            cells.append(
                f"{statistics.mean(found):.1f} % "
                f"({min(found):.1f} to {max(found):.1f})"
            )
        rows.append(cells)
    table = format_table(["training images", *panel.curves], rows)
    return f"{panel.ylabel}:\n\n{table}"


if __name__ == "__main__":
    sys.exit(main())
