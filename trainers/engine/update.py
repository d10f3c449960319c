"""Update: the mathematics of one update, the same on every engine.

A loss is a pure function of the weights, of the other variables of the model,
which are called `states`, and of a batch. For an update, an engine

1. adds the logits of the teacher, if there is one, to each of
   `accumulation_steps` parts of the batch,
2. computes the gradient of the loss times the loss scale, divided by the
   numbers of parts and of devices that compute it by themselves, for each part,
   with new seeds of dropout,
3. sums the gradients over parts and devices and divides by the loss scale,
4. clips the sum by its global norm,
5. hands it to the optimizer, which also moves the averages of the weights,
6. assigns the statistics of batch normalization, the mean over the parts.

So any number of devices and parts makes the same update as the whole batch on
one device, except for masks of dropout and statistics of batches: each engine
says what these depend on.

With a loss scale, an update whose gradients are not finite is skipped. Weights,
slots and statistics stay as they are, and `Optimizer.iterations`, which the
learning rate follows, does not count it; the number of the update, on which
the seeds depend, does. Without a loss scale, such an update is made. With or
without one, the loop stops at the first loss that is not finite.

The rule of the optimizer, the averages and what they do with an update that is
skipped are in `trainers.optim.optimizers`; when the state is saved, and what
ends a training, is in `trainers.training.loop`.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import keras
from keras import ops

from trainers.optim.losses import Distillation, LossScale, is_best_class
from trainers.optim.optimizers import Optimizer

# Distance between the seeds of two generators, more than a generator draws for
# a part of a batch: Keras adds 1 to the second number of a seed for each draw.
DRAWS_OF_A_GENERATOR = 4096


@dataclasses.dataclass(frozen=True, eq=False)
class Update:
    """An update of a model, and its evaluation.

    The model, the optimizer of its trainable variables and the loss scale must
    have been created inside the scope of the engine.

    Args:
        model: Returns logits (B, C), or a dictionary that `loss` reads.
        optimizer: Makes the updates.
        loss: Maps labels (B, C) and what the model returns to losses (B,).
        clip_norm: Largest global norm of the gradient of the whole batch;
            None does not clip.
        accumulation_steps: Number of parts of the batch of a device. The parts
            are computed one after the other, which needs less memory.
        seed: Seed of dropout.
        loss_scale: Loss scaling, which prevents small float16 gradients from
            underflowing to zero.
        use_xla: On TensorFlow, compile the gradients with XLA.
        gradient_dtype: Type in which gradients are summed over devices.
        distillation: What the model learns from a teacher; None for nothing.
        variants: Models with the same weights, each with a `stateless_call`.
            One of them, which depends on the seed, the update and the engine,
            is trained in place of `model`. () for the model itself.
        hits: Maps labels and what the model returns to the share of right
            predictions of each image (B,); None for no accuracy.
        figures: What else an evaluation measures, the `Figures`. None for
            nothing.
        eval_loss: The loss that an evaluation measures, as `loss`. None for
            the same.
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
    figures: Any = None
    eval_loss: Callable | None = None

    def compute_loss(self, weights, states, batch, variant=None):
        """Return the loss of a batch, and what comes with it.

        The weighted sum of the losses divided by the number of images, those
        of weight 0 too, with penalties; and then the new values of `states`,
        and the sums of loss, hits and weights over the images (3,).

        Args:
            weights: Values of the trainable variables of the model.
            states: Values of its other variables, seeds among them.
            batch: Images (B, ...), labels (B, C) and weights (B,); then the
                logits of a teacher, if there is one.
            variant: Index of the variant to train; None for the model itself.
        """
        images, labels, example_weights, *taught = batch
        model = (self.distillation and self.distillation.student) or self.model
        if variant is not None:
            model = self.variants[variant]
        outputs, new_states, penalties = model.stateless_call(
            weights, states, images, training=True, return_losses=True
        )
        outputs = _in_float32(outputs)
        is_dict = isinstance(outputs, dict)
        outputs = [outputs] if is_dict else keras.tree.flatten(outputs)
        losses = self.loss(labels, outputs[0])  # (B,)
        if taught:
            losses = self.distillation.mix(losses, *taught, outputs[-1])
        loss = ops.sum(losses * example_weights)
        loss /= ops.cast(ops.shape(losses)[0], loss.dtype)
        loss += sum(ops.cast(x, loss.dtype) for x in penalties)
        if not is_dict:
            outputs = [sum(outputs)]  # Of a class and a distillation head.
        measured = self._sum(losses, labels, outputs[0], example_weights)
        return loss, (new_states, measured)

    @property
    def num_measured(self) -> int:
        """How many sums `measure` returns."""
        return 3 + (self.figures.size if self.figures else 0)

    def measure(self, weights, states, batch):
        """Return the sums of `compute_loss`, of `eval_loss`, and of figures.

        Shapes:
            returns: (num_measured,).

        Args:
            weights: Values of the trainable variables, or their averages.
            states: Values of the other variables of the model.
            batch: Images, labels and weights.
        """
        images, labels, example_weights = batch
        outputs, _ = self.model.stateless_call(
            weights, states, images, training=False
        )
        outputs = _in_float32(outputs)
        losses = (self.eval_loss or self.loss)(labels, outputs)
        sums = self._sum(losses, labels, outputs, example_weights)
        if self.figures is None:
            return sums
        more = self.figures.measure(labels, outputs, example_weights)
        return ops.concatenate([sums, more])

    def teach(self, part: tuple) -> tuple:
        """Return a part of a batch with the logits of the teacher, if any."""
        if self.distillation is None:
            return part
        return (*part, self.distillation.teach(part[0]))

    def with_seeds(self, states: Sequence, seed_of: Callable) -> list:
        """Return the states with new seeds for the generators of the model.

        Args:
            states: Values of the variables that are not trained.
            seed_of: Maps a number of a variable to the seed that it holds.
        """
        return [
            ops.cast(seed_of(index * DRAWS_OF_A_GENERATOR), value.dtype)
            if is_seed(variable)
            else value
            for index, (variable, value) in enumerate(
                zip(self.model.non_trainable_variables, states)
            )
        ]

    def add_part(self, sums, part, states: Sequence) -> tuple:
        """Return gradients, states and measured sums with those of one part.

        Args:
            sums: Those so far: zeros, `states` and zeros before the first part.
            part: Those of the part; of the states, the changed ones alone, by
                their index.
            states: Values of the states before the update.
        """
        gradients, means, measured = sums
        more, changed, measures = part
        means = list(means)
        for index, new in changed.items():
            if _is_float(new):
                share = (new - states[index]) / self.accumulation_steps
                means[index] = means[index] + share
            else:  # A counter, which has the same value after each part.
                means[index] = new
        gradients = [a + b for a, b in zip(gradients, more)]
        return gradients, means, measured + measures

    def unscale(self, gradients: Sequence, factor) -> tuple[list, Any]:
        """Return gradients without the loss scale, and whether they are finite.

        Args:
            gradients: The sums over all parts and devices.
            factor: The loss scale that the loss was multiplied by.

        Returns:
            The gradients, and a boolean scalar; without a loss scale, None.
        """
        if not self.loss_scale:
            return list(gradients), None
        gradients = [gradient / factor for gradient in gradients]
        finite = [ops.all(ops.isfinite(gradient)) for gradient in gradients]
        return gradients, ops.all(ops.stack(finite))

    def unless_skipped(self, new: Sequence, old: Sequence, is_finite) -> list:
        """Return new states, or the old ones if the update is skipped."""
        if is_finite is None:
            return list(new)
        return [ops.where(is_finite, a, b) for a, b in zip(new, old)]

    def find_changed(self, states: Sequence, new_states: Sequence) -> dict:
        """Return the states that a call has changed, by their index.

        These are the statistics of batch normalisations, and counters. Seeds
        are not among them: each update makes its own.
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


def _in_float32(outputs):
    """Return outputs of a model, floats as float32."""
    return keras.tree.map_structure(
        lambda x: ops.cast(x, "float32") if _is_float(x) else x, outputs
    )


def _is_float(x):
    return "float" in keras.backend.standardize_dtype(x.dtype)


def is_seed(variable) -> bool:
    """Return whether a variable is the seed of a generator of a model."""
    return getattr(variable, "path", "").endswith("seed_generator_state")
