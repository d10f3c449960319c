"""The endpoints of a SavedModel: the functions that a server can call."""

import dataclasses
import os
from collections.abc import Callable

import keras

from keras_vit.analysis.rollout import attention_grid
from keras_vit.export.forward import make_forward, name_output
from keras_vit.export.serving_options import (
    Serving,
    check_serving,
    decode_inputs,
    name_classes,
    normalize_images,
)

FILE_CHANNELS = (1, 3, 4)  # Channels that PNG and JPEG files can have.


@dataclasses.dataclass(frozen=True)
class Endpoint:
    """A function that a server can call.

    Args:
        call: Takes one input; returns a dict of outputs.
        input_name: The name of the input in requests.
        shape: The shape of the input; None where any size fits.
        dtype: The dtype of the input: float32, uint8 or string.
    """

    call: Callable
    input_name: str
    shape: tuple[int | None, ...]
    dtype: str


def make_endpoints(model: keras.Model, serving: Serving) -> dict[str, Endpoint]:
    """Return the endpoints of `model`, by the name of the signature.

    All endpoints except those of the attention call the same graph of the
    model, so it is stored and loaded once. The server computes only the
    requested outputs.

    Args:
        model: A model with a fixed image size.
        serving: Pre- and post-processing on the server.

    Raises:
        ValueError: If `serving` does not fit the model.
    """
    serving = serving.for_model(model)
    check_serving(model, serving)
    image_shape = model.input_shape[1:]
    name = name_output(model, serving.output)
    predict = make_graph(model, serving.output)

    def serve(images):
        return {name: predict(images)[name]}

    def serve_uint8(images):
        mode = serving.settings.normalization
        return serve(normalize_images(images, mode))

    def serve_bytes(image_bytes):
        outputs = serve(decode_inputs(image_bytes, image_shape, serving))
        return name_classes(outputs, serving)

    def features(images):
        return {"features": predict(images)["features"]}

    shape = (None, *image_shape)
    endpoints = {
        "serving_default": Endpoint(serve, "images", shape, "float32"),
        "serve_uint8": Endpoint(serve_uint8, "images", shape, "uint8"),
        "features": Endpoint(features, "images", shape, "float32"),
    }
    if image_shape[-1] in FILE_CHANNELS:
        endpoints["serve_bytes"] = Endpoint(
            serve_bytes, "image_bytes", (None,), "string"
        )
    if serving.use_attention:
        endpoints |= make_attention_endpoints(model, serving)
    return endpoints


def make_attention_endpoints(
    model: keras.Model, serving: Serving
) -> dict[str, Endpoint]:
    """Return the endpoints of the attention, for arrays and for image files."""
    image_shape = model.input_shape[1:]

    def attention(images):
        return {"rollout": attention_grid(model, images)}

    def attention_bytes(image_bytes):
        images = decode_inputs(image_bytes, image_shape, serving)
        mean, deviation = serving.settings.mean_and_deviation
        shown = images * deviation + mean  # As they can be drawn.
        return {"rollout": attention_grid(model, images), "images": shown}

    shape = (None, *image_shape)
    endpoints = {"attention": Endpoint(attention, "images", shape, "float32")}
    if image_shape[-1] in FILE_CHANNELS:
        endpoints["attention_bytes"] = Endpoint(
            attention_bytes, "image_bytes", (None,), "string"
        )
    return endpoints


def make_graph(model: keras.Model, output: str | None) -> Callable:
    """Return `model` as one graph that also returns the input of its head.

    Shapes:
        The function takes float32 images (B, H, W, C) and returns a dict:
        the output named by `name_output`, and "features" (B, D), float32.
    """
    import tensorflow as tf

    forward = make_forward(model, output)
    spec = tf.TensorSpec((None, *model.input_shape[1:]), tf.float32)

    @tf.function(input_signature=[spec], autograph=False)
    def predict(images):
        outputs = forward(images)
        return {name: tf.cast(x, tf.float32) for name, x in outputs.items()}

    return predict


def write_endpoints(folder: str | os.PathLike, endpoints: dict[str, Endpoint]):
    """Write a SavedModel with these endpoints to a folder."""
    import tensorflow as tf

    archive = keras.export.ExportArchive()
    # archive.track(model) would store every weight twice.
    for name, endpoint in endpoints.items():
        spec = tf.TensorSpec(
            endpoint.shape, endpoint.dtype, name=endpoint.input_name
        )
        # Autograph would search all our functions for control flow.
        call = tf.autograph.experimental.do_not_convert(endpoint.call)
        archive.add_endpoint(name, call, input_signature=[spec])
    archive.write_out(folder, verbose=False)


def write_default_endpoint(
    model: keras.Model,
    folder: str,
    batch_size: int | None,
    prepare: Callable = lambda images: images,
    output: str | None = None,
    spec: tuple[tuple[int, ...], str] | None = None,
):
    """Write a SavedModel with only the endpoint `serving_default`.

    Other formats are converted from it.

    Args:
        model: A model with a fixed image size.
        folder: Folder of the SavedModel.
        batch_size: The only batch size that is accepted; None for any.
        prepare: Function that is applied to the images before the model.
        output: See `name_output`.
        spec: The shape (H, W, C) and the dtype that `prepare` takes. Default:
            those of the model.
    """
    import tensorflow as tf

    name = name_output(model, output)
    forward = make_forward(model, output)

    def serve(images):
        return {name: tf.cast(forward(prepare(images))[name], tf.float32)}

    shape, dtype = spec or (model.input_shape[1:], "float32")
    endpoint = Endpoint(serve, "images", (batch_size, *shape), dtype)
    write_endpoints(folder, {"serving_default": endpoint})
