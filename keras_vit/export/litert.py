"""Running TFLite files with LiteRT."""

from collections.abc import Callable

import numpy as np

from keras_vit.export.predicting import make_noise, run_in_batches
from keras_vit.serving.server.litert import open_litert


def run_tflite(content: bytes, images: np.ndarray) -> np.ndarray:
    """Return the outputs of a TFLite model, in float32.

    Integer inputs and outputs are converted with the scales in the file.
    """
    model = open_litert(content)
    (name,) = model.signatures["serving_default"].inputs

    def run(batch):
        (output,) = model.call("serving_default", {name: batch}).values()
        return output

    return run_in_batches(run, images)


def start(path: str, shape: tuple[int, ...], threads: int) -> Callable:
    """Load a TFLite file; return a function that runs it on noise."""
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(path, num_threads=threads)
    (inputs,) = interpreter.get_input_details()
    (outputs,) = interpreter.get_output_details()
    # A file that takes pixels may take more of them than the model.
    shape = (shape[0], *inputs["shape_signature"][1:])
    if inputs["shape_signature"][0] == -1:
        interpreter.resize_tensor_input(inputs["index"], shape)
    interpreter.allocate_tensors()
    images = make_noise(shape, inputs["dtype"])

    def run():
        interpreter.set_tensor(inputs["index"], images)
        interpreter.invoke()
        return interpreter.get_tensor(outputs["index"])

    return run
