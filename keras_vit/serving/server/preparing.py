"""From the body of a request to the inputs of a signature.

The checks are in the order of TF Serving: JSON, name of the signature, model,
signature, inputs.
"""

import dataclasses
import functools
import zlib
from collections.abc import Callable, Mapping

import numpy as np

from keras_vit.serving.server.answers import dump_json, write_answer
from keras_vit.serving.server.classify import (
    check_method,
    read_examples,
    to_inputs,
    to_results,
)
from keras_vit.serving.server.documents import read_document
from keras_vit.serving.server.image_files import IMAGE_INPUT, count_pixels
from keras_vit.serving.server.loading import LoadedModel
from keras_vit.serving.server.refusals import Limits, Refusal, invalid
from keras_vit.serving.server.requests import (
    check_instances,
    check_signature_name,
    read_inputs,
)


@dataclasses.dataclass(frozen=True)
class Prepared:
    """A request that has been read.

    Args:
        model: The version.
        signature: The name of the signature.
        inputs: Arrays by name.
        num_pixels: Pixels of the image files among them.
        write: Turns the outputs into the body of the answer.
    """

    model: LoadedModel
    signature: str
    inputs: Mapping[str, np.ndarray]
    num_pixels: int
    write: Callable[[dict[str, np.ndarray]], bytes]


def read_request(
    verb: str, body: bytes, find: Callable, limits: Limits
) -> Prepared:
    """Read a request.

    Args:
        verb: "predict", "classify" or "regress".
        body: The JSON text.
        find: Returns the version of the model.
        limits: What is accepted at most.

    Raises:
        Refusal: If it is not a request of the model.
    """
    document = read_document(body)
    name = check_signature_name(document)
    if verb == "predict":
        return prepare_predict(document, name, find(), limits)
    examples = read_examples(document)
    check_instances(len(examples), limits.max_instances)
    model = find()
    check_method(model, name, verb)
    write = functools.partial(_write_results, verb)
    return Prepared(model, name, to_inputs(examples), 0, write)


def prepare_predict(
    document: dict, name: str, model: LoadedModel, limits: Limits
) -> Prepared:
    """Read a request of `predict`.

    Args:
        document: The request.
        name: The name of the signature.
        model: The version.
        limits: What is accepted at most.
    """
    if name not in model.signatures:
        raise invalid(
            f'Serving signature name: "{name}" not found in signature def'
        )
    specs = model.signatures[name].inputs
    inputs, are_rows = read_inputs(document, specs, limits.max_instances)
    model.check_shapes(name, inputs)
    num_pixels = 0
    if IMAGE_INPUT in inputs:
        num_pixels = count_pixels(inputs[IMAGE_INPUT], limits.max_pixels)
    write = functools.partial(write_answer, are_rows=are_rows)
    return Prepared(model, name, inputs, num_pixels, write)


def _write_results(verb, outputs):
    return dump_json(to_results(outputs, verb))


def unzip_body(body: bytes, max_bytes: int) -> bytes:
    """Return a body that was packed by gzip; none if it is damaged.

    Raises:
        Refusal: If it gets too large.
    """
    try:
        content = zlib.decompressobj(31).decompress(body, max_bytes + 1)
    except zlib.error:
        return b""
    if len(content) > max_bytes:
        raise too_large(max_bytes)
    return content


def too_large(max_bytes: int) -> Refusal:
    """Return the error for a large request."""
    return Refusal(
        "LARGE_BODY", f"A request may have at most {max_bytes:,} bytes."
    )
