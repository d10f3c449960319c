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
    ExportRequest,
    Format,
    Serving,
    check_packages,
    export_file,
    normalize_images,
    to_text,
)
from keras_vit.export.formats.saved_model import write_default_endpoint
from keras_vit.models.features import name_output
from keras_vit.preprocessing.description import Mode, to_uint8
from keras_vit.tables import pick

LABELS, DESCRIPTION = "labels.txt", "model.json"


def export_tflite(
    model: keras.Model,
    path: str | os.PathLike,
    images: np.ndarray,
    quantization: str = "dynamic_int8",
    *,
    batch_size: int | None = 1,
    calibration_images: np.ndarray | None = None,
    takes_pixels: bool = False,
    serving: Serving | None = None,
    **choices,
) -> Agreement:
    """Write `model` as a TFLite file.

    The file uses only built-in operations, so every TFLite runtime can load
    it. Images of another size are an error. A mixed-precision model is
    converted to float32. The names of the classes, one per line, and the
    description of the model are in the file as `labels.txt` and `model.json`,
    where the TFLite task libraries and `zipfile` find them. The complete file
    appears after its outputs were computed with LiteRT and compared with those
    of `model`.

    Args:
        model: A model with a fixed image size.
        path: The file to write; must not exist and end in `.tflite`.
        images: Images to compare outputs on, (B, H, W, C), in the range of
            the model.
        quantization: A key of QUANTIZATIONS. "float32". "float16": half the
            size. "dynamic_int8": int8 weights, with scales of the inputs
            computed in each call; a quarter of the size, and the fastest on a
            CPU. "int8": only integers, including inputs and outputs, for
            integer-only devices; less accurate. "static_int8": only the matrix
            products in int8, with ranges measured beforehand.
        batch_size: The only batch size that the file accepts; None for any.
        calibration_images: Images to measure the ranges of int8 numbers, at
            least about a hundred typical ones; for "int8" and "static_int8".
        takes_pixels: Whether the file takes uint8 pixels; see `PixelInput`.
        serving: Pre- and post-processing of the model, for the description.
        **choices: The arguments `name`, `tolerance` and `must_agree` of
            `keras_vit.export.export_file`, which also has the results and
            the errors.
    """
    return export_file(
        FORMAT,
        model,
        path,
        images,
        serving=serving or Serving(),
        tflite_quantizations=[quantization],
        tflite_batch_size=batch_size,
        calibration_images=calibration_images,
        tflite_takes_pixels=takes_pixels,
        **choices,
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
    batch_size = options.tflite_batch_size
    if batch_size is not None and batch_size < 1:
        raise ValueError(
            "`batch_size` must be 1 or more, or None for any. "
            f"Received: batch_size={batch_size}"
        )
    for name in names:
        row = pick(QUANTIZATIONS, name, "tflite_quantizations")
        check_packages(row.packages)
        if row.needs_calibration and not is_calibrated:
            raise ValueError(
                "`calibration_images` (in the command, --calibration_split) "
                f"must be given for quantization={name!r}, which measures the "
                "ranges of int8 numbers with them. Received: none"
            )
        if row.needs_calibration and options.tflite_takes_pixels:
            raise ValueError(
                "`tflite_takes_pixels` is for the quantizations that need no "
                f"calibration. Received: quantization={name!r}"
            )


def write(request: ExportRequest, folder: pathlib.Path) -> list[Agreement]:
    """Write a TFLite file for each quantization into an empty folder.

    The labels and the description are in each file, and beside it.
    """
    pixels = None
    if request.options.tflite_takes_pixels:
        serving = request.serving
        steps = serving.steps(request.model.input_shape[1:3])
        pixels = find_pixel_input(steps, serving.settings.normalization)
    texts = make_texts(request, pixels)
    for name, text in texts.items():
        (folder / name).write_text(text, "utf-8", newline="\n")
    return [
        write_file(
            request,
            folder / f"{name}.tflite",
            name,
            request.options.tflite_batch_size,
            texts,
            pixels,
        )
        for name in request.options.tflite_quantizations
    ]


def write_file(
    request: ExportRequest,
    path: pathlib.Path,
    quantization: str,
    batch_size: int | None = 1,
    texts: Mapping[str, str] | None = None,
    pixels: "PixelInput | None" = None,
) -> Agreement:
    """Write a TFLite file, and compare it with the model."""
    model, output = request.float32_model, request.serving.output
    tolerance = request.tolerance or QUANTIZATIONS[quantization].tolerance
    if name_output(model, output) == "features":
        # The largest feature is not a class.
        tolerance = dataclasses.replace(
            tolerance, top1_agreement=0.0, expected_top1_agreement=0.0
        )
    calibration = request.options.calibration_images
    if QUANTIZATIONS[quantization].needs_calibration:
        calibration = np.asarray(calibration, "float32")
        expected_shape = model.input_shape[1:]
        if calibration.shape[1:] != expected_shape or not len(calibration):
            raise ValueError(
                "`calibration_images` must be one or more images of the "
                f"model, {model.input_shape}. "
                f"Received: shape={calibration.shape}"
            )
    images = request.images
    if pixels is None:
        expected = request.float32_expected
    else:
        images = pixels.round(images)
        expected = expected_outputs(model, pixels.expected_images(images))
    content = to_tflite(
        model, quantization, batch_size, calibration, output, pixels
    )
    if texts:
        content = append_archive(content, texts)
    path.write_bytes(content)
    return compare(
        expected,
        run_tflite(content, images),
        tolerance,
        path=path,
        kind=f"tflite {quantization}",
        num_bytes=len(content),
    )


def to_tflite(
    model: keras.Model,
    quantization: str = "float32",
    batch_size: int | None = 1,
    calibration_images: np.ndarray | None = None,
    output: str | None = None,
    pixels: "PixelInput | None" = None,
) -> bytes:
    """Convert a float32 `model` to the content of a TFLite file.

    Args:
        model: A model with a fixed image size.
        quantization: A key of QUANTIZATIONS.
        batch_size: The only batch size that the file accepts; None for any.
        calibration_images: float32 images, for quantizations that need them.
        output: See `name_output`.
        pixels: See `write_file`.
    """
    import tensorflow as tf

    choices = {"prepare": refuse_other_sizes}
    if pixels is not None:
        height, width, channels = model.input_shape[1:]
        factor = pixels.pixels_per_side
        shape = (height * factor, width * factor, channels)
        choices = {"prepare": pixels.prepare, "shape": shape, "dtype": "uint8"}
    with tempfile.TemporaryDirectory() as folder:
        write_default_endpoint(model, folder, batch_size, output, **choices)
        converter = tf.lite.TFLiteConverter.from_saved_model(folder)
        # Few runtimes include the TensorFlow operations.
        converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS]
        return QUANTIZATIONS[quantization].convert(
            converter, calibration_images, batch_size or 1
        )


def run_tflite(content: bytes, images: np.ndarray) -> np.ndarray:
    """Return the outputs of a TFLite file, in float32.

    Integers with a scale stand for floats.
    """
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(model_content=content, num_threads=os.cpu_count())
    runner = interpreter.get_signature_runner()
    ((name, inputs),) = runner.get_input_details().items()
    (outputs,) = runner.get_output_details().values()
    dtype, (scale, zero) = inputs["dtype"], inputs["quantization"]
    out_scale, out_zero = outputs["quantization"]

    def run(batch):
        if scale:
            bounds = np.iinfo(dtype)
            batch = np.rint(batch / scale + zero).clip(bounds.min, bounds.max)
        (found,) = runner(**{name: batch.astype(dtype)}).values()
        if out_scale:
            found = out_scale * (found.astype("float32") - out_zero)
        return found.astype("float32")

    size = inputs["shape_signature"][0]  # -1 for any.
    return run_in_batches(run, np.asarray(images), max(size, 0))


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


def make_texts(
    request: ExportRequest, pixels: "PixelInput | None" = None
) -> dict[str, str]:
    """Return the content of the files that describe a TFLite file, by name."""
    description = request.describe(pixels and pixels.pixels_per_side)
    texts = {DESCRIPTION: to_text(description)}
    names = description["class_names"]
    if names is None:
        return texts
    broken = [name for name in names if name.splitlines() != [name]]
    if broken:
        raise ValueError(
            "`class_names` must each fit in a line of text. "
            f"Received: {broken[0]!r}"
        )
    return {LABELS: "".join(f"{name}\n" for name in names), **texts}


def append_archive(content: bytes, texts: Mapping[str, str]) -> bytes:
    """Append texts to a TFLite file, in a zip archive.

    TFLite's metadata stores associated files in this way. A runtime reads only
    the model before the archive.
    """
    buffer = io.BytesIO(content)
    with zipfile.ZipFile(buffer, "a") as archive:
        for name, text in texts.items():
            # Uncompressed, as the task libraries require; without a date, so
            # that equal models give equal files.
            archive.writestr(zipfile.ZipInfo(name), text)
    return buffer.getvalue()


def read_archive(path: str | os.PathLike) -> dict[str, Any] | None:
    """Return the description in a TFLite file, or None."""
    try:
        with zipfile.ZipFile(path) as archive:
            return json.loads(archive.read(DESCRIPTION))
    except (zipfile.BadZipFile, KeyError):
        return None


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
    """An input of images as phones have them, uint8 pixels from 0 to 255.

    The antialiased resizing of most preprocessing is not a built-in operation
    of TFLite, but its last halving is: a convolution with fixed weights. So
    the file takes twice the height and width of the model, where phones resize
    a photo with little loss even without antialiasing.

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

        from keras_vit.preprocessing.resizing import METHODS

        images = tf.constant(pixels, tf.float32)
        if self.method is not None:
            size = [side // 2 for side in pixels.shape[1:3]]
            images = METHODS[self.method](images, size)
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
    """
    methods = [
        step.get("method", "area")
        for step in steps or ()
        if step["kind"] != "central_crop"
    ]
    is_halved = len(methods) == 1 and methods[0] in HALVINGS
    return PixelInput(normalization, methods[0] if is_halved else None)


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
    """Hide the output of a library, and its warnings about itself."""
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
        convert: Takes TensorFlow's converter, the calibration images and the
            batch size. Returns the content of the file.
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


FORMAT = Format(
    write=write,
    start=start,
    suffix=".tflite",
    packages=("ai_edge_litert",),
    check=check_options,
    read=read_archive,
)
