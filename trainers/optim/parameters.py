"""Parameter: one variable of a model, its slots and its update."""

import dataclasses

import tensorflow as tf

from trainers.optim.means import mix
from trainers.optim.rules import Rule


@dataclasses.dataclass(frozen=True)
class Parameter:
    """A variable of the model and its update.

    Not a `tf.Module`, because a checkpoint would then save the weights twice:
    here and in the model.

    Args:
        variable: A Keras variable.
        slots: The slots of the rule, and the average, if there is one.
        rule: The update rule.
        layer_rate: Factor of the learning rate.
        weight_decay: Weight decay of the variable.
        average_decay: Decay of the average.
    """

    variable: object
    slots: dict[str, tf.Variable]
    rule: Rule
    layer_rate: float
    weight_decay: float
    average_decay: float

    def update(self, weight, slots, gradient, numbers, rate, is_finite):
        """Update the copy of the variable and of the slots on one replica.

        Shapes:
            weight, gradient: that of the variable. rate, is_finite: ().
        """
        if is_finite is None and self._fits_kernel(weight, slots):
            self._update_in_place(weight, slots, gradient, numbers, rate)
            return
        start = _read(weight)
        kept = {name: _read(slots[name]) for name in slots}
        direction, new = self.rule.direction(gradient, kept, numbers)
        if self.weight_decay:
            direction += self.weight_decay * start
        direction = self.rule.rescale(direction, start)
        end = start - rate * direction
        if self.average_decay:
            share = 1 - self.average_decay
            new["average"] = mix(kept["average"], end, share)
        assign(weight, end, is_finite)
        for name in slots:
            assign(slots[name], new[name], is_finite)

    def _fits_kernel(self, weight, slots):
        dtypes = {weight.dtype, *(slot.dtype for slot in slots.values())}
        return self.rule.kernel is not None and dtypes == {tf.float32}

    def _update_in_place(self, weight, slots, gradient, numbers, rate):
        if self.weight_decay:
            # The factor 1 - rate * decay would be rounded, alike for all.
            weight.assign_sub(rate * self.weight_decay * _read(weight))
        self.rule.kernel(weight, slots, gradient, numbers, rate)
        if self.average_decay:
            share = 1 - self.average_decay
            average = mix(_read(slots["average"]), _read(weight), share)
            slots["average"].assign(average)


def _read(variable):
    """Return the value of a variable, read once, as float32."""
    return tf.cast(tf.convert_to_tensor(variable), tf.float32)


def assign(variable, value, condition=None):
    """Set `variable` to `value`, cast to its dtype, if `condition` holds."""
    value = tf.cast(value, variable.dtype)
    if condition is not None:
        value = select(condition, value, variable)
    variable.assign(value)


def select(condition, value, other):
    """Return `value` if a boolean scalar holds, else `other`.

    `tf.where` would broadcast the scalar to the shape first, which takes longer
    than the rest of an update.
    """
    return tf.raw_ops.Select(condition=condition, x=value, y=other)


def make_slots(
    variable, rule: Rule, accumulator_dtype: tf.DType
) -> dict[str, tf.Variable]:
    """Return the slots of a variable by name, all zero."""
    return {
        name: tf.Variable(
            tf.zeros(
                shape,
                accumulator_dtype if name == rule.accumulator else tf.float32,
            ),
            trainable=False,
            name=f"{variable.path}/{name}",
        )
        for name, shape in rule.slots(tuple(variable.shape)).items()
    }


def make_average(variable, use_debias: bool) -> tf.Variable:
    """Return the average of a variable: its value, or zero to debias."""
    start = tf.cast(variable.value, tf.float32)
    return tf.Variable(
        tf.zeros_like(start) if use_debias else start,
        trainable=False,
        name=f"{variable.path}/average",
    )
