"""The training loop: epochs of steps, evaluations, checkpoints, callbacks.

An inner loop makes several steps (see trainers/loop/step.py) inside one
`tf.function`; the outer loop evaluates, saves, stops and drives Keras
callbacks. It knows no ViT: any Keras model that answers logits will do.
"""

import dataclasses
import math
import time
import warnings
from collections.abc import Callable, Iterable

import keras
import numpy as np
import tensorflow as tf

from trainers.distribute.strategies import name_lost_workers, num_workers
from trainers.loop.checkpoints import CheckpointError, Checkpoints
from trainers.loop.step import Step
from trainers.optim.loss_scaling import LossScale
from trainers.optim.optimizers import Optimizer

# A signal is heeded between two calls of the compiled function, so that none
# may last long.
LONGEST_CALL = 2.0  # seconds


class NonFiniteLossError(RuntimeError):
    """The loss is no number any more."""


class Interrupted(RuntimeError):
    """The training was asked to stop; its state is saved."""


@dataclasses.dataclass
class Loop:
    """What is trained, by what, and where.

    Args:
        model, optimizer, loss: See `Step`.
        strategy: Where the replicas of the model are.
        clip_norm, accumulation_steps, seed, loss_scale, use_xla: See `Step`.
        checkpoints: Where the state is saved; None saves nothing.
        must_stop: Asked between two calls whether to save and stop.
    """

    model: keras.Model
    optimizer: Optimizer
    loss: Callable
    strategy: tf.distribute.Strategy
    clip_norm: float | None = None
    accumulation_steps: int = 1
    seed: int = 0
    loss_scale: LossScale | None = None
    use_xla: bool = False
    checkpoints: Checkpoints | None = None
    must_stop: Callable[[], bool] = lambda: False

    def __post_init__(self):
        self._train_steps = tf.function(self._run_steps)
        self._eval_steps = tf.function(self._run_eval_steps)
        self._mean = tf.function(self._run_mean)
        self._update = Step(
            model=self.model,
            optimizer=self.optimizer,
            loss=self.loss,
            clip_norm=self.clip_norm,
            accumulation_steps=self.accumulation_steps,
            seed=self.seed,
            loss_scale=self.loss_scale,
            use_xla=self.use_xla,
        )
        self._seconds_per_step = 0.0
        # Of this process, not of the devices: a TPU has no float64.
        self._step = tf.Variable(0, dtype=tf.int64, name="step")
        # Of loss, hits and images since the last evaluation.
        self._sums = tf.Variable(tf.zeros(3, tf.float64), name="sums")

    @property
    def step(self) -> int:
        """Number of batches trained on so far."""
        return int(self._step.numpy())

    @property
    def state(self) -> tf.train.Checkpoint:
        """All that changes in training."""
        scale = {"loss_scale": self.loss_scale} if self.loss_scale else {}
        return tf.train.Checkpoint(
            model=self.model,
            optimizer=self.optimizer,
            step=self._step,
            sums=self._sums,
            **scale,
        )

    def resume(self):
        """Restore the newest checkpoint, if there is one.

        Raises:
            CheckpointError: If none can be read, or the workers found
                different ones.
        """
        if self.checkpoints is None:
            return
        self.checkpoints.restore()
        apart = abs(self.step - self._agree(self.step))
        if self._agree(apart):
            raise CheckpointError(
                "The workers found different checkpoints; they must share the "
                f"folder of the run. Here: update {self.step} in "
                f"{self.checkpoints.folder}"
            )

    def train(
        self,
        batches: Callable,
        eval_batches: Callable,
        *,
        total_steps: int,
        steps_per_epoch: int,
        eval_steps: int,
        steps_per_loop: int = 10,
        steps_per_checkpoint: int | None = None,
        callbacks: Iterable[keras.callbacks.Callback] = (),
    ) -> dict[str, float]:
        """Train until `total_steps` updates were made; return the last logs.

        After each epoch the model is evaluated and the state saved.

        Args:
            batches: Maps a `tf.distribute.InputContext` to endless (images,
                labels, weights) of the batch size of a replica, from the
                current step on.
            eval_batches: Maps it to those to evaluate on, once through.
            total_steps: Updates in all, those before a restart included.
            steps_per_epoch: Updates between two evaluations.
            eval_steps: Batches that `eval_batches` has for each replica.
            steps_per_loop: Most updates in a call of the compiled function.
            steps_per_checkpoint: Updates between two saves within an epoch.
            callbacks: Keras callbacks; a batch means a call of the function.
                Its logs hold loss and accuracy of the epoch so far,
                learning_rate and step, and of the call itself images, seconds
                and input_seconds.

        Returns:
            loss, accuracy, val_loss, val_accuracy, learning_rate and step;
            the val_ ones alone if there was no update left to make.

        Raises:
            NonFiniteLossError: If the loss is not finite. The checkpoints are
                those from before.
            WorkerLostError: If another process does not answer.
            Interrupted: If it was asked to stop, after saving.
            CheckpointError: If the last state could not be saved.
        """
        calls = keras.callbacks.CallbackList(
            list(callbacks),
            model=self.model,
            epochs=math.ceil(total_steps / steps_per_epoch),
        )
        # What callbacks ask a model for: TensorBoard, EarlyStopping.
        self.model.optimizer = None
        self.model.stop_training = False
        distribute = self.strategy.distribute_datasets_from_function
        logs = {}
        calls.on_train_begin()
        try:
            with name_lost_workers(
                self.strategy, lambda: f"after update {self.step}"
            ):
                iterator = iter(distribute(batches))
                eval_batches = distribute(eval_batches)
                if self.step >= total_steps and not self._is_epoch_open():
                    logs = self._validate(eval_batches, eval_steps)
                while (
                    self.step < total_steps or self._is_epoch_open()
                ) and not self.model.stop_training:
                    # A state from between the last update of an epoch and its
                    # evaluation goes on with the evaluation.
                    last = self.step - self._is_epoch_open()
                    epoch = last // steps_per_epoch
                    calls.on_epoch_begin(epoch)
                    end = min((epoch + 1) * steps_per_epoch, total_steps)
                    self._train_until(
                        end,
                        iterator,
                        calls,
                        steps_per_loop,
                        steps_per_checkpoint,
                    )
                    logs = {
                        **self._means(),
                        **self._validate(eval_batches, eval_steps),
                        "learning_rate": float(self.optimizer.learning_rate),
                        "step": self.step,
                    }
                    # The row of metrics first: what is there twice after a
                    # restart can be dropped, what is missing cannot be made up.
                    calls.on_epoch_end(epoch, logs)
                    self._sums.assign(tf.zeros_like(self._sums))
                    self._save(must_succeed=self.step >= total_steps)
        finally:
            calls.on_train_end(logs)  # Lets the callbacks close their files.
            del self.model.optimizer
        return logs

    def use_averages(self):
        """Give the model the averaged weights, if there are any: at the end."""
        for variable, value in zip(
            self.model.trainable_variables, self.optimizer.averages or ()
        ):
            variable.assign(value)

    def evaluate(self, eval_batches: Callable, eval_steps: int) -> dict:
        """Return loss and accuracy over `eval_batches`.

        Args:
            eval_batches: Maps a `tf.distribute.InputContext` to (images,
                labels, weights); weight 0 does not count.
            eval_steps: Batches that it has for each replica.

        Raises:
            ValueError: If no image counts.
        """
        distribute = self.strategy.distribute_datasets_from_function
        return self._evaluate(distribute(eval_batches), eval_steps)

    def _evaluate(self, batches, num_steps, steps_per_call=10):
        iterator, sums = iter(batches), np.zeros(3)
        for start in range(0, num_steps, steps_per_call):
            count = min(steps_per_call, num_steps - start)
            sums += self._eval_steps(iterator, tf.constant(count)).numpy()
            self._stop_if_asked()
        if not sums[2]:
            raise ValueError(
                "`eval_batches` must hold images of a weight above 0. "
                f"Received: {num_steps} batches without any"
            )
        return {"loss": sums[0] / sums[2], "accuracy": sums[1] / sums[2]}

    def _validate(self, batches, num_steps):
        report = self._evaluate(batches, num_steps)
        # An update can spoil the weights although its own loss was finite.
        self._require_finite(report["loss"])
        return {f"val_{name}": value for name, value in report.items()}

    def _require_finite(self, loss):
        if not math.isfinite(loss):
            steps = self.checkpoints.steps() if self.checkpoints else []
            last = f"after update {steps[-1]}" if steps else "none"
            raise NonFiniteLossError(
                f"The loss of update {self.step} is not finite. The last "
                f"checkpoint, from before: {last}"
            )

    def _train_until(
        self, end, iterator, calls, steps_per_loop, steps_per_checkpoint
    ):
        """Go on to update `end`, and save on the way."""
        while self.step < end:
            stop = _next(self.step, steps_per_checkpoint, end)
            num_steps = min(steps_per_loop, stop - self.step)
            calls.on_train_batch_begin(self.step)
            logs = self._train_some(iterator, num_steps)
            calls.on_train_batch_end(self.step, logs)
            self._stop_if_asked()
            if self.step == stop < end:
                self._save()

    def _train_some(self, iterator, num_steps):
        """Make some updates in one call; return the logs of the callbacks."""
        if self._seconds_per_step:
            at_most = int(LONGEST_CALL / self._seconds_per_step)
            num_steps = max(min(num_steps, at_most), 1)
        start = time.perf_counter()
        made, sums, waited = self._train_steps(
            iterator, tf.constant(num_steps), tf.constant(self.step, tf.int64)
        )
        sums = sums.numpy()
        seconds = time.perf_counter() - start
        self._step.assign_add(int(made))
        self._require_finite(sums[0])
        self._sums.assign_add(sums)
        # Of all workers: they must agree on the length of the next call.
        self._seconds_per_step = self._agree(seconds / num_steps)
        return {
            **self._means(),
            "learning_rate": float(self.optimizer.learning_rate),
            "step": self.step,
            "images": float(sums[2]),
            "seconds": seconds,
            "input_seconds": float(waited),
        }

    def _means(self):
        loss, hits, count = self._sums.numpy()
        return {"loss": loss / count, "accuracy": hits / count}

    def _is_epoch_open(self):
        return bool(self._sums.numpy()[2])

    def _stop_if_asked(self):
        if self._agree(self.must_stop()):
            self._save(must_succeed=True)
            raise Interrupted(f"Stopped and saved after update {self.step}.")

    def _save(self, must_succeed=False):
        if self.checkpoints is None:
            return
        try:
            self.checkpoints.save(self.step)
        except CheckpointError as error:
            if must_succeed:
                raise
            # To go on loses nothing; the disk may have room again next time.
            warnings.warn(str(error), stacklevel=2)

    def _agree(self, value) -> float:
        """Return the mean of what the workers give."""
        if num_workers(self.strategy) == 1:
            return float(value)
        return float(self._mean(tf.constant(value, tf.float32)))

    def _run_mean(self, value):
        per_replica = self.strategy.run(lambda value: value, args=(value,))
        return self.strategy.reduce(
            tf.distribute.ReduceOp.MEAN, per_replica, axis=None
        )

    def _run_steps(self, iterator, num_steps, first_step):
        """Make `num_steps` updates.

        Stops after an update whose loss is not finite.

        Returns:
            How many were made, the sums of what was measured, and the seconds
            that went by waiting for input.
        """
        # In float64 the sums do not depend on where a call ended.
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
                self._update.train,
                args=(batch, first_step + tf.cast(made, tf.int64)),
            )
            sums += tf.cast(self._sum_replicas(measured), tf.float64)
            made += 1
            if not tf.math.is_finite(sums[0]):
                break
        return made, sums, waited

    def _run_eval_steps(self, iterator, num_steps):
        sums = tf.zeros(3, tf.float64)
        for _ in tf.range(num_steps):
            measured = self.strategy.run(
                self._update.measure, args=(next(iterator),)
            )
            sums += tf.cast(self._sum_replicas(measured), tf.float64)
        return sums

    def _sum_replicas(self, value):
        return self.strategy.reduce(
            tf.distribute.ReduceOp.SUM, value, axis=None
        )


def _next(step, interval, end):
    """Return the next multiple of `interval` after `step`, at most `end`."""
    return min((step // interval + 1) * interval, end) if interval else end
