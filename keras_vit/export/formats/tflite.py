"""Export as a TFLite file, for phones and other small devices."""

import contextlib
import dataclasses
import io
import json
import math
import os
import pathlib
import tempfile
import warnings
import zipfile
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np

from keras_vit.export.agreement import (
    FLOAT32,
    Agreement,
    Tolerance,
    batches,
    compare,
    expected_outputs,
    make_noise,
    run_in_batches,
)
from keras_vit.export.contract import (
    ExportOptions,
    Format,
    check_exportable,
    check_packages,
    check_path,
    describe,
    in_float32,
    normalize_images,
    to_text,
)
from keras_vit.export.formats.saved_model import write_default_endpoint
from keras_vit.files import atomic_write
from keras_vit.models.features import name_output
from keras_vit.models.tuning import without_lora
from keras_vit.preprocessing.normalization import Mode, to_uint8
from keras_vit.serving.models import load_litert
from keras_vit.tables import pick


def to_float32(converter, calibration_images, batch_size) -> bytes:
    """Convert without quantization."""
    return converter.convert()


def to_float16(converter, calibration_images, batch_size) -> bytes:
    """Convert with the weights in float16."""
    import tensorflow as tf

    converter.optimizations = [tf.lite.Optimize.DEFAULT]
    converter.target_spec.supported_types = [tf.float16]
    return converter.convert()


def to_dynamic_int8(converter, calibration_images, batch_size) -> bytes:
    """Convert with int8 weights; the runtime quantizes their inputs."""
    import tensorflow as tf

    converter.optimizations = [tf.lite.Optimize.DEFAULT]
    return converter.convert()


def to_int8(converter, calibration_images, batch_size) -> bytes:
    """Convert all weights, activations, inputs and outputs to integers."""
    import tensorflow as tf

    converter.optimizations = [tf.lite.Optimize.DEFAULT]
    converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS_INT8]
    converter.representative_dataset = lambda: (
        {"images": batch} for batch in batches(calibration_images, batch_size)
    )
    converter.inference_input_type = tf.int8
    converter.inference_output_type = tf.int8
    # The converter itself uses this interpreter for the calibration.
    with silence("tf.lite.Interpreter is deprecated"):
        return converter.convert()


def to_static_int8(converter, calibration_images, batch_size) -> bytes:
    """Convert with int8 products of tokens and weights, and fixed scales."""
    from ai_edge_quantizer import qtyping, quantizer

    calibration = [
        {"images": batch} for batch in batches(calibration_images, batch_size)
    ]
    with silence("experimental_preserve_all_tensors"):
        calibrator = quantizer.Quantizer(bytearray(converter.convert()))
        calibrator.add_static_config(
            ".*", qtyping.TFLOperationName.FULLY_CONNECTED, 8, 8
        )
        ranges = calibrator.calibrate(
            {"serving_default": calibration}, num_threads=1
        )
        return bytes(calibrator.quantize(ranges).quantized_model)


@contextlib.contextmanager
def silence(words: str):
    """Hide the output of a library, and its warnings about itself.

    Args:
        words: A part of the first line of the warning.
    """
    with (
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(io.StringIO()),
        warnings.catch_warnings(),
    ):
        warnings.filterwarnings("ignore", f".*{words}")
        yield


class Quantization(NamedTuple):
    """A kind of TFLite file.

    Args:
        convert: See the docstring of this module.
        tolerance: The allowed differences of its outputs from the model's.
        needs_calibration: Whether its ranges are measured on images.
        packages: Modules that it needs in addition to those of the format.
    """

    convert: Callable
    tolerance: Tolerance
    needs_calibration: bool = False
    packages: tuple[str, ...] = ()


QUANTIZATIONS = {
    "float32": Quantization(to_float32, FLOAT32),
    "float16": Quantization(to_float16, Tolerance(cosine=0.9999)),
    "dynamic_int8": Quantization(
        to_dynamic_int8, Tolerance(cosine=0.999, top1_agreement=0.99)
    ),
    "int8": Quantization(
        to_int8,
        Tolerance(expected_top1_agreement=0.95),
        needs_calibration=True,
    ),
    "static_int8": Quantization(
        to_static_int8,
        Tolerance(expected_top1_agreement=0.95),
        needs_calibration=True,
        packages=("ai_edge_quantizer",),
    ),
}


# The weights with which the methods of `image_steps.resize_step` halve a side.
HALVINGS = {
    "antialias": (1, 3, 3, 1),
    "area": (1, 1),
    # Keys' kernel at 1.75, 1.25, 0.75 and 0.25 pixels from the middle, in
    # parts of 128.
    "bicubic": (-3, -9, 29, 111, 111, 29, -9, -3),
}


@dataclasses.dataclass(frozen=True)
class PixelInput:
    """An input of uint8 pixels from 0 to 255, instead of floats.

    Args:
        normalization: How the images of the model are normalised, see
            `preprocess_input`.
        method: The method that halves the image, a key of HALVINGS. None if
            the image has the size of the model.
    """

    normalization: Mode = "vit"
    method: str | None = None

    @property
    def pixels_per_side(self) -> int:
        """The number of pixels for each side of a pixel of the model."""
        return 1 if self.method is None else 2

    def shape_of(self, model: keras.Model) -> tuple[int, int, int]:
        """Return the shape (H, W, C) of the images for `model`."""
        height, width, channels = model.input_shape[1:]
        factor = self.pixels_per_side
        return height * factor, width * factor, channels

    def round(self, images: np.ndarray) -> np.ndarray:
        """Return images for this input, uint8.

        Shapes:
            images: (B, H, W, C), floats, normalised for the model.
            returns: (B, 2 H, 2 W, C), or (B, H, W, C) without a method.
        """
        pixels = to_uint8(images, self.normalization)
        for axis in (1, 2):
            pixels = np.repeat(pixels, self.pixels_per_side, axis)
        return pixels

    def expected_images(self, pixels: np.ndarray) -> np.ndarray:
        """Return the input of the model for pixels, resized by TensorFlow.

        Shapes:
            pixels: See the result of `round`.
            returns: (B, H, W, C), floats in the range of the model.
        """
        import tensorflow as tf

        from keras_vit.image_resizing import resize_image

        images = tf.constant(pixels, tf.float32)
        if self.method is not None:
            size = [side // 2 for side in pixels.shape[1:3]]
            images = resize_image(images, size, self.method)
        return normalize_images(images, self.normalization).numpy()

    def prepare(self, pixels):
        """Return the input of the model, with operations of TFLite.

        Shapes:
            pixels: See the result of `round`; another size is an error.
            returns: (B, H, W, C), float32.
        """
        import tensorflow as tf

        images = refuse_other_sizes(tf.cast(pixels, tf.float32))
        if self.method is not None:
            images = halve(images, HALVINGS[self.method])
            images = tf.clip_by_value(images, 0.0, 255.0)  # If it overshoots.
        return normalize_images(images, self.normalization)


def halve(images, weights: Sequence[float]):
    """Halve the sides of images.

    Shapes:
        images: (B, 2 H, 2 W, C), float32. returns: (B, H, W, C).

    Args:
        images: Images to resize.
        weights: The weights of the pixels around the middle of a new pixel.
    """
    import tensorflow as tf

    _, height, width, channels = images.shape
    border = len(weights) // 2 - 1
    kernel = np.outer(weights, weights).astype("float32")
    kernel = kernel[:, :, None, None].repeat(channels, 2)
    images = tf.pad(
        images, ((0, 0), (border, border), (border, border), (0, 0))
    )
    images = tf.nn.depthwise_conv2d(images, kernel, (1, 2, 2, 1), "VALID")
    rows, columns = (sum_inside(weights, side) for side in (height, width))
    return images / np.outer(rows, columns).astype("float32")[:, :, None]


def sum_inside(weights: Sequence[float], side: int) -> np.ndarray:
    """Return the sum of the weights of each new pixel, without a border.

    Beyond the edge there are no pixels, so the others have more weight.

    Args:
        weights: See `halve`.
        side: Number of pixels before the halving.
    """
    is_inside = np.pad(np.ones(side), len(weights) // 2 - 1)
    windows = np.lib.stride_tricks.sliding_window_view(is_inside, len(weights))
    return windows[::2] @ np.asarray(weights)


def find_pixel_input(
    steps: Sequence[Mapping] | None, normalization: Mode
) -> PixelInput:
    """Return the input that fits a preprocessing.

    A file that halves the image is exact only if the last resizing is
    antialiased, and the only one.

    Args:
        steps: See `keras_vit.export.image_steps`; None if they are not known.
        normalization: How the images of the model are normalised.
    """
    methods = [
        step.get("method", "area")
        for step in steps or ()
        if step["kind"] != "central_crop"
    ]
    is_halved = len(methods) == 1 and methods[0] in HALVINGS
    return PixelInput(normalization, methods[0] if is_halved else None)


def refuse_other_sizes(images):
    """Return `images`, through operations that fail for another size.

    A TFLite interpreter resizes its input to the received shape, and the
    converter removes the shape check of the SavedModel: four small images
    could be read as one large image. But element-wise operations on tensors of
    different shapes still fail. So two edges of the image are combined with
    constants of the expected size. A frame of padding prevents an edge of
    length 1 from being broadcast. The result, a number below all pixels, is
    merged into the image, so the converter cannot remove it.

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
        # The converter would merge equal constants into a scalar.
        below = np.linspace(-3.1e38, -3e38, math.prod(shape), dtype="float32")
        edge = tf.pad(edge, ((0, 0), (1, 1), (1, 1), (1, 1)))
        edge = tf.maximum(edge, below.reshape(1, *shape))
        floor = tf.minimum(edge[:, 1:2, 1:2, 1:2], floor)  # (B, 1, 1, 1)
    return tf.maximum(images, floor)


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


LABELS, DESCRIPTION = "labels.txt", "model.json"


def make_texts(
    class_names: Sequence[str] | None, description: Mapping[str, Any] | None
) -> dict[str, str]:
    """Return the content of the files that describe a TFLite file, by name.

    Args:
        class_names: See `keras_vit.export.export_tflite`.
        description: See `keras_vit.export.export_tflite`.
    """
    texts = {}
    if class_names is not None:
        texts[LABELS] = "".join(f"{name}\n" for name in class_names)
    if description is not None:
        texts[DESCRIPTION] = to_text(description)
    return texts


def append_archive(content: bytes, texts: Mapping[str, str]) -> bytes:
    """Append texts to a TFLite file, in a zip archive.

    Args:
        content: The file.
        texts: The content of each file in the archive, by its name.
    """
    if not texts:
        return content
    buffer = io.BytesIO(content)
    with zipfile.ZipFile(buffer, "a") as archive:
        for name, text in texts.items():
            # Uncompressed, as the task libraries require; without a date, so
            # that equal models give equal files.
            archive.writestr(zipfile.ZipInfo(name), text)
    return buffer.getvalue()


def read_archive(path: str | os.PathLike) -> dict[str, Any] | None:
    """Return the description in a TFLite file, or None.

    A file with labels but without a description has only `class_names`.

    Args:
        path: The file.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
            if DESCRIPTION in names:
                return json.loads(archive.read(DESCRIPTION))
            if LABELS in names:
                text = archive.read(LABELS).decode("utf-8")
                return {"class_names": text.splitlines()}
    except zipfile.BadZipFile:
        pass
    return None


def run_tflite(content: bytes, images: np.ndarray) -> np.ndarray:
    """Return the outputs of a TFLite model, in float32.

    Integer inputs and outputs are converted with the scales in the file.
    """
    model = load_litert(content)
    (name,) = model.signatures["serving_default"].inputs

    def run(batch):
        (output,) = model.call("serving_default", {name: batch}).values()
        return output

    return run_in_batches(run, images)


def start(path: str, shape: tuple[int, ...], threads: int) -> Callable:
    """Load a TFLite file; return a function that runs it on noise."""
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(path, num_threads=threads)
    (inputs,) = interpreter.get_input_details()
    (outputs,) = interpreter.get_output_details()
    # A file that takes pixels may take more of them than the model.
    shape = (shape[0], *inputs["shape_signature"][1:])
    if inputs["shape_signature"][0] == -1:
        interpreter.resize_tensor_input(inputs["index"], shape)
    interpreter.allocate_tensors()
    images = make_noise(shape, inputs["dtype"])

    def run():
        interpreter.set_tensor(inputs["index"], images)
        interpreter.invoke()
        return interpreter.get_tensor(outputs["index"])

    return run


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
