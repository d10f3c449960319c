"""ObjectiveOptions: the fields of a recipe about its training objective."""

import dataclasses

from trainers.recipes.baselines import BASELINES
from trainers.recipes.options import (
    INNER_SHARE,
    POSITIVE,
    check_unused,
    option,
)

CLASSIFY = "classify"
# Share of hidden patches of each objective without labels, as in its paper.
MASK_RATIOS = {"masked_patches": 0.5, "autoencoder": 0.75}
# The keys of PATCH_TARGETS of `keras_vit.pretraining`, which needs Keras.
PATCH_TARGETS = ("mean_color", "small_patch", "pixels")
# Fields that need a classifier, and the value that does without them.
NEEDS_LABELS = {
    "teacher": None,
    "patch_sizes": "",
    "representation_size": None,
    "lora_rank": 0,
    "train_only": None,
    "log_attention": 0,
}


@dataclasses.dataclass(frozen=True)
class ObjectiveOptions:
    """The objective of a recipe, with or without labels."""

    objective: str = option(
        CLASSIFY,
        "What is learned: the classes, or without labels the colours of "
        "corrupted patches, or the pixels of hidden ones (masked autoencoder). "
        "Without labels, the saved model is the encoder, for --init_from.",
        [CLASSIFY, *MASK_RATIOS],
    )
    mask_ratio: float | None = option(
        None,
        "Without labels: share of the patches that are hidden. Default: 0.5 "
        "for masked_patches, 0.75 for autoencoder.",
        range=INNER_SHARE,
    )
    patch_target: str = option(
        "mean_color",
        "For masked_patches: the mean colour of a patch, those of its 4x4 "
        "cells, or its pixels.",
        PATCH_TARGETS,
    )
    decoder_width: int = option(
        512, "For autoencoder: width of the decoder.", range=POSITIVE
    )
    decoder_depth: int = option(
        8, "For autoencoder: number of blocks of the decoder.", range=POSITIVE
    )
    decoder_heads: int = option(
        16,
        "For autoencoder: number of attention heads of the decoder.",
        range=POSITIVE,
    )
    normalize_pixels: bool = option(
        True,
        "For autoencoder: predict the pixels of a patch relative to their "
        "mean and deviation.",
    )

    @property
    def needs_labels(self) -> bool:
        """Whether the model learns classes."""
        return self.objective == CLASSIFY


def check_objective(options: ObjectiveOptions):
    """Raise a ValueError if other fields contradict the objective.

    Args:
        options: A recipe, with the fields of its model and its teacher as well.
    """
    if options.needs_labels:
        return
    check_unused(options, NEEDS_LABELS, "--objective=classify", "objective")
    if not options.init_from and options.model in BASELINES:
        raise ValueError(
            f"`objective` {options.objective!r} needs a Vision Transformer. "
            f"Received: model={options.model!r}"
        )
