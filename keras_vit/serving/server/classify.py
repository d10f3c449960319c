"""The call `classify`, for a model with a signature of that kind.

Exports of this package have none: a foreign SavedModel may. Its input is one
tensor of tf.Example protocol buffers.
"""

import numpy as np

from keras_vit.serving.server.answers import decode_text, to_lists
from keras_vit.serving.server.documents import complain, name_type
from keras_vit.serving.server.loading import LoadedModel
from keras_vit.serving.server.refusals import invalid
from keras_vit.serving.server.tensors import is_object, to_string

METHOD_NAMES = {"classify": "classification", "regress": "regression"}


def read_examples(document: dict) -> list[dict[str, list]]:
    """Return the features of the examples in a request.

    Raises:
        Refusal: If there are none.
    """
    context = read_features(document.get("context", {}))
    if "examples" not in document:
        raise complain(
            document,
            "When method is classify, key 'examples' is expected and was not "
            "found",
        )
    examples = document["examples"]
    if not isinstance(examples, list):
        raise complain(
            document, "Expecting 'examples' value to be an list/array"
        )
    if not examples:
        raise complain(document, "'examples' value is an empty array")
    return [{**context, **read_features(example)} for example in examples]


def read_features(example) -> dict[str, list]:
    """Return the features of an example, each a list of one type."""
    if not isinstance(example, dict):
        raise invalid(
            f"Example must be JSON object but got JSON {name_type(example)}"
        )
    features = {}
    for name, value in example.items():
        values = value if isinstance(value, list) else [value]
        features[name] = [read_feature(name, each) for each in values]
        kinds = {type(each) for each in features[name]}
        if len(kinds) > 1:
            kind = {bytes: "bytes", float: "float", int: "int64"}
            raise invalid(
                f"Unexpected element type in feature: {name} expecting type: "
                f"{kind[type(features[name][0])]}"
            )
    return features


def read_feature(name: str, value) -> bytes | float | int:
    """Return an element of a feature."""
    if isinstance(value, str) or (
        isinstance(value, dict) and not is_object(value)
    ):
        return to_string(value)
    if value is None or isinstance(value, dict | list):
        raise invalid(
            f"Feature: {name} has element with unexpected JSON type: "
            f"{name_type(value)}"
        )
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise invalid(
            f"Feature: {name} has uint64 element. Only int64 is supported."
        )
    return int(value) if isinstance(value, bool) else value


def check_method(model: LoadedModel, signature: str, method: str):
    """Raise a Refusal unless a signature is one of the method.

    Args:
        model: The version.
        signature: The name of the signature.
        method: "classify" or "regress".
    """
    if signature not in model.signature_defs:
        raise invalid(f"No signature was found with the name: {signature}")
    expected = f"tensorflow/serving/{method}"
    found = model.signature_defs[signature]["method_name"]
    if found != expected:
        raise invalid(
            f"Expected {METHOD_NAMES[method]} signature method_name to be "
            f"{expected}. Was: {found}"
        )


def to_inputs(examples: list[dict[str, list]]) -> dict[str, np.ndarray]:
    """Return examples as the input of a signature of `classify`."""
    import tensorflow as tf

    def encode(values):
        if values and isinstance(values[0], bytes):
            return tf.train.Feature(bytes_list=tf.train.BytesList(value=values))
        if values and isinstance(values[0], float):
            return tf.train.Feature(float_list=tf.train.FloatList(value=values))
        return tf.train.Feature(int64_list=tf.train.Int64List(value=values))

    contents = [
        tf.train.Example(
            features=tf.train.Features(
                feature={name: encode(x) for name, x in example.items()}
            )
        ).SerializeToString()
        for example in examples
    ]
    return {"inputs": np.array(contents, object)}


def to_results(outputs: dict[str, np.ndarray], method: str) -> dict:
    """Return the outputs of a signature as the answer of the method."""
    if method == "regress":
        return {"results": to_lists("", outputs["outputs"].ravel())}
    classes, scores = outputs.get("classes"), outputs.get("scores")
    if classes is None:
        classes = np.full(scores.shape, b"", object)
    if scores is None:
        scores = np.zeros(classes.shape, "float32")
    return {
        "results": [
            [list(pair) for pair in zip(map(decode_text, row), numbers)]
            for row, numbers in zip(classes, to_lists("", scores))
        ]
    }
