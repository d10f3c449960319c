"""Export as a TensorFlow SavedModel, for TF Serving and plain TensorFlow."""

import dataclasses
import json
import os
import pathlib
from collections.abc import Callable, Iterator

import keras
import numpy as np

from keras_vit.analysis.rollout import attention_grid
from keras_vit.errors import first_line
from keras_vit.export.agreement import (
    BATCH_SIZE,
    FLOAT32,
    Agreement,
    Tolerance,
    compare_outputs,
    expected_outputs,
    join,
    make_noise,
    run_in_batches,
    size_on_disk,
)
from keras_vit.export.contract import (
    ExportRequest,
    Format,
    Serving,
    check_serving,
    compute_dtypes,
    export_file,
    make_forward,
    normalize_images,
    to_text,
)
from keras_vit.layers.base import as_float32
from keras_vit.models.features import CLASSIFIER_ACTIVATIONS, name_output
from keras_vit.preprocessing.description import to_uint8
from keras_vit.serving.tf_serving import (
    WARMUP_FILE,
    WarmupRecord,
    write_models_config,
    write_warmup,
)

DESCRIPTION_FILE = "assets.extra/keras_vit.json"  # Servers ignore it.
FILE_CHANNELS = (1, 3, 4)  # Channels that PNG and JPEG files can have.
# In 16 bits, rounding alone can change the last bit of a pixel.
IN_16_BITS = Tolerance(cosine=0.9999)
# A file may be decoded and resized with another order of operations.
OF_FILES = Tolerance(cosine=0.999)


def export_saved_model(
    model: keras.Model,
    path: str | os.PathLike,
    images: np.ndarray,
    serving: Serving | None = None,
    **choices,
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
        **choices: The arguments `name`, `tolerance` and `must_agree` of
            `keras_vit.export.export_file`, which also has the errors.

    Returns:
        The comparison of the export with `model`: the largest difference of
        all signatures, and the classes of `serving_default`.
    """
    serving = serving or Serving()
    return export_file(FORMAT, model, path, images, serving=serving, **choices)


def write(request: ExportRequest, folder: pathlib.Path) -> list[Agreement]:
    """Write the SavedModel and its warm-up file into an empty folder."""
    import tensorflow as tf

    in_16_bits = compute_dtypes(request.model) & {"bfloat16", "float16"}
    tolerance = request.tolerance or (IN_16_BITS if in_16_bits else FLOAT32)
    endpoints = make_endpoints(request.model, request.serving)
    write_endpoints(folder, endpoints)
    description = folder / DESCRIPTION_FILE
    description.parent.mkdir(exist_ok=True)
    description.write_text(to_text(request.describe()), encoding="utf-8")
    loaded = tf.saved_model.load(str(folder))
    agreements, records = [], []
    for record in expected_records(request, endpoints):
        serve = loaded.signatures[record.signature]
        outputs = call_signature(serve, record.inputs)
        agreement = compare_outputs(
            record.outputs, outputs, tolerance, path=folder, kind="saved_model"
        )
        agreements.append(agreement.named(record.signature))
        first = {name: values[:1] for name, values in record.inputs.items()}
        response = call_signature(serve, first)
        records.append(WarmupRecord(record.signature, first, response))
    write_warmup(folder / WARMUP_FILE, records)
    warnings = []
    serve = loaded.signatures.get("serve_bytes")
    files = request.options.files if serve else {}
    for index, content in files.items():
        try:
            outputs = serve(image_bytes=tf.constant([content]))
        except tf.errors.OpError as error:
            text = f"serve_bytes cannot read the file of image {index}"
            warnings.append(f"{text}: {first_line(error)}")
            continue
        agreement = compare_outputs(
            rank(request, request.expected[index : index + 1]),
            {name: x.numpy() for name, x in outputs.items()},
            OF_FILES,
            path=folder,
            kind="saved_model",
        )
        agreements.append(agreement.named(f"file of image {index}"))
    agreement = join(agreements)
    agreement = dataclasses.replace(
        agreement,
        num_bytes=size_on_disk(folder),
        warnings=(*agreement.warnings, *warnings),
    )
    return [agreement]


def make_endpoints(model: keras.Model, serving: Serving) -> dict[str, tuple]:
    """Return the signatures of `model`: functions and specs of their inputs.

    All but those of the attention call the same graph of the model, so it is
    stored and loaded once. The server computes only the requested outputs.

    Args:
        model: A model with a fixed image size.
        serving: Pre- and post-processing on the server, complete.

    Raises:
        ValueError: If `serving` does not fit the model.
    """
    import tensorflow as tf

    check_serving(model, serving)
    image_shape = model.input_shape[1:]
    shape = (None, *image_shape)
    floats = tf.TensorSpec(shape, tf.float32, "images")
    pixels = tf.TensorSpec(shape, tf.uint8, "images")
    files = tf.TensorSpec((None,), tf.string, "image_bytes")
    name = name_output(model, serving.output)
    forward = make_forward(model, serving.output)

    @tf.function(input_signature=[floats], autograph=False)
    def predict(images):
        outputs = forward(images)
        return {key: tf.cast(x, tf.float32) for key, x in outputs.items()}

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

    def attention(images):
        return {"rollout": attention_grid(model, images)}

    def attention_bytes(image_bytes):
        images = decode_inputs(image_bytes, image_shape, serving)
        mean, deviation = serving.settings.mean_and_deviation
        shown = images * deviation + mean  # As they can be drawn.
        return {"rollout": attention_grid(model, images), "images": shown}

    endpoints = {
        "serving_default": (serve, floats),
        "serve_uint8": (serve_uint8, pixels),
        "serve_bytes": (serve_bytes, files),
        "features": (features, floats),
    }
    if serving.use_attention:
        endpoints["attention"] = (attention, floats)
        endpoints["attention_bytes"] = (attention_bytes, files)
    if image_shape[-1] not in FILE_CHANNELS:
        endpoints = {k: v for k, v in endpoints.items() if v[1] is not files}
    return endpoints


def write_endpoints(folder: str | os.PathLike, endpoints: dict[str, tuple]):
    """Write a SavedModel with these signatures to a folder."""
    import tensorflow as tf

    archive = keras.export.ExportArchive()
    # archive.track(model) would store every weight twice.
    for name, (call, spec) in endpoints.items():
        # Autograph would search all our functions for control flow.
        call = tf.autograph.experimental.do_not_convert(call)
        archive.add_endpoint(name, call, input_signature=[spec])
    archive.write_out(os.fspath(folder), verbose=False)


def write_default_endpoint(
    model: keras.Model,
    folder: str,
    batch_size: int | None,
    output: str | None = None,
    prepare: Callable = lambda images: images,
    shape: tuple[int, ...] | None = None,
    dtype: str = "float32",
):
    """Write a SavedModel with only the endpoint `serving_default`.

    Other formats are converted from it.

    Args:
        model: A model with a fixed image size.
        folder: Folder of the SavedModel.
        batch_size: The only batch size that is accepted; None for any.
        output: See `name_output`.
        prepare: Function that is applied to the images before the model.
        shape: The shape (H, W, C) that `prepare` takes. Default: that of the
            model.
        dtype: The dtype that `prepare` takes.
    """
    import tensorflow as tf

    name = name_output(model, output)
    forward = make_forward(model, output)

    def serve(images):
        return {name: tf.cast(forward(prepare(images))[name], tf.float32)}

    shape = (batch_size, *(shape or model.input_shape[1:]))
    spec = tf.TensorSpec(shape, dtype, "images")
    write_endpoints(folder, {"serving_default": (serve, spec)})


def decode_inputs(image_bytes, image_shape: tuple[int, ...], serving: Serving):
    """Decode image files to inputs of the model.

    Shapes:
        image_bytes: (B,), strings. returns: (B, H, W, C), float32.
    """
    import tensorflow as tf

    from keras_vit.preprocessing.decoding import decode_image, turn_upright
    from keras_vit.preprocessing.resizing import apply_steps

    def read_whole_image(encoded):
        image = decode_image(encoded, image_shape[-1])
        image = turn_upright(image, encoded)
        image = apply_steps(image, serving.steps(image_shape[:2]))
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
    request: ExportRequest, endpoints: dict[str, tuple]
) -> Iterator[WarmupRecord]:
    """Yield a request for each signature and the response of Keras to it."""
    model, serving = request.model, request.serving
    name = name_output(model, serving.output)
    images = np.asarray(request.images, "float32")
    outputs = {name: request.expected}
    yield WarmupRecord("serving_default", {"images": images}, outputs)
    images = images[:BATCH_SIZE]
    mode = serving.settings.normalization
    pixels = to_uint8(images, mode)
    scaled = normalize_images(pixels, mode).numpy()
    outputs = {name: expected_outputs(model, scaled)}
    yield WarmupRecord("serve_uint8", {"images": pixels}, outputs)
    files = {"image_bytes": encode_larger(pixels)}
    if "serve_bytes" in endpoints:
        shape = model.input_shape[1:]
        scaled = decode_inputs(files["image_bytes"], shape, serving).numpy()
        outputs = rank(request, expected_outputs(model, scaled))
        yield WarmupRecord("serve_bytes", files, outputs)
    # The layers run one by one, without tracing, on all tokens.
    forward = make_forward(model, serving.output, is_short=False)
    features = as_float32(forward(images)["features"])
    yield WarmupRecord("features", {"images": images}, {"features": features})
    for name, inputs in (
        ("attention", {"images": images}),
        ("attention_bytes", files),
    ):
        if name in endpoints:
            outputs = endpoints[name][0](*inputs.values())
            outputs = {key: as_float32(x) for key, x in outputs.items()}
            yield WarmupRecord(name, inputs, outputs)


def rank(request: ExportRequest, outputs: np.ndarray) -> dict:
    """Return what `serve_bytes` gives for outputs, but with all classes.

    Classes with equal probabilities may swap places.
    """
    import tensorflow as tf

    model, serving = request.model, request.serving
    ranking = dataclasses.replace(serving, top=model.output_shape[-1])
    outputs = {name_output(model, serving.output): tf.constant(outputs)}
    outputs = name_classes(outputs, ranking)
    return {key: np.asarray(x) for key, x in outputs.items()}


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


def read_saved_description(path: str) -> dict | None:
    """Return the description in a SavedModel, or None."""
    file = pathlib.Path(path, DESCRIPTION_FILE)
    if not file.exists():
        return None
    return json.loads(file.read_text(encoding="utf-8"))


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


FORMAT = Format(
    write=write,
    start=start,
    suffix="",
    entry="saved_model.pb",
    read=read_saved_description,
    packages=("tensorflow_serving",),
    announce=write_models_config,
)
