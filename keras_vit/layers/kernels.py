"""What a backend computes faster, or must compute in another way.

No other file of the layers asks which backend runs. kernels_tensorflow.py,
kernels_jax.py and kernels_torch.py have the same functions:

- `call`: a sublayer; `dense`: a product with its bias; `run_graph`: a model;
- `attend`: fused attention; `softmax`, `layer_norm`, `activate`: those
  functions; `fuse`: any function of tensors;
- `reshape`, `pad`, `constant`, `ensure_shape`: shapes;
- `record`: gradients; `without_gradients`: a context without them.

The layers hold the formulas and hand them over, so they are written once.
"""

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

call = own.call
dense = own.dense
run_graph = own.run_graph
attend = own.attend
softmax = own.softmax
layer_norm = own.layer_norm
activate = own.activate
fuse = own.fuse
reshape = own.reshape
pad = own.pad
constant = own.constant
ensure_shape = own.ensure_shape
record = own.record
without_gradients = own.without_gradients

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
