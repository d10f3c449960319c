"""Floating-point operations of a model, and how many a device can do.

Counts the operations of the traced graph and knows no layer, so that any Keras
model with static shapes will do.
"""

import functools
import math
import time
from collections.abc import Callable

import keras
import tensorflow as tf

# Forward passes that a training step counts as: the backward pass has two
# products for each product of the forward pass, one for the gradient of the
# input and one for that of the weights. What rematerialization repeats does not
# count.
TRAINING_PASSES = 3
# Rows of the square matrices whose product stands for the machine.
SMALLEST_MATRIX, LARGEST_MATRIX = 256, 8192


def count_flops(
    model: keras.Model, image_shape: tuple[int, int, int] | None = None
) -> int:
    """Return the floating-point operations of one forward pass of one image.

    Counts matrix products and convolutions, a multiplication and an addition as
    two operations. Norms, softmax, activations and sums are left out, 2 % of a
    ViT, and so are products inside a `tf.while_loop` or `tf.cond`.

    Args:
        model: Any Keras model of images.
        image_shape: (height, width, channels), for a model of any size.

    Raises:
        ValueError: If the model does not say the shape of its images, and
            neither does `image_shape`; or if shapes are not static.
    """
    shape = check_image_shape(model, image_shape)
    forward = tf.function(lambda images: model(images, training=False))
    images = tf.TensorSpec((1, *shape), model.inputs[0].dtype)
    return _graph_flops(forward.get_concrete_function(images).graph)


@functools.cache  # A process that trains twice measures once.
def measure_peak_flops(
    dtype: str = "float32",
    device: str | None = None,
    seconds: float = 0.3,
    clock: Callable[[], float] = time.perf_counter,
) -> float:
    """Return the rate of matrix products of a device, in FLOP/s.

    The best rate of square products that grow until one takes a tenth of
    `seconds`. It stands in for the peak of the data sheet, which is higher.

    Args:
        dtype: Type of the matrices, such as "bfloat16".
        device: Name of the device, such as "/TPU:0"; None for the first one.
        seconds: How long to measure.
        clock: Returns seconds, from any start.
    """

    @tf.function(input_signature=[tf.TensorSpec((None, None), dtype)])
    def multiply(matrix):
        # The sum, a number, makes the caller wait for the device.
        return tf.reduce_sum(tf.matmul(matrix, matrix))

    size, rate, spent = SMALLEST_MATRIX, 0.0, 0.0
    with tf.device(device):
        while spent < seconds:
            # Not zeros: their products cost less power, so that a device makes
            # more of them.
            matrix = tf.random.stateless_normal((size, size), (0, 0))
            matrix = tf.cast(matrix, dtype)
            multiply(matrix).numpy()  # Traces and allocates.
            start = clock()
            multiply(matrix).numpy()
            took = clock() - start
            rate = max(rate, 2 * size**3 / took)
            spent += took
            if took < seconds / 10 and size < LARGEST_MATRIX:
                size *= 2
    return rate


def check_image_shape(model, image_shape=None) -> tuple[int, int, int]:
    """Return the shape of the images of `model`, or raise a ValueError."""
    shape = tuple(image_shape or model.inputs[0].shape[1:])
    if None in shape:
        raise ValueError(
            "`image_shape` must be given for a model of images of any size. "
            f"Received: image_shape={image_shape}, a model of {shape}"
        )
    return shape


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
    # (rows, columns, channels in of a group, channels out)
    *kernel, _ = _static_shape(operation.inputs[1])
    output = _static_shape(operation.outputs[0])
    return 2 * math.prod(kernel) * math.prod(output)


def _depthwise_flops(operation):
    # (rows, columns, channels in, outputs of a channel)
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
        # Axes of an ellipsis are named by numbers, counted from the last one.
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
