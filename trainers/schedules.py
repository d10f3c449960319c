"""Learning-rate schedules, by the step convention of the official code."""

import math

import keras
from keras import ops

from keras_vit.tables import pick


@keras.saving.register_keras_serializable(package="keras_vit")
class WarmupSchedule(keras.optimizers.schedules.LearningRateSchedule):
    """Grow the learning rate linearly, then let it decay.

    Update number s, counted from 0, uses peak * min(1, s / W) * decay(p) with
    p = (s - W) / (T - W) clipped to [0, 1]: with a warm-up the first update
    has the rate 0, and the last one is number T - 1.

    Args:
        peak: The highest learning rate.
        total_steps: Number T of updates.
        warmup_steps: Number W of updates before `peak` is reached.
        decay: A key of DECAYS.

    Raises:
        ValueError: If the warm-up is not shorter than the training.

    Example:
        >>> schedule = WarmupSchedule(1.0, total_steps=6, warmup_steps=2)
        >>> [round(float(schedule(step)), 3) for step in range(6)]
        [0.0, 0.5, 1.0, 0.854, 0.5, 0.146]

    Reference: Dosovitskiy et al. 2021, arXiv:2010.11929, appendix B.1.
    """

    def __init__(
        self,
        peak: float,
        total_steps: int,
        warmup_steps: int = 0,
        decay: str = "cosine",
    ):
        if not 0 <= warmup_steps < total_steps:
            raise ValueError(
                "`warmup_steps` must be fewer than `total_steps`. Received: "
                f"warmup_steps={warmup_steps}, total_steps={total_steps}"
            )
        self.peak = peak
        self.total_steps = total_steps
        self.warmup_steps = warmup_steps
        self.decay = decay
        self._decay = pick(DECAYS, decay, "schedule")

    def __call__(self, step):
        """Return the learning rate of update number `step`."""
        step = ops.cast(step, "float32")
        warmup = ops.minimum(1.0, step / max(self.warmup_steps, 1))
        if self.warmup_steps == 0:
            warmup = 1.0
        span = self.total_steps - self.warmup_steps
        progress = ops.clip((step - self.warmup_steps) / span, 0.0, 1.0)
        return self.peak * warmup * self._decay(progress)

    def get_config(self):
        """Return the arguments of the constructor."""
        return {
            "peak": self.peak,
            "total_steps": self.total_steps,
            "warmup_steps": self.warmup_steps,
            "decay": self.decay,
        }


def cosine(progress):
    """Fall from 1 to 0 along half a cosine."""
    return 0.5 * (1.0 + ops.cos(math.pi * progress))


def linear(progress):
    """Fall from 1 to 0 along a line."""
    return 1.0 - progress


def constant(progress):
    """Stay at 1."""
    return ops.ones_like(progress)


DECAYS = {"cosine": cosine, "linear": linear, "constant": constant}
