"""The inner loop: several steps in one call of a compiled function."""

import dataclasses
from collections.abc import Callable

import numpy as np
import tensorflow as tf

from trainers.distribute.workers import gather_rows, num_workers
from trainers.loop.step import Step


def _is_news(record):
    """Return False for the warning about functions that are compiled often.

    Each loop compiles its own, which TensorFlow takes for one function.
    """
    return "triggered tf.function retracing" not in record.getMessage()


tf.get_logger().addFilter(_is_news)


@dataclasses.dataclass(frozen=True, eq=False)
class InnerLoop:
    """Runs steps of training and evaluation on all replicas.

    Args:
        step: The computation of one replica.
        strategy: The strategy that runs the replicas.
    """

    step: Step
    strategy: tf.distribute.Strategy

    # Autograph turns the loops into loops of the graph.
    @tf.function
    def train(self, iterator, num_steps, first_step):
        """Make `num_steps` updates; stop after a loss that is not finite.

        Returns:
            The number of updates, the sums of loss, hits and weights, and the
            seconds spent waiting for input.
        """
        # In float64, the sums do not depend on how updates form calls.
        made, sums = tf.constant(0), tf.zeros(3, tf.float64)
        waited = tf.constant(0.0, tf.float64)
        for _ in tf.range(num_steps):
            with tf.control_dependencies([sums]):
                start = tf.timestamp()
            with tf.control_dependencies([start]):
                batch = next(iterator)
            with tf.control_dependencies(tf.nest.flatten(batch, True)):
                waited += tf.timestamp() - start
            measured = self.strategy.run(
                self.step.train,
                args=(batch, first_step + tf.cast(made, tf.int64)),
            )
            sums += tf.cast(self.sum_replicas(measured), tf.float64)
            made += 1
            if not tf.math.is_finite(sums[0]):
                break
        return made, sums, waited

    def evaluate(
        self,
        batches: tf.distribute.DistributedDataset,
        num_steps: int,
        after_call: Callable[[], None],
        steps_per_call: int = 10,
    ) -> dict[str, float]:
        """Return the `means` over batches.

        Args:
            batches: The batches of all replicas.
            num_steps: Number of batches per replica.
            after_call: Called after each call of the compiled function.
            steps_per_call: Largest number of batches in a call.

        Raises:
            ValueError: If no image has a weight above 0.
        """
        iterator, sums = iter(batches), np.zeros(3)
        for start in range(0, num_steps, steps_per_call):
            count = min(steps_per_call, num_steps - start)
            sums += self.measure(iterator, tf.constant(count)).numpy()
            after_call()
        if not sums[2]:
            raise ValueError(
                "`eval_batches` must hold images of a weight above 0. "
                f"Received: {num_steps} batches without any"
            )
        return self.means(sums)

    def means(self, sums) -> dict[str, float]:
        """Return the means: loss and, if the step counts hits, accuracy.

        Args:
            sums: The sums of loss, hits and weights.
        """
        loss, hits, count = sums
        accuracy = {"accuracy": hits / count} if self.step.hits else {}
        return {"loss": loss / count, **accuracy}

    @tf.function
    def measure(self, iterator, num_steps):
        """Return the sums of loss, hits and weights of `num_steps` batches."""
        sums = tf.zeros(3, tf.float64)
        for _ in tf.range(num_steps):
            measured = self.strategy.run(
                self.step.measure, args=(next(iterator),)
            )
            sums += tf.cast(self.sum_replicas(measured), tf.float64)
        return sums

    def sum_replicas(self, value):
        """Return the sum of a value over all replicas."""
        return self.strategy.reduce(
            tf.distribute.ReduceOp.SUM, value, axis=None
        )

    def agree(self, value) -> float:
        """Return the mean of a value over all workers."""
        if num_workers(self.strategy) == 1:
            return float(value)
        return float(self._mean(tf.constant(value, tf.float32)))

    def is_common(self, number: int) -> bool:
        """Return whether a number is the same for all workers."""
        numbers = gather_rows(self.strategy, np.array([number]))
        return bool((numbers == number).all())

    @tf.function
    def _mean(self, value):
        per_replica = self.strategy.run(lambda value: value, args=(value,))
        return self.strategy.reduce(
            tf.distribute.ReduceOp.MEAN, per_replica, axis=None
        )
