"""Step: one update of a model, computed on each replica.

The gradients are a pure function of the weights, a batch and a seed. They are
summed over the replicas once, clipped by their global norm and applied, so any
number of replicas and parts makes the same update as the whole batch on one
device. The statistics of batch normalization are averaged over the replicas
and parts.
"""

import dataclasses
import functools
from collections.abc import Callable

import keras
import tensorflow as tf
from keras import ops

from trainers.distribute.strategies import (
    as_dense,
    assign_on_replicas,
    sum_gradients,
)
from trainers.optim.losses import Distillation, LossScale, is_best_class
from trainers.optim.optimizers import Optimizer

# Distance between the seeds of two generators, more than a generator draws in
# a step: Keras adds 1 to the second number of a seed for each draw.
DRAWS_OF_A_GENERATOR = 4096


@dataclasses.dataclass(frozen=True)
class Step:
    """An update of a model, and its evaluation.

    The model, the optimizer of its trainable variables and the loss scale must
    have been created inside `strategy.scope()`.

    Args:
        model: Returns logits (B, C), or a dictionary that `loss` reads.
        optimizer: Makes the updates.
        loss: Maps labels (B, C) and what the model returns to losses (B,).
        clip_norm: Largest global norm of the gradient of the whole batch;
            None does not clip.
        accumulation_steps: Number of parts of the batch of a replica. The
            parts are computed one after the other, which needs less memory.
        seed: Seed of dropout. The masks depend only on the seed, the update
            and the replica.
        loss_scale: Loss scaling, which prevents small float16 gradients from
            underflowing to zero.
        use_xla: Compile the computation of the gradients with XLA.
        gradient_dtype: See `sum_gradients`.
        distillation: What the model learns from a teacher; None for nothing.
        variants: Models with the same weights, each with a `stateless_call`.
            One of them, which depends only on the seed and the update, is
            trained in place of `model`. () for the model itself.
        hits: Maps labels and what the model returns to the share of right
            predictions of each image (B,); None for no accuracy.
    """

    model: keras.Model
    optimizer: Optimizer
    loss: Callable
    clip_norm: float | None = None
    accumulation_steps: int = 1
    seed: int = 0
    loss_scale: LossScale | None = None
    use_xla: bool = False
    gradient_dtype: str = "float32"
    distillation: Distillation | None = None
    variants: tuple = ()
    hits: Callable | None = is_best_class

    # Autograph would double the time of tracing.
    @tf.autograph.experimental.do_not_convert
    def train(self, batch, number):
        """Make an update, inside `strategy.run`.

        Args:
            batch: Images (B, ...), labels (B, C) and weights (B,) of one
                replica. The update uses the gradient of the weighted sum of
                the losses over all replicas, divided by the number of images.
            number: Number of the update, an int64.

        Returns:
            The sums of loss, hits and weights over the images, (3,).
        """
        replica = tf.distribute.get_replica_context()
        seed = tf.stack([tf.cast(self.seed, tf.int64), number])
        seed = _fold(seed, replica.replica_id_in_sync_group)
        if self.distillation:
            batch = (*batch, self.distillation.teach(batch[0]))
        states = self.model.non_trainable_variables
        scale = self.loss_scale.factor if self.loss_scale else 1.0
        differentiate = self._gradients
        if self.variants:
            differentiate = functools.partial(self._choose_variant, number)
        gradients, changed, measured = differentiate(
            _values(self.model.trainable_variables),
            _values(states),
            batch,
            seed,
            tf.convert_to_tensor(scale),
        )
        gradients = sum_gradients(gradients, self.gradient_dtype)
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
            means = replica.all_reduce(tf.distribute.ReduceOp.MEAN, values)
            assign_on_replicas(
                variables,
                [tf.cast(x, v.dtype) for x, v in zip(means, variables)],
            )
        return measured

    @tf.autograph.experimental.do_not_convert
    def measure(self, batch):
        """Return the same sums as `train`, without an update.

        The averaged weights are evaluated, if there are any.

        Args:
            batch: See `train`.
        """
        weights = self.optimizer.averages
        if weights is None:
            weights = _values(self.model.trainable_variables)
        states = _values(self.model.non_trainable_variables)
        return self.measure_with(weights, states, batch)

    def measure_with(self, weights, states, batch):
        """Return the sums of `measure`: a pure function.

        Args:
            weights: Values of the trainable variables of the model.
            states: Values of its other variables.
            batch: See `train`.
        """
        images, labels, example_weights = batch
        outputs, _ = self.model.stateless_call(
            weights, states, images, training=False
        )
        outputs = _in_float32(outputs)
        losses = self.loss(labels, outputs)
        return self._sum(losses, labels, outputs, example_weights)

    def _student(self, variant):
        """The model to train, by the index of a variant or None."""
        if variant is not None:
            return self.variants[variant]
        return (self.distillation and self.distillation.student) or self.model

    def _choose_variant(self, number, *arguments):
        """Return the gradients of the variant for the update `number`."""
        count = len(self.variants)
        # The same on all replicas.
        seed = tf.stack([tf.cast(self.seed, tf.int64), number])
        index = tf.random.stateless_uniform((), seed, 0, count, tf.int32)
        return tf.switch_case(
            index,
            [
                functools.partial(self._gradients, *arguments, variant)
                for variant in range(count)
            ],
        )

    @functools.cached_property
    def _gradients(self):
        is_whole = self.accumulation_steps == 1
        return tf.function(
            self._compute_gradients if is_whole else self._sum_gradients,
            autograph=False,
            jit_compile=self.use_xla or None,
        )

    def _compute_gradients(
        self, weights, states, batch, seed, scale, variant=None
    ):
        """Return gradients, changed states, and the sums of a batch.

        The gradients are those of the loss times `scale`. They are divided by
        the number of replicas and parts, so their sum is the gradient of the
        global batch. The changed states are keyed by their index among the
        non-trainable variables of the model.
        """
        variables = self.model.non_trainable_variables
        given = [
            tf.cast(_fold(seed, index * DRAWS_OF_A_GENERATOR), value.dtype)
            if is_seed(variable)
            else value
            for index, (variable, value) in enumerate(zip(variables, states))
        ]
        replicas = tf.distribute.get_strategy().num_replicas_in_sync
        share = scale / (replicas * self.accumulation_steps)
        with tf.GradientTape() as tape:
            tape.watch(weights)
            loss, (new_states, measured) = self.compute_loss(
                weights, given, batch, variant
            )
            loss *= share
        gradients = tape.gradient(loss, weights, unconnected_gradients="zero")
        changed = self.find_changed(given, new_states)
        return as_dense(gradients, weights), changed, measured

    def compute_loss(self, weights, states, batch, variant=None):
        """Return the loss of a batch, and what comes with it.

        A pure function on every backend: the mean of the losses of the images,
        with penalties, and then the new states of the model and the sums of
        loss, hits and weights over the images.

        Args:
            weights: Values of the trainable variables of the model.
            states: Values of its other variables, seeds among them.
            batch: See `train`; then the logits of a teacher, if there is one.
            variant: Index of the variant to train; None for the model itself.
        """
        images, labels, example_weights, *taught = batch
        outputs, new_states, penalties = self._student(variant).stateless_call(
            weights, states, images, training=True, return_losses=True
        )
        outputs = _as_list(_in_float32(outputs))
        losses = self.loss(labels, outputs[0])  # (B,)
        if taught:
            losses = self.distillation.mix(losses, *taught, outputs[-1])
        loss = ops.sum(losses * example_weights)
        loss /= ops.cast(ops.shape(losses)[0], loss.dtype)
        loss += sum(ops.cast(x, loss.dtype) for x in penalties)
        if not isinstance(outputs[0], dict):
            outputs = [sum(outputs)]  # Of two kinds of logits.
        measured = self._sum(losses, labels, outputs[0], example_weights)
        return loss, (new_states, measured)

    def find_changed(self, states, new_states) -> dict:
        """Return the states that a call has changed, by their index.

        Seeds are not among them: each update makes its own.
        """
        variables = self.model.non_trainable_variables
        return {
            index: new
            for index, (variable, old, new) in enumerate(
                zip(variables, states, new_states)
            )
            # A state that was not assigned is returned as the same object.
            if new is not old and not is_seed(variable)
        }

    def _sum(self, losses, labels, outputs, weights):
        """Return the sums of loss, hits and weights over the images."""
        hits = ops.zeros_like(weights)
        if self.hits:
            hits = ops.cast(self.hits(labels, outputs), "float32")
        sums = [losses * weights, hits * weights, weights]
        return ops.stack([ops.sum(x) for x in sums])

    def _sum_gradients(self, weights, states, batch, seed, scale, variant=None):
        """Return the results of `_compute_gradients`, computed in parts."""
        parts = self.accumulation_steps
        batches = tf.nest.map_structure(
            lambda x: tf.reshape(x, (parts, -1, *x.shape[1:])), batch
        )
        changed = []

        def add_part(index, gradients, means, measured):
            part = tf.nest.map_structure(lambda x: x[index], batches)
            more, new_states, measures = self._compute_gradients(
                weights, states, part, _fold(seed, index), scale, variant
            )
            changed[:] = new_states
            for i, new in new_states.items():
                means[i] = _add_share(means[i], states[i], new, parts)
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


def _in_float32(outputs):
    """Return outputs of a model, floats as float32."""
    return keras.tree.map_structure(
        lambda x: ops.cast(x, "float32") if _is_float(x) else x, outputs
    )


def _is_float(x):
    return "float" in keras.backend.standardize_dtype(x.dtype)


def _as_list(outputs):
    is_dict = isinstance(outputs, dict)
    return [outputs] if is_dict else keras.tree.flatten(outputs)


def _values(variables):
    """Return the values of Keras variables; on a replica, its own copies."""
    return [tf.convert_to_tensor(variable.value) for variable in variables]


def _add_share(mean, old, new, parts):
    """Add a part to the mean of a state; each part starts at `old`."""
    if not new.dtype.is_floating:
        return new  # A counter, which has the same value after each part.
    return mean + (new - old) / parts


def is_seed(variable):
    """Return whether a variable of a model is the state of a generator."""
    return variable.path.endswith("seed_generator_state")


def _fold(seed, number):
    return tf.random.experimental.stateless_fold_in(seed, number)
