"""Running the signatures of a SavedModel."""

import importlib.util
import pathlib

from keras_vit.serving.errors import invalid_request
from keras_vit.serving.exported_version import read_signature_defs
from keras_vit.serving.server.image_files import IMAGE_INPUT
from keras_vit.serving.server.loaded_model import LoadedModel
from keras_vit.serving.warmup import WARMUP_FILE, read_warmup

# Begin the lines of TensorFlow's messages that are about the graph.
GRAPH_LINES = ("Graph execution error", "Detected at node", "<stack", "\t [[")


def load_saved_model(folder: pathlib.Path) -> LoadedModel:
    """Load a SavedModel, and run the requests of its warm-up file.

    Raises:
        Exception: If it cannot be loaded or warmed up.
    """
    import tensorflow as tf

    loaded = tf.saved_model.load(str(folder), tags=["serve"])
    faults = (tf.errors.InvalidArgumentError, TypeError, ValueError)

    def call(name, inputs):
        tensors = {key: tf.constant(x) for key, x in inputs.items()}
        try:
            outputs = loaded.signatures[name](**tensors)
        except faults as error:
            text = shorten_error(str(error))
            if IMAGE_INPUT in inputs:
                text = f"An image file cannot be decoded: {text}"
            raise invalid_request(text) from None
        return {key: x.numpy() for key, x in sorted(outputs.items())}

    path = folder / WARMUP_FILE
    # As in TF Serving, a version that fails at its warm-up is not served.
    if path.exists() and importlib.util.find_spec("tensorflow_serving"):
        for record in read_warmup(path):
            call(record.signature, record.inputs)
    return LoadedModel(read_signature_defs(folder), call)


def shorten_error(message: str) -> str:
    r"""Return the first line of TensorFlow's message that is not about graphs.

    Example:
        >>> shorten_error("Graph execution error:\n\nDetected at node x\n"
        ...               "Unknown image file format.\n\t [[{{node x}}]]")
        'Unknown image file format.'
    """
    for line in message.splitlines():
        if line.strip() and not line.startswith(GRAPH_LINES):
            return line.partition(" [Op:")[0].strip()
    return message.strip()
