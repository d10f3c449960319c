"""The training loop: the same mathematics on one device and on several.

A step is a pure function of the weights, a batch and a seed, computed on every
replica; the gradients are summed over the replicas once, clipped as a whole
and applied. An inner loop makes several steps inside one `tf.function`; the
outer loop evaluates, saves and drives Keras callbacks. It knows no ViT: any
Keras model that answers logits will do.
"""

import dataclasses
import math
import time
import warnings
from collections.abc import Callable, Iterable

import keras
import numpy as np
import tensorflow as tf

from trainers.checkpoints import CheckpointError, Checkpoints
from trainers.loss_scaling import LossScale
from trainers.meeting import WorkerLostError
from trainers.optimizers import Optimizer
from trainers.strategies import LOST, assign_on_replicas, num_workers

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

    Model, optimizer and loss scale must have been made inside
    `strategy.scope()`, the optimizer for the trainable variables of the model.

    Args:
        model: Answers logits (B, C).
        optimizer: Makes the updates.
        loss: Maps labels and logits, both (B, C), to losses (B,).
        strategy: Where the replicas of the model are.
        clip_norm: Largest global norm of the gradient of the whole batch;
            None does not clip.
        accumulation_steps: Parts that the batch of a replica is cut into, one
            after the other, to need less memory.
        seed: Of what dropout draws. A draw depends on the seed, the update
            and the replica alone.
        loss_scale: Keeps small gradients of float16 from vanishing.
        use_xla: Compile the computation of the gradients with XLA.
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
        jit = {"jit_compile": True} if self.use_xla else {}
        self._gradients = tf.function(
            self._compute_gradients, autograph=False, **jit
        )
        # Autograph would take half of the time of tracing.
        plain = tf.autograph.experimental.do_not_convert
        self._train_replica = plain(self._train_step)
        self._measure_replica = plain(self._measure_step)
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
            iterator = iter(distribute(batches))
            eval_batches = distribute(eval_batches)
            if self.step >= total_steps and not self._is_epoch_open():
                logs = self._validate(eval_batches, eval_steps)
            while (
                self.step < total_steps or self._is_epoch_open()
            ) and not self.model.stop_training:
                # A state from between the last update of an epoch and its
                # evaluation goes on with the evaluation.
                epoch = (self.step - self._is_epoch_open()) // steps_per_epoch
                calls.on_epoch_begin(epoch)
                end = min((epoch + 1) * steps_per_epoch, total_steps)
                while self.step < end:
                    stop = _next(self.step, steps_per_checkpoint, end)
                    num_steps = min(steps_per_loop, stop - self.step)
                    calls.on_train_batch_begin(self.step)
                    logs = self._train_some(iterator, num_steps)
                    calls.on_train_batch_end(self.step, logs)
                    self._stop_if_asked()
                    if self.step == stop < end:
                        self._save()
                logs = {
                    **self._means(),
                    **self._validate(eval_batches, eval_steps),
                    "learning_rate": float(self.optimizer.learning_rate),
                    "step": self.step,
                }
                # The row of metrics first: what is there twice after a restart
                # can be dropped, what is missing cannot be made up.
                calls.on_epoch_end(epoch, logs)
                self._sums.assign(tf.zeros_like(self._sums))
                self._save(must_succeed=self.step >= total_steps)
        except LOST as error:
            if num_workers(self.strategy) == 1:
                raise
            raise WorkerLostError(
                "Another worker does not answer any more, after update "
                f"{self.step} ({type(error).__name__}). Start all of them "
                "again to go on from the last checkpoint."
            ) from error
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
        """
        distribute = self.strategy.distribute_datasets_from_function
        return self._evaluate(distribute(eval_batches), eval_steps)

    def _evaluate(self, batches, num_steps, steps_per_call=10):
        iterator, sums = iter(batches), np.zeros(3)
        for start in range(0, num_steps, steps_per_call):
            count = min(steps_per_call, num_steps - start)
            sums += self._eval_steps(iterator, tf.constant(count)).numpy()
            self._stop_if_asked()
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
                self._train_replica,
                args=(batch, first_step + tf.cast(made, tf.int64)),
            )
            sums += tf.cast(self._sum_replicas(measured), tf.float64)
            made += 1
            if not tf.math.is_finite(sums[0]):
                break
        return made, sums, waited

    def _train_step(self, batch, step):
        replica = tf.distribute.get_replica_context()
        seed = tf.stack([tf.cast(self.seed, tf.int64), step])
        seed = _fold(seed, replica.replica_id_in_sync_group)
        states = self.model.non_trainable_variables
        scale = self.loss_scale.factor if self.loss_scale else 1.0
        gradients, new_states, measured = self._gradients(
            _values(self.model.trainable_variables),
            _values(states),
            batch,
            seed,
            tf.convert_to_tensor(scale),
        )
        gradients = replica.all_reduce(tf.distribute.ReduceOp.SUM, gradients)
        is_finite = None
        if self.loss_scale:
            gradients = [gradient / scale for gradient in gradients]
            is_finite = tf.reduce_all(
                [tf.reduce_all(tf.math.is_finite(g)) for g in gradients]
            )
            self.loss_scale.update(is_finite)
        if self.clip_norm is not None:
            gradients, _ = tf.clip_by_global_norm(gradients, self.clip_norm)
        self.optimizer.apply(gradients, is_finite)
        averaged = [
            (state.value, new)
            for state, new in zip(states, new_states)
            if not _is_seed(state)
        ]
        if averaged:  # The statistics of batch normalisations.
            variables, values = zip(*averaged)
            mean = tf.distribute.ReduceOp.MEAN
            assign_on_replicas(
                variables, replica.all_reduce(mean, list(values))
            )
        return measured

    def _compute_gradients(self, weights, states, batch, seed, scale):
        """Return gradients, new states and what was measured of a batch.

        The gradients are those of the loss times `scale`, and shares of the
        global batch: summed over the replicas they are its gradient.
        """
        parts = self.accumulation_steps
        if parts == 1:
            return self._compute_part(weights, states, batch, seed, scale)
        batches = tf.nest.map_structure(
            lambda x: tf.reshape(x, (parts, -1, *x.shape[1:])), batch
        )

        def add_part(index, gradients, states, measured):
            part = tf.nest.map_structure(lambda x: x[index], batches)
            more, states, measures = self._compute_part(
                weights, states, part, _fold(seed, index), scale
            )
            gradients = [a + b for a, b in zip(gradients, more)]
            return index + 1, gradients, states, measured + measures

        _, gradients, states, measured = tf.while_loop(
            lambda index, *_: index < parts,
            add_part,
            (
                tf.constant(0),
                [tf.zeros_like(weight) for weight in weights],
                states,
                tf.zeros(3),
            ),
            parallel_iterations=1,  # One part at a time in memory.
        )
        return gradients, states, measured

    def _compute_part(self, weights, states, batch, seed, scale):
        images, labels, example_weights = batch
        parts = self.strategy.num_replicas_in_sync * self.accumulation_steps
        given = [
            tf.cast(_fold(seed, index), value.dtype)
            if _is_seed(state)
            else value
            for index, (state, value) in enumerate(
                zip(self.model.non_trainable_variables, states)
            )
        ]
        with tf.GradientTape() as tape:
            tape.watch(weights)
            logits, new_states, penalties = self.model.stateless_call(
                weights, given, images, training=True, return_losses=True
            )
            losses = self.loss(labels, logits)  # (B / parts,)
            loss = tf.reduce_sum(losses * example_weights)
            loss /= tf.cast(tf.size(losses), loss.dtype)
            loss = (loss + sum(penalties)) / parts * scale
        gradients = tape.gradient(loss, weights, unconnected_gradients="zero")
        measured = _measure(losses, labels, logits, example_weights)
        new_states = [
            value if _is_seed(state) else new
            for state, value, new in zip(
                self.model.non_trainable_variables, states, new_states
            )
        ]
        return gradients, new_states, measured

    def _run_eval_steps(self, iterator, num_steps):
        sums = tf.zeros(3, tf.float64)
        for _ in tf.range(num_steps):
            measured = self.strategy.run(
                self._measure_replica, args=(next(iterator),)
            )
            sums += tf.cast(self._sum_replicas(measured), tf.float64)
        return sums

    def _measure_step(self, batch):
        images, labels, weights = batch
        values = self.optimizer.averages
        if values is None:
            values = _values(self.model.trainable_variables)
        logits, _ = self.model.stateless_call(
            values,
            _values(self.model.non_trainable_variables),
            images,
            training=False,
        )
        return _measure(self.loss(labels, logits), labels, logits, weights)

    def _sum_replicas(self, value):
        return self.strategy.reduce(
            tf.distribute.ReduceOp.SUM, value, axis=None
        )


def _measure(losses, labels, logits, weights):
    """Return the sums of loss, of hits and of weights, over the images.

    A hit is an answer that no other class has a larger label than.
    """
    answers = tf.argmax(logits, -1)
    best = tf.gather(labels, answers, batch_dims=1) == tf.reduce_max(labels, -1)
    sums = [losses * weights, tf.cast(best, tf.float32) * weights, weights]
    return tf.stack([tf.reduce_sum(x) for x in sums])


def _values(variables):
    """Return the tensors in Keras variables; on a replica, those of it."""
    return [tf.convert_to_tensor(variable.value) for variable in variables]


def _is_seed(variable):
    return variable.path.endswith("seed_generator_state")


def _fold(seed, number):
    return tf.random.experimental.stateless_fold_in(seed, number)


def _next(step, interval, end):
    """Return the next multiple of `interval` after `step`, at most `end`."""
    return min((step // interval + 1) * interval, end) if interval else end
