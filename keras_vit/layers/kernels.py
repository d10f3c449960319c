"""What a backend computes faster, or must compute in another way.

No other file of the layers asks which backend runs. The functions below are
those of Keras; kernels_tensorflow.py, kernels_jax.py and kernels_torch.py have
those of the same names that replace them. The layers hold the formulas and
hand them over, so they are written once.
"""

import contextlib
import contextvars
from collections.abc import Callable

import keras
from keras import ops

if keras.backend.backend() == "torch":
    from keras_vit.layers import kernels_torch as own
elif keras.backend.backend() == "jax":
    from keras_vit.layers import kernels_jax as own
else:
    from keras_vit.layers import kernels_tensorflow as own


def _or_own(function: Callable) -> Callable:
    """Return the function of this name that the backend has, if it has one."""
    return getattr(own, function.__name__, function)


# Called as layer(x, ...), from within another layer: a built sublayer, and a
# Dense layer without activation, of (rows, inputs).
call = getattr(own, "call", keras.layers.Layer.__call__)
dense = getattr(own, "dense", keras.layers.Layer.__call__)
# Called as run_graph(model, images, training), if not None: returns the output
# of a functional model, or None to leave it to Keras.
run_graph = getattr(own, "run_graph", None)
without_gradients = getattr(own, "without_gradients", contextlib.nullcontext)
name_scope = getattr(own, "name_scope", contextlib.nullcontext)
pad = getattr(own, "pad", ops.pad)


@_or_own
def attend(query, key, value, num_heads, mask, bias):
    """Return attention by a fused kernel, or None where there is none.

    It is that of `attention.attend`, with a mask for the heads.

    Shapes:
        query: (B, S, D). key, value: (B, T, D). mask: (B, 1, 1 or S, T).
        bias: (1, K, S, T) or (B, 1, 1, T). returns: (B, S, D).
    """


@_or_own
def fuse(function: Callable, *tensors, training, **options):
    """Return function(*tensors, **options), in training in one loop.

    The gradient computes the values again, so nothing but the arguments is
    kept for it.

    Args:
        function: Of tensors; returns one tensor.
        *tensors: Its tensors, (..., D) the first.
        training: Whether a gradient will be computed.
        **options: Hashable arguments of `function`.
    """
    return function(*tensors, **options)


@_or_own
def softmax(function: Callable, pull_back: Callable, logits, dtype):
    """Return function(logits, dtype), whose gradient keeps its result alone.

    It is for training; without a gradient, `function` is called directly.

    Args:
        function: The softmax, whose own kernel is fast.
        pull_back: Returns the gradient of the logits for the result and its
            gradient.
        logits: (..., T).
        dtype: The type of the result.
    """
    return function(logits, dtype)


# Called as record(function, tensors), where `function` maps a list of tensors
# to (a tensor, anything). Returns these two, and a function, for any number of
# calls, from the gradient of a scalar by the first result to its gradients by
# the tensors.
record = own.record
# Called as layer_norm(function, tokens, gamma, beta, training=..., **options).
layer_norm = getattr(own, "layer_norm", fuse)


@_or_own
def activate(name: str, function: Callable, x, training, overwrite=None):
    """Return the activation of a tensor.

    Args:
        name: A key of ACTIVATIONS.
        function: Its row.
        x: (..., D).
        training: Whether a gradient will be computed.
        overwrite: The layer whose result `x` is, if nobody else reads it.
    """
    return function(x)


@_or_own
def activate_dense(layer, x, name: str, function: Callable, training):
    """Return the activation of layer(x), see `dense` and `activate`."""
    return activate(name, function, dense(layer, x), training, layer)


@_or_own
def reshape(x, shape: tuple):
    """Return ops.reshape(x, shape), also of no images, whose -1 is open."""
    if x.shape[0] == 0 and shape[0] == -1:
        shape = (0, *shape[1:])
    return ops.reshape(x, shape)


@_or_own
def constant(array, dtype: str):
    """Return an array of a type, which the graph takes as a constant."""
    return array.astype(dtype)


@_or_own
def ensure_shape(images, shape: tuple):
    """Return `images`; fail at run time unless they have `shape`."""
    return images


# More draws than a layer makes in a call, so that no two calls share a draw.
DRAWS_OF_A_CALL = 64
_IS_REMATERIALIZING = contextvars.ContextVar("rematerializing", default=False)


def is_rematerializing() -> bool:
    """Return whether the code runs inside of `rematerialize`."""
    return _IS_REMATERIALIZING.get()


def rematerialize(layer: keras.layers.Layer, call: Callable, *tensors):
    """Return `call(*tensors)` without keeping its intermediate tensors.

    The backward pass computes these tensors again. Keras' own RematScope fails
    on TensorFlow, and a Dropout inside `tf.recompute_grad` would drop other
    units in the second pass. Here, the weights are arguments of the function
    that runs twice, and the random seeds are drawn outside of it.

    Args:
        layer: The layer whose weights and seeds `call` uses. It must not
            change any other state, as BatchNormalization does.
        call: Maps tensors to a tensor. It may be the `call` of `layer`, if
            that method checks `is_rematerializing`.
        *tensors: The arguments of `call`: all that gradients flow to, beside
            the weights.
    """
    weights, constants = [], []
    for variable in layer.variables:
        if variable.name == "seed_generator_state":
            constants.append((variable, advance_seed(variable)))
        elif "float" in variable.dtype:
            weights.append(variable)
        else:  # An int8 kernel of a quantised layer has no gradient.
            constants.append((variable, variable.value))

    def pure(*values):
        inputs, values = values[: len(tensors)], values[len(tensors) :]
        mapping = [*zip(weights, values), *constants]
        with keras.StatelessScope(state_mapping=mapping):
            token = _IS_REMATERIALIZING.set(True)
            try:
                return call(*inputs)
            finally:
                _IS_REMATERIALIZING.reset(token)

    values = [ops.convert_to_tensor(weight.value) for weight in weights]
    return keras.remat(pure)(*tensors, *values)


def advance_seed(seed):
    """Return the state of a seed generator and advance it past this call."""
    state = ops.copy(seed.value)
    # The state is (key, count), and each draw adds one to the count.
    step = ops.convert_to_tensor([0, DRAWS_OF_A_CALL], dtype=seed.dtype)
    seed.assign(state + step)
    return state
