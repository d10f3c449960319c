"""Compare ways of scaling a ViT: python -m benchmarks.shape.

The depth, the width, the size of the MLP and the patch size of a small model
are scaled, each alone and all together, on scikit-learn's digits: figure 8 of
the ViT paper (arXiv:2010.11929, appendix D.2) in small. The table shows medians
over the seeds.
"""

import dataclasses
import functools
import sys

from benchmarks.flops import forward_flops
from benchmarks.study import Arm, Study, describe_arms, parse_options, run
#from benchmarks.study_figures import draw_curves
from keras_vit import VisionTransformer, ViTConfig

HEAD_SIZE = 16
BASE = ViTConfig(
    depth=2,
    width=32,
    mlp_dim=64,
    num_heads=32 // HEAD_SIZE,
    patch_size=4,
    image_size=8,
    channels=1,
    num_classes=10,
)
SCALED = {
    "depth": [{"depth": 4}, {"depth": 8}],
    "width": [{"width": 64}, {"width": 128}],
    "MLP": [{"mlp_dim": 128}, {"mlp_dim": 256}, {"mlp_dim": 512}],
    "patch": [{"patch_size": 8}, {"patch_size": 2}, {"patch_size": 1}],
    "all": [
        {"depth": 1, "width": 16, "mlp_dim": 32, "patch_size": 8},
        {"depth": 4, "width": 64, "mlp_dim": 128, "patch_size": 2},
    ],
}


def scale(changes: dict) -> ViTConfig:
    """Return the base with some sizes changed; heads have the same size."""
    config = dataclasses.replace(BASE, **changes, num_heads=1)
    return dataclasses.replace(config, num_heads=config.width // HEAD_SIZE)


def name_arm(dimension: str, changes: dict) -> str:
    """Return a name such as "depth 4" or "all 4, 64, 128, 2"."""
    return f"{dimension} {', '.join(map(str, changes.values()))}"


CONFIGS = {
    "base": BASE,
    **{
        name_arm(dimension, changes): scale(changes)
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
    rates=(1e-3, 3e-3, 1e-2),
    seeds=3,
    updates=500,
)
