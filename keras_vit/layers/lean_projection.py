"""A dense layer whose input is computed again in the backward pass.

The gradient of an MLP needs its hidden layer twice: before the activation and
after it. The latter is as large as four tensors of tokens, and computing it
again takes hardly longer than reading it, since the gradient of the activation
reads the former in any case.
"""

import functools
from collections.abc import Callable

import keras
from keras import ops

from keras_vit.layers.fusion import can_fuse


def can_be_lean(dense: keras.layers.Dense, x) -> bool:
    """Return whether `project_lean` computes a training step of `dense`.

    JAX and `torch.compile` choose by themselves what they keep.

    Shapes:
        x: (rows, features).

    Args:
        dense: A built layer.
        x: What its input is computed from.
    """
    return can_fuse(x) and dense.quantization_mode is None


def project_lean(dense: keras.layers.Dense, function: Callable, x, **options):
    """Return dense(function(x, **options)), keeping only `x` for the gradient.

    Shapes:
        x: (rows, features). returns: (rows, units).

    Args:
        dense: A built layer without activation, for which `can_be_lean` holds.
        function: Element-wise, of a tensor of TensorFlow: XLA compiles it.
        x: A tensor.
        **options: Hashable arguments of `function`.
    """
    kernel = ops.cast(ops.convert_to_tensor(dense.kernel), x.dtype)
    x = _lean_product(function, **options)(x, kernel)
    return x if dense.bias is None else ops.add(x, dense.bias)


@functools.cache
def _lean_product(function, **options):
    """Return a function of `x` and a kernel: function(x) @ kernel."""
    import tensorflow as tf

    function = functools.partial(function, **options)
    compiled = tf.function(function, jit_compile=True, autograph=False)

    @tf.function(jit_compile=True, autograph=False)
    def pull_back(x, upstream):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = function(x)
        return tape.gradient(y, x, output_gradients=upstream)

    @tf.custom_gradient
    def call(x, kernel):
        def gradient(upstream):
            slope = tf.matmul(upstream, kernel, transpose_b=True)
            # Not earlier, or else it would be in memory from the forward pass
            # on. And not in `pull_back`: a program of XLA that returns two
            # tensors computes them with one thread.
            with tf.control_dependencies([slope]):
                y = compiled(x)
            return pull_back(x, slope), tf.matmul(y, upstream, transpose_a=True)

        return tf.matmul(compiled(x), kernel), gradient

    return call
