"""Export as a TensorFlow SavedModel, for TF Serving and plain TensorFlow."""

import dataclasses
import json
import os
import pathlib
from collections.abc import Callable, Iterator

import keras
import numpy as np

from keras_vit.analysis.rollout import attention_grid
from keras_vit.export.agreement import (
    BATCH_SIZE,
    FLOAT32,
    Agreement,
    Tolerance,
    compare_outputs,
    expected_outputs,
    join,
    make_noise,
    refuse_faults,
    run_in_batches,
    size_on_disk,
)
from keras_vit.export.contract import (
    Format,
    Serving,
    check_exportable,
    check_packages,
    check_path,
    check_serving,
    computes_in_16_bits,
    describe,
    find_steps,
    make_forward,
    normalize_images,
    to_text,
)
from keras_vit.files import draft_folder
from keras_vit.layers.dtypes import as_float32
from keras_vit.models.features import CLASSIFIER_ACTIVATIONS, name_output
from keras_vit.models.tuning import without_lora
from keras_vit.preprocessing.normalization import to_uint8
from keras_vit.serving.tf_serving import (
    WARMUP_FILE,
    WarmupRecord,
    write_models_config,
    write_warmup,
)

DESCRIPTION_FILE = "assets.extra/keras_vit.json"


def export_saved_model(
    model: keras.Model,
    path: str,
    images: np.ndarray,
    serving: Serving | None = None,
    tolerance: Tolerance | None = None,
    must_agree: bool = True,
    expected: np.ndarray | None = None,
    name: str | None = None,
) -> Agreement:
    """Write `model` as a SavedModel that runs without Keras.

    Its signatures, in float32 unless stated otherwise:

    `serving_default`: `images` (B, H, W, C) in the range of the model, to
    `logits` or `probabilities` (B, classes), or `features` of a model without
    a head. `serve_uint8`: the same for uint8 pixels from 0 to 255.
    `serve_bytes`: `image_bytes` (B,), JPEG or PNG files, to `labels` (B, k),
    strings, and `probabilities` (B, k), highest first. `features`: `images`
    to the input of the head, (B, D). On request, `attention`: `images` to
    `rollout` (B, h, w); see `keras_vit.analysis.attention_grid`; and
    `attention_bytes`: `image_bytes` to `rollout` and `images` (B, H, W, C), as
    the model receives them, scaled to [0, 1].

    Images of another size are an error. The weights are stored once. A
    warm-up file contains a request and the response for each signature; TF
    Serving runs the requests before the model receives traffic. The complete
    folder appears after the outputs of all signatures were compared with those
    of `model`.

    Args:
        model: A model with a fixed image size.
        path: The folder to write; must not exist. TF Serving expects its name
            to be a version number.
        images: Images to compare outputs on, (B, H, W, C).
        serving: Pre- and post-processing on the server.
        tolerance: The allowed differences. Default: those of FORMAT.
        must_agree: Whether a larger difference is an error.
        expected: The outputs of the model for `images`, if known.
        name: Name of the model in its description. Default: that of `model`.

    Returns:
        The comparison of the export with `model`: the largest difference of
        all signatures, and the classes of `serving_default`.

    Raises:
        ValueError: If the model cannot be exported or `path` exists.
        DisagreementError: If the outputs differ. Nothing is written.
    """
    path = os.fspath(path)
    serving = serving or Serving()
    check_exportable(model, images)
    model = without_lora(model)
    check_path(path)
    check_packages(FORMAT.packages)
    if tolerance is None:
        # In 16 bits, rounding alone can change the last bit of a pixel.
        in_16_bits = " in 16 bits" * computes_in_16_bits(model)
        tolerance = FORMAT.tolerances[f"saved_model{in_16_bits}"]
    endpoints = make_endpoints(model, serving)
    if expected is None:
        expected = expected_outputs(model, images)
    # TF Serving ignores names that begin with a dot.
    with draft_folder(path) as draft:
        write_endpoints(draft, endpoints)
        write_description(draft, describe(model, serving, name=name))
        expected = expected_records(model, serving, endpoints, images, expected)
        agreement = check_and_warm_up(draft, path, expected, tolerance)
        if must_agree:
            refuse_faults(agreement)
        os.rename(draft, path)
    return agreement


def check_and_warm_up(folder, path, expected, tolerance) -> Agreement:
    """Compare each signature with Keras and write the warm-up file.

    Args:
        folder: The SavedModel.
        path: Its final path, for the report.
        expected: Requests and responses of `expected_records`.
        tolerance: The allowed differences.
    """
    import tensorflow as tf

    loaded = tf.saved_model.load(folder)
    agreements, records = [], []
    for record in expected:
        serve = loaded.signatures[record.signature]
        outputs = call_signature(serve, record.inputs)
        agreement = compare_outputs(
            record.outputs, outputs, tolerance, path=path, kind="saved_model"
        )
        agreements.append(agreement.named(record.signature))
        first = {name: values[:1] for name, values in record.inputs.items()}
        response = call_signature(serve, first)
        records.append(WarmupRecord(record.signature, first, response))
    write_warmup(os.path.join(folder, WARMUP_FILE), records)
    return dataclasses.replace(join(agreements), num_bytes=size_on_disk(folder))


def write_description(folder: str | os.PathLike, description: dict):
    """Write a description into a SavedModel; servers ignore the file.

    Args:
        folder: The SavedModel.
        description: See `keras_vit.export.contract.describe`.
    """
    path = pathlib.Path(folder, DESCRIPTION_FILE)
    path.parent.mkdir(exist_ok=True)
    path.write_text(to_text(description), encoding="utf-8")


def read_saved_description(path: str) -> dict | None:
    """Return the description in a SavedModel, or None."""
    file = pathlib.Path(path, DESCRIPTION_FILE)
    if not file.exists():
        return None
    return json.loads(file.read_text(encoding="utf-8"))


def write(request, folder) -> list[Agreement]:
    """Write the SavedModel into a new folder."""
    return [
        export_saved_model(
            request.model,
            folder,
            request.images,
            serving=request.options.serving,
            must_agree=False,
            expected=request.expected,
            name=request.name,
        )
    ]


def start(path: str, shape: tuple[int, ...], threads: int) -> Callable:
    """Load a SavedModel; return a function that runs `serving_default`."""
    import tensorflow as tf

    loaded = tf.saved_model.load(path)
    serve = loaded.signatures["serving_default"]
    ((name, spec),) = serve.structured_input_signature[1].items()
    images = make_noise(shape, spec.dtype.as_numpy_dtype)

    def run(loaded=loaded):  # The weights live as long as `loaded`.
        outputs = serve(**{name: tf.constant(images)})
        return [output.numpy() for output in outputs.values()]

    return run


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


def decode_inputs(image_bytes, image_shape: tuple[int, ...], serving: Serving):
    """Decode image files to inputs of the model.

    Shapes:
        image_bytes: (B,), strings. returns: (B, H, W, C), float32.
    """
    import tensorflow as tf

    from keras_vit.image_decoding import decode_image, turn_upright
    from keras_vit.image_resizing import apply_steps

    def read_whole_image(encoded):
        image = decode_image(encoded, image_shape[-1])
        image = turn_upright(image, encoded)
        image = apply_steps(image, find_steps(serving, image_shape[:2]))
        return normalize_images(image, serving.settings.normalization)

    read_image = serving.read_image or read_whole_image
    return tf.map_fn(
        # AutoGraph would search the function for control flow, for each file.
        tf.autograph.experimental.do_not_convert(read_image),
        image_bytes,
        fn_output_signature=tf.TensorSpec(image_shape, tf.float32),
    )


def name_classes(outputs: dict, serving: Serving) -> dict:
    """Return the top classes of logits or probabilities, or the features.

    Shapes:
        outputs: one of (B, C). returns: labels (B, k), strings, and
            probabilities (B, k), float32, highest first.
    """
    import tensorflow as tf

    ((name, scores),) = outputs.items()
    if name == "features":
        return outputs
    if name == "logits":
        scores = CLASSIFIER_ACTIVATIONS[serving.activation](scores)
    num_classes = scores.shape[-1]
    names = serving.class_names or map(str, range(num_classes))
    top = tf.math.top_k(scores, min(serving.top, num_classes))
    labels = tf.gather(tf.constant(list(names)), top.indices)
    return {"labels": labels, "probabilities": top.values}


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


FORMAT = Format(
    write=write,
    start=start,
    suffix="",
    entry="saved_model.pb",
    read=read_saved_description,
    tolerances={
        "saved_model": FLOAT32,
        "saved_model in 16 bits": Tolerance(cosine=0.9999),
    },
    packages=("tensorflow_serving",),
    announce=write_models_config,
)
