"""Export as a TFLite file, for phones and other small devices.

The file uses only built-in operations on tensors of at most four axes, so
every TFLite runtime can load it, on processors and GPUs. A runtime refuses
images of another size unless it is told to resize its input. A mixed-precision
model is converted to float32. The names of the classes, one per line, and the
description of the model are in the file as `labels.txt` and `model.json`, where
the TFLite task libraries and `zipfile` find them.
"""

import contextlib
import dataclasses
import io
import json
import os
import pathlib
import tempfile
import warnings
import zipfile
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np

from keras_vit.arguments import as_whole
from keras_vit.errors import import_packages
from keras_vit.export.agreement import FLOAT32, Tolerance
from keras_vit.export.contract import (
    ExportOptions,
    ExportRequest,
    Format,
    Loaded,
    Written,
    to_text,
)
from keras_vit.export.formats.saved_model import write_default_endpoint
from keras_vit.known import KnownScore
from keras_vit.preprocessing import preprocess_input
from keras_vit.preprocessing.description import Mode, to_uint8
from keras_vit.serving.models import batches, open_litert
from keras_vit.tables import pick

LABELS, DESCRIPTION = "labels.txt", "model.json"


def check_options(options: ExportOptions):
    """Raise an error if a TFLite option is invalid; see `Format.check`."""
    names = options.tflite_quantizations
    if not names or len(set(names)) < len(names):
        raise ValueError(
            "`tflite_quantizations` must name one or more of "
            f"{', '.join(QUANTIZATIONS)}, each once. "
            f"Received: {', '.join(names) or 'none'}"
        )
    if options.tflite_batch_size is not None:
        as_whole(options.tflite_batch_size, "tflite_batch_size")
    for name in names:
        row = pick(QUANTIZATIONS, name, "tflite_quantizations")
        import_packages("This export", row.packages)
        if row.needs_calibration and options.calibration_images is None:
            raise ValueError(
                "`calibration_images` (in the command, --calibration_split) "
                f"must be given for tflite_quantizations={name!r}, which "
                "measures the ranges of int8 numbers with them. Received: none"
            )
        if row.needs_calibration and options.tflite_takes_pixels:
            raise ValueError(
                "`tflite_takes_pixels` is for the quantizations that need no "
                f"calibration. Received: tflite_quantizations={name!r}"
            )


def write(request: ExportRequest, folder: pathlib.Path) -> list[Written]:
    """Write a TFLite file for each quantization into an empty folder.

    The labels and the description are in each file, and beside it.
    """
    pixels, options = None, request.options
    if options.tflite_takes_pixels:
        steps = request.serving.steps(request.model.input_shape[1:3])
        normalization = request.serving.settings.normalization
        pixels = find_pixel_input(steps, normalization)
    description = request.describe(pixels and pixels.pixels_per_side)
    texts = {DESCRIPTION: to_text(description)}
    if (names := description["class_names"]) is not None:
        broken = [name for name in names if name.splitlines() != [name]]
        if broken:
            raise ValueError(
                "`class_names` must each fit in a line of text. "
                f"Received: {broken[0]!r}"
            )
        texts = {LABELS: "".join(f"{name}\n" for name in names), **texts}
    for name, text in texts.items():
        (folder / name).write_text(text, "utf-8", newline="\n")
    return [
        write_file(
            request,
            folder / f"{name}.tflite",
            name,
            options.tflite_batch_size,
            texts,
            pixels,
        )
        for name in options.tflite_quantizations
    ]


def write_file(
    request: ExportRequest,
    path: pathlib.Path,
    quantization: str,
    batch_size: int | None,
    texts: Mapping[str, str],
    pixels: "PixelInput | None" = None,
) -> Written:
    """Write a TFLite file, and read it back."""
    row, calibration = QUANTIZATIONS[quantization], None
    if row.needs_calibration:
        calibration = request.options.calibration_images
        calibration = np.asarray(calibration, "float32")
        shape, expected = calibration.shape, request.model.input_shape
        if shape[1:] != expected[1:] or not len(calibration):
            raise ValueError(
                "`calibration_images` must be one or more images of the "
                f"model, {expected}. Received: shape={shape}"
            )
    content = to_tflite(
        request.float32_model,
        quantization,
        batch_size=batch_size,
        calibration_images=calibration,
        output=request.serving.output,
        pixels=pixels,
        known=request.serving.known,
    )
    # TFLite's metadata stores associated files in a zip archive behind the
    # model. A runtime reads only the model before it.
    buffer = io.BytesIO(content)
    if texts:
        with zipfile.ZipFile(buffer, "a") as archive:
            for name, text in texts.items():
                # Uncompressed, as the task libraries require; without a date,
                # so that equal models give equal files.
                archive.writestr(zipfile.ZipInfo(name), text)
    path.write_bytes(buffer.getvalue())
    questions, tolerance = request.ask(), row.tolerance
    if pixels is not None:
        given = pixels.round(request.images)
        questions = request.ask(given, pixels.expected_images(given))
    if request.output == "features":  # The largest one is not a class.
        tolerance = dataclasses.replace(
            tolerance, top1_agreement=0.0, expected_top1_agreement=0.0
        )
    partitions, left_out = find_partitions(path)
    is_half = quantization == "float16"
    return Written(
        path,
        f"tflite {quantization}",
        load(path),
        questions,
        tolerance,
        find_overflow(path, questions[0].inputs) if is_half else (),
        partitions=partitions,
        left_out=left_out,
    )


def to_tflite(
    model: keras.Model,
    quantization: str = "float32",
    batch_size: int | None = 1,
    calibration_images: np.ndarray | None = None,
    output: str | None = None,
    pixels: "PixelInput | None" = None,
    known: KnownScore | None = None,
) -> bytes:
    """Convert a float32 `model` to the content of a TFLite file.

    Args:
        model: A model with a fixed image size.
        quantization: A key of QUANTIZATIONS.
        batch_size: The only batch size that the file accepts; None for any.
        calibration_images: float32 images, for quantizations that need them.
        output: See `name_output`.
        pixels: See `write_file`.
        known: See `Serving`.
    """
    import tensorflow as tf

    # LiteRT in a browser has no truth values.
    choices = {"truth_dtype": "int32"}
    if pixels is not None:
        height, width, channels = model.input_shape[1:]
        factor = pixels.pixels_per_side
        shape = (height * factor, width * factor, channels)
        choices |= {"prepare": pixels.prepare, "shape": shape, "dtype": "uint8"}
    with tempfile.TemporaryDirectory() as folder:
        write_default_endpoint(
            model, folder, batch_size, output, known, **choices
        )
        converter = tf.lite.TFLiteConverter.from_saved_model(folder)
        # Few runtimes include the TensorFlow operations.
        converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS]
        content = QUANTIZATIONS[quantization].convert(
            converter, calibration_images, batch_size or 1
        )
    return edited(content, even_ranks)


def load(
    path: str | os.PathLike,
    threads: int | None = None,
    batch_size: int | None = None,
) -> Loaded:
    """Load a TFLite file. Integers with a scale stand for floats."""
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(str(path), num_threads=threads or os.cpu_count())
    _, inputs, _, run = open_litert(interpreter)
    [info] = inputs.values()
    count, *shape = info["shape_signature"]  # -1 for any.
    return Loaded(
        lambda batch, signature="serving_default": run(batch),
        (None if count < 0 else int(count), *map(int, shape)),
        "float32" if info["quantization"][0] else info["dtype"].__name__,
    )


def find_partitions(path: str | os.PathLike) -> tuple[int, tuple[str, ...]]:
    """Return the partitions and what is left out, see `Agreement`."""
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(str(path))
    interpreter.allocate_tensors()
    # Delegates come last, and are the makers of what they compute. LiteRT has
    # no public function that tells them.
    makers = {
        index: (place, row)
        for place, row in enumerate(interpreter._get_ops_details())
        for index in row["outputs"]
    }
    wanted = [row["index"] for row in interpreter.get_output_details()]
    used = {}
    while wanted:
        place, row = makers.get(wanted.pop(), (None, None))
        if row is not None and place not in used:
            used[place] = row["op_name"]
            wanted.extend(row["inputs"])
    kinds = [*used.values()]
    left_out = tuple(sorted({*kinds} - {"DELEGATE"}))
    return kinds.count("DELEGATE"), left_out


MOST_HALF = float(np.finfo("float16").max)
NUM_MEASURED = 8  # Images; one takes ten times as long as with XNNPACK.


def find_overflow(
    path: str | os.PathLike, inputs: np.ndarray
) -> tuple[str, ...]:
    """Return a fault if numbers in a file are too large for float16.

    GPUs of phones compute in float16, where larger numbers become infinite.
    CPUs compute in float32, so their answers do not show it. Here every tensor
    of the graph is looked at, on some inputs.
    """
    from ai_edge_litert.interpreter import Interpreter, OpResolverType

    interpreter = Interpreter(
        str(path),
        num_threads=os.cpu_count(),
        # XNNPACK keeps no tensors within its partitions.
        experimental_op_resolver_type=(
            OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES
        ),
        experimental_preserve_all_tensors=True,
    )
    interpreter.allocate_tensors()
    [info] = interpreter.get_input_details()
    indices = {
        index
        for row in interpreter._get_ops_details()
        for index in (*row["inputs"], *row["outputs"])
    }
    names = {
        row["index"]: row["name"].rpartition(";")[2]
        for row in interpreter.get_tensor_details()
        if row["index"] in indices and row["dtype"] is np.float32
    }
    largest = {}
    for batch in batches(inputs[:NUM_MEASURED], info["shape"][0]):
        interpreter.set_tensor(info["index"], batch.astype(info["dtype"]))
        interpreter.invoke()
        for index, name in names.items():
            value = np.abs(interpreter.get_tensor(index)).max(initial=0)
            value = np.nan_to_num(value, nan=np.inf)
            largest[name] = max(largest.get(name, 0), value)
    name = max(largest, key=largest.get)
    if largest[name] <= MOST_HALF:
        return ()
    return (
        f"`{name}` reaches {largest[name]:.3g}; above {MOST_HALF:,.0f} is "
        "infinity in float16, in which GPUs may compute; use float32 or "
        "dynamic_int8",
    )


def read_archive(path: str | os.PathLike) -> dict[str, Any] | None:
    """Return the description in a TFLite file, or None."""
    try:
        with zipfile.ZipFile(path) as archive:
            return json.loads(archive.read(DESCRIPTION))
    except (zipfile.BadZipFile, KeyError):
        return None


# The weights with which the methods of `description.resize_step` halve a side.
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
        return preprocess_input(
            images, "channels_last", self.normalization
        ).numpy()

    def prepare(self, pixels):
        """Return the input of the model, with operations of TFLite.

        Shapes:
            pixels: See the result of `round`.
            returns: (B, H, W, C), float32.
        """
        import tensorflow as tf

        images = tf.cast(pixels, tf.float32)
        if self.method is not None:
            images = halve(images, HALVINGS[self.method])
            images = tf.clip_by_value(images, 0.0, 255.0)  # If it overshoots.
        return preprocess_input(images, "channels_last", self.normalization)


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
    return edited(converter.convert(), halve_weights)


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
        # In 0.10, logits that a score is computed from would be lost if they
        # were quantized. The only output would be number 0 of the call.
        calibrator.add_static_config(
            "^(?!StatefulPartitionedCall:[1-9])",
            qtyping.TFLOperationName.FULLY_CONNECTED,
            *(8, 8),
        )
        ranges = calibrator.calibrate(
            {"serving_default": calibration}, num_threads=1
        )
        return bytes(calibrator.quantize(ranges).quantized_model)


def edited(content: bytes, edit: Callable) -> bytes:
    """Return a TFLite file after a change of its graph.

    Args:
        content: The file, without what may follow the model.
        edit: Changes a `Graph`.
    """
    import flatbuffers
    from ai_edge_litert import schema_py_generated as schema

    class Builder(flatbuffers.Builder):
        """Aligns weights, as runtimes read them in place."""

        def StartVector(self, elem_size, num_elems, alignment):  # noqa: N802
            is_data = elem_size == 1 and num_elems >= ALIGNMENT
            alignment = ALIGNMENT if is_data else alignment
            return super().StartVector(elem_size, num_elems, alignment)

    model = schema.ModelT.InitFromPackedBuf(content)
    for graph in model.subgraphs:
        edit(Graph(model, graph, schema))
    builder = Builder(len(content) + 2**16)
    builder.Finish(model.Pack(builder), file_identifier=b"TFL3")
    return bytes(builder.Output())


ALIGNMENT = 16  # Bytes.


class Graph:
    """The graph of a TFLite file, with what edits need.

    Args:
        model: The ModelT of the file.
        graph: One of its SubGraphTs.
        schema: The module of these classes.
    """

    def __init__(self, model, graph, schema):
        self.model, self.schema = model, schema
        self.tensors, self.operators = graph.tensors, graph.operators
        self.kinds = {
            code: name for name, code in vars(schema.BuiltinOperator).items()
        }

    def kind(self, operator) -> str:
        """Return the name of an operator, such as "ADD"."""
        return self.kinds[self._number(operator.opcodeIndex)]

    def _number(self, index):
        code = self.model.operatorCodes[index]
        # Old codes are in a byte of their own, newer ones do not fit in it.
        return max(code.builtinCode, code.deprecatedBuiltinCode)

    def values(self, index: int) -> np.ndarray | None:
        """Return the bytes of a constant; None for a computed tensor."""
        data = self.model.buffers[self.tensors[index].buffer].data
        return None if data is None or not len(data) else data

    def add_constant(self, name: bytes, values: np.ndarray) -> int:
        """Return the index of a new tensor with these numbers."""
        buffer = self.schema.BufferT()
        buffer.data = np.frombuffer(values.tobytes(), np.uint8)
        self.model.buffers.append(buffer)
        kind = getattr(self.schema.TensorType, values.dtype.name.upper())
        return self.add_tensor(
            name, values.shape, kind, buffer=len(self.model.buffers) - 1
        )

    def add_tensor(self, name: bytes, shape, kind: int, **fields) -> int:
        """Return the index of a new tensor."""
        tensor = self.schema.TensorT()
        tensor.name, tensor.shape, tensor.type = name, [*shape], kind
        vars(tensor).update(fields)
        self.tensors.append(tensor)
        return len(self.tensors) - 1

    def make(self, kind: str, inputs: Sequence[int], output: int, options):
        """Return a new operator; `options` are an object of the schema."""
        number = getattr(self.schema.BuiltinOperator, kind)
        codes = self.model.operatorCodes
        known = [self._number(index) for index in range(len(codes))]
        if number not in known:
            code = self.schema.OperatorCodeT()
            code.builtinCode = code.deprecatedBuiltinCode = number
            codes.append(code)
            known.append(number)
        operator = self.schema.OperatorT()
        operator.opcodeIndex = known.index(number)
        operator.inputs, operator.outputs = [*inputs], [output]
        operator.builtinOptions = options
        name = type(options).__name__.removesuffix("T")
        kinds = self.schema.BuiltinOptions
        operator.builtinOptionsType = getattr(kinds, name)
        return operator


def even_ranks(graph: Graph):
    """Give both operands of sums and products the same number of axes.

    The converter drops a reshape before them where broadcasting does the same,
    but the GPUs of phones broadcast computed operands of fewer axes wrongly
    (LiteRT 8593 and 8975).
    """
    operators = []
    for operator in graph.operators:
        inputs = [*operator.inputs]
        is_open = all(graph.values(index) is None for index in inputs)
        if graph.kind(operator) in ELEMENTWISE and is_open:
            rank = max(len(graph.tensors[index].shape) for index in inputs)
            for place, index in enumerate(inputs):
                if len(graph.tensors[index].shape) < rank:
                    operators.append(reshape_to_rank(graph, index, rank))
                    inputs[place] = operators[-1].outputs[0]
            operator.inputs = inputs
        operators.append(operator)
    graph.operators[:] = operators


def reshape_to_rank(graph: Graph, index: int, rank: int):
    """Return the operator that puts axes of length 1 before a tensor."""
    tensor = graph.tensors[index]
    ones = [1] * (rank - len(tensor.shape))
    shape = np.int32([*ones, *tensor.shape])
    fields, sizes = {"quantization": tensor.quantization}, shape
    if tensor.shapeSignature is not None:  # With -1 for any batch size.
        sizes = np.int32([*ones, *tensor.shapeSignature])
        fields["shapeSignature"] = sizes
    name = tensor.name + b"/axes"
    output = graph.add_tensor(name, shape, tensor.type, **fields)
    options = graph.schema.ReshapeOptionsT()
    options.newShape = sizes
    inputs = index, graph.add_constant(name + b"/shape", sizes)
    return graph.make("RESHAPE", inputs, output, options)


ELEMENTWISE = {"ADD", "SUB", "MUL", "DIV", "MAXIMUM", "MINIMUM"}


def halve_weights(graph: Graph):
    """Store matrices in float16; vectors and single numbers stay.

    They are few, and an epsilon of 1e-12 would be 0.
    """
    operators, halves, kinds = [], {}, graph.schema.TensorType
    for index, tensor in enumerate([*graph.tensors]):
        buffer, data = tensor.buffer, graph.values(index)
        is_matrix = np.prod(tensor.shape) > max(tensor.shape, default=1)
        if tensor.type != kinds.FLOAT32 or data is None or not is_matrix:
            continue
        if buffer not in halves:  # Equal tensors have one.
            data = np.frombuffer(data, "float32").astype("float16")
            graph.model.buffers[buffer].data = data.view(np.uint8)
            halves[buffer] = graph.add_tensor(
                tensor.name + b"/half",
                tensor.shape,
                kinds.FLOAT16,
                buffer=buffer,
            )
        tensor.buffer = 0  # It is computed now.
        options = graph.schema.DequantizeOptionsT()
        operators.append(
            graph.make("DEQUANTIZE", [halves[buffer]], index, options)
        )
    graph.operators[:0] = operators


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
    "float16": Quantization(
        to_float16,
        Tolerance(cosine=0.9999, depth_difference=0.01, mean_iou=0.99),
    ),
    "dynamic_int8": Quantization(
        to_dynamic_int8,
        Tolerance(
            cosine=0.999,
            top1_agreement=0.99,
            depth_difference=0.05,
            mean_iou=0.9,
        ),
    ),
    "int8": Quantization(
        to_int8,
        Tolerance(expected_top1_agreement=0.95, expected_mean_iou=0.9),
        needs_calibration=True,
    ),
    "static_int8": Quantization(
        to_static_int8,
        Tolerance(expected_top1_agreement=0.95, expected_mean_iou=0.9),
        needs_calibration=True,
        packages=("ai_edge_quantizer",),
    ),
}


FORMAT = Format(
    write=write,
    load=load,
    suffix=".tflite",
    packages=("ai_edge_litert",),
    check=check_options,
    read=read_archive,
)
