"""Export as a TFLite file, for phones and other small machines."""

import contextlib
import dataclasses
import io
import math
import os
import tempfile
import warnings
import zipfile
from collections.abc import Callable, Sequence
from typing import NamedTuple

import keras
import numpy as np

from keras_vit.export.agreement import TOLERANCES, Agreement, Tolerance, compare
from keras_vit.export.answers import (
    answer_in_batches,
    batches,
    expected_answers,
)
from keras_vit.export.forward import name_output
from keras_vit.export.requirements import (
    check_exportable,
    check_extra,
    check_path,
    in_float32,
)
from keras_vit.export.saved_model import write_signature
from keras_vit.files import atomic_write
from keras_vit.tables import pick


def export_tflite(
    model: keras.Model,
    path: str,
    images: np.ndarray,
    variant: str = "dynamic_int8",
    *,
    batch_size: int | None = 1,
    class_names: Sequence[str] | None = None,
    calibration_images: np.ndarray | None = None,
    output: str | None = None,
    tolerance: Tolerance | None = None,
    must_agree: bool = True,
    expected: np.ndarray | None = None,
) -> Agreement:
    """Write `model` as a TFLite file.

    Built-in operations only, so that any TFLite runtime can load it. An image
    of another size is an error. A model of mixed precision is converted in
    float32. The file appears at once, after its answers, as LiteRT computes
    them, were compared with those of `model`.

    Args:
        model: A model of fixed image size.
        path: The file to write; must not exist and end in `.tflite`.
        images: Images to compare the answers on, (B, H, W, C).
        variant: A key of VARIANTS. "float32"; "float16", a half of the size;
            "dynamic_int8", a quarter of the size and the fastest on a CPU:
            weights in int8, the rest in float32; "int8", integers throughout,
            the inputs and outputs as well, for machines that have nothing
            else, at a loss of accuracy; "static_int8", the matrix products
            alone in int8, by ranges found beforehand (needs the extra
            `quantizer`).
        batch_size: Images that are answered at a time; None for any number.
        class_names: Written into the file as `labels.txt`, one a line, where
            the TFLite task libraries and `zipfile` find it.
        calibration_images: Images to find the ranges of int8 numbers on, a
            hundred or more like those to come; needed by "int8" and
            "static_int8".
        output: What the model answers with, see `name_output`.
        tolerance: How far the answers may be apart. Default: TOLERANCES.
        must_agree: Whether it is an error if they are further apart.
        expected: What the model answers in float32, if that is known.

    Returns:
        How the export compares with `model`.

    Raises:
        ValueError: If the model cannot be exported, `path` is no new file or
            an argument is not one of the above.
        ModuleNotFoundError: If an extra is missing.
        DisagreementError: If the answers differ; nothing is written then.
    """
    path = os.fspath(path)
    check_exportable(model, images)
    check_path(path, ".tflite")
    check_variant(variant, calibration_images is not None)
    check_arguments(model, batch_size, class_names)
    if VARIANTS[variant].needs_calibration:
        calibration_images = check_calibration_images(model, calibration_images)
    if tolerance is None:
        tolerance = TOLERANCES[f"tflite {variant}"]
    if name_output(model, output) == "features":
        # The largest of some features is no class.
        tolerance = dataclasses.replace(
            tolerance, top1_agreement=0.0, expected_top1_agreement=0.0
        )
    model = in_float32(model)
    if expected is None:
        expected = expected_answers(model, images)
    content = convert(model, variant, batch_size, calibration_images, output)
    if class_names is not None:
        content = with_labels(content, class_names)
    agreement = compare(
        path,
        f"tflite {variant}",
        expected,
        run(content, images),
        len(content),
        tolerance,
        must_agree,
    )
    with atomic_write(path) as draft:
        draft.write_bytes(content)
    return agreement


def check_variant(
    variant: str, is_calibrated: bool, argument: str = "calibration_images"
):
    """Raise an error unless a variant is known, and what it needs is there.

    Args:
        variant: A key of VARIANTS.
        is_calibrated: Whether there are images to calibrate on.
        argument: What says where they are.

    Raises:
        ValueError: If it is unknown, or must be calibrated and is not.
        ModuleNotFoundError: If its extra is missing.
    """
    row = pick(VARIANTS, variant, "variant")
    for extra in row.extras:
        check_extra(extra)
    if row.needs_calibration and not is_calibrated:
        raise ValueError(
            f"`{argument}` must be given for variant={variant!r}: the ranges "
            "of the int8 numbers are found on them. Received: none"
        )


def check_arguments(model: keras.Model, batch_size, class_names):
    """Raise a ValueError unless the arguments of `export_tflite` are sound."""
    if batch_size is not None and batch_size < 1:
        raise ValueError(
            "`batch_size` must be 1 or more, or None for any. "
            f"Received: batch_size={batch_size}"
        )
    if class_names is None:
        return
    if len(class_names) != model.output_shape[-1]:
        raise ValueError(
            "`class_names` must be one for each output of the model, "
            f"{model.output_shape[-1]}. Received: {len(class_names)} names"
        )
    broken = [name for name in class_names if name.splitlines() != [name]]
    if broken:
        raise ValueError(
            "`class_names` must each fit in a line of text. "
            f"Received: {broken[0]!r}"
        )


def check_calibration_images(
    model: keras.Model, images: np.ndarray
) -> np.ndarray:
    """Return the images to calibrate on, as float32.

    Raises:
        ValueError: If they do not fit the model.
    """
    images = np.asarray(images, "float32")
    if images.shape[1:] != model.input_shape[1:] or not len(images):
        raise ValueError(
            "`calibration_images` must be one or more images of the model, "
            f"{model.input_shape}. Received: shape={images.shape}"
        )
    return images


def convert(
    model: keras.Model,
    variant: str = "float32",
    batch_size: int | None = 1,
    calibration_images: np.ndarray | None = None,
    output: str | None = None,
) -> bytes:
    """Return a float32 `model` as the content of a TFLite file.

    Args:
        model: A model of fixed image size.
        variant: A key of VARIANTS.
        batch_size: Images that are answered at a time; None for any number.
        calibration_images: For the variants that need them, float32.
        output: See `name_output`.
    """
    import tensorflow as tf

    with tempfile.TemporaryDirectory() as folder:
        write_signature(model, folder, batch_size, refuse_other_sizes, output)
        converter = tf.lite.TFLiteConverter.from_saved_model(folder)
        # Never the TensorFlow operations that few runtimes have.
        converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS]
        return VARIANTS[variant].convert(
            converter, calibration_images, batch_size or 1
        )


def to_float32(converter, calibration_images, batch_size) -> bytes:
    """Convert as it is."""
    return converter.convert()


def to_float16(converter, calibration_images, batch_size) -> bytes:
    """Convert with the weights in float16."""
    import tensorflow as tf

    converter.optimizations = [tf.lite.Optimize.DEFAULT]
    converter.target_spec.supported_types = [tf.float16]
    return converter.convert()


def to_dynamic_int8(converter, calibration_images, batch_size) -> bytes:
    """Convert with int8 weights; the runtime rounds what they multiply."""
    import tensorflow as tf

    converter.optimizations = [tf.lite.Optimize.DEFAULT]
    return converter.convert()


def to_int8(converter, calibration_images, batch_size) -> bytes:
    """Convert to integers throughout."""
    import tensorflow as tf

    converter.optimizations = [tf.lite.Optimize.DEFAULT]
    converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS_INT8]
    converter.representative_dataset = lambda: (
        {"images": batch} for batch in batches(calibration_images, batch_size)
    )
    converter.inference_input_type = tf.int8
    converter.inference_output_type = tf.int8
    with silence("tf.lite.Interpreter is deprecated"):  # It calibrates with it.
        return converter.convert()


def to_static_int8(converter, calibration_images, batch_size) -> bytes:
    """Convert with the products of tokens and weights in int8."""
    from ai_edge_quantizer import qtyping, quantizer

    calibration = [
        {"images": batch} for batch in batches(calibration_images, batch_size)
    ]
    with silence("experimental_preserve_all_tensors"):
        rounding = quantizer.Quantizer(bytearray(converter.convert()))
        rounding.add_static_config(
            ".*", qtyping.TFLOperationName.FULLY_CONNECTED, 8, 8
        )
        ranges = rounding.calibrate(
            {"serving_default": calibration}, num_threads=1
        )
        return bytes(rounding.quantize(ranges).quantized_model)


@contextlib.contextmanager
def silence(words: str):
    """Keep a library from printing, and from a warning about its own means.

    Args:
        words: In the first line of the warning.
    """
    with (
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(io.StringIO()),
        warnings.catch_warnings(),
    ):
        warnings.filterwarnings("ignore", f".*{words}")
        yield


def refuse_other_sizes(images):
    """Return `images`, through operations that fail for another size.

    A TFLite interpreter resizes its input to whatever it is given, and the
    converter drops the check that a SavedModel keeps: four small images
    would pass for one. What stays is that numbers of different shapes cannot
    be compared. So an edge of the image, in a frame lest a side of 1 be
    broadcast, is compared with as many constants. A number below all pixels
    carries the outcome to the image.

    Shapes:
        images: a symbolic tensor (B, H, W, C). returns: the same.
    """
    import tensorflow as tf

    _, height, width, channels = images.shape
    floor = -3e38
    for edge, shape in (
        (images[:, :, :1], (height + 2, 1, channels + 2)),
        (images[:, :1, :, :1], (1, width + 2, 1)),
    ):
        # All different: equal ones would become one number, of no size.
        below = np.linspace(-3.1e38, -3e38, math.prod(shape), dtype="float32")
        edge = tf.pad(edge, ((0, 0), (1, 1), (1, 1), (1, 1)))
        edge = tf.maximum(edge, below.reshape(1, *shape))
        floor = tf.minimum(edge[:, 1:2, 1:2, 1:2], floor)  # (B, 1, 1, 1)
    return tf.maximum(images, floor)


def with_labels(content: bytes, class_names: Sequence[str]) -> bytes:
    """Return a TFLite file with the names of the classes in a zip behind it.

    This is where TFLite's metadata keeps associated files; a runtime reads
    the model before it only.
    """
    buffer = io.BytesIO(content)
    with zipfile.ZipFile(buffer, "a") as archive:
        # Neither compressed, which the task libraries do not read, nor dated.
        archive.writestr(
            zipfile.ZipInfo("labels.txt"),
            "".join(f"{name}\n" for name in class_names),
        )
    return buffer.getvalue()


def run(content: bytes, images: np.ndarray) -> np.ndarray:
    """Return what a TFLite model answers to `images`, in float32.

    Integers are converted by the scales that the file holds.
    """
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(model_content=content)
    serve = interpreter.get_signature_runner("serving_default")
    ((name, inputs),) = serve.get_input_details().items()
    (outputs,) = serve.get_output_details().values()
    batch_size = inputs["shape_signature"][0]
    return answer_in_batches(
        lambda batch: from_integers(
            serve(**{name: to_integers(batch, inputs)}), outputs
        ),
        np.asarray(images, "float32"),
        None if batch_size == -1 else batch_size,
    )


def to_integers(numbers: np.ndarray, details: dict) -> np.ndarray:
    """Return numbers in the type of a tensor of a TFLite file.

    Args:
        numbers: What the tensor is to stand for, float32.
        details: What LiteRT says of the tensor.
    """
    dtype = details["dtype"]
    scale, zero_point = details["quantization"]
    if not scale:
        return numbers.astype(dtype)
    bounds = np.iinfo(dtype)
    numbers = np.round(numbers / scale) + zero_point
    return np.clip(numbers, bounds.min, bounds.max).astype(dtype)


def from_integers(answers: dict, details: dict) -> np.ndarray:
    """Return what the tensor of a TFLite file stands for, float32.

    Args:
        answers: The tensor, by its name.
        details: What LiteRT says of it.
    """
    scale, zero_point = details["quantization"]
    (numbers,) = (value.astype("float32") for value in answers.values())
    return (numbers - zero_point) * scale if scale else numbers


class Variant(NamedTuple):
    """How a TFLite file is written.

    Args:
        convert: By what.
        needs_calibration: Whether by ranges that are measured.
        extras: Those of this package that it needs.
    """

    convert: Callable
    needs_calibration: bool = False
    extras: tuple[str, ...] = ("train",)


VARIANTS = {
    "float32": Variant(to_float32),
    "float16": Variant(to_float16),
    "dynamic_int8": Variant(to_dynamic_int8),
    "int8": Variant(to_int8, needs_calibration=True),
    "static_int8": Variant(to_static_int8, True, ("train", "quantizer")),
}
