"""What a model costs: arithmetic and memory, read off its traced graph.

Holds for any Keras model with static shapes, since it counts operations of
TensorFlow and knows no layer. Nothing is run; only the weights are in memory.
"""

import functools
import math
import time
from collections.abc import Callable
from typing import NamedTuple

import keras
import numpy as np
import tensorflow as tf

# Of a training step, in forward passes: the backward pass has two products
# for each of the forward pass, one for the gradient of the input and one for
# that of the weights. What rematerialisation repeats does not count.
TRAINING_PASSES = 3
# Rows of the square matrices whose product stands for the machine.
SMALLEST_MATRIX, LARGEST_MATRIX = 256, 8192

# Each output is a view of the input of its place, not memory of its own.
VIEWS = {
    "EnsureShape",
    "ExpandDims",
    "Identity",
    "IdentityN",
    "PreventGradient",
    "Reshape",
    "Squeeze",
    "StopGradient",
}
# Outputs that are there in any case: weights, and what is compiled in.
RESIDENT = {"Const", "Placeholder", "ReadVariableOp", "VarHandleOp"}


class Memory(NamedTuple):
    """Bytes that a replica needs to train, an estimate.

    Args:
        weights: All weights, frozen ones and statistics included.
        gradients: One for each trainable weight; two if they are summed up.
        optimizer: What the optimizer keeps for each trainable weight.
        average: The moving average of the weights, if there is one.
        activations: The most that lives at one time between the images and
            the gradients.
    """

    weights: int
    gradients: int
    optimizer: int
    average: int
    activations: int

    @property
    def total(self) -> int:
        """Their sum: as if the most of each were needed at one time."""
        return sum(self)


def count_flops(
    model: keras.Model, image_shape: tuple[int, int, int] | None = None
) -> int:
    """Return the floating-point operations of one forward pass of one image.

    Matrix products and convolutions, a multiplication and an addition as two;
    the rest (norms, softmax, activations, sums) is 2 % of a ViT. A product
    inside a `tf.while_loop` or `tf.cond` is not counted.

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


@functools.cache  # Once for a process that trains more than once.
def measure_peak_flops(
    dtype: str = "float32",
    seconds: float = 0.3,
    clock: Callable[[], float] = time.perf_counter,
) -> float:
    """Return the rate of matrix products of the first device, in FLOP/s.

    The best of square products that grow until one takes a tenth of `seconds`.
    A stand-in for the peak of the data sheet, which is higher. Logical CPUs
    share the cores, and so one such rate.

    Args:
        dtype: Type of the matrices, such as "bfloat16".
        seconds: How long to measure.
        clock: Returns seconds, from any start.
    """

    @tf.function(input_signature=[tf.TensorSpec((None, None), dtype)])
    def multiply(matrix):
        # The sum, a number, makes the caller wait for the device.
        return tf.reduce_sum(tf.matmul(matrix, matrix))

    size, rate, spent = SMALLEST_MATRIX, 0.0, 0.0
    while spent < seconds:
        # Of zeros a device makes more products: they cost less power.
        matrix = tf.random.stateless_normal((size, size), (0, 0))
        matrix = tf.cast(matrix, dtype)
        multiply(matrix).numpy()  # Traces, allocates.
        start = clock()
        multiply(matrix).numpy()
        took = clock() - start
        rate = max(rate, 2 * size**3 / took)
        spent += took
        if took < seconds / 10 and size < LARGEST_MATRIX:
            size *= 2
    return rate


def estimate_memory(
    model: keras.Model,
    batch_size_per_replica: int,
    *,
    accumulation_steps: int = 1,
    optimizer_slots_per_weight: int = 2,
    use_average: bool = False,
    image_shape: tuple[int, int, int] | None = None,
) -> Memory:
    """Return the bytes that training takes on each replica, an estimate.

    Traces a step and follows its tensors from the operation that makes them
    to the last that reads them, in the order of tracing. Types and
    rematerialisation are those of the model, as it is. Not seen are TensorFlow
    itself, the work space of its kernels, what the allocator wastes, what XLA
    fuses away and the batches that wait. Steps on a CPU took 0.15 to 0.35 GB
    more, see the test.

    Args:
        model: Any Keras model of images.
        batch_size_per_replica: Images of an update on one device.
        accumulation_steps: Parts of an update, one after the other; must
            divide the images.
        optimizer_slots_per_weight: 2 for Adam, 1 for momentum.
        use_average: Whether a moving average of the weights is kept.
        image_shape: (height, width, channels), for a model of any size.

    Raises:
        ValueError: See `count_flops`.
    """
    trainable = sum(_variable_bytes(v) for v in model.trainable_variables)
    return Memory(
        weights=sum(_variable_bytes(v) for v in model.weights),
        # The sum of those before, and those of a part.
        gradients=trainable if accumulation_steps == 1 else 2 * trainable,
        optimizer=optimizer_slots_per_weight * trainable,
        average=trainable if use_average else 0,
        activations=_peak_bytes(
            _training_graph(
                model,
                batch_size_per_replica // accumulation_steps,
                check_image_shape(model, image_shape),
            )
        ),
    )


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
    # One of MatMul, the other of the batched ones.
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
        # The axes of an ellipsis, from the last one, by their number.
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


def _training_graph(model, batch_size, image_shape):
    """Return the graph of the gradients; its outputs are not in `Memory`."""

    @tf.function
    def gradients(images):
        with tf.GradientTape() as tape:
            outputs = model(images, training=True)
        # Whatever the loss: beside the model it is small.
        variables = [v.value for v in model.trainable_variables]
        return tape.gradient(outputs, variables)

    images = tf.TensorSpec((batch_size, *image_shape), model.inputs[0].dtype)
    return gradients.get_concrete_function(images).graph


def _peak_bytes(graph):
    """Return the most that lives at one time in the order of tracing.

    The images live as long as the step; weights and gradients are not
    counted here.
    """
    operations = graph.get_operations()
    owner = {}  # Of each tensor, the one whose memory it is in.
    for operation in operations:
        for index, tensor in enumerate(operation.outputs):
            is_view = operation.type in VIEWS
            source = operation.inputs[index] if is_view else tensor
            owner[tensor.ref()] = owner.get(source.ref(), source.ref())
    elsewhere = {owner[t.ref()] for t in graph.outputs if t.ref() in owner}
    last_reader = {
        owner[tensor.ref()]: index
        for index, operation in enumerate(operations)
        for tensor in operation.inputs
    }
    freed_after = {}
    images = graph.inputs[0]
    live = peak = _tensor_bytes(images)
    for index, operation in enumerate(operations):
        if operation.type not in RESIDENT | VIEWS:
            for tensor in operation.outputs:
                memory = tensor.ref()
                if memory in last_reader and memory not in elsewhere:
                    live += _tensor_bytes(tensor)
                    freed_after.setdefault(last_reader[memory], []).append(
                        _tensor_bytes(tensor)
                    )
        peak = max(peak, live)
        live -= sum(freed_after.pop(index, ()))
    return peak


def _tensor_bytes(tensor):
    # Shapes that are not static are those of shapes: a few numbers.
    return (tensor.shape.num_elements() or 0) * tensor.dtype.size


def _variable_bytes(variable):
    return (
        math.prod(variable.shape)
        * np.dtype(tf.as_dtype(variable.dtype).as_numpy_dtype).itemsize
    )
