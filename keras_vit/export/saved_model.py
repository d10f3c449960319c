"""Export as a TensorFlow SavedModel, for TF Serving and plain TensorFlow."""

import dataclasses
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator

import keras
import numpy as np

from keras_vit.export.agreement import (
    TOLERANCES,
    Agreement,
    Tolerance,
    compare,
    refuse_faults,
    size_on_disk,
)
from keras_vit.export.answers import (
    BATCH_SIZE,
    answer_in_batches,
    expected_answers,
)
from keras_vit.export.forward import make_forward, name_output
from keras_vit.export.requirements import check_exportable, check_path
from keras_vit.export.signatures import (
    Serving,
    Signature,
    make_signatures,
    name_classes,
    read_images,
    to_pixels,
    to_range,
)
from keras_vit.export.warmup import WARMUP_FILE, WarmupRecord, write_warmup
from keras_vit.models.intermediates import to_float32


def export_saved_model(
    model: keras.Model,
    path: str,
    images: np.ndarray,
    serving: Serving | None = None,
    tolerance: Tolerance | None = None,
    must_agree: bool = True,
    expected: np.ndarray | None = None,
) -> Agreement:
    """Write `model` as a SavedModel that needs no Keras to run.

    Its signatures, all float32 if not said otherwise:

    `serving_default`: `images` (B, H, W, C) in the range of the model, to
    `logits` or `probabilities` (B, classes), or `features` of a model without
    a head. `serve_uint8`: the same for pixels from 0 to 255, uint8.
    `serve_bytes`: `image_bytes` (B,), JPEG or PNG files, to `labels` (B, k),
    strings, and `probabilities` (B, k), likeliest first. `features`: `images`
    to what goes into the head, (B, D). `attention`, if asked for: `images` to
    `rollout` (B, h, w), see `keras_vit.analysis.attention_grid`.

    An image of another size is an error. The weights are stored once. With
    the model comes a request for each signature and its answer, which TF
    Serving asks before it takes the model into service. The folder appears at
    once, after all answers were compared with those of `model`.

    Args:
        model: A model of fixed image size.
        path: The folder to write; must not exist. TF Serving wants its name
            to be a version number.
        images: Images to compare the answers on, (B, H, W, C).
        serving: How images are read and classes are named.
        tolerance: How far the answers may be apart. Default: TOLERANCES.
        must_agree: Whether it is an error if they are further apart.
        expected: What the model answers to `images`, if that is known.

    Returns:
        How the export compares with `model`: the largest difference of all
        signatures, and the classes of `serving_default`.

    Raises:
        ValueError: If the model cannot be exported or `path` exists.
        DisagreementError: If the answers differ; nothing is written then.
    """
    import tensorflow as tf

    path = os.fspath(path)
    serving = serving or Serving()
    check_exportable(model, images)
    check_path(path)
    if tolerance is None and computes_in_16_bits(model):
        # The last bit of a pixel is one of 8 or 11 in the first layer.
        tolerance = TOLERANCES["saved_model in 16 bits"]
    signatures = make_signatures(model, serving)
    if expected is None:
        expected = expected_answers(model, images)
    parent = os.path.dirname(os.path.abspath(path))
    os.makedirs(parent, exist_ok=True)
    # A name that starts with a dot is no version for TF Serving.
    draft = tempfile.mkdtemp(prefix=".draft-", dir=parent)
    try:
        write_signatures(draft, signatures)
        loaded = tf.saved_model.load(draft).signatures
        agreements, records = [], []
        for question in ask(model, serving, signatures, images, expected):
            serve, inputs = loaded[question.signature], question.inputs
            answers = run(serve, inputs)
            agreements.append(check(path, question, answers, tolerance))
            first = {name: values[:1] for name, values in inputs.items()}
            records.append(
                WarmupRecord(question.signature, first, run(serve, first))
            )
        write_warmup(os.path.join(draft, WARMUP_FILE), records)
        agreement = dataclasses.replace(
            agreements[0],
            num_bytes=size_on_disk(draft),
            **{
                # Python's max may pass over nan.
                field: float(np.max([getattr(a, field) for a in agreements]))
                for field in ("max_difference", "relative_difference")
            },
            faults=sum((a.faults for a in agreements), ()),
        )
        if must_agree:
            refuse_faults(agreement)
        os.chmod(draft, 0o755)  # mkdtemp's folders are for their owner alone.
        os.rename(draft, path)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return agreement


def ask(
    model: keras.Model,
    serving: Serving,
    signatures: dict[str, Signature],
    images: np.ndarray,
    expected: np.ndarray,
) -> Iterator[WarmupRecord]:
    """Yield what to ask each signature, and what Keras answers to it.

    Args:
        model: What is exported.
        serving: How it is served.
        signatures: Those of `make_signatures`.
        images: (B, H, W, C), in the range of the model.
        expected: What the model answers to them.
    """
    import tensorflow as tf

    name = name_output(model, serving.output)
    images = np.asarray(images, "float32")
    yield WarmupRecord("serving_default", {"images": images}, {name: expected})
    images = images[:BATCH_SIZE]
    pixels = to_pixels(images, serving.value_range)
    as_images = to_range(pixels, serving.value_range).numpy()
    yield WarmupRecord(
        "serve_uint8",
        {"images": pixels},
        {name: expected_answers(model, as_images)},
    )
    if "serve_bytes" in signatures:
        files = encode_larger(pixels)
        shape = model.input_shape[1:]
        read = read_images(files, shape, serving).numpy()
        # All classes are named, to know the probability of any.
        every = dataclasses.replace(serving, top=model.output_shape[-1])
        answers = name_classes(
            {name: tf.constant(expected_answers(model, read))}, every
        )
        yield WarmupRecord(
            "serve_bytes",
            {"image_bytes": files},
            {key: x.numpy() for key, x in answers.items()},
        )
    # Not traced, and nothing left out: the layers run one by one.
    forward = make_forward(model, serving.output, is_short=False)
    yield WarmupRecord(
        "features",
        {"images": images},
        {"features": to_float32(forward(images)["features"])},
    )
    if "attention" in signatures:
        yield WarmupRecord(
            "attention",
            {"images": images},
            {
                key: to_float32(x)
                for key, x in signatures["attention"].call(images).items()
            },
        )


def computes_in_16_bits(model: keras.Model) -> bool:
    """Return whether some layer computes in bfloat16 or float16."""
    return any(
        layer.compute_dtype in ("bfloat16", "float16")
        for layer in model._flatten_layers()
    )


def encode_larger(pixels: np.ndarray) -> np.ndarray:
    """Return PNG files of images, larger than they are, so as to be resized.

    Shapes:
        pixels: (B, H, W, C), uint8. returns: (B,), bytes.
    """
    import tensorflow as tf

    size = [pixels.shape[1] + 1, pixels.shape[2] + 3]
    larger = tf.image.resize(pixels, size, "nearest")
    files = [tf.io.encode_png(image).numpy() for image in larger]
    return np.array(files, object)


def run(serve: Callable, inputs: dict[str, np.ndarray]) -> dict:
    """Return what a loaded signature answers, asked in batches."""
    import tensorflow as tf

    ((name, values),) = inputs.items()

    def answer(batch):
        answers = serve(**{name: tf.constant(batch)})
        return {key: x.numpy() for key, x in answers.items()}

    return answer_in_batches(answer, values)


def check(
    path: str,
    question: WarmupRecord,
    answers: dict[str, np.ndarray],
    tolerance: Tolerance | None,
) -> Agreement:
    """Return how the answers of a signature compare with those of Keras.

    Of labels Keras names all, and the signature the likeliest.
    """
    name = next(key for key in question.outputs if key != "labels")
    expected, found = question.outputs[name], answers[name]
    if "labels" in answers:
        expected = expected[:, : found.shape[1]]
    agreement = compare(
        path,
        "saved_model",
        expected,
        found,
        num_bytes=0,
        tolerance=tolerance,
        must_agree=False,
    )
    faults = agreement.faults
    if "labels" in answers and not are_right_labels(
        answers, question.outputs, max(1e-5, 2 * agreement.max_difference)
    ):
        faults += ("the labels differ",)
    return dataclasses.replace(
        agreement,
        faults=tuple(f"{question.signature}: {fault}" for fault in faults),
    )


def are_right_labels(answers: dict, ranking: dict, width: float) -> bool:
    """Return whether each label has the probability that stands beside it.

    So classes of about one probability may change places.

    Shapes:
        answers: labels and probabilities (B, k). ranking: of all classes,
            (B, C).

    Args:
        answers: What a signature says.
        ranking: What Keras says.
        width: How far apart two probabilities may be.
    """
    is_it = answers["labels"][:, :, None] == ranking["labels"][:, None]
    distances = np.abs(
        answers["probabilities"][:, :, None] - ranking["probabilities"][:, None]
    )  # (B, k, C)
    return bool(np.all(np.any(is_it & (distances <= width), axis=-1)))


def write_signatures(folder: str, signatures: dict[str, Signature]):
    """Write a SavedModel of these signatures to a folder."""
    import tensorflow as tf

    archive = keras.export.ExportArchive()
    # Without archive.track(model), which would store every weight twice.
    for name, signature in signatures.items():
        spec = tf.TensorSpec(
            signature.shape, signature.dtype, name=signature.input_name
        )
        archive.add_endpoint(name, signature.call, input_signature=[spec])
    archive.write_out(folder, verbose=False)


def write_signature(
    model: keras.Model,
    path: str,
    batch_size: int | None,
    prepare: Callable = lambda images: images,
    output: str | None = None,
):
    """Write `model` to a folder as the signature `serving_default`.

    Args:
        model: A model of fixed image size.
        path: The folder.
        batch_size: The one batch size that is served, or None for any.
        prepare: Applied to the images before the model.
        output: See `name_output`.
    """
    import tensorflow as tf

    name = name_output(model, output)
    forward = make_forward(model, output)

    def serve(images):
        return {name: tf.cast(forward(prepare(images))[name], tf.float32)}

    shape = (batch_size, *model.input_shape[1:])
    signature = Signature(serve, "images", shape, "float32")
    write_signatures(path, {"serving_default": signature})
