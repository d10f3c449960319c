"""Rematerialisation: less memory in training, for a second forward pass."""

from collections.abc import Callable

import keras
from keras import ops

# More than any one layer draws in a call, so that no two calls share a draw.
DRAWS_OF_A_CALL = 64


def rematerialize(layer: keras.layers.Layer, call: Callable, x):
    """Return `call(x)`; what it computes on the way is not kept.

    The backward pass computes it again. Keras' own RematScope fails on
    TensorFlow, and a Dropout inside `tf.recompute_grad` would drop other units
    the second time. Here the weights are arguments of the function that is
    computed twice, and the seeds are drawn outside of it.

    Args:
        layer: Whose weights and seeds `call` uses. It must change no other
            state, as a BatchNormalization would.
        call: Maps a tensor to a tensor.
        x: Its argument.
    """
    weights, seeds = [], []
    for variable in layer.variables:
        is_seed = not variable.trainable and "int" in variable.dtype
        (seeds if is_seed else weights).append(variable)
    states = [(seed, ops.copy(seed.value)) for seed in seeds]
    for seed, state in states:
        # A seed is (key, count): each draw counts one further.
        step = ops.convert_to_tensor([0, DRAWS_OF_A_CALL], dtype=seed.dtype)
        seed.assign(state + step)

    def pure(x, *values):
        mapping = [*zip(weights, values), *states]
        with keras.StatelessScope(state_mapping=mapping):
            return call(x)

    values = [ops.convert_to_tensor(weight.value) for weight in weights]
    return keras.remat(pure)(x, *values)
