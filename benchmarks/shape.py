"""Compare ways of scaling a ViT: python -m benchmarks.shape.

The depth, the width, the size of the MLP and the patch size of a small model
are scaled, each alone and all together, on the moved digits: figure 8 of the
ViT paper (arXiv:2010.11929, appendix D.2) on a small scale. The table shows
means over the seeds.
"""

import dataclasses
import functools
import statistics
import sys

from benchmarks import study_images
from benchmarks.flops import forward_flops
from benchmarks.study import (
    Arm,
    Study,
    StudyTrial,
    parse_options,
    reported_trials,
    run,
)
from benchmarks.study_figures import Panel, draw_panels
from benchmarks.study_models import HEAD_SIZE
from keras_vit import VisionTransformer, ViTConfig
from keras_vit.tables import format_table

BASE = ViTConfig(
    depth=2,
    width=32,
    mlp_dim=64,
    num_heads=32 // HEAD_SIZE,
    patch_size=4,
    image_size=study_images.STUDY_SIDE,
    channels=1,
    num_classes=10,
)
SCALED = {
    "depth": [{"depth": 4}, {"depth": 8}],
    "width": [{"width": 64}, {"width": 128}],
    "MLP": [{"mlp_dim": 128}, {"mlp_dim": 256}],
    "patch": [{"patch_size": 12}, {"patch_size": 6}, {"patch_size": 2}],
    "all": [
        {"depth": 1, "width": 16, "mlp_dim": 32, "patch_size": 6},
        {"depth": 4, "width": 64, "mlp_dim": 128, "patch_size": 2},
    ],
}


def scale_base(changes: dict) -> ViTConfig:
    """Return the base with some sizes changed; heads have the same size."""
    config = dataclasses.replace(BASE, **changes, num_heads=1)
    return dataclasses.replace(config, num_heads=config.width // HEAD_SIZE)


def name_arm(dimension: str, changes: dict) -> str:
    """Return a name such as "depth 4" or "all 4, 64, 128, 2"."""
    return f"{dimension} {', '.join(map(str, changes.values()))}"


CONFIGS = {
    "base": BASE,
    **{
        name_arm(dimension, changes): scale_base(changes)
        for dimension, all_changes in SCALED.items()
        for changes in all_changes
    },
}


def build(config: ViTConfig, recipe, dataset) -> VisionTransformer:
    """Return a new model of a configuration."""
    return VisionTransformer(config)


STUDY = Study(
    name="shape",
    arms={
        name: Arm(build=functools.partial(build, config))
        for name, config in CONFIGS.items()
    },
    rates=(3e-4, 1e-3, 3e-3, 1e-2, 3e-2),
    recipe=study_images.RECIPE,
    splits=study_images.PICTURE_SPLITS,
    seeds=3,
    updates=2000,
)


def main(arguments: list[str] | None = None) -> int:
    """Run the missing trials; print the table and draw the figure."""
    options = parse_options(STUDY, __doc__, arguments)
    trials = run(STUDY, options)
    print(describe(trials))
    draw_panels(make_panels(trials), options.csv.with_suffix(".png"))
    return 0


def relative_compute(arm: str) -> float:
    """Return the FLOPs of a forward pass, relative to those of the base."""
    return forward_flops(CONFIGS[arm]) / forward_flops(BASE)


def describe(trials: list[StudyTrial]) -> str:
    """Return a table of the compute, the mean accuracy and the mean loss."""
    rows = []
    for arm in dict.fromkeys(t.arm for t in trials):
        own = reported_trials(trials, arm)
        found = [100 * t.accuracy for t in own]
        rows.append(
            [
                arm,
                f"{relative_compute(arm):.2f}",
                f"{own[0].learning_rate:g}",
                f"{statistics.mean(found):.1f} %",
                f"{min(found):.1f} to {max(found):.1f} %",
                f"{statistics.mean(t.loss for t in own):.3f}",
            ]
        )
    titles = ["", "compute", "learning rate", "accuracy", "of the seeds"]
    return format_table([*titles, "loss"], rows)


def make_panels(trials: list[StudyTrial]) -> list[Panel]:
    """Return accuracy and loss over compute, with a curve per dimension."""
    known = {t.arm for t in trials}
    panels = []
    for label, value in (
        ("test accuracy (%)", lambda trial: 100 * trial.accuracy),
        ("loss on the test images", lambda trial: trial.loss),
    ):
        curves = {}
        for dimension, all_changes in SCALED.items():
            arms = [name_arm(dimension, changes) for changes in all_changes]
            arms = sorted({"base", *arms} & known, key=relative_compute)
            curves[dimension] = {
                relative_compute(arm): [
                    value(t) for t in reported_trials(trials, arm)
                ]
                for arm in arms
            }
        panels.append(
            Panel("relative compute", label, curves, shows_all_x=False)
        )
    return panels


if __name__ == "__main__":
    sys.exit(main())
