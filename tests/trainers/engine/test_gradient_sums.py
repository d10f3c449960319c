"""Sums over two replicas, in float32 and in bfloat16."""

import numpy as np
import tensorflow as tf

from trainers.engine.tensorflow import make_engine, sum_gradients


def draw_gradients(*shape):
    """Return numbers of very different sizes."""
    draws = np.random.default_rng(0)
    sizes = 10.0 ** draws.integers(-6, 3, shape)
    return (draws.normal(size=shape) * sizes).astype("float32")


# Those of the two replicas.
KERNELS, BIASES = draw_gradients(2, 300, 40), draw_gradients(2, 500)


def sums(strategy, dtype):
    """Return the sums of the gradients on the first replica."""
    strategy = make_engine(strategy).strategy

    @tf.function
    def compute():
        def on_replica():
            replica = tf.distribute.get_replica_context()
            index = replica.replica_id_in_sync_group
            mine = [tf.constant(KERNELS)[index], tf.constant(BIASES)[index]]
            return sum_gradients(mine, dtype)

        return strategy.run(on_replica)

    got = compute()
    return [strategy.experimental_local_results(x)[0].numpy() for x in got]


def test_sums_in_float32_are_exact_to_the_last_rounding():
    kernel, bias = sums("mirrored", "float32")
    np.testing.assert_array_equal(kernel, KERNELS.sum(0))
    np.testing.assert_array_equal(bias, BIASES.sum(0))


def test_only_kernels_are_rounded_and_no_more_than_documented():
    kernel, bias = sums("mirrored", "bfloat16")
    assert kernel.dtype == bias.dtype == np.float32
    np.testing.assert_array_equal(bias, BIASES.sum(0))
    error = np.abs(kernel - KERNELS.astype("float64").sum(0))
    bound = 2 * 2.0**-8 * np.abs(KERNELS).astype("float64").sum(0)
    assert (error <= bound * (1 + 2.0**-7)).all()
    assert error.max() > 0  # They were sent in bfloat16.
