"""The training loop: the same mathematics on one device and on several.

An inner loop runs several steps inside one `tf.function`; the outer loop
evaluates, saves and drives Keras callbacks. It knows no ViT: any Keras model
that answers logits will do.
"""

import dataclasses
import math
from collections.abc import Callable, Iterable

import keras
import tensorflow as tf


class NonFiniteLossError(RuntimeError):
    """The loss is no number any more."""


@dataclasses.dataclass
class Loop:
    """What is trained, by what, and where.

    Model and optimizer must have been made inside `strategy.scope()`, and the
    optimizer built for the trainable variables of the model.

    Args:
        model: Answers logits (B, C).
        optimizer: Must not clip: Keras clips before the sum over replicas.
        loss: Maps labels and logits, both (B, C), to losses (B,).
        strategy: Where the replicas of the model are.
        checkpoints: Where the state is saved; None saves nothing.
        clip_norm: Largest global norm of the gradient of the whole batch;
            None does not clip.
        use_xla: Compile the step with XLA.
    """

    model: keras.Model
    optimizer: keras.optimizers.Optimizer
    loss: Callable
    strategy: tf.distribute.Strategy
    checkpoints: tf.train.CheckpointManager | None = None
    clip_norm: float | None = None
    use_xla: bool = False

    def __post_init__(self):
        self._train_steps = tf.function(self._run_steps)
        self._eval_step = tf.function(self._run_eval_step)
        jit = {"jit_compile": True} if self.use_xla else {}
        self._gradients = tf.function(self._compute_gradients, **jit)

    @property
    def step(self) -> int:
        """Number of updates made so far."""
        return int(self.optimizer.iterations.numpy())

    def resume(self):
        """Restore the newest checkpoint, if there is one."""
        if self.checkpoints is not None and self.checkpoints.latest_checkpoint:
            status = self.checkpoints.checkpoint.restore(
                self.checkpoints.latest_checkpoint
            )
            status.assert_existing_objects_matched()

    def train(
        self,
        batches: tf.data.Dataset,
        eval_batches: tf.data.Dataset,
        *,
        total_steps: int,
        steps_per_epoch: int,
        steps_per_loop: int = 10,
        callbacks: Iterable[keras.callbacks.Callback] = (),
    ) -> dict[str, float]:
        """Train until `total_steps` updates were made; return the last logs.

        After each epoch the model is evaluated and the state saved.

        Args:
            batches: Endless (images, labels) of the global batch size, from
                the current step on.
            eval_batches: (images, labels, weights), once through.
            total_steps: Updates in all, those before a restart included.
            steps_per_epoch: Updates between two evaluations.
            steps_per_loop: Updates in one call of the compiled function.
            callbacks: Keras callbacks; a batch means a call of the function.

        Returns:
            loss, accuracy, val_loss, val_accuracy, learning_rate and step;
            the val_ ones alone if there was no update left to make.

        Raises:
            NonFiniteLossError: If the loss is not finite. The checkpoints are
                those from before.
        """
        epochs = math.ceil(total_steps / steps_per_epoch)
        calls = keras.callbacks.CallbackList(
            list(callbacks),
            model=self.model,
            epochs=epochs,
            steps=steps_per_epoch,
            verbose=1,
        )
        iterator = iter(self.strategy.experimental_distribute_dataset(batches))
        logs = self._validate(eval_batches) if self.step >= total_steps else {}
        # What callbacks ask a model for: TensorBoard, EarlyStopping.
        self.model.optimizer = self.optimizer
        self.model.stop_training = False
        calls.on_train_begin()
        try:
            while self.step < total_steps and not self.model.stop_training:
                epoch = self.step // steps_per_epoch
                calls.on_epoch_begin(epoch)
                end = min((epoch + 1) * steps_per_epoch, total_steps)
                sums = [0.0, 0.0, 0.0]
                while self.step < end:
                    num_steps = min(steps_per_loop, end - self.step)
                    self._train_some(
                        iterator,
                        num_steps,
                        sums,
                        calls,
                        epoch * steps_per_epoch,
                    )
                logs = {
                    **_means(sums),
                    **self._validate(eval_batches),
                    "learning_rate": float(self.optimizer.learning_rate),
                    "step": self.step,
                }
                if self.checkpoints is not None:
                    self.checkpoints.save(checkpoint_number=self.step)
                calls.on_epoch_end(epoch, logs)
        finally:
            calls.on_train_end(logs)  # Lets the callbacks close their files.
            del self.model.optimizer
        return logs

    def evaluate(self, batches: tf.data.Dataset) -> dict[str, float]:
        """Return loss and accuracy over `batches`.

        Args:
            batches: (images, labels, weights); weight 0 does not count.
        """
        sums = [0.0, 0.0, 0.0]
        for batch in self.strategy.experimental_distribute_dataset(batches):
            for index, value in enumerate(self._eval_step(batch)):
                sums[index] += float(value)
        return _means(sums)

    def _validate(self, batches):
        report = self.evaluate(batches)
        # An update can spoil the weights although its own loss was finite.
        self._require_finite(report["loss"])
        return {f"val_{name}": value for name, value in report.items()}

    def _require_finite(self, loss):
        if not math.isfinite(loss):
            last = self.checkpoints and self.checkpoints.latest_checkpoint
            raise NonFiniteLossError(
                f"The loss of update {self.step} is not finite. The last "
                f"checkpoint, from before: {last or 'none'}"
            )

    def _train_some(self, iterator, num_steps, sums, calls, epoch_start):
        first = self.step
        calls.on_train_batch_begin(first - epoch_start)
        totals = self._train_steps(iterator, tf.constant(num_steps))
        for index, value in enumerate(totals):
            sums[index] += float(value)
        self._require_finite(sums[0])
        calls.on_train_batch_end(self.step - epoch_start - 1, _means(sums))

    def _run_steps(self, iterator, num_steps):
        """Make `num_steps` updates; return the sums of what was measured.

        Stops after an update whose loss is not finite.
        """
        totals = (tf.constant(0.0),) * 3
        for _ in tf.range(num_steps):
            per_replica = self.strategy.run(
                self._train_step, args=(next(iterator),)
            )
            totals = tuple(
                total + self._sum_replicas(value)
                for total, value in zip(totals, per_replica)
            )
            if not tf.math.is_finite(totals[0]):
                break
        return totals

    def _train_step(self, batch):
        measured, gradients = self._gradients(*batch)
        if self.clip_norm is not None:
            gradients = self._clip(gradients)
        # Keras sums the gradients over the replicas as it applies them.
        self.optimizer.apply(gradients, self.model.trainable_variables)
        return measured

    def _clip(self, gradients):
        """Clip the norm of the sum over replicas, not that of each part.

        Every replica returns the same share of the clipped sum, which the
        optimizer then adds up again: right everywhere, at the price of a
        second reduction when there are several replicas.
        """
        replica = tf.distribute.get_replica_context()
        gradients = replica.all_reduce(tf.distribute.ReduceOp.SUM, gradients)
        gradients, _ = tf.clip_by_global_norm(gradients, self.clip_norm)
        replicas = self.strategy.num_replicas_in_sync
        return [gradient / replicas for gradient in gradients]

    def _compute_gradients(self, images, labels):
        replicas = self.strategy.num_replicas_in_sync
        with tf.GradientTape() as tape:
            logits = self.model(images, training=True)
            losses = self.loss(labels, logits)  # (B / replicas,)
            global_batch = tf.cast(tf.shape(losses)[0] * replicas, tf.float32)
            loss = tf.reduce_sum(losses) / global_batch
            loss += sum(self.model.losses) / replicas
        variables = [v.value for v in self.model.trainable_variables]
        gradients = tape.gradient(loss, variables)
        return _measure(losses, labels, logits), gradients

    def _run_eval_step(self, batch):
        per_replica = self.strategy.run(self._measure_step, args=(batch,))
        return [self._sum_replicas(value) for value in per_replica]

    def _measure_step(self, batch):
        images, labels, weights = batch
        logits = self.model(images, training=False)
        return _measure(self.loss(labels, logits), labels, logits, weights)

    def _sum_replicas(self, value):
        return self.strategy.reduce(
            tf.distribute.ReduceOp.SUM, value, axis=None
        )


def _measure(losses, labels, logits, weights=None):
    """Return the sums of loss, of hits and of weights, over the images."""
    weights = tf.ones_like(losses) if weights is None else weights
    hits = tf.argmax(labels, -1) == tf.argmax(logits, -1)
    hits = tf.cast(hits, weights.dtype)
    return (
        tf.reduce_sum(losses * weights),
        tf.reduce_sum(hits * weights),
        tf.reduce_sum(weights),
    )


def _means(sums):
    loss, hits, count = sums
    return {"loss": loss / count, "accuracy": hits / count}
