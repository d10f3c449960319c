"""The training loop: epochs of steps, evaluations, checkpoints, callbacks.

The inner loop makes several steps in one call of a compiled function. This
outer loop evaluates, saves, stops and calls callbacks, for any Keras model.
"""

import contextlib
import dataclasses
import math
import time
import warnings
from collections.abc import Callable, Iterable, Iterator

import keras
import numpy as np
import tensorflow as tf

from trainers.distribute.workers import (
    gather_rows,
    name_lost_workers,
    num_workers,
    part_from_all,
)
from trainers.loop.checkpoints import Checkpoints
from trainers.loop.errors import (
    CheckpointError,
    Interrupted,
    NonFiniteLossError,
)
from trainers.loop.step import Step
from trainers.optim.losses import Distillation, LossScale, is_best_class
from trainers.optim.optimizers import Optimizer


@contextlib.contextmanager
def run_callbacks(
    model: keras.Model,
    callbacks: Iterable[keras.callbacks.Callback],
    num_epochs: int,
) -> Iterator[tuple[keras.callbacks.CallbackList, dict]]:
    """Yield the list of callbacks, and the logs that it gets at the end.

    Args:
        model: The model that is trained.
        callbacks: The callbacks.
        num_epochs: Number of evaluations in the whole training.
    """
    calls = keras.callbacks.CallbackList(
        list(callbacks), model=model, epochs=num_epochs
    )
    # TensorBoard and EarlyStopping read these attributes of a model.
    model.optimizer = None
    model.stop_training = False
    logs = {}
    calls.on_train_begin()
    try:
        yield calls, logs
    finally:
        calls.on_train_end(logs)  # Lets the callbacks close their files.
        del model.optimizer


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


# Signals are only handled between two calls of the compiled function, so a
# call must not take longer than this.
LONGEST_CALL = 2.0  # seconds


@dataclasses.dataclass
class Loop:
    """Trains a model, and keeps the state of the training.

    Args:
        model, optimizer, loss: See `Step`.
        strategy: The strategy that runs the replicas of the model.
        clip_norm, accumulation_steps, seed, loss_scale, use_xla: See `Step`.
        gradient_dtype, distillation, variants, hits: See `Step`.
        checkpoints: Saves and restores the state; None saves nothing.
        best: Keeps the best model and may end the training; None does not.
        must_stop: Called between two calls; returns whether to save and stop.
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
    gradient_dtype: str = "float32"
    distillation: Distillation | None = None
    variants: tuple = ()
    hits: Callable | None = is_best_class
    checkpoints: Checkpoints | None = None
    best: Best | None = None
    must_stop: Callable[[], bool] = lambda: False

    def __post_init__(self):
        of_a_step = [field.name for field in dataclasses.fields(Step)]
        step = Step(**{name: getattr(self, name) for name in of_a_step})
        self.inner = InnerLoop(step, self.strategy)
        self._seconds_per_step = 0.0
        # These variables are on the host, because a TPU has no float64.
        self._step = tf.Variable(0, dtype=tf.int64, name="step")
        # Sums of loss, hits and images since the last evaluation.
        self._sums = tf.Variable(tf.zeros(3, tf.float64), name="sums")

    @property
    def step(self) -> int:
        """Number of batches trained on so far."""
        return int(self._step.numpy())

    @property
    def state(self) -> tf.train.Checkpoint:
        """Everything that changes in training."""
        more = {"loss_scale": self.loss_scale} if self.loss_scale else {}
        more |= {"best": self.best.variable} if self.best else {}
        return tf.train.Checkpoint(
            model=self.model,
            optimizer=self.optimizer,
            step=self._step,
            sums=self._sums,
            **more,
        )

    def resume(self):
        """Restore the newest checkpoint, if there is one.

        Raises:
            CheckpointError: If no checkpoint can be read, or the workers
                found different ones.
        """
        self.checkpoints.restore()
        if not self.inner.is_common(self.step):
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
        """Train up to update `total_steps` and return the last logs.

        After each epoch, the model is evaluated and the state is saved.

        Args:
            batches: Maps a `tf.distribute.InputContext` to an endless dataset
                of (images, labels, weights), with the batch size of a replica,
                which starts at the current step.
            eval_batches: Maps the context to one pass over the batches to
                evaluate on.
            total_steps: Number of updates, including those before a restart.
            steps_per_epoch: Updates between two evaluations.
            eval_steps: Number of batches of `eval_batches` per replica.
            steps_per_loop: Largest number of updates in a call of the
                compiled function.
            steps_per_checkpoint: Updates between two saves within an epoch.
            callbacks: Keras callbacks, for which each call of the compiled
                function is a batch. The logs of a batch contain loss and
                accuracy of the epoch so far, learning_rate and step, and for
                the call itself images, seconds and input_seconds.

        Returns:
            loss, accuracy, val_loss, val_accuracy, learning_rate and step; only
            the val_ entries if no update was left to make.

        Raises:
            NonFiniteLossError: If the loss is not finite. The last checkpoint
                is older than this loss.
            WorkerLostError: If another process does not respond.
            Interrupted: If `must_stop` returned True, after saving.
            CheckpointError: If the last state cannot be saved.
        """
        num_epochs = math.ceil(total_steps / steps_per_epoch)
        distribute = self.strategy.distribute_datasets_from_function
        with self._run_callbacks(callbacks, num_epochs) as (calls, logs):
            iterator = iter(distribute(batches))
            eval_batches = distribute(eval_batches)
            if self._is_done(total_steps):
                logs |= self._validate(eval_batches, eval_steps)
            while not (self._is_done(total_steps) or self._is_to_end()):
                logs.clear()
                # If the state was saved between the last update of an epoch
                # and its evaluation, continue with the evaluation.
                epoch = (self.step - self._is_epoch_open()) // steps_per_epoch
                end = min((epoch + 1) * steps_per_epoch, total_steps)
                calls.on_epoch_begin(epoch)
                while self.step < end:
                    stop = _next(self.step, steps_per_checkpoint, end)
                    count = min(steps_per_loop, stop - self.step)
                    count = self._limit_call(count)
                    calls.on_train_batch_begin(self.step)
                    start = time.perf_counter()
                    place = tf.constant(self.step, tf.int64)
                    result = self.inner.train(
                        iterator, tf.constant(count), place
                    )
                    call_logs = self._record(result, start, count)
                    calls.on_train_batch_end(self.step, call_logs)
                    self._stop_if_asked()
                    if self.step == stop < end:
                        self._save()
                logs |= self._figures()
                logs |= self._validate(eval_batches, eval_steps)
                if self.best:
                    self.best.judge(logs)
                # The row of metrics comes before the checkpoint: after a
                # restart, a duplicate row can be dropped, a missing one not.
                calls.on_epoch_end(epoch, logs)
                self._sums.assign(tf.zeros_like(self._sums))
                self._save(self.step >= total_steps or self._is_to_end())
        return logs

    def evaluate(self, eval_batches: Callable, eval_steps: int) -> dict:
        """Return loss and accuracy over `eval_batches`.

        Args:
            eval_batches: Maps a `tf.distribute.InputContext` to batches of
                (images, labels, weights). Images of weight 0 are ignored.
            eval_steps: Number of batches per replica.

        Raises:
            ValueError: If no image has a weight above 0.
        """
        batches = self.strategy.distribute_datasets_from_function(eval_batches)
        return self.inner.evaluate(batches, eval_steps, self._stop_if_asked)

    @contextlib.contextmanager
    def _run_callbacks(self, callbacks, num_epochs):
        """Yield `run_callbacks`; name the workers that are lost meanwhile."""
        with name_lost_workers(self.strategy, self._describe_place):
            with run_callbacks(self.model, callbacks, num_epochs) as both:
                yield both
                part_from_all(self.strategy)

    def _describe_place(self):
        return f"after update {self.step}"

    def _is_done(self, total_steps):
        return self.step >= total_steps and not self._is_epoch_open()

    def _is_to_end(self):
        return self.model.stop_training or (self.best and self.best.is_over)

    def _limit_call(self, num_steps):
        """Return the number of steps for a call, at most `num_steps`."""
        if not self._seconds_per_step:
            return num_steps
        longest = int(LONGEST_CALL / self._seconds_per_step)
        return max(min(num_steps, longest), 1)

    def _record(self, result, start, num_steps):
        """Record the results of a call; return the logs for the callbacks."""
        made, sums, waited = result
        sums = sums.numpy()  # Waits for the devices.
        seconds = time.perf_counter() - start
        self._step.assign_add(int(made))
        self._require_finite(sums[0])
        self._sums.assign_add(sums)
        # The workers must agree on the length of the next call.
        self._seconds_per_step = self.inner.agree(seconds / num_steps)
        return {
            **self._figures(),
            "images": float(sums[2]),
            "seconds": seconds,
            "input_seconds": float(waited),
        }

    def _validate(self, batches, num_steps):
        report = self.inner.evaluate(batches, num_steps, self._stop_if_asked)
        # An update with a finite loss can still make weights infinite or NaN.
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

    def _figures(self):
        """Return loss and accuracy since the last evaluation, rate and step."""
        return {
            **self.inner.means(self._sums.numpy()),
            "learning_rate": float(self.optimizer.learning_rate),
            "step": self.step,
        }

    def _is_epoch_open(self):
        return bool(self._sums.numpy()[2])

    def _stop_if_asked(self):
        if self.inner.agree(self.must_stop()):
            self._save(must_succeed=True)
            part_from_all(self.strategy)
            raise Interrupted(
                f"Stopped and saved after update {self.step}. Run the same "
                "command again to continue."
            )

    def _save(self, must_succeed=False):
        if self.checkpoints is None:
            return
        try:
            self.checkpoints.save(self.step)
        except CheckpointError as error:
            if must_succeed:
                raise
            # Continuing loses nothing; the next save may find room again.
            warnings.warn(str(error), stacklevel=2)


def _next(step, interval, end):
    """Return the next multiple of `interval` after `step`, at most `end`."""
    return min((step // interval + 1) * interval, end) if interval else end
