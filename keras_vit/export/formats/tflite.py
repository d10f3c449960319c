"""Export as a TFLite file, for phones and other small devices."""

import dataclasses
import os
import pathlib
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np

from keras_vit.export.agreement import Agreement, Tolerance, compare
from keras_vit.export.contract import ExportOptions, Format
from keras_vit.export.description import describe
from keras_vit.export.endpoints import write_default_endpoint
from keras_vit.export.float32 import in_float32
from keras_vit.export.forward import name_output
from keras_vit.export.litert import run_tflite, start
from keras_vit.export.pixel_inputs import PixelInput, find_pixel_input
from keras_vit.export.preconditions import (
    check_exportable,
    check_packages,
    check_path,
)
from keras_vit.export.predicting import expected_outputs
from keras_vit.export.quantizations import QUANTIZATIONS
from keras_vit.export.tflite_archive import (
    append_archive,
    make_texts,
    read_archive,
)
from keras_vit.export.tflite_sizes import refuse_other_sizes
from keras_vit.files import atomic_write
from keras_vit.models.tuning import without_lora
from keras_vit.tables import pick


def export_tflite(
    model: keras.Model,
    path: str,
    images: np.ndarray,
    quantization: str = "dynamic_int8",
    *,
    batch_size: int | None = 1,
    class_names: Sequence[str] | None = None,
    calibration_images: np.ndarray | None = None,
    output: str | None = None,
    pixels: PixelInput | None = None,
    description: Mapping[str, Any] | None = None,
    tolerance: Tolerance | None = None,
    must_agree: bool = True,
    expected: np.ndarray | None = None,
) -> Agreement:
    """Write `model` as a TFLite file.

    The file uses only built-in operations, so every TFLite runtime can load
    it. Images of another size are an error. A mixed-precision model is
    converted to float32. The complete file appears after its outputs were
    computed with LiteRT and compared with those of `model`.

    Args:
        model: A model with a fixed image size.
        path: The file to write; must not exist and end in `.tflite`.
        images: Images to compare outputs on, (B, H, W, C).
        quantization: A key of QUANTIZATIONS. "float32". "float16": half the
            size. "dynamic_int8": int8 weights, with scales of the inputs
            computed in each call; a quarter of the size, and the fastest on a
            CPU. "int8": only integers, including inputs and outputs, for
            integer-only devices; less accurate. "static_int8": only the matrix
            products in int8, with ranges measured beforehand.
        batch_size: The only batch size that the file accepts; None for any.
        class_names: Stored in the file as `labels.txt`, one per line, where
            the TFLite task libraries and `zipfile` find it.
        calibration_images: Images to measure the ranges of int8 numbers, at
            least about a hundred typical ones; for "int8" and "static_int8".
        output: The kind of output of the model; see `name_output`.
        pixels: If given, the file takes uint8 pixels. `images` are rounded to
            pixels for the comparison.
        description: Stored in the file as `model.json`, beside `labels.txt`.
        tolerance: The allowed differences. Default: those of the quantization.
        must_agree: Whether a larger difference is an error.
        expected: The outputs of the model in float32, if known.

    Returns:
        The comparison of the export with `model`.

    Raises:
        ValueError: If the model cannot be exported, or an argument is
            invalid.
        ModuleNotFoundError: If a package is missing.
        DisagreementError: If the outputs differ. Nothing is written.
    """
    path = os.fspath(path)
    check_exportable(model, images)
    model = without_lora(model)
    check_path(path, ".tflite")
    check_quantization(
        quantization, calibration_images is not None, pixels is not None
    )
    check_arguments(model, batch_size, class_names)
    if QUANTIZATIONS[quantization].needs_calibration:
        calibration_images = check_calibration_images(model, calibration_images)
    tolerance = tolerance or QUANTIZATIONS[quantization].tolerance
    if name_output(model, output) == "features":
        # The largest feature is not a class.
        tolerance = dataclasses.replace(
            tolerance, top1_agreement=0.0, expected_top1_agreement=0.0
        )
    model = in_float32(model)
    if pixels is not None:
        images = pixels.round(images)
    if expected is None:
        scaled = images if pixels is None else pixels.expected_images(images)
        expected = expected_outputs(model, scaled)
    content = to_tflite(
        model, quantization, batch_size, calibration_images, output, pixels
    )
    content = append_archive(content, make_texts(class_names, description))
    agreement = compare(
        path,
        f"tflite {quantization}",
        expected,
        run_tflite(content, images),
        len(content),
        tolerance,
        must_agree,
    )
    with atomic_write(path) as draft:
        draft.write_bytes(content)
    return agreement


def check_quantization(
    quantization: str, is_calibrated: bool, takes_pixels: bool = False
):
    """Raise an error if a quantization is unknown or not possible.

    Args:
        quantization: A key of QUANTIZATIONS.
        is_calibrated: Whether calibration images exist.
        takes_pixels: Whether the file takes uint8 pixels.

    Raises:
        ValueError: If it is unknown or needs calibration images.
        ModuleNotFoundError: If a package is missing.
    """
    row = pick(QUANTIZATIONS, quantization, "quantization")
    check_packages((*FORMAT.packages, *row.packages))
    if row.needs_calibration and not is_calibrated:
        raise ValueError(
            "`calibration_images` (in the command, --calibration_split) must "
            f"be given for quantization={quantization!r}, which measures the "
            "ranges of int8 numbers with them. Received: none"
        )
    if row.needs_calibration and takes_pixels:
        raise ValueError(
            "`tflite_takes_pixels` is for the quantizations that need no "
            f"calibration. Received: quantization={quantization!r}"
        )


def check_arguments(model: keras.Model, batch_size, class_names):
    """Raise a ValueError if an argument of `export_tflite` is invalid."""
    if batch_size is not None and batch_size < 1:
        raise ValueError(
            "`batch_size` must be 1 or more, or None for any. "
            f"Received: batch_size={batch_size}"
        )
    if class_names is None:
        return
    if len(class_names) != model.output_shape[-1]:
        raise ValueError(
            "`class_names` must have one name for each output of the model, "
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
    """Return the calibration images as float32.

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


def to_tflite(
    model: keras.Model,
    quantization: str = "float32",
    batch_size: int | None = 1,
    calibration_images: np.ndarray | None = None,
    output: str | None = None,
    pixels: PixelInput | None = None,
) -> bytes:
    """Convert a float32 `model` to the content of a TFLite file.

    Args:
        model: A model with a fixed image size.
        quantization: A key of QUANTIZATIONS.
        batch_size: The only batch size that the file accepts; None for any.
        calibration_images: float32 images, for quantizations that need them.
        output: See `name_output`.
        pixels: See `export_tflite`.
    """
    import tensorflow as tf

    prepare, spec = refuse_other_sizes, None
    if pixels is not None:
        prepare, spec = pixels.prepare, (pixels.shape_of(model), "uint8")
    with tempfile.TemporaryDirectory() as folder:
        write_default_endpoint(model, folder, batch_size, prepare, output, spec)
        converter = tf.lite.TFLiteConverter.from_saved_model(folder)
        # Few runtimes include the TensorFlow operations.
        converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS]
        return QUANTIZATIONS[quantization].convert(
            converter, calibration_images, batch_size or 1
        )


def check_options(options: ExportOptions, is_calibrated: bool):
    """Raise an error if a TFLite option is invalid; see `Format.check`."""
    names = options.tflite_quantizations
    if not names or len(set(names)) < len(names):
        raise ValueError(
            "`tflite_quantizations` must name one or more of "
            f"{', '.join(QUANTIZATIONS)}, each once. "
            f"Received: {', '.join(names) or 'none'}"
        )
    for name in names:
        pick(QUANTIZATIONS, name, "tflite_quantizations")
        check_quantization(name, is_calibrated, options.tflite_takes_pixels)


def write(request, folder) -> list[Agreement]:
    """Write a TFLite file for each quantization into a new folder.

    The labels and the description are in each file, and beside it.
    """
    options, serving = request.options, request.options.serving
    description, pixels = request.description, None
    if options.tflite_takes_pixels:
        steps = description["image_steps"]
        settings = serving.for_model(request.model).settings
        pixels = find_pixel_input(steps, settings.normalization)
        description = describe(
            request.model,
            serving,
            name=request.name,
            pixels_per_side=pixels.pixels_per_side,
        )
    agreements = [
        export_tflite(
            request.float32_model,
            folder / f"{quantization}.tflite",
            request.images,
            quantization,
            batch_size=options.tflite_batch_size,
            class_names=description["class_names"],
            calibration_images=options.calibration_images,
            output=serving.output,
            pixels=pixels,
            description=description,
            must_agree=False,
            expected=None if pixels else request.float32_expected,
        )
        for quantization in options.tflite_quantizations
    ]
    texts = make_texts(description["class_names"], description)
    for name, text in texts.items():
        pathlib.Path(folder, name).write_text(text, "utf-8", newline="\n")
    return agreements


FORMAT = Format(
    write=write,
    start=start,
    suffix=".tflite",
    tolerances={
        f"tflite {name}": row.tolerance for name, row in QUANTIZATIONS.items()
    },
    packages=("ai_edge_litert",),
    check=check_options,
    read=read_archive,
)
