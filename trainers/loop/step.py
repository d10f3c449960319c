"""A step: what a replica computes of the weights, a batch and a seed.

The computation of the gradients is a pure function. They are summed over the
replicas once, clipped as a whole and applied, so that any number of replicas
and parts makes the update of the whole batch on one device. Statistics, those
of batch normalisations, become the mean of what replicas and parts make of
them.
"""

import dataclasses
import functools
from collections.abc import Callable

import keras
import tensorflow as tf

from trainers.distribute.strategies import assign_on_replicas
from trainers.optim.loss_scaling import LossScale
from trainers.optim.optimizers import Optimizer

# Keras makes the seed of the next draw by adding 1 to the second number, where
# our generators have their place: more than any of them draws in a step.
DRAWS_OF_A_GENERATOR = 4096
SUM, MEAN = tf.distribute.ReduceOp.SUM, tf.distribute.ReduceOp.MEAN


@dataclasses.dataclass(frozen=True)
class Step:
    """What is trained, and by what mathematics.

    Model, optimizer and loss scale must have been made inside
    `strategy.scope()`, the optimizer for the trainable variables of the model.

    Args:
        model: Answers logits (B, C).
        optimizer: Makes the updates.
        loss: Maps labels and logits, both (B, C), to losses (B,).
        clip_norm: Largest global norm of the gradient of the whole batch;
            None does not clip.
        accumulation_steps: Parts that the batch of a replica is cut into, one
            after the other, to need less memory.
        seed: Of what dropout draws. A draw depends on the seed, the update
            and the replica alone.
        loss_scale: Keeps small gradients of float16 from vanishing.
        use_xla: Compile the computation of the gradients with XLA.
    """

    model: keras.Model
    optimizer: Optimizer
    loss: Callable
    clip_norm: float | None = None
    accumulation_steps: int = 1
    seed: int = 0
    loss_scale: LossScale | None = None
    use_xla: bool = False

    # Autograph would take half of the time of tracing.
    @tf.autograph.experimental.do_not_convert
    def train(self, batch, number):
        """Make an update, inside `strategy.run`.

        Args:
            batch: Images (B, ...), labels (B, C) and weights (B,) of one
                replica. The update is that of the weighted sum over all
                replicas, divided by their number of images.
            number: That of the update, an int64.

        Returns:
            The sums of loss, of hits and of weights over the images, (3,).
        """
        replica = tf.distribute.get_replica_context()
        seed = tf.stack([tf.cast(self.seed, tf.int64), number])
        seed = _fold(seed, replica.replica_id_in_sync_group)
        states = self.model.non_trainable_variables
        scale = self.loss_scale.factor if self.loss_scale else 1.0
        gradients, changed, measured = self._gradients(
            _values(self.model.trainable_variables),
            _values(states),
            batch,
            seed,
            tf.convert_to_tensor(scale),
        )
        gradients = replica.all_reduce(SUM, gradients)
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
        if changed:  # The statistics of batch normalisations.
            variables = [states[index].value for index in changed]
            values = [tf.cast(new, tf.float32) for new in changed.values()]
            means = replica.all_reduce(MEAN, values)
            assign_on_replicas(
                variables,
                [tf.cast(x, v.dtype) for x, v in zip(means, variables)],
            )
        return measured

    @tf.autograph.experimental.do_not_convert
    def measure(self, batch):
        """Return the sums of `train`, of the averaged weights if there are any.

        Args:
            batch: As for `train`; nothing is updated.
        """
        images, labels, example_weights = batch
        weights = self.optimizer.averages
        if weights is None:
            weights = _values(self.model.trainable_variables)
        logits, _ = self.model.stateless_call(
            weights,
            _values(self.model.non_trainable_variables),
            images,
            training=False,
        )
        logits = tf.cast(logits, tf.float32)
        losses = self.loss(labels, logits)
        return _measure(losses, labels, logits, example_weights)

    @functools.cached_property
    def _gradients(self):
        return tf.function(
            self._compute_gradients,
            autograph=False,
            jit_compile=self.use_xla or None,
        )

    def _compute_gradients(self, weights, states, batch, seed, scale):
        """Return gradients, changed states and what was measured of a batch.

        The gradients are those of the loss times `scale`, and shares of the
        global batch: summed over the replicas they are its gradient. States
        are given and returned by their place among those of the model; those
        that it leaves alone, frozen weights among them, are not returned.
        """
        parts = self.accumulation_steps
        if parts == 1:
            gradients, new_states, measured = self._compute_part(
                weights, states, batch, seed, scale
            )
            changed = _find_changed(states, new_states)
            return gradients, {i: new_states[i] for i in changed}, measured
        batches = tf.nest.map_structure(
            lambda x: tf.reshape(x, (parts, -1, *x.shape[1:])), batch
        )
        changed = []

        def add_part(index, gradients, means, measured):
            part = tf.nest.map_structure(lambda x: x[index], batches)
            more, new_states, measures = self._compute_part(
                weights, states, part, _fold(seed, index), scale
            )
            changed[:] = _find_changed(states, new_states)
            for i in changed:
                means[i] = _add_share(means[i], states[i], new_states[i], parts)
            gradients = [a + b for a, b in zip(gradients, more)]
            return index + 1, gradients, means, measured + measures

        _, gradients, means, measured = tf.while_loop(
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
        return gradients, {i: means[i] for i in changed}, measured

    def _compute_part(self, weights, states, batch, seed, scale):
        images, labels, example_weights = batch
        replicas = tf.distribute.get_strategy().num_replicas_in_sync
        parts = replicas * self.accumulation_steps
        variables = self.model.non_trainable_variables
        given = [
            tf.cast(_fold(seed, index * DRAWS_OF_A_GENERATOR), value.dtype)
            if _is_seed(variable)
            else value
            for index, (variable, value) in enumerate(zip(variables, states))
        ]
        with tf.GradientTape() as tape:
            tape.watch(weights)
            logits, new_states, penalties = self.model.stateless_call(
                weights, given, images, training=True, return_losses=True
            )
            logits = tf.cast(logits, tf.float32)
            losses = self.loss(labels, logits)  # (B / parts,)
            loss = tf.reduce_sum(losses * example_weights)
            loss /= tf.cast(tf.size(losses), loss.dtype)
            penalty = sum(tf.cast(x, loss.dtype) for x in penalties)
            loss = (loss + penalty) / parts * scale
        gradients = tape.gradient(loss, weights, unconnected_gradients="zero")
        measured = _measure(losses, labels, logits, example_weights)
        new_states = [
            value if _is_seed(variable) else new
            for variable, value, new in zip(variables, states, new_states)
        ]
        return gradients, new_states, measured


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


def _find_changed(states, new_states):
    """Return the places of those that were assigned to, while it is traced."""
    pairs = enumerate(zip(states, new_states))
    return [index for index, (old, new) in pairs if new is not old]


def _add_share(mean, old, new, parts):
    """Return the mean of a state over the parts, which all start at `old`."""
    if not new.dtype.is_floating:
        return new  # A number of updates: the same of each part.
    return mean + (new - old) / parts


def _is_seed(variable):
    return variable.path.endswith("seed_generator_state")


def _fold(seed, number):
    return tf.random.experimental.stateless_fold_in(seed, number)
