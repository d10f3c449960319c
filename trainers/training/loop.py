"""The training loop: updates, evaluations, checkpoints and callbacks.

For any Keras model, on any engine; it knows no recipe.
"""

import contextlib
import dataclasses
import math
import time
import warnings
from collections.abc import Callable, Iterable

import keras
import numpy as np

from trainers.data.decoding import DataError
from trainers.engine.checkpoints import CheckpointError, Checkpoints
from trainers.engine.engine import Engine
from trainers.engine.update import Update
from trainers.optim.optimizers import Optimizer, value_of
from trainers.training.report import name_best


class NonFiniteLossError(RuntimeError):
    """The loss is infinite or NaN."""


class Interrupted(RuntimeError):
    """The training was asked to stop; its state is saved."""


@dataclasses.dataclass
class Best:
    """Remembers the best evaluation so far.

    An evaluation is better than another if its figure, see `name_best`, is
    higher or, with the same figure or none, its loss is lower. What is
    remembered is part of the state of the training, so a run that continues
    goes on as one that was not stopped.

    Args:
        save: Called after an evaluation that is the best so far, on all
            workers.
        patience: Number of evaluations in a row that may be no better before
            training stops; None or 0 never stops it.
    """

    save: Callable[[], None] = lambda: None
    patience: int | None = None

    def __post_init__(self):
        # Figure, negative loss, number of evaluations after it.
        self.numbers = np.empty(3)
        self.forget()

    def judge(self, logs: dict[str, float]):
        """Compare an evaluation with the best one, and save a better model.

        Args:
            logs: `val_loss` of the evaluation, and its other figures.
        """
        *best, num_since = self.numbers.tolist()
        figure = logs.get(name_best(logs), 0.0)
        found = [figure, -logs["val_loss"]]
        if found > best:
            # The model comes before the checkpoint that remembers it: a run
            # that is killed in between saves it again.
            self.save()
            self.numbers[:] = [*found, 0.0]
        else:
            self.numbers[:] = [*best, num_since + 1]

    def forget(self):
        """Forget the evaluations, which were of other images."""
        self.numbers[:] = -1.0, -math.inf, 0.0

    @property
    def is_over(self) -> bool:
        """Whether training should stop."""
        return bool(self.patience) and self.numbers[-1] >= self.patience


# Signals are only handled between two calls of the compiled function, so a
# call must not take longer than this.
LONGEST_CALL = 2.0  # seconds
BATCHES_PER_CALL = 10  # Of the evaluation.
SKIPPED = (
    "All updates from {} to {} were skipped, because their gradients were not "
    "finite in float16: nothing was learned. --precision=bfloat16 or a "
    "smaller learning rate may help."
)


@dataclasses.dataclass
class Loop:
    """Trains a model, and keeps the state of the training.

    Args:
        update: The update that is made again and again.
        engine: The devices and processes that make it.
        checkpoints: Saves and restores the state; None saves nothing. They
            need `state`, and are set after the loop is made.
        best: Keeps the best model and may end the training; None does not.
        must_stop: Called between two calls of the compiled function; returns
            whether to save and stop. The commands set it: it returns True
            after SIGTERM or Ctrl-C.
    """

    update: Update
    engine: Engine
    checkpoints: Checkpoints | None = None
    best: Best | None = None
    must_stop: Callable[[], bool] = lambda: False

    def __post_init__(self):
        self.compiled = self.engine.compile(self.update)
        self._seconds_per_step = 0.0
        self.newest = 0  # Checkpoint in the folder when it was read.
        # What changes in training beside the model and the optimizer: number
        # of batches trained on so far, and the sums of loss, hits and images
        # since the last evaluation.
        self.numbers = {"step": np.int64(0), "sums": np.zeros(3)}
        if self.best:
            self.numbers["best"] = self.best.numbers

    @property
    def model(self) -> keras.Model:
        """The model that is trained."""
        return self.update.model

    @property
    def optimizer(self) -> Optimizer:
        """Its optimizer."""
        return self.update.optimizer

    @property
    def step(self) -> int:
        """Number of batches trained on so far."""
        return int(self.numbers["step"])

    @property
    def state(self):
        """Everything that changes in training; see `Engine.state`."""
        update = self.update
        return self.engine.state(
            update.model, update.optimizer, update.loss_scale, self.numbers
        )

    def with_parts(self, count: int) -> "Loop":
        """Return a loop whose updates compute a batch in so many parts."""
        update = dataclasses.replace(self.update, accumulation_steps=count)
        return dataclasses.replace(self, update=update)

    def resume(self):
        """Restore the newest checkpoint, if there is one.

        Raises:
            CheckpointError: If no checkpoint can be read, or the workers
                found different ones.
        """
        self.newest = max(self.checkpoints.steps(), default=0)
        self.checkpoints.restore()
        if self.best:
            self.best.numbers = self.numbers["best"]
        if not self.engine.is_common(self.step):
            raise CheckpointError(
                "The workers found different checkpoints; they must share the "
                f"folder of the run. Here: update {self.step} in "
                f"{self.checkpoints.folder}"
            )

    def train(
        self,
        make_batches: Callable,
        make_eval_batches: Callable,
        *,
        total_steps: int,
        steps_per_eval: int,
        eval_steps: int,
        steps_per_loop: int = 10,
        steps_per_checkpoint: int | None = None,
        callbacks: Iterable[keras.callbacks.Callback] = (),
    ) -> dict[str, float]:
        """Train up to update `total_steps` and return the last logs.

        After every `steps_per_eval` updates, and after the last one, the
        model is evaluated and the state is saved.

        Args:
            make_batches: Maps the `Share` of a process to an endless dataset of
                (images, labels, weights), which starts at the current step.
            make_eval_batches: Maps the share to one pass over the batches to
                evaluate on.
            total_steps: Number of updates, including those before a restart.
            steps_per_eval: Updates between two evaluations, an epoch of the
                callbacks.
            eval_steps: Number of global batches to evaluate on.
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
        num_evals = math.ceil(total_steps / steps_per_eval)
        with self._run_callbacks(callbacks, num_evals) as (calls, logs):
            iterator = iter(self.engine.batches(make_batches))
            eval_batches = self.engine.batches(make_eval_batches)
            if self._is_over(total_steps):
                logs |= self._validate(eval_batches, eval_steps)
            while not self._is_over(total_steps):
                logs.clear()
                # If the state was saved between the last update before an
                # evaluation and the evaluation, continue with the latter.
                epoch = (self.step - self._must_evaluate()) // steps_per_eval
                end = min((epoch + 1) * steps_per_eval, total_steps)
                calls.on_epoch_begin(epoch)
                first, made = self.step, self._num_made()
                while self.step < end:
                    every = steps_per_checkpoint or end
                    stop = min((self.step // every + 1) * every, end)
                    count = min(steps_per_loop, stop - self.step)
                    if self._seconds_per_step:
                        longest = int(LONGEST_CALL / self._seconds_per_step)
                        count = max(min(count, longest), 1)
                    calls.on_train_batch_begin(self.step)
                    start = time.perf_counter()
                    result = self.compiled.train(iterator, count, self.step)
                    call_logs = self._record(result, start, count)
                    calls.on_train_batch_end(self.step, call_logs)
                    self._stop_if_asked()
                    if self.step == stop < end:
                        self._save()
                if self.step > first and self._num_made() == made:
                    warnings.warn(
                        SKIPPED.format(first, self.step), stacklevel=2
                    )
                logs |= self._figures()
                with self._saved_on_errors():
                    logs |= self._validate(eval_batches, eval_steps)
                if self.best:
                    self.best.judge(logs)
                # The row of metrics comes before the checkpoint: after a
                # restart, a duplicate row can be dropped, a missing one not.
                calls.on_epoch_end(epoch, logs)
                self.numbers["sums"] = np.zeros(3)
                # A callback may have ended the training, as in Keras.
                is_ended = self.engine.agree(self.model.stop_training)
                self._save(must_succeed=is_ended or self._is_over(total_steps))
                if is_ended:
                    break
        return logs

    @contextlib.contextmanager
    def _run_callbacks(self, callbacks, num_evals):
        """Yield the list of callbacks, and the logs that it gets at the end.

        Workers that are lost meanwhile are named.
        """
        calls = keras.callbacks.CallbackList(
            list(callbacks), model=self.model, epochs=num_evals
        )
        self.model.optimizer = None  # TensorBoard reads it.
        self.model.stop_training = False
        logs = {}
        with self.name_lost_workers():
            calls.on_train_begin()
            try:
                yield calls, logs
            finally:
                calls.on_train_end(logs)  # Lets them close their files.
                del self.model.optimizer

    def name_lost_workers(self):
        """Return the context that names the workers that are lost in it."""
        return self.engine.name_lost_workers(
            lambda: f"after update {self.step}"
        )

    @contextlib.contextmanager
    def _saved_on_errors(self):
        """Save the state if an evaluation fails, as for an unreadable image.

        So that the next start goes on with the evaluation, not with updates of
        hours. Several processes do not fail together, so they could not save.
        """
        try:
            yield
        except (NonFiniteLossError, Interrupted):
            raise
        except Exception:
            if self.engine.num_processes == 1:
                self._save()
            raise

    def _is_over(self, total_steps):
        """Whether no update is left to make, and none to evaluate."""
        is_last = self.step >= total_steps and not self._must_evaluate()
        return is_last or bool(self.best and self.best.is_over)

    def _record(self, result, start, num_steps):
        """Record the results of a call; return the logs for the callbacks."""
        made, sums, waited = result
        seconds = time.perf_counter() - start
        self.numbers["step"] += made
        self._require_finite(sums[0])
        self.numbers["sums"] = self.numbers["sums"] + sums
        # The workers must agree on the length of the next call.
        self._seconds_per_step = self.engine.agree(seconds / num_steps)
        return {
            **self._figures(),
            "images": float(sums[2]),
            "seconds": seconds,
            "input_seconds": waited,
        }

    def _validate(self, batches, num_steps):
        report = self.measure(batches, num_steps)
        # An update with a finite loss can still make weights infinite or NaN.
        self._require_finite(report["loss"])
        return {f"val_{name}": value for name, value in report.items()}

    def measure(self, batches: Iterable, num_steps: int) -> dict[str, float]:
        """Return loss, accuracy and figure over batches of `Engine.batches`.

        Args:
            batches: Images, labels and weights. Images of weight 0 are ignored.
            num_steps: Number of global batches.

        Raises:
            DataError: If no image has a weight above 0.
        """
        iterator, sums = iter(batches), np.zeros(self.update.num_measured)
        for start in range(0, num_steps, BATCHES_PER_CALL):
            count = min(BATCHES_PER_CALL, num_steps - start)
            sums += self.compiled.measure(iterator, count)
            self._stop_if_asked()
        if not sums[2]:
            raise DataError(
                "`eval_batches` must hold images of a weight above 0; no image "
                "of the evaluation split is readable and has a known label. "
                f"Received: {num_steps} batches without any"
            )
        figures, found = self.update.figures, self._means(sums[:3])
        if figures:
            found |= figures.report(sums[3:])
        return found

    def _means(self, sums):
        """Return the loss and, if the update counts hits, the accuracy."""
        loss, hits, count = sums
        accuracy = {"accuracy": hits / count} if self.update.hits else {}
        return {"loss": loss / count, **accuracy}

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
            **self._means(self.numbers["sums"]),
            "learning_rate": float(self.optimizer.learning_rate),
            "step": self.step,
        }

    def _num_made(self):
        """How many updates were not skipped, see `update.py`."""
        return int(value_of(self.optimizer.iterations))

    def _must_evaluate(self):
        """Whether updates were made since the last evaluation."""
        return bool(self.numbers["sums"][2])

    def _stop_if_asked(self):
        if self.engine.agree(self.must_stop()):
            self._save(must_succeed=True)
            self.engine.part_from_all()
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
