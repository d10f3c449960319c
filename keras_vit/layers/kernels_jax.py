"""JAX: less is kept for the gradient, and cuDNN computes attention on GPUs.

XLA compiles everything, but JAX would keep the result of almost each operation
for the gradient: six tensors for a GELU. For each function, see kernels.py.
"""

import functools
import warnings
from collections.abc import Callable

import jax
import keras
from keras import ops

from keras_vit.layers.base import activate_wide


def fuse(function: Callable, *tensors, training, **options):
    """Return function(*tensors, **options), keeping its arguments alone."""
    if training and not isinstance(tensors[0], keras.KerasTensor):
        return _remat(function, **options)(*tensors)
    return function(*tensors, **options)


@functools.cache
def _remat(function, **options):
    return keras.remat(functools.partial(function, **options))


def softmax(function: Callable, pull_back: Callable, logits, dtype):
    """Return function(logits, dtype), whose gradient keeps its result alone."""
    if not isinstance(logits, keras.KerasTensor):
        return _with_gradient(function, pull_back, dtype)(logits)
    return function(logits, dtype)


@functools.cache
def _with_gradient(function, pull_back, dtype):
    @ops.custom_gradient
    def call(x):
        y = function(x, dtype)
        return y, lambda by: ops.cast(pull_back(y, by), x.dtype)

    return call


def activate(name: str, function: Callable, x, training, overwrite=None):
    """Return the activation of a tensor, computed in float32 in training."""
    if not training or name == "relu":
        return function(x)
    return fuse(activate_wide, x, training=True, activation=function)


def record(function: Callable, tensors: list) -> tuple:
    """Run a function; return its results and a function for its gradients."""
    value, pull_back, extra = jax.vjp(function, tensors, has_aux=True)
    return value, extra, lambda by: pull_back(by)[0]


def attend(query, key, value, num_heads, mask, bias):
    """Return attention by cuDNN's kernel, or None where it does not apply.

    It never holds the scores of all heads. On other devices than GPUs, XLA
    compiles our own products to faster code, and cuDNN has no kernel for
    float32. Keras' own `ops.dot_product_attention` is not used: on a TPU,
    Keras 3.15 makes its attention causal if there is no mask.
    """
    dtype = keras.backend.standardize_dtype(query.dtype)
    if dtype not in ("float16", "bfloat16") or not has_gpu():
        return None
    shapes = (None if x is None else tuple(x.shape) for x in (mask, bias))
    if not cudnn_fits(dtype, num_heads, query.shape, key.shape, *shapes):
        return None
    return _attend(query, key, value, num_heads, mask, bias)


def _attend(query, key, value, num_heads, mask, bias):
    """Ask for cuDNN's kernel.

    JAX refuses odd numbers of tokens in training, and masks of one row for all
    queries. So there is one more token, which is told to be padding.
    """
    lengths = query.shape[1], key.shape[1]  # S and T
    extra = [length % 2 for length in lengths]
    query_heads, key, value = (
        ops.pad(
            x.reshape(*x.shape[:2], num_heads, -1),  # (B, T, K, D/K)
            ((0, 0), (0, more), (0, 0), (0, 0)),
        )
        for x, more in ((query, extra[0]), (key, extra[1]), (value, extra[1]))
    )
    pairs = [(0, 0), (0, 0), *((0, more) for more in extra)]
    if mask is not None:
        shape = (*mask.shape[:2], *lengths)
        mask = ops.pad(ops.broadcast_to(mask, shape), pairs)
    if bias is not None:
        bias = ops.broadcast_to(bias, (*bias.shape[:2], *lengths))
        bias = ops.pad(ops.cast(bias, query.dtype), pairs)
    real = [
        jax.numpy.full(len(query), length, "int32") if any(extra) else None
        for length in lengths
    ]
    x = jax.nn.dot_product_attention(
        query_heads,
        key,
        value,
        bias,
        mask,
        query_seq_lengths=real[0],
        key_value_seq_lengths=real[1],
        implementation="cudnn",
    )
    return x[:, : lengths[0]].reshape(query.shape)


@functools.cache
def cudnn_fits(dtype, num_heads, query, key, mask, bias) -> bool:
    """Return whether cuDNN computes attention of these shapes and its gradient.

    It refuses some sizes of the heads, and JAX some shapes in training alone.
    With rematerialization, that is found out only after `call` of the layer.
    """

    def attend(query, key, value, mask, bias):
        x = _attend(query, key, value, num_heads, mask, bias)
        return x.astype("float32").sum()

    tensors = (
        shape if shape is None else jax.ShapeDtypeStruct(shape, kind)
        for shape, kind in (
            (query, dtype),
            (key, dtype),
            (key, dtype),
            (mask, "bool"),
            (bias, dtype),
        )
    )
    try:
        jax.eval_shape(jax.grad(attend, (0, 1, 2)), *tensors)
    except (NotImplementedError, RuntimeError, ValueError) as error:
        warnings.warn(
            f"Attention of {query[1]} tokens in {num_heads} heads is computed "
            f"by two products, which is slower, because cuDNN refuses: {error}",
            stacklevel=2,
        )
        return False
    return True


@functools.cache
def has_gpu() -> bool:
    """Return whether JAX runs on a GPU."""
    return jax.default_backend() == "gpu"
