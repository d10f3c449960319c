"""Learning-rate schedules, with the steps counted as in the official code."""

import math
from collections.abc import Sequence

import keras
from keras import ops

from keras_vit.tables import pick
from trainers.recipes.recipe import Recipe

# The milestones of BiT, Kolesnikov et al. 2020, arXiv:1912.11370, section 3.3.
MILESTONES = (0.3, 0.6, 0.9)


@keras.saving.register_keras_serializable(package="keras_vit")
class WarmupSchedule(keras.optimizers.schedules.LearningRateSchedule):
    """Increase the learning rate linearly, then let it decay.

    Update number s, counted from 0, uses

        peak * min(1, s / W) * decay * min(1, (T - s) / C)

    for T updates in total, W warm-up updates and C cool-down updates. With a
    warm-up, the first update has the rate 0; the last update is number T - 1.
    With p = (s - W) / (T - W), clipped to [0, 1], and the final fraction f,
    the decay is

        cosine    f + (1 - f) * (1 + cos(pi * p)) / 2
        linear    f + (1 - f) * (1 - p)
        constant  1
        rsqrt     1 / sqrt(1 + max(0, s - W) / timescale)
        steps     1 / 10^n for n milestones m with s > m T

    Args:
        peak: The highest learning rate.
        total_steps: Number T of updates.
        warmup_steps: Number W of updates before `peak` is reached.
        decay: A key of DECAYS.
        cooldown_steps: Number C of last updates in which a second factor
            falls linearly to 0, for `rsqrt`, which does not reach 0.
        final_fraction: Final rate of `cosine` and `linear`, as a fraction f of
            `peak`. The linear decay of the papers ends at the rate 1e-5:
            f = 1e-5 / peak.
        timescale: Timescale of `rsqrt`, in updates: three timescales after the
            warm-up, the rate has halved.
        milestones: Shares m of the updates, warm-up included, after each of
            which the rate of `steps` falls to a tenth.

    Raises:
        ValueError: If the decay is unknown, or a number is out of range.

    Example:
        >>> schedule = WarmupSchedule(1.0, total_steps=6, warmup_steps=2)
        >>> [round(float(schedule(step)), 3) for step in range(6)]
        [0.0, 0.5, 1.0, 0.854, 0.5, 0.146]

    Reference: Dosovitskiy et al. 2021, arXiv:2010.11929, appendix B.1; `rsqrt`
        and the cool-down: Zhai et al. 2022, arXiv:2106.04560, section 3;
        `steps`: bit_hyperrule.py of big_transfer.
    """

    def __init__(
        self,
        peak: float,
        total_steps: int,
        warmup_steps: int = 0,
        decay: str = "cosine",
        cooldown_steps: int = 0,
        final_fraction: float = 0.0,
        timescale: float = 10_000,
        milestones: Sequence[float] = MILESTONES,
    ):
        self._decay = pick(DECAYS, decay, "schedule")
        shares = [0, *milestones, 1]
        if not all(low < high for low, high in zip(shares, shares[1:])):
            raise ValueError(
                "`milestones` must ascend and lie between 0 and 1. "
                f"Received: milestones={tuple(milestones)}"
            )
        if not 0 <= warmup_steps < total_steps:
            raise ValueError(
                "`warmup_steps` must be fewer than `total_steps`. Received: "
                f"warmup_steps={warmup_steps}, total_steps={total_steps}"
            )
        if not 0 <= cooldown_steps <= total_steps - warmup_steps:
            raise ValueError(
                "`cooldown_steps` must fit after the warm-up. Received: "
                f"cooldown_steps={cooldown_steps}, "
                f"warmup_steps={warmup_steps}, total_steps={total_steps}"
            )
        if not 0 <= final_fraction <= 1:
            raise ValueError(
                "`final_fraction` must be from 0 to 1. "
                f"Received: final_fraction={final_fraction}"
            )
        if final_fraction and decay not in ENDING:
            raise ValueError(
                f"`final_fraction` must be 0 for {decay!r}; only "
                f"{' and '.join(ENDING)} end somewhere. "
                f"Received: final_fraction={final_fraction}"
            )
        if not timescale > 0:
            raise ValueError(
                f"`timescale` must be positive. Received: timescale={timescale}"
            )
        self.peak = peak
        self.total_steps = total_steps
        self.warmup_steps = warmup_steps
        self.decay = decay
        self.cooldown_steps = cooldown_steps
        self.final_fraction = final_fraction
        self.timescale = timescale
        self.milestones = list(milestones)

    def __call__(self, step):
        """Return the learning rate of update number `step`."""
        step = ops.cast(step, "float32")
        since = ops.maximum(0.0, step - self.warmup_steps)
        span = self.total_steps - self.warmup_steps
        progress = ops.minimum(1.0, since / span)
        passed = [
            ops.cast(step > round(share * self.total_steps), "float32")
            for share in self.milestones
        ]
        rate = self._decay(progress, since / self.timescale, sum(passed))
        rate = self.final_fraction + (1.0 - self.final_fraction) * rate
        if self.warmup_steps:
            rate *= ops.minimum(1.0, step / self.warmup_steps)
        if self.cooldown_steps:
            left = self.total_steps - step
            rate *= ops.clip(left / self.cooldown_steps, 0.0, 1.0)
        return self.peak * rate

    def get_config(self):
        """Return the arguments of the constructor."""
        return {
            "peak": self.peak,
            "total_steps": self.total_steps,
            "warmup_steps": self.warmup_steps,
            "decay": self.decay,
            "cooldown_steps": self.cooldown_steps,
            "final_fraction": self.final_fraction,
            "timescale": self.timescale,
            "milestones": self.milestones,
        }


def cosine(progress, age, passed):
    """Decay from 1 to 0 along half a cosine."""
    return 0.5 * (1.0 + ops.cos(math.pi * progress))


def linear(progress, age, passed):
    """Decay linearly from 1 to 0."""
    return 1.0 - progress


def constant(progress, age, passed):
    """Stay at 1."""
    return ops.ones_like(progress)


def rsqrt(progress, age, passed):
    """Decay with the inverse square root of the number of updates."""
    return ops.rsqrt(1.0 + age)


def steps(progress, age, passed):
    """Fall to a tenth at each milestone."""
    return ops.power(0.1, passed)


DECAYS = {
    "cosine": cosine,
    "linear": linear,
    "constant": constant,
    "rsqrt": rsqrt,
    "steps": steps,
}
ENDING = ("cosine", "linear")  # The decays that `final_fraction` applies to.


def make_schedule(recipe: Recipe, total_steps: int) -> WarmupSchedule:
    """Return the learning rates of all updates."""
    return WarmupSchedule(
        recipe.learning_rate,
        total_steps,
        recipe.warmup_steps,
        recipe.schedule,
        cooldown_steps=recipe.cooldown_steps,
        final_fraction=recipe.final_fraction,
        timescale=recipe.timescale,
        milestones=recipe.milestone_shares,
    )
