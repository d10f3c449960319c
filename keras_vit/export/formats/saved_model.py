"""Export as a TensorFlow SavedModel, for TF Serving and plain TensorFlow.

Its signatures, in float32 unless stated otherwise:

`serving_default`: `images` (B, H, W, C) in the range of the model, to `logits`
or `probabilities` (B, classes), or `features` of a model without a head; with
`Serving.known`, also to `score` and `is_known` (B,). `serve_uint8`: the same
for uint8 pixels from 0 to 255. `serve_bytes`: `image_bytes` (B,), JPEG or PNG
files, to `labels` (B, k), strings, and `probabilities` (B, k), highest first;
if an image may have several labels, also to their `thresholds` (B, k); and to
`score` and `is_known`, if there are any. `features`: `images` to the input of
the head, (B, D).

A model with an answer for each pixel gives `pixel_logits` (B, H, W, classes)
or `depths` (B, H, W, 1), and has no `features`. Its `serve_bytes` gives for
logits the class map, `classes` (B, H, W), uint8 or of more than 256 classes
int32; `class_names` (B, classes) and their `shares` (B, classes) of the pixels;
and `png_bytes` (B,), a grey PNG of the class map. For depths it gives `depths`
and `png_bytes`, a grey PNG of 16 bits, where a level stands for the depth
low + level / 65535 * (high - low), and `png_range` (B, 2) are low and high.

On request, `attention`: `images` to `rollout` (B, h, w); see
`keras_vit.analysis.attention_grid`; and `attention_bytes`: `image_bytes` to
`rollout` and `images` (B, H, W, C), as the model receives them, scaled to
[0, 1].

Images of another size are an error. The weights are stored once. A warm-up
file contains a request and the response for each signature; TF Serving runs
the requests before the model receives traffic.
"""

import dataclasses
import functools
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
    DEPTH_LEVELS,
    FLOAT32,
    Tolerance,
    read_for_model,
)
from keras_vit.export.contract import (
    ExportRequest,
    Format,
    Loaded,
    Question,
    Serving,
    Written,
    compute_dtypes,
    make_forward,
    select_answers,
    to_text,
)
from keras_vit.known import KnownScore
from keras_vit.layers.base import as_float32
from keras_vit.models.features import (
    CLASSIFIER_ACTIVATIONS,
    PIXEL_TASKS,
    name_output,
)
from keras_vit.preprocessing import preprocess_input
from keras_vit.preprocessing.description import to_fractions, to_uint8
from keras_vit.preprocessing.model_inputs import read_first_layers
from keras_vit.serving.tf_serving import (
    DESCRIPTION_FILE,
    WARMUP_FILE,
    WarmupRecord,
    write_models_config,
    write_warmup,
)

FILE_CHANNELS = (1, 3, 4)  # Channels that PNG and JPEG files can have.
# In 16 bits, rounding alone can change the last bit of a pixel.
IN_16_BITS = Tolerance(cosine=0.9999, depth_difference=0.05, mean_iou=0.95)
# TensorFlow rounds the weights of its filters to float32, NumPy does not.
OF_RESIZED = Tolerance(relative_difference=1e-4, mean_iou=0.999)
# Versions of the JPEG library may decode to a neighbouring level.
OF_FILES = Tolerance(cosine=0.999, depth_difference=0.05, mean_iou=0.9)


def write(request: ExportRequest, folder: pathlib.Path) -> list[Written]:
    """Write the SavedModel and its warm-up file into an empty folder."""
    import tensorflow as tf

    in_16_bits = compute_dtypes(request.model) & {"bfloat16", "float16"}
    endpoints = make_endpoints(request.model, request.serving)
    write_endpoints(folder, endpoints)
    description = folder / DESCRIPTION_FILE
    description.parent.mkdir(exist_ok=True)
    about = request.describe()
    if request.output == "depths":
        about["png"] = {"levels": DEPTH_LEVELS, "range": "png_range"}
    description.write_text(to_text(about), encoding="utf-8")
    loaded = load(folder)
    read = make_reader(request)
    questions = [*make_questions(request, endpoints, read, bool(in_16_bits))]
    records = []
    for question in questions:
        _, spec = endpoints[question.signature]
        first = question.inputs[:1]
        response = loaded.call(first, question.signature)
        inputs = {spec.name: first}
        records.append(WarmupRecord(question.signature, inputs, response))
    write_warmup(folder / WARMUP_FILE, records)
    images, contents, warnings = [], [], []
    files = request.options.files if "serve_bytes" in endpoints else ()
    for index, content in enumerate(files):
        try:
            images.append(read(content))
            loaded.call(np.array([content], object), "serve_bytes")
            contents.append(content)
        except (ValueError, tf.errors.OpError) as error:
            images = images[: len(contents)]
            warnings.append(f"file {index}: {first_line(error)}")
    if contents:
        questions.append(
            Question(
                np.array(contents, object),
                answer_files(
                    request, request.answer(request.model, np.stack(images))
                ),
                "serve_bytes",
                OF_FILES,
                "image files",
                decide=decide_by(request),
            )
        )
    tolerance = IN_16_BITS if in_16_bits else FLOAT32
    warnings = tuple(f"serve_bytes cannot read {text}" for text in warnings)
    return [
        Written(
            folder,
            "saved_model",
            loaded,
            questions,
            tolerance,
            warnings=warnings,
        )
    ]


def load(
    path: str | os.PathLike,
    threads: int | None = None,
    batch_size: int | None = None,
) -> Loaded:
    """Load a SavedModel; TensorFlow has its threads for all of them."""
    import tensorflow as tf

    loaded = tf.saved_model.load(str(path))  # The weights live as long as it.

    def call(values, signature="serving_default"):
        outputs = loaded.signatures[signature](tf.constant(values))
        return {key: x.numpy() for key, x in outputs.items()}

    serve = loaded.signatures["serving_default"]
    (spec,) = serve.structured_input_signature[1].values()
    return Loaded(call, tuple(spec.shape), spec.dtype.name)


def make_endpoints(model: keras.Model, serving: Serving) -> dict[str, tuple]:
    """Return the signatures of `model`: functions and specs of their inputs.

    All but those of the attention call the same graph of the model, so it is
    stored and loaded once. The server computes only the requested outputs.

    Args:
        model: A model with a fixed image size.
        serving: Pre- and post-processing on the server, complete.

    """
    import tensorflow as tf

    image_shape = model.input_shape[1:]
    shape = (None, *image_shape)
    floats = tf.TensorSpec(shape, tf.float32, "images")
    pixels = tf.TensorSpec(shape, tf.uint8, "images")
    files = tf.TensorSpec((None,), tf.string, "image_bytes")
    name = name_output(model, serving.output)
    forward = make_forward(model, serving.output, known=serving.known)

    def compute(images):
        outputs = forward(images)
        features = tf.cast(outputs["features"], tf.float32)
        return {"features": features, **select_answers(outputs, name)}

    predict = traced(compute, floats)

    def serve(images):
        return select_answers(predict(images), name)

    def serve_uint8(images):
        mode = serving.settings.normalization
        return serve(preprocess_input(images, "channels_last", mode))

    def read_files(image_bytes):
        return decode_inputs(image_bytes, image_shape, serving)

    def serve_bytes(image_bytes):
        outputs = serve(read(image_bytes))
        if name in PIXEL_TASKS:
            return draw_map(outputs[name], name, serving)
        return name_classes(outputs, name, serving)

    def features(images):
        return {"features": predict(images)["features"]}

    def attention(images):
        return {"rollout": roll_out(images)}

    def attention_bytes(image_bytes):
        images = read(image_bytes)
        mean, deviation = serving.settings.mean_and_deviation
        shown = images * deviation + mean  # As they can be drawn.
        return {"rollout": roll_out(images), "images": shown}

    endpoints = {
        "serving_default": (serve, floats),
        "serve_uint8": (serve_uint8, pixels),
        "serve_bytes": (serve_bytes, files),
        "features": (features, floats),
    }
    if name in PIXEL_TASKS:
        del endpoints["features"]
    if serving.use_attention:
        roll_out = traced(functools.partial(attention_grid, model), floats)
        endpoints["attention"] = (attention, floats)
        endpoints["attention_bytes"] = (attention_bytes, files)
    if image_shape[-1] in FILE_CHANNELS:
        read = traced(read_files, files)
    else:
        endpoints = {k: v for k, v in endpoints.items() if v[1] is not files}
    return endpoints


def traced(function: Callable, spec) -> Callable:
    """Return the graph of a function, whoever calls it.

    A `tf.function` is traced for its first call, and again for the others.
    """
    import tensorflow as tf

    # Autograph would search all our functions for control flow.
    graph = tf.function(function, input_signature=[spec], autograph=False)
    return graph.get_concrete_function()


def write_endpoints(folder: str | os.PathLike, endpoints: dict[str, tuple]):
    """Write a SavedModel with these signatures to a folder."""
    archive = keras.export.ExportArchive()
    # archive.track(model) would store every weight twice.
    for name, (call, spec) in endpoints.items():
        # Keras and TensorFlow trace an endpoint once each.
        call = traced(call, spec)
        archive.add_endpoint(name, call, input_signature=[spec])
    archive.write_out(os.fspath(folder), verbose=False)


def write_default_endpoint(
    model: keras.Model,
    folder: str,
    batch_size: int | None,
    output: str | None = None,
    known: KnownScore | None = None,
    prepare: Callable = lambda images: images,
    shape: tuple[int, ...] | None = None,
    dtype: str = "float32",
    truth_dtype: str = "bool",
):
    """Write a SavedModel with only the endpoint `serving_default`.

    Other formats are converted from it.

    Args:
        model: A model with a fixed image size.
        folder: Folder of the SavedModel.
        batch_size: The only batch size that is accepted; None for any.
        output: See `name_output`.
        known: See `Serving`.
        prepare: Function that is applied to the images before the model.
        shape: The shape (H, W, C) that `prepare` takes. Default: that of the
            model.
        dtype: The dtype that `prepare` takes.
        truth_dtype: The dtype of `is_known`, if there is one.
    """
    import tensorflow as tf

    name = name_output(model, output)
    forward = make_forward(model, output, known=known)

    def serve(images):
        found = select_answers(forward(prepare(images)), name)
        if known is not None:
            found["is_known"] = tf.cast(found["is_known"], truth_dtype)
        return found

    shape = (batch_size, *(shape or model.input_shape[1:]))
    spec = tf.TensorSpec(shape, dtype, "images")
    write_endpoints(folder, {"serving_default": (serve, spec)})


def decode_inputs(image_bytes, image_shape: tuple[int, ...], serving: Serving):
    """Decode image files to inputs of the model.

    Shapes:
        image_bytes: (B,), strings. returns: (B, H, W, C), float32.
    """
    import tensorflow as tf

    from keras_vit.preprocessing.decoding import upright_decoder
    from keras_vit.preprocessing.resizing import apply_steps

    def read_image(encoded):
        decode = upright_decoder(image_shape[-1], serving.settings.pixel_range)
        image = decode(encoded)
        image = apply_steps(image, serving.steps(image_shape[:2]))
        mode = serving.settings.normalization
        return preprocess_input(
            tf.cast(image, tf.float32), "channels_last", mode
        )

    return tf.map_fn(
        # AutoGraph would search the function for control flow, for each file.
        tf.autograph.experimental.do_not_convert(read_image),
        image_bytes,
        fn_output_signature=tf.TensorSpec(image_shape, tf.float32),
    )


def make_reader(request: ExportRequest) -> Callable[[bytes], np.ndarray]:
    """Return the function from a file to the image that Keras would be given.

    If the first layers of the model scale pixels, they decide what they take,
    not `serving`.
    """
    *image_size, channels = request.model.input_shape[1:]
    settings = request.serving.settings
    try:
        found, is_measured = read_first_layers(request.model)
    except ValueError:
        is_measured = False
    if is_measured:
        settings = found
    return functools.partial(
        read_for_model,
        channels=channels,
        steps=request.serving.steps(image_size),
        normalization=settings.mean_and_deviation,
        pixel_range=request.serving.settings.pixel_range,
    )


def name_classes(outputs: dict, name: str, serving: Serving) -> dict:
    """Return the top classes of logits or probabilities, or the features.

    Shapes:
        outputs: `name` (B, C), and others. returns: labels (B, k), strings,
            and probabilities (B, k), float32, highest first; of several
            labels, also their thresholds (B, k), float32. Other outputs stay.
    """
    import tensorflow as tf

    if name == "features":
        return outputs
    found = {key: x for key, x in outputs.items() if key != name}
    scores = outputs[name]
    if name == "logits":
        scores = CLASSIFIER_ACTIVATIONS[serving.activation](scores)
    num_classes = scores.shape[-1]
    names = tf.constant(get_names(serving, num_classes))
    top = tf.math.top_k(scores, serving.count_top(num_classes))
    labels = tf.gather(names, top.indices)
    found |= {"labels": labels, "probabilities": top.values}
    if serving.thresholds is not None:
        thresholds = tf.constant([*serving.thresholds], tf.float32)
        found["thresholds"] = tf.gather(thresholds, top.indices)
    return found


def draw_map(outputs, name: str, serving: Serving) -> dict:
    """Return the maps of outputs for each pixel, and PNG files of them.

    Shapes:
        outputs: (B, H, W, C), float32. returns: what `serve_bytes` gives, see
            above.
    """
    import tensorflow as tf

    if name == "pixel_logits":
        num_classes = outputs.shape[-1]
        classes = tf.argmax(outputs, axis=-1, output_type=tf.int32)
        is_small = num_classes <= 256
        levels = tf.cast(classes, tf.uint8 if is_small else tf.uint16)
        rows, numbers = tf.shape(classes)[0], tf.range(num_classes)
        shares = tf.map_fn(
            lambda number: tf.reduce_mean(
                tf.cast(classes == number, tf.float32), axis=[1, 2]
            ),
            numbers,
            fn_output_signature=tf.float32,
        )
        names = tf.constant(get_names(serving, num_classes))
        found = {
            "classes": levels if is_small else classes,
            "class_names": tf.repeat(names[None], rows, axis=0),
            "shares": tf.transpose(shares),
        }
    else:
        low = tf.reduce_min(outputs, axis=[1, 2, 3])
        high = tf.reduce_max(outputs, axis=[1, 2, 3])
        start, span = (x[:, None, None] for x in (low, high - low))
        places = tf.math.divide_no_nan(outputs[..., 0] - start, span)
        levels = tf.cast(tf.round(places * DEPTH_LEVELS), tf.uint16)
        found = {"depths": outputs, "png_range": tf.stack([low, high], axis=1)}
    files = tf.map_fn(
        tf.io.encode_png, levels[..., None], fn_output_signature=tf.string
    )
    return {**found, "png_bytes": files}


def get_names(serving: Serving, num_classes: int) -> list[str]:
    """Return the names of the classes, or their numbers."""
    return [*(serving.class_names or map(str, range(num_classes)))]


def make_questions(
    request: ExportRequest,
    endpoints: dict[str, tuple],
    read: Callable[[bytes], np.ndarray],
    in_16_bits: bool,
) -> Iterator[Question]:
    """Yield a question for each signature, with the answer of Keras."""
    model, settings = request.model, request.serving.settings
    has_maps = request.output in PIXEL_TASKS
    images = np.asarray(request.images, "float32")
    yield Question(images, request.expected, decide=request.decide)
    images = images[:BATCH_SIZE]
    pixels = to_uint8(images, settings.normalization)
    mean, deviation = map(np.float32, settings.mean_and_deviation)
    seen = (pixels / np.float32(255) - mean) / deviation
    yield Question(
        pixels,
        request.answer(model, seen),
        "serve_uint8",
        decide=request.decide,
    )
    of_files = None if in_16_bits else OF_RESIZED
    if "serve_bytes" in endpoints:
        files = encode_larger(pixels)
        seen = np.stack([read(content) for content in files])
        outputs = answer_files(request, request.answer(model, seen))
        yield Question(
            files, outputs, "serve_bytes", of_files, decide=decide_by(request)
        )
    if has_maps:
        return
    # The layers run one by one, without tracing, on all tokens.
    forward = make_forward(model, request.serving.output, is_short=False)
    features = as_float32(forward(images)["features"])
    yield Question(images, {"features": features}, "features")
    if "attention" in endpoints:
        outputs = {"rollout": as_float32(attention_grid(model, images))}
        yield Question(images, outputs, "attention")
    if "attention_bytes" in endpoints:
        outputs = {
            "rollout": as_float32(attention_grid(model, seen)),
            "images": to_fractions(seen, settings.normalization),
        }
        yield Question(files, outputs, "attention_bytes", of_files)


def decide_by(request: ExportRequest) -> Callable | None:
    """Return what compares the answers to files; None if they are ranked."""
    return request.decide if request.output in PIXEL_TASKS else None


def answer_files(request: ExportRequest, outputs: dict) -> dict:
    """Return what `serve_bytes` gives for outputs, but with all classes.

    PNG files are missing: `compare_outputs` reads those of the server.
    """
    import tensorflow as tf

    output, num_classes = request.output, request.model.output_shape[-1]
    if output in PIXEL_TASKS:
        maps = outputs[output]
        missing = np.array([b""] * len(maps), object)
        if output == "depths":
            ends = [maps.min((1, 2, 3)), maps.max((1, 2, 3))]
            ends = np.stack(ends, axis=1)
            return {output: maps, "png_range": ends, "png_bytes": missing}
        classes = maps.argmax(axis=-1)
        names = [x.encode() for x in get_names(request.serving, num_classes)]
        shares = [(classes == i).mean((1, 2)) for i in range(num_classes)]
        return {
            "classes": classes,
            "class_names": np.array([names] * len(maps), object),
            "shares": np.stack(shares, axis=1).astype("float32"),
            "png_bytes": missing,
        }

    ranking = dataclasses.replace(request.serving, top=num_classes)
    outputs = {key: tf.constant(x) for key, x in outputs.items()}
    outputs = name_classes(outputs, request.output, ranking)
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


def read_saved_description(path: str) -> dict | None:
    """Return the description in a SavedModel, or None."""
    file = pathlib.Path(path, DESCRIPTION_FILE)
    if not file.exists():
        return None
    return json.loads(file.read_text(encoding="utf-8"))


FORMAT = Format(
    write=write,
    load=load,
    suffix="",
    in_float32=False,
    entry="saved_model.pb",
    read=read_saved_description,
    packages=("tensorflow_serving",),
    announce=write_models_config,
)
