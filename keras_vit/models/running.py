"""Running a model in PyTorch layer by layer, freeing tensors after use."""

import keras
import numpy as np
from keras import ops

from keras_vit.layers.calling import call_layer


def runs_eagerly(images) -> bool:
    """Return whether `run_layers` may compute a model of `images`."""
    is_array = isinstance(images, np.ndarray) or ops.is_tensor(images)
    return is_array and len(images.shape) == 4


def run_layers(model: keras.Model, images, training: bool | None = None):
    """Return the output of a functional model, computed layer by layer.

    Keras keeps the outputs of all layers until the last one is computed. Here
    each is freed after the last layer that reads it, so the next one takes its
    place in memory.

    Shapes:
        images: (B, H, W, C). returns: the output of the model.

    Args:
        model: A functional model of layers, with one input and one output.
        images: An array or a tensor.
        training: Passed on to the layers that have this argument.
    """
    (start,), (end,) = model.inputs, model.outputs
    tensors = {id(start): ops.convert_to_tensor(images, start.dtype)}
    nodes = [layer._inbound_nodes[0] for layer in model.layers[1:]]
    last_reader = {id(x): node for node in nodes for x in node.input_tensors}
    for node in nodes:
        inputs, arguments = node.arguments.fill_in(tensors)
        for x in node.input_tensors:
            if last_reader[id(x)] is node:
                tensors.pop(id(x), None)
        if node.operation._call_has_training_arg:
            arguments = {**arguments, "training": training}
        (output,) = node.outputs
        tensors[id(output)] = call_layer(node.operation, *inputs, **arguments)
    return tensors[id(end)]
