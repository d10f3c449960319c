"""The best evaluation of a run: keeping its model, and stopping early."""

import dataclasses
import math
from collections.abc import Callable

import tensorflow as tf


@dataclasses.dataclass
class Best:
    """Remembers the best evaluation so far.

    An evaluation is better than another if its accuracy is higher or, with the
    same accuracy or none, its loss is lower. What is remembered is part of the
    state of the training, so a run that continues goes on as one that was not
    stopped.

    Args:
        save: Called after an evaluation that is the best so far, on all
            workers.
        patience: Number of evaluations in a row that may be no better before
            training stops; None or 0 never stops it.
    """

    save: Callable[[], None] = lambda: None
    patience: int | None = None

    def __post_init__(self):
        # Accuracy, negative loss, number of evaluations after it.
        self.variable = tf.Variable(
            [-1.0, -math.inf, 0.0], dtype=tf.float64, name="best"
        )

    def judge(self, logs: dict[str, float]):
        """Compare an evaluation with the best one, and save a better model.

        Args:
            logs: `val_loss` of the evaluation, and `val_accuracy` if any.
        """
        *best, num_since = self.variable.numpy().tolist()
        found = [logs.get("val_accuracy", 0.0), -logs["val_loss"]]
        if found > best:
            # The model comes before the checkpoint that remembers it: a run
            # that is killed in between saves it again.
            self.save()
            self.variable.assign([*found, 0.0])
        else:
            self.variable.assign([*best, num_since + 1])

    @property
    def is_over(self) -> bool:
        """Whether training should stop."""
        num_since = self.variable.numpy()[-1]
        return bool(self.patience) and num_since >= self.patience
