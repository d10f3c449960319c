"""Update rules by name, as the papers and the official code have them.

Update number s, counted from 0, is

    weight -= rate(s) * layer rate * (direction + decay * weight)

A rule makes the direction from the gradient and from what it keeps for the
weight, its slots; the decay is that of kernels, 0 for all else. OPTIMIZERS at
the end of the file says which rule and which slots belong to a name.
"""

import dataclasses
import functools
import math
import re
from collections.abc import Callable

import tensorflow as tf

from keras_vit.tables import pick


def make_optimizer(
    name: str,
    variables: list,
    learning_rate,
    weight_decay: float = 0.0,
    layer_decay: float = 1.0,
    accumulator_dtype: str = "float32",
    average_decay: float = 0.0,
    use_average_debias: bool = False,
) -> "Optimizer":
    """Return an optimizer of `variables`. Call it in the strategy's scope.

    Args:
        name: A key of OPTIMIZERS.
        variables: The trainable variables of a Keras model, in its order.
        learning_rate: A number, or a schedule: maps the step to the rate.
        weight_decay: An update subtracts learning rate * this * weight, of
            kernels only: biases, norms, tokens and position tables are left
            out, as in big_vision. Its `wd` is learning rate * this.
        layer_decay: Ratio of the rates of a layer and of the one behind it;
            see `layer_rates`.
        accumulator_dtype: A key of DTYPES: what the first moment, or the
            momentum, is stored in. An update uses it before it is rounded.
        average_decay: Decay of the moving average of the weights; 0 for none.
        use_average_debias: Start the average at zero and divide by the weight
            of what is in it; otherwise it starts at the initial weights.

    Raises:
        ValueError: If there is no such optimizer or type, a number is out of
            its range, or two variables have one path.

    Example:
        >>> import keras
        >>> layer = keras.layers.Dense(1)
        >>> layer.build((None, 2))
        >>> optimizer = make_optimizer("sgd", layer.trainable_variables, 0.5)
        >>> optimizer.apply([np.zeros((2, 1)), np.ones(1)])
        >>> layer.bias.numpy()
        array([-0.5], dtype=float32)

    Differs: A moment stored in bfloat16 decays by 0.9. JAX multiplies in the
        type of the buffer, and thus by 0.8984, the bfloat16 next to 0.9.
    """
    rule = pick(OPTIMIZERS, name, "optimizer")
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
    dtype = pick(DTYPES, accumulator_dtype, "accumulator_dtype")
    parameters = []
    for variable, layer_rate in zip(
        variables, layer_rates(variables, layer_decay)
    ):
        slots = make_slots(variable, rule, dtype)
        if average_decay:
            slots["average"] = make_average(variable, use_average_debias)
        decay = weight_decay if variable.name == "kernel" else 0.0
        parameters.append(
            Parameter(variable, slots, rule, layer_rate, decay, average_decay)
        )
    return Optimizer(
        parameters, learning_rate, average_decay, use_average_debias
    )


def layer_rates(variables: list, layer_decay: float) -> list[float]:
    """Return the share of the learning rate that each variable gets.

    Everything in front of the first block is layer 0, block i is layer i + 1,
    everything behind the blocks is layer depth + 1. Layer i gets the share
    layer_decay^(depth + 1 - i). A path with `block_<i>` is one of block i.

    Args:
        variables: Keras variables, in the order of the model.
        layer_decay: More than 0 and at most 1, which shortens no rate.

    Raises:
        ValueError: If the decay is out of its range, or there is no block.

    Reference: Clark et al. 2020, arXiv:2003.10555; for images Bao et al. 2022,
        arXiv:2106.08254, and He et al. 2022, arXiv:2111.06377, appendix A.1.
    """
    if not 0 < layer_decay <= 1:
        raise ValueError(
            "`layer_decay` must be more than 0 and at most 1. "
            f"Received: layer_decay={layer_decay}"
        )
    if layer_decay == 1:
        return [1.0] * len(variables)
    blocks = [re.search(r"(?:^|/)block_(\d+)/", v.path) for v in variables]
    if not any(blocks):
        raise ValueError(
            "`layer_decay` must be 1 unless paths of variables have a "
            f"`block_<i>`. Received: layer_decay={layer_decay}, "
            f"paths={[v.path for v in variables]}"
        )
    depth = 1 + max(int(block[1]) for block in blocks if block)
    rates, outside = [], 0
    for block in blocks:
        if block:
            outside = depth + 1
        layer = int(block[1]) + 1 if block else outside
        rates.append(layer_decay ** (depth + 1 - layer))
    return rates


class Optimizer(tf.Module):
    """What `make_optimizer` returns: the state of the training, and `apply`.

    A checkpoint, `tf.train.Checkpoint(optimizer=...)`, has the state under
    names like `optimizer/slots/block_00/mlp/out/kernel/second_moment`.

    Args:
        parameters: What is updated, and how.
        learning_rate: A number or a schedule.
        average_decay: Decay of the averages of the weights, 0 for none.
        use_average_debias: Whether the averages started at zero.

    Attributes:
        iterations: Number of updates made so far: an int64 variable.
        slots: Those of a variable, behind the parts of its path.
    """

    def __init__(
        self,
        parameters: list["Parameter"],
        learning_rate,
        average_decay: float,
        use_average_debias: bool,
    ):
        super().__init__()
        self._parameters = parameters
        self._schedule = learning_rate
        self._average_decay = average_decay
        self._use_average_debias = use_average_debias
        self.iterations = tf.Variable(
            0,
            dtype=tf.int64,
            trainable=False,
            name="iterations",
            aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
        )
        slots = {}
        for parameter in parameters:
            level = slots
            for part in parameter.variable.path.split("/"):
                level = level.setdefault(part, {})
            level.update(parameter.slots)
        self.slots = slots  # Set when full: the names of a checkpoint.

    @property
    def learning_rate(self) -> tf.Tensor:
        """The rate of the next update, before the shares of the layers."""
        rate = self._schedule
        rate = rate(self.iterations) if callable(rate) else rate
        return tf.cast(rate, tf.float32)

    @property
    def averages(self) -> list[tf.Tensor] | None:
        """The averages of the weights, as float32; None without averaging."""
        if not self._average_decay:
            return None
        averages = [
            tf.convert_to_tensor(p.slots["average"]) for p in self._parameters
        ]
        if not self._use_average_debias:
            return averages
        # Before the first update nothing is in them.
        count = tf.cast(self.iterations, tf.float32)
        total = mass(self._average_decay, tf.maximum(count, 1.0))
        return [
            select(
                count > 0, average / total, tf.cast(p.variable.value, "float32")
            )
            for average, p in zip(averages, self._parameters)
        ]

    # Tracing takes half the time without a look for control flow in each rule.
    @tf.autograph.experimental.do_not_convert
    def apply(self, gradients, is_finite=None):
        """Make one update, inside `strategy.run` or without any strategy.

        Args:
            gradients: One for each variable, reduced over the replicas and
                clipped: the same on every replica.
            is_finite: A boolean scalar; if false, nothing changes and nothing
                is counted. None stands for true.

        Raises:
            ValueError: If the gradients are not one for each variable.
            RuntimeError: If called in the scope of a strategy, not in a run.
        """
        paths = [p.variable.path for p in self._parameters]
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
        step, rate = tf.cast(self.iterations, tf.float32), self.learning_rate
        for parameter, gradient in zip(self._parameters, gradients):
            update(
                parameter.variable.value,
                parameter.update,
                args=(parameter.slots, gradient, step, rate, is_finite),
            )
        update(
            self.iterations,
            lambda count, *condition: assign(count, count + 1, *condition),
            args=(is_finite,),
        )


@dataclasses.dataclass(frozen=True)
class Parameter:
    """A variable of the model and how it is updated.

    No module of TensorFlow, which a checkpoint would follow to the weights:
    they are to be saved as those of the model.

    Args:
        variable: A Keras variable.
        slots: What its rule keeps for it, and its average, if there is one.
        rule: How it is updated.
        layer_rate: Its share of the learning rate.
        weight_decay: Its decay.
        average_decay: Decay of its average.
    """

    variable: object
    slots: dict[str, tf.Variable]
    rule: "Rule"
    layer_rate: float
    weight_decay: float
    average_decay: float

    def update(self, weight, slots, gradient, step, rate, is_finite):
        """Update the copy of the variable and of the slots on one replica.

        Shapes:
            weight, gradient: that of the variable. step, rate, is_finite: ().
        """
        start = tf.cast(weight, tf.float32)
        kept = {name: tf.cast(slots[name], tf.float32) for name in slots}
        direction, new = self.rule.direction(gradient, kept, step)
        if self.weight_decay:
            direction += self.weight_decay * start
        direction = self.rule.rescale(direction, start)
        end = start - rate * self.layer_rate * direction
        if self.average_decay:
            new["average"] = mix(kept["average"], end, self.average_decay)
        assign(weight, end, is_finite)
        for name in slots:
            assign(slots[name], new[name], is_finite)


def assign(variable, value, condition=None):
    """Set `variable` to `value`, as its type, if the `condition` holds."""
    value = tf.cast(value, variable.dtype)
    if condition is not None:
        value = select(condition, value, variable)
    variable.assign(value)


def select(condition, value, other):
    """Return `value` if a boolean scalar holds, else `other`.

    `tf.where` spreads the scalar over the shape first, which takes longer than
    all else in an update.
    """
    return tf.raw_ops.Select(condition=condition, x=value, y=other)


def make_slots(variable, rule: "Rule", accumulator_dtype) -> dict:
    """Return the slots of a variable by name, all zero."""
    return {
        name: tf.Variable(
            tf.zeros(
                shape,
                accumulator_dtype if name in ACCUMULATORS else tf.float32,
            ),
            trainable=False,
            name=f"{variable.path}/{name}",
        )
        for name, shape in rule.slots(tuple(variable.shape)).items()
    }


def make_average(variable, use_debias: bool) -> tf.Variable:
    """Return the average of a variable: its value, or zero to be debiased."""
    start = tf.cast(variable.value, tf.float32)
    return tf.Variable(
        tf.zeros_like(start) if use_debias else start,
        trainable=False,
        name=f"{variable.path}/average",
    )


@dataclasses.dataclass(frozen=True)
class Rule:
    """A row of OPTIMIZERS.

    Args:
        direction: Maps a gradient, the slots of the weight and the step, all
            float32, to the direction and the new slots.
        slots: Maps the shape of a weight to the shapes of its slots.
        rescale: Maps direction + decay * weight, and the weight, to what is
            multiplied by the learning rate.
        can_decay: Whether there may be a weight decay.
    """

    direction: Callable
    slots: Callable
    rescale: Callable = lambda direction, weight: direction
    can_decay: bool = True


def adam(gradient, slots, step, beta1=0.9, beta2=0.999, epsilon=1e-8):
    """Divide the mean gradient by the root of its mean square, plus epsilon.

    Both means are corrected for their start at zero.

    Reference: Kingma and Ba 2015, arXiv:1412.6980, algorithm 1. With decay:
        Loshchilov and Hutter 2019, arXiv:1711.05101, algorithm 2.
    """
    first = mix(slots["first_moment"], gradient, beta1)
    second = mix(slots["second_moment"], tf.square(gradient), beta2)
    mean = first / mass(beta1, step + 1)
    root = tf.sqrt(second / mass(beta2, step + 1))
    new = {"first_moment": first, "second_moment": second}
    return mean / (root + epsilon), new


def adam_slots(shape):
    """Return the shapes of the two moments: that of the weight."""
    return {"first_moment": shape, "second_moment": shape}


def trust(direction, weight):
    """Give a direction the norm of the weight, unless one of both is zero.

    With the direction of Adam this is LAMB.

    Reference: You et al. 2020, arXiv:1904.00962, algorithm 2, phi(z) = z.
    """
    ratio = tf.math.divide_no_nan(tf.norm(weight), tf.norm(direction))
    return tf.where(ratio > 0, ratio, 1.0) * direction


def adafactor(
    gradient,
    slots,
    step,
    beta1=0.9,
    max_beta2=0.999,
    exponent=0.8,
    epsilon=1e-30,
):
    """Divide by the root of a factored mean square, then take the mean.

    Of the mean square of a matrix only the means of rows and columns are
    kept, whose product over their common mean stands for it.

    Reference: Shazeer and Stern 2018, arXiv:1804.04235, algorithm 4; Zhai et
        al. 2022, arXiv:2106.04560, section 3.
    Differs: As big_vision, without clipping, without a rate relative to the
        weight, and without a correction of the mean for its start at zero.
    """
    beta2 = tf.minimum(max_beta2, 1 - (step + 1) ** -exponent)
    square = tf.square(gradient) + epsilon
    axes = factored_axes(gradient.shape)
    if axes:
        row_axis, column_axis = axes
        rows = tf.reduce_mean(square, column_axis, keepdims=True)
        columns = tf.reduce_mean(square, row_axis, keepdims=True)
        rows = mix(slots["second_moment_rows"], rows, beta2)
        columns = mix(slots["second_moment_columns"], columns, beta2)
        new = {"second_moment_rows": rows, "second_moment_columns": columns}
        share = rows / tf.reduce_mean(rows, row_axis, keepdims=True)
        scaled = gradient * tf.math.rsqrt(share) * tf.math.rsqrt(columns)
    else:
        second = mix(slots["second_moment"], square, beta2)
        new = {"second_moment": second}
        scaled = gradient * tf.math.rsqrt(second)
    first = mix(slots["first_moment"], scaled, beta1)
    return first, {**new, "first_moment": first}


def adafactor_slots(shape):
    """Return the shapes of the first moment and of what the second is kept as.

    Example:
        >>> adafactor_slots((64, 48))["second_moment_rows"]
        (64, 1)
    """
    axes = factored_axes(shape)
    if not axes:
        return adam_slots(shape)
    row_axis, column_axis = axes
    return {
        "first_moment": shape,
        "second_moment_rows": with_one(shape, column_axis),
        "second_moment_columns": with_one(shape, row_axis),
    }


def with_one(shape, axis):
    """Return the shape of a mean over `axis`, which stays with length 1."""
    return (*shape[:axis], 1, *shape[axis + 1 :])


def factored_axes(shape, min_size=32):
    """Return the two longest axes of a weight; None if one of them is short."""
    axes = sorted(range(len(shape)), key=lambda axis: shape[axis])[-2:]
    if len(axes) < 2 or shape[axes[0]] < min_size:
        return None
    return sorted(axes)


def lion(gradient, slots, step, beta1=0.9, beta2=0.99):
    """Take the sign of a mean that gives the newest gradient more weight.

    Reference: Chen et al. 2023, arXiv:2302.06675, algorithm 2.
    """
    first = slots["first_moment"]
    direction = tf.sign(mix(first, gradient, beta1))
    return direction, {"first_moment": mix(first, gradient, beta2)}


def lion_slots(shape):
    """Return the shape of the first moment: that of the weight."""
    return {"first_moment": shape}


def sgd(gradient, slots, step, beta=0.9):
    """Add up the gradients, older ones with less weight.

    The learning rate is outside of the sum, as in the official code: it is
    not the one of Keras, where a gradient keeps the rate of its own step.

    Reference: Goyal et al. 2017, arXiv:1706.02677, equation 9.
    """
    momentum = beta * slots["momentum"] + gradient
    return momentum, {"momentum": momentum}


def sgd_slots(shape):
    """Return the shape of the momentum: that of the weight."""
    return {"momentum": shape}


def mix(mean, value, decay):
    """Return decay * mean + (1 - decay) * value.

    In a form that leaves the mean of equal values alone; the two factors,
    rounded, do not add up to 1.
    """
    return mean + (1 - decay) * (value - mean)


def mass(decay, count):
    """Return 1 - decay^count, the weights of `count` values in such a mean.

    Exact also where the power is near 1, as with a decay of 0.9999.
    """
    return -tf.math.expm1(count * math.log(decay))


OPTIMIZERS = {
    "adamw": Rule(adam, adam_slots),
    "adam": Rule(adam, adam_slots, can_decay=False),
    "lamb": Rule(
        functools.partial(adam, epsilon=1e-6), adam_slots, rescale=trust
    ),
    "adafactor": Rule(adafactor, adafactor_slots),
    "lion": Rule(lion, lion_slots),
    "sgd": Rule(sgd, sgd_slots),
}
# The slots that `accumulator_dtype` is about; second moments stay exact.
ACCUMULATORS = {"first_moment", "momentum"}
DTYPES = {"float32": tf.float32, "bfloat16": tf.bfloat16}
