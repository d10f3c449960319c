"""Floating-point operations of a model, and the peak rate of a device.

The operations are counted in the traced graph, independently of the types of
the layers, so the functions support any Keras model with static shapes.
"""

import contextlib
import functools
import math
import time
from collections.abc import Callable

import keras
import tensorflow as tf

# The cost of a training step, in forward passes. For each product of the
# forward pass, the backward pass computes two: one for the gradient of the
# input and one for that of the weights. Products that rematerialization
# repeats are not counted.
TRAINING_PASSES = 3
# Rows of the square matrices whose products measure the peak rate.
SMALLEST_MATRIX, LARGEST_MATRIX = 256, 8192


def count_flops(
    model: keras.Model,
    image_shape: tuple[int, int, int] | None = None,
    run: Callable | None = None,
    training: bool = False,
) -> int:
    """Return the floating-point operations of one forward pass of one image.

    Counts matrix products and convolutions; a multiplication and an addition
    are two operations. Norms, softmax, activations and sums, 2 % of a ViT, are
    not counted, and neither are products in a `tf.while_loop` or `tf.cond`.

    Args:
        model: Any Keras model of images.
        image_shape: (height, width, channels), for a model of any size.
        run: What is called instead of the model, with its images.
        training: Whether it is called as in training, which may leave out
            patches.

    Raises:
        ValueError: If neither the model nor `image_shape` states the shape of
            the images, or if other shapes are not static.
    """
    shape = check_image_shape(model, image_shape)
    run = run or model
    if keras.backend.backend() == "jax":
        return _jaxpr_flops(_trace_on_jax(model, run, shape, training))
    forward = tf.function(lambda images: run(images, training=training))
    images = tf.TensorSpec((1, *shape), model.inputs[0].dtype)
    return _graph_flops(forward.get_concrete_function(images).graph)


@functools.cache  # A process that trains twice measures only once.
def measure_peak_flops(
    dtype: str = "float32",
    device: str | None = None,
    seconds: float = 0.1,
    clock: Callable[[], float] = time.perf_counter,
) -> float:
    """Measure the peak rate of matrix products of a device, in FLOP/s.

    Multiplies square matrices of increasing size, until a product takes a
    tenth of `seconds`, and returns the best rate. The peak in the data sheet
    of a device is higher.

    Args:
        dtype: Type of the matrices, such as "bfloat16".
        device: Name of the device, such as "/TPU:0"; None for the first one.
        seconds: How long to measure.
        clock: Returns the time in seconds, such as `time.perf_counter`.
    """
    is_jax = keras.backend.backend() == "jax"
    multiply = _make_multiply_on_jax() if is_jax else _multiply
    size, rate, spent = SMALLEST_MATRIX, 0.0, 0.0
    with contextlib.nullcontext() if is_jax else tf.device(device):
        while spent < seconds:
            # Not zeros: their products need less power, so a device would
            # compute them at a higher clock rate.
            matrix = keras.random.normal((size, size), seed=0)
            matrix = keras.ops.cast(matrix, dtype)
            float(multiply(matrix))  # Compiles and allocates.
            start = clock()
            float(multiply(matrix))
            took = clock() - start
            rate = max(rate, 2 * size**3 / took)
            spent += took
            if took < seconds / 10 and size < LARGEST_MATRIX:
                size *= 2
    return rate


@tf.function(reduce_retracing=True)
def _multiply(matrix):
    # Reading the sum, a scalar, makes the caller wait for the device.
    return tf.reduce_sum(tf.matmul(matrix, matrix))


def _make_multiply_on_jax():
    """Return the product, compiled once for each size."""
    import jax

    return jax.jit(lambda x: (x @ x).sum())


def check_image_shape(model, image_shape=None) -> tuple[int, int, int]:
    """Return the shape of the images of `model`, or raise a ValueError."""
    shape = tuple(image_shape or model.inputs[0].shape[1:])
    if None in shape:
        raise ValueError(
            "`image_shape` must be given for a model of images of any size. "
            f"Received: image_shape={image_shape}, a model of {shape}"
        )
    return shape


def _trace_on_jax(model, run, shape, training):
    """Return the forward pass of an image as a jaxpr."""
    import jax

    values = [variable.value for variable in model.variables]

    def forward(values, images):
        with keras.StatelessScope(zip(model.variables, values)):
            return run(images, training=training)

    images = jax.ShapeDtypeStruct((1, *shape), model.inputs[0].dtype)
    return jax.make_jaxpr(forward)(values, images).jaxpr


def _jaxpr_flops(jaxpr):
    total = 0
    for equation in jaxpr.eqns:
        output = math.prod(equation.outvars[0].aval.shape)
        if equation.primitive.name == "dot_general":
            (contracted, _), _ = equation.params["dimension_numbers"]
            shape = equation.invars[0].aval.shape
            total += 2 * math.prod(shape[axis] for axis in contracted) * output
        elif equation.primitive.name == "conv_general_dilated":
            kernel = equation.invars[1].aval.shape
            axis = equation.params["dimension_numbers"].rhs_spec[0]
            total += 2 * math.prod(kernel) // kernel[axis] * output
        for value in equation.params.values():
            inner = getattr(value, "jaxpr", value)
            if hasattr(inner, "eqns"):
                total += _jaxpr_flops(inner)
    return total


def _graph_flops(graph):
    total = 0
    for operation in graph.get_operations():
        if operation.type in PRODUCTS:
            total += PRODUCTS[operation.type](operation)
        elif operation.type in ("PartitionedCall", "StatefulPartitionedCall"):
            name = operation.get_attr("f").name
            total += _graph_flops(graph._get_function(name).graph)
    return total


def _matmul_flops(operation):
    # MatMul and the batched products name the attribute differently.
    flag = "transpose_a" if operation.type == "MatMul" else "adj_x"
    left = _static_shape(operation.inputs[0])
    inner = left[-2] if operation.get_attr(flag) else left[-1]
    return 2 * inner * math.prod(_static_shape(operation.outputs[0]))


def _convolution_flops(operation):
    # (rows, columns, input channels per group, output channels)
    *kernel, _ = _static_shape(operation.inputs[1])
    output = _static_shape(operation.outputs[0])
    return 2 * math.prod(kernel) * math.prod(output)


def _depthwise_flops(operation):
    # (rows, columns, input channels, outputs per channel)
    kernel = _static_shape(operation.inputs[1])[:2]
    output = _static_shape(operation.outputs[0])
    return 2 * math.prod(kernel) * math.prod(output)


def _einsum_flops(operation):
    if len(operation.inputs) != 2:
        return 0
    terms = operation.get_attr("equation").decode().split("->")[0].split(",")
    sizes = {}
    for term, tensor in zip(terms, operation.inputs):
        shape = _static_shape(tensor)
        rest = len(shape) - len(term.replace("...", ""))
        # The axes of an ellipsis are named by numbers, counted from the last.
        numbers = "".join(map(str, reversed(range(rest))))
        axes = term.replace("...", numbers)
        for axis, size in zip(axes, shape):
            sizes[axis] = max(sizes.get(axis, 1), size)
    return 2 * math.prod(sizes.values())


def _static_shape(tensor):
    if not tensor.shape.is_fully_defined():
        raise ValueError(
            "The shapes of the model must be static. Received: "
            f"{tensor.name} of shape {tensor.shape}"
        )
    return tensor.shape.as_list()


PRODUCTS: dict[str, Callable[[tf.Operation], int]] = {
    "BatchMatMulV2": _matmul_flops,
    "BatchMatMulV3": _matmul_flops,
    "Conv2D": _convolution_flops,
    "DepthwiseConv2dNative": _depthwise_flops,
    "Einsum": _einsum_flops,
    "MatMul": _matmul_flops,
}
