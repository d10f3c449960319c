"""The call `classify`, for a SavedModel with a signature of that kind.

Exports of this package have none. Its input is one tensor of tf.Example
protocol buffers.
"""

from collections.abc import Callable, Mapping

import numpy as np

from keras_vit.serving.errors import invalid_request
from keras_vit.serving.json_tensors import from_json
from keras_vit.serving.server.requests import write_output
from keras_vit.serving.signatures import TensorSpec


def read_classify(
    document: dict, specs: Mapping[str, TensorSpec]
) -> tuple[dict[str, np.ndarray], Callable]:
    """Return the inputs, and the function that writes the answer.

    Args:
        document: The request.
        specs: The inputs of the signature, which is one.

    Raises:
        ServingError: If there are no examples.
    """
    examples, context = document.get("examples"), document.get("context", {})
    if not isinstance(examples, list) or not examples:
        raise invalid_request("'examples' must be a list with values")
    if not all(isinstance(x, dict) for x in (context, *examples)):
        raise invalid_request("'context' and each example must be an object")
    contents = [encode_example({**context, **x}) for x in examples]
    return {name: np.array(contents, object) for name in specs}, write_classes


def encode_example(features: Mapping) -> bytes:
    """Return a tf.Example.

    Args:
        features: A value or a list of values of one type, by name.
    """
    import tensorflow as tf

    example = tf.train.Example()
    for name, value in features.items():
        values = value if isinstance(value, list) else [value]
        feature, types = example.features.feature[name], set(map(type, values))
        try:
            if types <= {int, bool}:
                feature.int64_list.value.extend(map(int, values))
            elif types == {float}:
                feature.float_list.value.extend(values)
            else:
                texts = from_json(values, "string")
                feature.bytes_list.value.extend(texts)
        except ValueError as error:
            raise invalid_request(f"Wrong values for {name}: {error}") from None
    return example.SerializeToString()


def write_classes(outputs: Mapping[str, np.ndarray]) -> dict:
    """Return the answer: the label and the score of each class."""
    names = ("classes", "scores")
    labels, scores = (write_output(name, outputs[name]) for name in names)
    rows = [[*map(list, zip(*row))] for row in zip(labels, scores)]
    return {"results": rows}
