"""The mathematics of one update, against NumPy, on one device and on two."""

import dataclasses

import keras
import numpy as np
import pytest
import tensorflow as tf

from trainers.engine.tensorflow import TensorFlowUpdate, make_engine
from trainers.engine.update import Update
from trainers.optim.losses import (
    LOSSES,
    Distillation,
    LossScale,
    hard_loss,
    softmax,
)
from trainers.optim.optimizers import make_optimizer

RATE = 0.1
draws = np.random.default_rng(0)
IMAGES = draws.normal(size=(8, 4)).astype("float32")
LABELS = np.eye(3, dtype="float32")[np.arange(8) % 3]
WEIGHTS = np.array([1, 0, 1, 1, 0.5, 0, 1, 1], "float32")

# Strategy, and parts that the batch of a replica is cut into.
SPLITS = [("one_device", 1), ("one_device", 4), ("mirrored", 2)]
SPLITS_AND_XLA = [*((*split, False) for split in SPLITS), ("mirrored", 2, True)]
split = pytest.mark.parametrize("strategy, parts", SPLITS)


def dense(**options):
    """Return a function that makes a model of one layer."""
    return lambda: keras.Sequential(
        [keras.Input((4,)), keras.layers.Dense(3, **options)]
    )


def make_step(make_model, strategy="one_device", parts=1, scale=None, **more):
    """Return a step of plain descent without momentum, at its first update."""
    keras.utils.set_random_seed(0)
    with make_engine(strategy).scope():
        model = make_model()
        return Update(
            model,
            make_optimizer("sgd", model.trainable_variables, RATE),
            softmax,
            accumulation_steps=parts,
            loss_scale=scale and LossScale(*scale),
            **more,
        )


def make_update(step, strategy="one_device", batch=(IMAGES, LABELS, WEIGHTS)):
    """Return a function of a number that makes this update.

    The batch is shared out among the replicas.
    """
    strategy = make_engine(strategy).strategy
    compiled = TensorFlowUpdate(step, strategy)
    replicas = strategy.num_replicas_in_sync

    @tf.function
    def update(number):
        def on_replica():
            replica = tf.distribute.get_replica_context()
            index = replica.replica_id_in_sync_group
            mine = tf.nest.map_structure(
                lambda x: tf.reshape(x, (replicas, -1, *x.shape[1:]))[index],
                batch,
            )
            return compiled.train_replica(mine, number)

        return strategy.reduce("SUM", strategy.run(on_replica), axis=None)

    return lambda number: update(tf.constant(number, tf.int64)).numpy()


def run(step, strategy="one_device", batch=(IMAGES, LABELS, WEIGHTS), first=0):
    """Make update number `first` of a batch."""
    return make_update(step, strategy, batch)(first)


def descend(kernel, bias, decay=0.0):
    """Return kernel and bias after one update, and the sums of the step."""
    logits = IMAGES @ kernel + bias
    p = np.exp(logits)
    p /= p.sum(-1, keepdims=True)
    slope = (p - LABELS) * WEIGHTS[:, None] / len(IMAGES)
    kernel_slope = IMAGES.T @ slope + 2 * decay * kernel
    losses = -np.log((p * LABELS).sum(-1))
    hits = p.argmax(-1) == LABELS.argmax(-1)
    sums = [(x * WEIGHTS).sum() for x in (losses, hits, np.ones(8))]
    return kernel - RATE * kernel_slope, bias - RATE * slope.sum(0), sums


@pytest.mark.parametrize("strategy, parts, use_xla", SPLITS_AND_XLA)
def test_the_update_of_a_weighted_batch_with_a_penalty_is_that_of_numpy(
    strategy, parts, use_xla
):
    """The penalty counts once, however the batch is cut."""
    penalty = keras.regularizers.L2(0.3)
    make_model = dense(kernel_regularizer=penalty)
    step = make_step(make_model, strategy, parts, use_xla=use_xla)
    kernel, bias, sums = descend(*step.model.get_weights(), 0.3)
    np.testing.assert_allclose(run(step, strategy), sums, rtol=1e-6)
    for got, want in zip(step.model.get_weights(), (kernel, bias)):
        np.testing.assert_allclose(got, want, atol=1e-7)


class Offset(keras.layers.Layer):
    """Adds some rows of a table, one of them twice."""

    def build(self, input_shape):
        self.table = self.add_weight(shape=(4, input_shape[-1]))

    def call(self, x):
        return x + keras.ops.sum(keras.ops.take(self.table, [0, 2, 2], 0), 0)


@pytest.mark.parametrize("strategy, parts", SPLITS[1:])
def test_rows_that_are_taken_by_index_learn_as_in_numpy(strategy, parts):
    step = make_step(
        lambda: keras.Sequential(
            [keras.Input((4,)), Offset(), keras.layers.Dense(3)]
        ),
        strategy,
        parts,
    )
    table, kernel, bias = step.model.get_weights()
    run(step, strategy)
    p = np.exp((IMAGES + table[0] + 2 * table[2]) @ kernel + bias)
    p /= p.sum(-1, keepdims=True)
    slope = (p - LABELS) * WEIGHTS[:, None] / len(IMAGES)
    slope = (slope @ kernel.T).sum(0)
    expected = table - RATE * np.outer([1, 0, 2, 0], slope)
    np.testing.assert_allclose(
        step.model.get_weights()[0], expected, rtol=1e-5, atol=1e-7
    )


@pytest.mark.parametrize("strategy, parts, use_xla", SPLITS_AND_XLA)
def test_the_update_with_a_teacher_is_that_of_numpy(strategy, parts, use_xla):
    """The cross-entropy with both is that with their mean."""
    matrix = draws.normal(size=(4, 3)).astype("float32")
    with make_engine(strategy).scope():
        teacher = dense(use_bias=False)()
        teacher.set_weights([matrix])
    compare = hard_loss(LOSSES["softmax"], temperature=1.0)
    taught = Distillation(teacher, compare, weight=0.25)
    choices = {"distillation": taught, "use_xla": use_xla}
    step = make_step(dense(), strategy, parts, **choices)
    kernel, bias = step.model.get_weights()
    best = np.eye(3)[(IMAGES @ matrix).argmax(-1)]
    labels = 0.75 * LABELS + 0.25 * best
    p = np.exp(IMAGES @ kernel + bias)
    p /= p.sum(-1, keepdims=True)
    slope = (p - labels) * WEIGHTS[:, None] / len(IMAGES)
    run(step, strategy)
    got = step.model.get_weights()
    np.testing.assert_allclose(
        got[0], kernel - RATE * IMAGES.T @ slope, atol=1e-7
    )
    np.testing.assert_allclose(got[1], bias - RATE * slope.sum(0), atol=1e-7)
    np.testing.assert_array_equal(teacher.get_weights()[0], matrix)


@pytest.mark.parametrize("parts", [1, 2])
def test_a_teacher_reads_the_images_of_a_part(parts):
    """So that a batch in parts needs less memory for it too."""
    sizes = []

    def teach(images):
        sizes.append(images.shape[0])
        return images[:, :3]

    compare = hard_loss(LOSSES["softmax"], temperature=1.0)
    taught = Distillation(teach, compare, weight=0.25)
    run(make_step(dense(), "one_device", parts, distillation=taught))
    assert {*sizes} == {len(IMAGES) // parts}


def test_gradients_are_summed_in_the_dtype_of_the_step():
    exact, rounded = make_step(dense()), make_step(dense(), "mirrored")
    rounded = dataclasses.replace(rounded, gradient_dtype="bfloat16")
    before = exact.model.get_weights()
    run(exact)
    run(rounded, "mirrored")
    (kernel, bias), (got, got_bias) = (
        [after - start for after, start in zip(s.model.get_weights(), before)]
        for s in (exact, rounded)
    )
    np.testing.assert_allclose(got_bias, bias, atol=1e-7)
    np.testing.assert_allclose(got, kernel, atol=0.02 * abs(kernel).max())
    assert abs(got - kernel).max() > 1e-5  # It was rounded.


class Scaled:
    """A model of the same weights whose images are multiplied."""

    def __init__(self, factor):
        self.factor, self.model = factor, None

    def stateless_call(self, weights, states, images, **options):
        return self.model.stateless_call(
            weights, states, self.factor * images, **options
        )


@pytest.mark.parametrize(
    "strategy, parts, use_xla",
    [("one_device", 1, False), ("mirrored", 2, True)],
)
def test_an_update_trains_one_of_the_variants(strategy, parts, use_xla):
    variants = tuple(map(Scaled, (0.5, 1.0, 2.0)))
    step = make_step(
        dense(), strategy, parts, variants=variants, seed=3, use_xla=use_xla
    )
    for variant in variants:
        variant.model = step.model
    update = make_update(step, strategy)
    drawn = []
    for number in range(8):
        for momentum in tf.nest.flatten(step.optimizer.slots):
            momentum.assign(tf.zeros_like(momentum))
        before = step.model.get_weights()
        update(number)
        kernel = step.model.get_weights()[0]
        errors = []
        for variant in variants:
            images = variant.factor * IMAGES
            p = np.exp(images @ before[0] + before[1])
            p /= p.sum(-1, keepdims=True)
            slope = (p - LABELS) * WEIGHTS[:, None] / len(IMAGES)
            expected = before[0] - RATE * images.T @ slope
            errors.append(np.abs(kernel - expected).max())
        drawn.append(int(np.argmin(errors)))
        assert min(errors) < 1e-6
    # All are drawn, in an order that the seed decides, whatever the split.
    assert set(drawn) == {0, 1, 2}
    draw = tf.random.stateless_uniform
    assert drawn == [int(draw((), (3, n), 0, 3, tf.int32)) for n in range(8)]


@pytest.mark.parametrize("dtype", ["mixed_float16", "mixed_bfloat16"])
def test_losses_of_logits_in_half_precision_are_taken_in_float32(dtype):
    penalty = keras.regularizers.L2(1e-3)
    step = make_step(dense(dtype=dtype, activity_regularizer=penalty))
    kernel, bias, sums = descend(*step.model.get_weights())
    np.testing.assert_allclose(run(step), sums, rtol=1e-2)
    np.testing.assert_allclose(step.model.get_weights()[0], kernel, atol=1e-3)
    compiled = TensorFlowUpdate(step, make_engine("one_device").strategy)
    measured = compiled.measure_replica(
        tf.nest.map_structure(tf.constant, (IMAGES, LABELS, WEIGHTS))
    )
    assert measured.dtype == tf.float32


@pytest.mark.parametrize("strategy", ["one_device", "mirrored"])
def test_a_skipped_update_leaves_the_statistics(strategy):
    """What is not finite would stay in them for good."""

    def make():
        return keras.Sequential(
            [
                keras.Input((4,)),
                keras.layers.BatchNormalization(momentum=0.5),
                keras.layers.Dense(3, dtype="mixed_float16"),
            ]
        )

    step = make_step(make, strategy, scale=(2.0**60,))
    before = step.model.get_weights()
    run(step, strategy)
    assert step.loss_scale.factor.numpy() == 2.0**59
    for a, b in zip(step.model.get_weights(), before):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("strategy", ["one_device", "mirrored"])
def test_an_overflow_halves_the_scale_and_changes_nothing_else(strategy):
    step = make_step(dense(dtype="mixed_float16"), strategy, scale=(2.0**21,))
    before = step.model.get_weights()
    scales = []
    for number in range(21):
        if step.optimizer.iterations.numpy():
            break
        for a, b in zip(step.model.get_weights(), before):
            np.testing.assert_array_equal(a, b)
        scales.append(float(step.loss_scale.factor))
        run(step, strategy, first=number)
    assert len(scales) > 1
    assert scales == [2.0 ** (21 - i) for i in range(len(scales))]
    assert step.loss_scale.factor.numpy() == scales[-1]
    for got, want in zip(step.model.get_weights(), descend(*before)):
        np.testing.assert_allclose(got, want, atol=1e-3)


def test_the_loss_scale_stays_finite_and_at_least_one():
    scale = LossScale(2.0**126, growth_steps=1)
    state, factors = [tf.convert_to_tensor(x) for x in scale.state], []
    for is_finite in [True] * 3 + [False] * 130:
        state = scale.next(*state, tf.constant(is_finite))
        factors.append(float(state[0]))
    assert factors[:4] == [2.0**127, 2.0**127, 2.0**127, 2.0**126]
    assert factors[-3:] == [1.0] * 3


@split
def test_statistics_are_the_mean_of_those_of_replicas_and_parts(
    strategy, parts
):
    step = make_step(
        lambda: keras.Sequential(
            [
                keras.Input((4,)),
                keras.layers.BatchNormalization(momentum=0.5),
                keras.layers.Dense(3),
            ]
        ),
        strategy,
        parts,
    )
    run(step, strategy)
    [norm, _] = step.model.layers
    replicas = 2 if strategy == "mirrored" else 1
    split = IMAGES.reshape(replicas * parts, -1, 4)
    for got, start, want in (
        (norm.moving_mean, 0.0, split.mean(1).mean(0)),
        (norm.moving_variance, 1.0, split.var(1).mean(0)),
    ):
        want = 0.5 * start + 0.5 * want
        np.testing.assert_allclose(got.numpy(), want, rtol=1e-4, atol=1e-6)


class Counter(keras.layers.Layer):
    """Counts its calls."""

    def build(self, shape):
        self.count = self.add_weight(
            shape=(), dtype="int32", initializer="zeros", trainable=False
        )

    def call(self, x):
        self.count.assign(self.count + 1)
        return x


@pytest.mark.parametrize("strategy, parts", SPLITS[1:])
def test_whole_numbers_count_updates_and_frozen_ones_stay(strategy, parts):
    """Neither has a mean over replicas that is of their type."""

    def make_model():
        model = keras.Sequential(
            [
                keras.Input((4,)),
                Counter(),
                keras.layers.Dense(4),
                keras.layers.Dense(3),
            ]
        )
        model.layers[1].quantize("int8")
        model.layers[1].trainable = False
        return model

    step = make_step(make_model, strategy, parts)
    frozen = step.model.layers[1].get_weights()
    assert any(weight.dtype == np.int8 for weight in frozen)
    run(step, strategy)
    run(step, strategy, first=1)
    assert step.model.layers[0].count.numpy() == 2
    for a, b in zip(step.model.layers[1].get_weights(), frozen):
        np.testing.assert_array_equal(a, b)


def test_what_is_measured_is_of_the_model_at_rest():
    """Without dropout and with the statistics that were gathered."""
    step = make_step(
        lambda: keras.Sequential(
            [
                keras.Input((4,)),
                keras.layers.BatchNormalization(),
                keras.layers.Dropout(0.9),
                keras.layers.Dense(3),
            ]
        )
    )
    *statistics, kernel, bias = step.model.get_weights()
    batch = [tf.constant(x) for x in (IMAGES, LABELS, WEIGHTS)]
    compiled = TensorFlowUpdate(step, make_engine("one_device").strategy)
    got = compiled.measure_replica(batch)
    # Statistics at their start divide by the root of 1 + 1e-3.
    *_, want = descend(kernel / np.sqrt(1.001), bias)
    np.testing.assert_allclose(got, want, rtol=1e-5)
    for a, b in zip(step.model.get_weights(), statistics):
        np.testing.assert_array_equal(a, b)


def test_xla_is_at_work():
    """XLA does not support an operation that calls Python."""

    class Caller(keras.layers.Layer):
        def call(self, x):
            tf.py_function(lambda x: None, [x], [])
            return x

    def make_model():
        return keras.Sequential(
            [keras.Input((4,)), Caller(), keras.layers.Dense(3)]
        )

    run(make_step(make_model))
    with pytest.raises(tf.errors.InvalidArgumentError, match="EagerPyFunc"):
        run(make_step(make_model, use_xla=True))
