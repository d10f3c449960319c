"""Checks that a loaded SavedModel returns the outputs that Keras computes.

A WarmupRecord contains a request and its expected response. Here, Keras
computes the response; in the warm-up file, it is that of the SavedModel.
"""

import dataclasses
from collections.abc import Callable, Iterator

import keras
import numpy as np

from keras_vit.export.endpoints import Endpoint
from keras_vit.export.forward import make_forward, name_output
from keras_vit.export.predicting import (
    BATCH_SIZE,
    expected_outputs,
    run_in_batches,
)
from keras_vit.export.serving_options import (
    Serving,
    decode_inputs,
    name_classes,
    normalize_images,
)
from keras_vit.layers.dtypes import as_float32
from keras_vit.preprocessing.normalization import to_uint8
from keras_vit.serving.warmup import WarmupRecord


def expected_records(
    model: keras.Model,
    serving: Serving,
    endpoints: dict[str, Endpoint],
    images: np.ndarray,
    expected: np.ndarray,
) -> Iterator[WarmupRecord]:
    """Yield a request for each endpoint and the response that Keras computes.

    Args:
        model: The model to export.
        serving: Pre- and post-processing on the server.
        endpoints: The endpoints of `make_endpoints`.
        images: (B, H, W, C), in the range of the model.
        expected: The outputs of the model for `images`.
    """
    name = name_output(model, serving.output)
    serving = serving.for_model(model)
    images = np.asarray(images, "float32")
    yield WarmupRecord("serving_default", {"images": images}, {name: expected})
    images = images[:BATCH_SIZE]
    mode = serving.settings.normalization
    pixels = to_uint8(images, mode)
    scaled = normalize_images(pixels, mode).numpy()
    yield WarmupRecord(
        "serve_uint8",
        {"images": pixels},
        {name: expected_outputs(model, scaled)},
    )
    if "serve_bytes" in endpoints:
        yield expected_files_record(model, serving, pixels)
    # The layers run one by one, without tracing, on all tokens.
    forward = make_forward(model, serving.output, is_short=False)
    features = as_float32(forward(images)["features"])
    yield WarmupRecord("features", {"images": images}, {"features": features})
    if "attention" in endpoints:
        outputs = endpoints["attention"].call(images)
        outputs = {key: as_float32(x) for key, x in outputs.items()}
        yield WarmupRecord("attention", {"images": images}, outputs)
    if "attention_bytes" in endpoints:
        files = encode_larger(pixels)
        outputs = endpoints["attention_bytes"].call(files)
        outputs = {key: as_float32(x) for key, x in outputs.items()}
        yield WarmupRecord("attention_bytes", {"image_bytes": files}, outputs)


def expected_files_record(
    model: keras.Model, serving: Serving, pixels: np.ndarray
) -> WarmupRecord:
    """Return a request of image files, and the ranking of all classes."""
    import tensorflow as tf

    files = encode_larger(pixels)
    images = decode_inputs(files, model.input_shape[1:], serving).numpy()
    name = name_output(model, serving.output)
    outputs = {name: tf.constant(expected_outputs(model, images))}
    # With the probabilities of all classes, labels may swap places.
    every_class = dataclasses.replace(serving, top=model.output_shape[-1])
    ranking = name_classes(outputs, every_class)
    return WarmupRecord(
        "serve_bytes",
        {"image_bytes": files},
        {key: x.numpy() for key, x in ranking.items()},
    )


def encode_larger(pixels: np.ndarray) -> np.ndarray:
    """Return PNG files of enlarged images, which the server must resize.

    Shapes:
        pixels: (B, H, W, C), uint8. returns: (B,), bytes.
    """
    import tensorflow as tf

    size = [pixels.shape[1] + 1, pixels.shape[2] + 3]
    larger = tf.image.resize(pixels, size, "nearest")
    files = [tf.io.encode_png(image).numpy() for image in larger]
    return np.array(files, object)


def call_signature(serve: Callable, inputs: dict[str, np.ndarray]) -> dict:
    """Return the outputs of a loaded signature, computed in batches."""
    import tensorflow as tf

    ((name, values),) = inputs.items()

    def run(batch):
        outputs = serve(**{name: tf.constant(batch)})
        return {key: x.numpy() for key, x in outputs.items()}

    return run_in_batches(run, values)
