"""DistillationOptions: the fields of a recipe about its teacher."""

import dataclasses

from trainers.recipes.options import POSITIVE, NumberRange, option

SHARE = NumberRange("in [0, 1]", lambda x: 0 <= x <= 1)


@dataclasses.dataclass(frozen=True)
class DistillationOptions:
    """The teacher of a recipe, whose predictions the model learns."""

    teacher: str | None = option(
        None,
        "Model whose predictions the model learns beside the labels "
        "(distillation): the folder of a run, a .keras file, a checkpoint or "
        "the name of a published one. It sees the same augmented images. A "
        "model with --pooling=distilled learns them with a token of their own.",
        is_local=True,
    )
    distillation_target: str = option(
        "hard",
        "What is learned of the teacher: hard is its most likely class, soft "
        "are its probabilities.",
        ("hard", "soft"),
    )
    distillation_weight: float = option(
        0.5,
        "Share of the teacher in the loss; the labels have the rest.",
        range=SHARE,
    )
    distillation_temperature: float = option(
        1.0,
        "Divisor of the logits of teacher and model with soft targets.",
        range=POSITIVE,
    )
