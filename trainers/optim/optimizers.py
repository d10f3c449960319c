"""Optimizers, defined as in the papers and the official code.

Update number s, counted from 0, is

    weight -= rate(s) * layer rate * (direction + decay * weight)

The rule of the optimizer computes the direction (see rules.py), and the
schedule computes the rate (see schedules.py). Only kernels and the factors of
their LoRA weights have a decay; that of all other weights is 0.
"""

import dataclasses
import functools
import math
from typing import Any

import keras
import tensorflow as tf
from keras import ops

from keras_vit.layer_decay import layer_rates
from keras_vit.tables import check_name, pick
from trainers.optim.rules import (
    ACCUMULATOR_DTYPES,
    BETA2,
    OPTIMIZERS,
    Rule,
    mass,
    mix,
    with_beta2,
)


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
        dtypes = {weight.dtype, *(slot.dtype for slot in slots.values())}
        is_plain = is_finite is None and dtypes == {tf.float32}
        if is_plain and self.rule.kernel is not None:
            if self.weight_decay:
                # The factor 1 - rate * decay would be rounded, alike for all.
                weight.assign_sub(rate * self.weight_decay * _read(weight))
            self.rule.kernel(weight, slots, gradient, numbers, rate)
            if self.average_decay:
                share = 1 - self.average_decay
                average = mix(_read(slots["average"]), _read(weight), share)
                slots["average"].assign(average)
            return
        kept = {name: _read(slots[name]) for name in slots}
        end, new = self.next(_read(weight), kept, gradient, numbers, rate)
        assign(weight, end, is_finite)
        for name in slots:
            assign(slots[name], new[name], is_finite)

    def next(self, weight, slots, gradient, numbers, rate):
        """Return the weight and its slots after an update: a pure function.

        Shapes:
            weight, gradient: that of the variable. rate: (). All are float32.

        Args:
            weight: Value of the variable.
            slots: Values of its slots, by name.
            gradient: Gradient of the loss.
            numbers: Those of the rule.
            rate: Learning rate, with the factor of the layer.
        """
        direction, new = self.rule.direction(gradient, slots, numbers)
        if self.weight_decay:
            direction += self.weight_decay * weight
        end = weight - rate * self.rule.rescale(direction, weight)
        if self.average_decay:
            share = 1 - self.average_decay
            new["average"] = mix(slots["average"], end, share)
        return end, new


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
    """Return `value` if a boolean scalar holds, else `other`."""
    if keras.backend.backend() != "tensorflow":
        return ops.where(condition, value, other)
    # `tf.where` would broadcast the scalar to the shape first, which takes
    # longer than the rest of an update.
    return tf.raw_ops.Select(condition=condition, x=value, y=other)


def make_variable(value, path: str, dtype: str = "float32", like=None):
    """Return a variable of the state of a training.

    On TensorFlow, one that `tf.train.Checkpoint` contains; on JAX, one that is
    split over the devices as a weight of the same shape is.

    Args:
        value: The initial value.
        path: Its name, behind that of the weight.
        dtype: Its type.
        like: The weight that it belongs to, if any.
    """
    if keras.backend.backend() == "tensorflow":
        value = tf.cast(value, dtype)
        return tf.Variable(value, trainable=False, name=path)
    is_like = like is not None and tuple(like.shape) == tuple(value.shape)
    return keras.Variable(
        value,
        dtype=dtype,
        trainable=False,
        autocast=False,
        layout=like.value.sharding if is_like else None,
        name=path.rpartition("/")[2],
    )


def value_of(variable):
    """Return the value of a variable; on a replica, that of its own copy."""
    if keras.backend.backend() == "tensorflow":
        return tf.convert_to_tensor(variable)
    return variable.value


def variable_bytes(variable) -> int:
    """Return the size of a variable."""
    dtype = keras.backend.standardize_dtype(variable.dtype)
    return math.prod(variable.shape) * tf.as_dtype(dtype).size


class Optimizer(tf.Module):
    """The state of an optimizer, and its update; see `make_optimizer`.

    A checkpoint, `tf.train.Checkpoint(optimizer=...)`, contains the state under
    names such as `optimizer/slots/block_00/mlp/out/kernel/second_moment`.

    Args:
        parameters: The variables, with their slots and rules.
        learning_rate: A number, or a schedule that maps the step to a number.
        average_decay: Decay of the averages of the weights; 0 for none.
        use_average_debias: Whether the averages start at zero.

    Attributes:
        iterations: Number of updates made so far: an int64 variable.
        slots: Nested by the parts of the variable's path, then by name.
    """

    def __init__(
        self,
        parameters: list[Parameter],
        learning_rate,
        average_decay: float,
        use_average_debias: bool,
    ):
        super().__init__()
        self.parameters = parameters
        self._schedule = learning_rate
        self._average_decay = average_decay
        self._use_average_debias = use_average_debias
        if keras.backend.backend() == "tensorflow":
            self.iterations = tf.Variable(
                0,
                dtype=tf.int64,
                trainable=False,
                name="iterations",
                aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
            )
        else:  # JAX has no int64.
            zero = ops.zeros((), "int32")
            self.iterations = make_variable(zero, "iterations", "int32")
        slots = {}
        for parameter in parameters:
            level = slots
            for part in parameter.variable.path.split("/"):
                level = level.setdefault(part, {})
            level.update(parameter.slots)
        self.slots = slots  # Set when full: the names of a checkpoint.

    @property
    def learning_rate(self) -> tf.Tensor:
        """The rate of the next update, without the factors of the layers."""
        return self._rate(self.iterations)

    @property
    def averages(self) -> list[tf.Tensor] | None:
        """The averages of the weights, as float32; None without averaging."""
        return self.averages_of(*self.values)

    @property
    def values(self) -> tuple[list, list[dict], Any]:
        """The values of the weights, of their slots, and of `iterations`."""
        return (
            [value_of(p.variable) for p in self.parameters],
            [
                {n: value_of(p.slots[n]) for n in p.slots}
                for p in self.parameters
            ],
            value_of(self.iterations),
        )

    def averages_of(self, weights, slots, iterations) -> list | None:
        """Return the `averages` of a state, see `values`: a pure function."""
        if not self._average_decay:
            return None
        averages = [of_one["average"] for of_one in slots]
        if not self._use_average_debias:
            return averages
        # Before the first update nothing is in them.
        count = ops.cast(iterations, "float32")
        total = mass(self._average_decay, ops.maximum(count, 1.0))
        return [
            select(count > 0, average / total, ops.cast(weight, "float32"))
            for average, weight in zip(averages, weights)
        ]

    def next(self, weights, slots, iterations, gradients, is_finite=None):
        """Return the state after an update, see `values`: a pure function.

        Args:
            weights: Values of the weights.
            slots: Values of the slots of each weight, by name.
            iterations: Number of updates made so far.
            gradients: The gradient of each weight, float32.
            is_finite: See `apply`.
        """

        def keep(new, old):
            new = ops.cast(new, old.dtype)
            return new if is_finite is None else select(is_finite, new, old)

        rates, numbers = self.shared_by_weights(iterations)
        new_weights, new_slots = [], []
        for p, weight, kept, gradient in zip(
            self.parameters, weights, slots, gradients
        ):
            end, new = p.next(
                ops.cast(weight, "float32"),
                {name: ops.cast(kept[name], "float32") for name in kept},
                gradient,
                numbers[p.rule],
                rates[p.layer_rate],
            )
            new_weights.append(keep(end, weight))
            new_slots.append(
                {name: keep(new[name], kept[name]) for name in kept}
            )
        return new_weights, new_slots, keep(iterations + 1, iterations)

    def assign_averages(self):
        """Replace the weights by their averages, if there are any.

        Call this method after training, outside of `strategy.run`.
        """
        for parameter, average in zip(self.parameters, self.averages or ()):
            parameter.variable.assign(average)

    def count_bytes(self) -> tuple[int, int]:
        """Return the bytes of the slots, and of the averages of the weights."""
        slots = averages = 0
        for parameter in self.parameters:
            for name, slot in parameter.slots.items():
                size = variable_bytes(slot)
                if name == "average":
                    averages += size
                else:
                    slots += size
        return slots, averages

    # Autograph would search each rule for control flow, which doubles the time
    # of tracing.
    @tf.autograph.experimental.do_not_convert
    def apply(self, gradients, is_finite=None):
        """Make one update, inside `strategy.run` or without any strategy.

        Args:
            gradients: The gradient of each variable, reduced over the replicas
                and clipped; the same on every replica.
            is_finite: A boolean scalar; if it is false, the update is skipped
                and not counted. None means true.

        Raises:
            ValueError: If the number of gradients is not that of the variables.
            RuntimeError: If called in the scope of a strategy, not in a run.
        """
        paths = [p.variable.path for p in self.parameters]
        missing = [p for p, g in zip(paths, gradients) if g is None]
        if missing or len(gradients) != len(paths):
            raise ValueError(
                f"`gradients` must be one for each of {len(paths)} variables. "
                f"Received: {len(gradients)}, with None for {missing}"
            )
        replica = tf.distribute.get_replica_context()
        if replica is None:
            raise RuntimeError("`apply` must be called inside `strategy.run`.")
        gradients = [
            tf.cast(tf.convert_to_tensor(g), tf.float32) for g in gradients
        ]
        replica.merge_call(self._apply, args=(gradients, is_finite))

    def _apply(self, strategy, gradients, is_finite):
        update = functools.partial(strategy.extended.update, group=False)
        rates, numbers = self.shared_by_weights(self.iterations)
        for parameter, gradient in zip(self.parameters, gradients):
            update(
                parameter.variable.value,
                parameter.update,
                args=(
                    parameter.slots,
                    gradient,
                    numbers[parameter.rule],
                    rates[parameter.layer_rate],
                    is_finite,
                ),
            )
        update(
            self.iterations,
            lambda count, *condition: assign(count, count + 1, *condition),
            args=(is_finite,),
        )

    def _rate(self, iterations):
        rate = self._schedule
        rate = rate(iterations) if callable(rate) else rate
        return ops.cast(rate, "float32")

    def shared_by_weights(self, iterations) -> tuple[dict, dict]:
        """Return the rates by `layer_rate`, and the numbers of each rule."""
        step, rate = ops.cast(iterations, "float32"), self._rate(iterations)
        factors = dict.fromkeys(p.layer_rate for p in self.parameters)
        rules = dict.fromkeys(p.rule for p in self.parameters)
        rates = {factor: rate * factor for factor in factors}
        return rates, {rule: rule.numbers(step) for rule in rules}


def make_optimizer(
    name: str,
    variables: list,
    learning_rate,
    weight_decay: float = 0.0,
    layer_decay: float = 1.0,
    accumulator_dtype: str = "float32",
    average_decay: float = 0.0,
    use_average_debias: bool = False,
    model_variables: list | None = None,
    beta2: float = BETA2,
) -> Optimizer:
    """Return an optimizer of `variables`. Call it in the engine's scope.

    Args:
        name: A key of OPTIMIZERS.
        variables: The trained variables of a Keras model, in its order.
        learning_rate: A number, or a schedule that maps the step to the rate.
        weight_decay: An update subtracts learning rate * weight_decay * weight
            from kernels and LoRA factors. Biases, norms, tokens and position
            tables do not decay, as in big_vision, whose `wd` is learning rate
            * weight_decay.
        layer_decay: Ratio of the rates of a layer and of the layer after it;
            see `layer_rates`.
        accumulator_dtype: A key of ACCUMULATOR_DTYPES: the dtype of the
            stored first moment or momentum. An update uses its value before
            rounding.
        average_decay: Decay of the moving average of the weights; 0 for none.
        use_average_debias: Start the average at zero and divide it by the sum
            of its weights; otherwise, it starts at the initial weights.
        model_variables: All variables of the model, for `layer_decay`; see
            `layer_rates`.
        beta2: Decay of the mean square of the gradients in Adam.

    Raises:
        ValueError: If the optimizer or the dtype is unknown, a number is out
            of range or does not belong to the optimizer, or two variables have
            the same path.

    Example:
        >>> import keras
        >>> layer = keras.layers.Dense(1)
        >>> layer.build((None, 2))
        >>> optimizer = make_optimizer("sgd", layer.trainable_variables, 0.5)
        >>> optimizer.apply([np.zeros((2, 1)), np.ones(1)])
        >>> layer.bias.numpy()
        array([-0.5], dtype=float32)

    Differs: A moment stored in bfloat16 decays by 0.9. JAX multiplies in the
        dtype of the buffer, and therefore by 0.8984, the bfloat16 nearest to
        0.9.
    """
    rule = with_beta2(pick(OPTIMIZERS, name, "optimizer"), name, beta2)
    if not weight_decay >= 0:
        raise ValueError(
            "`weight_decay` must not be negative. "
            f"Received: weight_decay={weight_decay}"
        )
    if weight_decay and not rule.can_decay:
        raise ValueError(
            f"`weight_decay` must be 0 for {name!r}; 'adamw' is Adam with "
            f"decay. Received: weight_decay={weight_decay}"
        )
    if not 0 < beta2 < 1:
        raise ValueError(
            f"`beta2` must be between 0 and 1. Received: beta2={beta2}"
        )
    if not 0 <= average_decay < 1:
        raise ValueError(
            "`average_decay` must be at least 0 and less than 1. "
            f"Received: average_decay={average_decay}"
        )
    paths = [variable.path for variable in variables]
    if len(set(paths)) < len(paths):
        raise ValueError(
            "`variables` must have different paths, the names of their slots "
            f"in a checkpoint. Received: {paths}"
        )
    check_name(ACCUMULATOR_DTYPES, accumulator_dtype, "accumulator_dtype")
    rates = layer_rates(variables, layer_decay, model_variables)
    parameters = []
    for variable, layer_rate in zip(variables, rates):
        slots = {
            name: make_variable(
                ops.zeros(shape),
                f"{variable.path}/{name}",
                accumulator_dtype if name == rule.accumulator else "float32",
                variable,
            )
            for name, shape in rule.slots(tuple(variable.shape)).items()
        }
        if average_decay:
            start = ops.cast(variable.value, "float32")
            # A copy: JAX would give the buffer of the weight away with it.
            start = (ops.zeros_like if use_average_debias else ops.copy)(start)
            slots["average"] = make_variable(
                start, f"{variable.path}/average", like=variable
            )
        decay = weight_decay if variable.name in DECAYING else 0.0
        parameters.append(
            Parameter(variable, slots, rule, layer_rate, decay, average_decay)
        )
    return Optimizer(
        parameters, learning_rate, average_decay, use_average_debias
    )


# Names of the weights that decay.
DECAYING = ("kernel", "lora_kernel_a", "lora_kernel_b")
