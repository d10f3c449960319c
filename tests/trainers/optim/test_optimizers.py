import math

import jax
import jax.numpy as jnp
import keras
import ml_dtypes
import numpy as np
import optax
import pytest
import tensorflow as tf

from tests.tiny import noise
from trainers.engine.tensorflow import make_engine
from trainers.optim.optimizers import make_optimizer
from trainers.optim.rules import OPTIMIZERS

STEPS = 10
# Ranks 1 to 3. Adafactor factors the second, fourth and fifth kernel only,
# over different axes.
SHAPES = {
    "stem/bias": (5,),
    "stem/kernel": (7, 6),
    "block_00/kernel": (40, 33),
    "block_01/kernel": (33, 40),
    "block_02/kernel": (34, 3, 36),
    "block_02/gamma": (64,),
    "head/kernel": (32, 32),
}


def make_variables(shapes=SHAPES):
    variables = []
    for seed, (path, shape) in enumerate(shapes.items()):
        scope, name = path.split("/")
        with keras.name_scope(scope, caller=scope):
            variables.append(
                keras.Variable(noise(*shape, seed=seed), name=name)
            )
    return variables


def make_gradients(step, shapes=SHAPES):
    """Return gradients whose sizes differ from step to step."""
    return [
        noise(*shape, seed=[step, i], scale=0.1 * 4 ** (step % 3))
        for i, shape in enumerate(shapes.values())
    ]


def schedule(step):
    """Return a rate that changes at every step and is never zero."""
    return 0.01 / (1 + 0.3 * keras.ops.cast(step, "float32"))


def values(variables):
    return [variable.numpy() for variable in variables]


def train(name, steps=STEPS, **choices):
    """Return the optimizer and its variables after some updates."""
    variables = make_variables()
    optimizer = make_optimizer(name, variables, schedule, **choices)
    for step in range(steps):
        optimizer.apply(make_gradients(step))
    return optimizer, variables


def train_optax(transform, steps=STEPS):
    """Yield the weights after each update of an optax transformation."""
    weights = [jnp.asarray(value) for value in values(make_variables())]
    state = transform.init(weights)
    update = jax.jit(transform.update)
    for step in range(steps):
        gradients = [jnp.asarray(g) for g in make_gradients(step)]
        updates, state = update(gradients, state, weights)
        weights = optax.apply_updates(weights, updates)
        yield [np.asarray(weight) for weight in weights]


def only_kernels(weights):
    del weights
    return [path.endswith("kernel") for path in SHAPES]


def jax_schedule(step):
    return 0.01 / (1 + 0.3 * step)


def big_vision_adafactor(weight_decay):
    """Return the composition that the official training code makes."""

    def beta2(step, exponent):
        return jnp.minimum(0.999, 1 - (step + 1.0) ** -exponent)

    return optax.chain(
        optax.scale_by_factored_rms(
            decay_rate=0.8, min_dim_size_to_factor=32, decay_rate_fn=beta2
        ),
        optax.ema(0.9, debias=False),
        optax.add_decayed_weights(weight_decay, mask=only_kernels),
        optax.scale_by_learning_rate(jax_schedule),
    )


def optax_sgd(weight_decay):
    return optax.chain(
        optax.trace(0.9),
        optax.add_decayed_weights(weight_decay, mask=only_kernels),
        optax.scale_by_learning_rate(jax_schedule),
    )


def with_mask(make, **arguments):
    return lambda weight_decay: make(
        jax_schedule, weight_decay=weight_decay, mask=only_kernels, **arguments
    )


GOLDEN = {
    "adamw": with_mask(optax.adamw),
    "adam": lambda weight_decay: optax.adam(jax_schedule),
    "lamb": with_mask(optax.lamb),
    "adafactor": big_vision_adafactor,
    "lion": with_mask(optax.lion, b1=0.9, b2=0.99),
    "sgd": optax_sgd,
}


def decay_of(name):
    return 0.3 if OPTIMIZERS[name].can_decay else 0.0


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_update_is_that_of_optax(name):
    variables = make_variables()
    decay = decay_of(name)
    optimizer = make_optimizer(name, variables, schedule, decay)
    for step, want in enumerate(train_optax(GOLDEN[name](decay))):
        optimizer.apply(make_gradients(step))
        for path, variable, weight in zip(SHAPES, variables, want):
            np.testing.assert_allclose(
                variable.numpy(),
                weight,
                rtol=1e-6,
                atol=1e-6,
                err_msg=f"{step} {path}",
            )
    assert int(optimizer.iterations) == STEPS


def test_adafactor_caps_its_memory_as_big_vision():
    # The cap of 0.999 is reached at update 5624.
    shapes = {"head/kernel": (32, 33)}
    variables = make_variables(shapes)
    optimizer = make_optimizer("adafactor", variables, 0.01)
    optimizer.iterations.assign(20_000)
    gradient = noise(32, 33, seed=8)
    optimizer.apply([gradient])
    for slot, axis in ("rows", 1), ("columns", 0):
        got = optimizer.slots["head"]["kernel"][f"second_moment_{slot}"]
        want = 1e-3 * np.mean(gradient**2, axis, keepdims=True)
        np.testing.assert_allclose(got, want, rtol=1e-4)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_gradients_of_zero_move_nothing_but_by_the_decay(name):
    variables = make_variables()
    before = values(variables)
    decay = decay_of(name)
    optimizer = make_optimizer(name, variables, 0.5, decay)
    optimizer.apply([np.zeros(shape, "float32") for shape in SHAPES.values()])
    for path, variable, start in zip(SHAPES, variables, before):
        kept = 1.0
        if path.endswith("kernel"):
            # LAMB gives the decay the norm of the weight.
            kept = 0.5 if name == "lamb" else 1 - 0.5 * decay
        np.testing.assert_allclose(variable.numpy(), kept * start, rtol=1e-6)


def test_a_weight_of_zero_is_trusted_by_lamb():
    variable = keras.Variable(np.zeros(3, "float32"), name="bias")
    optimizer = make_optimizer("lamb", [variable], 0.1)
    optimizer.apply([np.array([2.0, -3.0, 4.0], "float32")])
    np.testing.assert_allclose(variable.numpy(), [-0.1, 0.1, -0.1], rtol=1e-5)


@pytest.mark.parametrize(
    "name, bfloat16",
    [
        ("adamw", {"first_moment"}),
        ("lamb", {"first_moment"}),
        ("adafactor", {"first_moment"}),
        ("lion", {"first_moment"}),
        ("sgd", {"momentum"}),
    ],
)
def test_accumulator_alone_is_stored_in_bfloat16(name, bfloat16):
    optimizer, got = train(name, accumulator_dtype="bfloat16")
    for path in SHAPES:
        scope, weight = path.split("/")
        for slot, variable in optimizer.slots[scope][weight].items():
            narrow = slot in bfloat16
            assert variable.dtype == (tf.bfloat16 if narrow else tf.float32)
    _, want = train(name)
    moved = [a - b for a, b in zip(values(want), values(make_variables()))]
    for a, b, move in zip(values(got), values(want), moved):
        difference = np.linalg.norm(a - b) / np.linalg.norm(move)
        # Lion: a sign is another one where the mean is near zero.
        assert difference < (0.1 if name == "lion" else 0.005)


def round_to_bfloat16(x):
    return x.astype(ml_dtypes.bfloat16).astype("float32")


def test_an_update_uses_the_momentum_before_it_is_rounded():
    _, variables = train("sgd", steps=3, accumulator_dtype="bfloat16")
    for i, variable in enumerate(variables):
        weight = values(make_variables())[i]
        buffer = np.zeros_like(weight)
        for step in range(3):
            momentum = np.float32(0.9) * buffer + make_gradients(step)[i]
            weight = weight - np.float32(jax_schedule(step)) * momentum
            buffer = round_to_bfloat16(momentum)
        np.testing.assert_allclose(variable.numpy(), weight, atol=1e-6)


# Layer-wise rates; the factors are those of tests/test_layer_decay.py.


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_layer_rate_scales_the_whole_update(name):
    decay = decay_of(name)
    _, whole = train(name, steps=1, weight_decay=decay)
    _, got = train(name, steps=1, weight_decay=decay, layer_decay=0.5)
    # Stem, blocks 0 to 2, head; SHAPES has two weights of stem and block 2.
    rates = [0.0625, 0.0625, 0.125, 0.25, 0.5, 0.5, 1.0]
    start = values(make_variables())
    for a, b, zero, rate in zip(values(got), values(whole), start, rates):
        np.testing.assert_allclose(a - zero, rate * (b - zero), atol=1e-6)


# Averages


def weighted_mean(history, decay, start_weight):
    """Return the mean of `history` with the given weight of its first entry."""
    steps = len(history) - 1
    weights = [start_weight] + [
        (1 - decay) * decay ** (steps - t) for t in range(1, steps + 1)
    ]
    return np.tensordot(weights, np.asarray(history, "float64"), 1)


@pytest.mark.parametrize("decay", [0.5, 0.9999])
@pytest.mark.parametrize("use_debias", [False, True])
def test_averages_are_the_closed_form(decay, use_debias):
    variables = make_variables()
    optimizer = make_optimizer(
        "sgd",
        variables,
        0.1,
        average_decay=decay,
        use_average_debias=use_debias,
    )
    history = [values(variables)]
    for step in range(STEPS):
        optimizer.apply(make_gradients(step))
        history.append(values(variables))
    for got, one in zip(optimizer.averages, zip(*history)):
        if use_debias:
            want = weighted_mean(one, decay, 0.0) / (1 - decay**STEPS)
        else:
            want = weighted_mean(one, decay, decay**STEPS)
        np.testing.assert_allclose(got, want, rtol=2e-6, atol=2e-6)


def test_long_average_of_weights_at_rest_is_these_weights():
    # With float32(0.9999) and float32(1 - 0.9999) as weights of old and new
    # the average would shrink by 1.7e-4.
    variables = make_variables({"stem/bias": (5,)})
    optimizer = make_optimizer("sgd", variables, 0.0, average_decay=0.9999)
    apply = tf.function(optimizer.apply)
    for _ in range(500):
        apply([np.ones(5, "float32")])
    np.testing.assert_array_equal(optimizer.averages[0], variables[0].numpy())


@pytest.mark.parametrize("use_debias", [False, True])
def test_averages_before_the_first_update_are_the_weights(use_debias):
    optimizer, variables = train(
        "adamw", 0, average_decay=0.9, use_average_debias=use_debias
    )
    for average, variable in zip(optimizer.averages, variables):
        np.testing.assert_array_equal(average, variable.numpy())


def test_averages_change_no_weight_and_are_none_without():
    optimizer, want = train("adamw")
    assert optimizer.averages is None
    _, got = train("adamw", average_decay=0.9)
    for a, b in zip(values(got), values(want)):
        np.testing.assert_array_equal(a, b)


# State


def state_of(optimizer, variables):
    """Return all numbers that may change, as arrays in one order."""
    return [
        optimizer.iterations.numpy(),
        *values(variables),
        *(slot.numpy() for slot in tf.nest.flatten(optimizer.slots)),
    ]


def assert_same_state(one, other):
    assert len(one) == len(other)
    for a, b in zip(one, other):
        np.testing.assert_array_equal(a, b)


EVERYTHING = {
    "layer_decay": 0.7,
    "accumulator_dtype": "bfloat16",
    "average_decay": 0.9,
    "use_average_debias": True,
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_training_continues_bit_by_bit_from_a_checkpoint(name, tmp_path):
    choices = {**EVERYTHING, "weight_decay": decay_of(name)}
    optimizer, variables = train(name, 3, **choices)
    path = tf.train.Checkpoint(optimizer=optimizer).save(tmp_path / "saved")
    weights = values(variables)
    again, restored = train(name, 0, **choices)
    tf.train.Checkpoint(optimizer=again).restore(path).assert_consumed()
    for variable, weight in zip(restored, weights):
        variable.assign(weight)
    for step in (3, 4):
        optimizer.apply(make_gradients(step))
        again.apply(make_gradients(step))
    assert_same_state(state_of(optimizer, variables), state_of(again, restored))


def saved_names(optimizer, folder):
    path = tf.train.Checkpoint(optimizer=optimizer).save(folder / "saved")
    return {
        name.removesuffix("/.ATTRIBUTES/VARIABLE_VALUE")
        for name, _ in tf.train.list_variables(path)
        if name.startswith("optimizer")
    }


def test_names_in_a_checkpoint_say_whose_state_it_is(tmp_path):
    shapes = {"stem/bias": (5,), "block_00/kernel": (40, 33)}
    variables = make_variables(shapes)
    optimizer = make_optimizer("adafactor", variables, 0.1, average_decay=0.9)
    assert saved_names(optimizer, tmp_path) == {
        "optimizer/iterations",
        "optimizer/slots/stem/bias/average",
        "optimizer/slots/stem/bias/first_moment",
        "optimizer/slots/stem/bias/second_moment",
        "optimizer/slots/block_00/kernel/average",
        "optimizer/slots/block_00/kernel/first_moment",
        "optimizer/slots/block_00/kernel/second_moment_columns",
        "optimizer/slots/block_00/kernel/second_moment_rows",
    }
    sgd = make_optimizer("sgd", variables, 0.1)
    assert saved_names(sgd, tmp_path) == {
        "optimizer/iterations",
        "optimizer/slots/stem/bias/momentum",
        "optimizer/slots/block_00/kernel/momentum",
    }


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_gradient_that_is_not_finite_changes_nothing(name):
    optimizer, variables = train(name, 2, **EVERYTHING)
    before = state_of(optimizer, variables)
    spoilt = [np.full(shape, np.nan, "float32") for shape in SHAPES.values()]
    optimizer.apply(spoilt, is_finite=tf.constant(False))
    assert_same_state(state_of(optimizer, variables), before)
    # One that is finite changes the same as without the question.
    optimizer.apply(make_gradients(2), is_finite=tf.constant(True))
    want = state_of(*train(name, 3, **EVERYTHING))
    assert_same_state(state_of(optimizer, variables), want)


# Devices and graphs


WITH_KERNEL = [name for name, rule in OPTIMIZERS.items() if rule.kernel]


@pytest.mark.parametrize("average_decay", [0.0, 0.9])
@pytest.mark.parametrize("name", WITH_KERNEL)
def test_a_kernel_makes_the_update_of_its_rule(name, average_decay):
    """With the question whether gradients are finite, the rule makes it."""
    choices = {"beta2": 0.95, "average_decay": average_decay}
    choices |= {"weight_decay": decay_of(name), "layer_decay": 0.5}
    got, variables = train(name, **choices)
    want, expected = train(name, 0, **choices)
    for step in range(STEPS):
        want.apply(make_gradients(step), tf.constant(True))
    for a, b in zip(state_of(got, variables), state_of(want, expected)):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7)


def one_device():
    return tf.distribute.OneDeviceStrategy("/CPU:0")


def two_replicas():
    return make_engine("mirrored").strategy


def train_in_a_loop(name, strategy, choices):
    """Train on replicas that start with halves of the gradients, in a graph.

    The third of four updates is not finite and left out.
    """
    with strategy.scope():
        variables = make_variables()
        optimizer = make_optimizer(name, variables, schedule, **choices)
    gradients = [make_gradients(step) for step in (0, 1, 2, 2)]
    gradients[2][1][:] = np.inf
    stacked = [tf.stack(g) for g in zip(*gradients)]
    replicas = strategy.num_replicas_in_sync

    def update(step):
        replica = tf.distribute.get_replica_context()
        shares = [g[step] / replicas for g in stacked]
        total = replica.all_reduce(tf.distribute.ReduceOp.SUM, shares)
        is_finite = tf.reduce_all(
            [tf.reduce_all(tf.math.is_finite(g)) for g in total]
        )
        optimizer.apply(total, is_finite)

    @tf.function
    def run():
        for step in tf.range(4):
            strategy.run(update, args=(step,))

    run()
    return optimizer, variables


@pytest.mark.parametrize(
    "name, make_strategy",
    [
        ("adamw", one_device),
        *((name, two_replicas) for name in ("adamw", "adafactor", "sgd")),
    ],
)
def test_loop_in_a_graph_on_any_devices_is_the_eager_one(name, make_strategy):
    choices = {**EVERYTHING, "weight_decay": decay_of(name)}
    want, expected = train(name, 3, **choices)
    got, variables = train_in_a_loop(name, make_strategy(), choices)
    assert got.iterations.numpy() == 3
    for a, b in zip(
        state_of(got, variables) + got.averages,
        state_of(want, expected) + want.averages,
    ):
        np.testing.assert_allclose(
            np.asarray(a, "float32"),
            np.asarray(b, "float32"),
            # A bfloat16 may fall to the other side.
            rtol=2**-7 if a.dtype == ml_dtypes.bfloat16 else 0,
            atol=1e-6,
        )
    if make_strategy is two_replicas:
        mirrored = [v.value for v in variables] + tf.nest.flatten(got.slots)
        for variable in [got.iterations, *mirrored]:
            first, second = (copy.numpy() for copy in variable.values)
            np.testing.assert_array_equal(first, second)


def test_a_checkpoint_of_two_replicas_continues_on_one(tmp_path):
    two, variables = train_in_a_loop("adamw", two_replicas(), EVERYTHING)
    path = tf.train.Checkpoint(optimizer=two).save(tmp_path / "saved")
    one, _ = train("adamw", 0, **EVERYTHING)
    tf.train.Checkpoint(optimizer=one).restore(path).assert_consumed()
    assert_same_state(state_of(one, []), state_of(two, []))


def test_learning_rate_is_that_of_the_next_update():
    optimizer, _ = train("sgd", 0)
    assert float(optimizer.learning_rate) == pytest.approx(0.01)
    optimizer.apply(make_gradients(0))
    assert float(optimizer.learning_rate) == pytest.approx(0.01 / 1.3)
    constant = make_optimizer("sgd", make_variables(), 0.5)
    assert float(constant.learning_rate) == 0.5


def test_weights_of_bfloat16_are_updated_in_float32():
    weight = keras.Variable([1.0, 2.0], dtype="bfloat16", name="kernel")
    optimizer = make_optimizer("sgd", [weight], 0.25, average_decay=0.5)
    optimizer.apply([tf.constant([1.0, 1.0], tf.bfloat16)])
    np.testing.assert_array_equal(
        tf.cast(weight.value, "float32"), [0.75, 1.75]
    )
    np.testing.assert_array_equal(optimizer.averages[0], [0.875, 1.875])


# Errors


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"name": "adm"}, "`optimizer` must be one of 'adamw', .*'adm'"),
        ({"weight_decay": math.nan}, "`weight_decay` must not be negative"),
        ({"name": "adam", "weight_decay": 0.1}, "`weight_decay` must be 0"),
        ({"beta2": 1.0}, "`beta2` must be between 0 and 1.*=1.0"),
        ({"name": "sgd", "beta2": 0.95}, "`beta2` is for adam, adamw and lam"),
        ({"average_decay": 1.0}, "`average_decay` must be at least 0.*=1.0"),
        ({"accumulator_dtype": "float16"}, "`accumulator_dtype` must be one"),
        ({"layer_decay": 2.0}, "`layer_decay` must be more than 0"),
    ],
)
def test_impossible_choices_are_errors(changes, message):
    arguments = {"name": "adamw", "learning_rate": 0.1, **changes}
    with pytest.raises(ValueError, match=message):
        make_optimizer(variables=make_variables(), **arguments)


def test_missing_gradients_are_errors():
    optimizer, _ = train("sgd", 0)
    with pytest.raises(ValueError, match="each of 7 variables.*Received: 6"):
        optimizer.apply(make_gradients(0)[1:])
    gradients = [*make_gradients(0)[:-1], None]
    with pytest.raises(ValueError, match="with None for .'head/kernel'"):
        optimizer.apply(gradients)
