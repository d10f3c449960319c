"""LossScale: loss scaling, which prevents underflow of float16 gradients."""

import tensorflow as tf

from trainers.distribute.strategies import assign_on_replicas

# Twice this number is infinite in float32, and halving infinity does not help.
MAX_SCALE = 2.0**127


class LossScale(tf.Module):
    """A factor of the loss that is as large as the gradients allow.

    If a gradient is not finite, the update is skipped and the factor is
    halved. After `growth_steps` updates with finite gradients, the factor is
    doubled, up to 2^127.

    Args:
        factor: The initial factor.
        growth_steps: Number of updates after which the factor is doubled.

    Reference: Micikevicius et al. 2018, arXiv:1710.03740, section 3.2.
    """

    def __init__(self, factor: float = 2.0**15, growth_steps: int = 2000):
        super().__init__()
        self.growth_steps = growth_steps
        self._factor = tf.Variable(factor, name="factor")
        self._finite_steps = tf.Variable(0, name="finite_steps")

    @property
    def factor(self):
        """The current factor of the loss."""
        return tf.convert_to_tensor(self._factor)

    def update(self, is_finite):
        """Adapt the factor, in replica context.

        Args:
            is_finite: Whether all gradients of the update are finite, a
                boolean tensor, the same on every replica.
        """
        steps = tf.where(is_finite, self._finite_steps + 1, 0)
        is_full = steps >= self.growth_steps
        doubled = tf.minimum(self.factor * 2.0, MAX_SCALE)
        grown = tf.where(is_full, doubled, self.factor)
        halved = tf.maximum(self.factor / 2.0, 1.0)
        assign_on_replicas(
            [self._factor, self._finite_steps],
            [tf.where(is_finite, grown, halved), tf.where(is_full, 0, steps)],
        )
