"""Running the signatures of a SavedModel."""

import importlib.util
import json
import pathlib
from collections.abc import Iterable

from keras_vit.serving.errors import invalid_request
from keras_vit.serving.exported_version import read_signature_defs
from keras_vit.serving.server.image_files import IMAGE_INPUT
from keras_vit.serving.server.loaded_model import LoadedModel
from keras_vit.serving.signatures import Signature
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
    model = LoadedModel(read_signature_defs(folder), call)
    model.image_steps = read_steps(folder, model.signatures.values())
    return model


def read_steps(
    folder: pathlib.Path, signatures: Iterable[Signature]
) -> list[dict]:
    """Return what a SavedModel does with image files.

    Args:
        folder: The SavedModel. Without a description of it, the worst case is
            assumed.
        signatures: Its signatures.
    """
    path = folder / "assets.extra/keras_vit.json"
    if path.exists():
        description = json.loads(path.read_text("utf-8"))
        if description.get("image_steps"):
            return description["image_steps"]
    shapes = [
        spec.shape
        for signature in signatures
        for spec in signature.inputs.values()
    ]
    return [
        {"kind": "resize_to_cover", "height": shape[1], "width": shape[2]}
        for shape in shapes
        if shape and len(shape) == 4 and None not in shape[1:]
    ][:1]


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
