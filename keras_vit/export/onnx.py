"""Export as an ONNX file, for ONNX Runtime and what else reads the format."""

import os
from collections.abc import Callable

import keras
import numpy as np

from keras_vit.export.agreement import Agreement, Tolerance, compare
from keras_vit.export.answers import answer_in_batches, expected_answers
from keras_vit.export.forward import make_forward, name_output
from keras_vit.export.requirements import (
    check_exportable,
    check_extra,
    check_path,
    in_float32,
)
from keras_vit.files import atomic_write

OPSET = 15  # Of 2021; nothing newer is needed.
LARGEST = 2**31  # Bytes of a file of protocol buffers.


def export_onnx(
    model: keras.Model,
    path: str,
    images: np.ndarray,
    *,
    preprocess: Callable | None = None,
    output: str | None = None,
    tolerance: Tolerance | None = None,
    must_agree: bool = True,
    expected: np.ndarray | None = None,
) -> Agreement:
    """Write `model` as an ONNX file for any number of images at a time.

    The input is `images`, float32 (B, H, W, C) in the range of the model; the
    output is `logits`, `probabilities` or `features`. An image of another
    size is an error. A model of mixed precision is converted in float32. The
    file appears at once, after ONNX's checker read it and the answers of ONNX
    Runtime were compared with those of `model`. Needs the extra `onnx`.

    Args:
        model: A model of fixed image size, below 2 GiB.
        path: The file to write; must not exist and end in `.onnx`.
        images: Images to compare the answers on, (B, H, W, C); pixels from 0
            to 255 with `preprocess`.
        preprocess: Makes an image of pixels one in the range of the model,
            such as `keras_vit.preprocess_input`. It becomes a part of the
            file, whose input is then uint8.
        output: What the model answers with, see `name_output`.
        tolerance: How far the answers may be apart. Default: TOLERANCES.
        must_agree: Whether it is an error if they are further apart.
        expected: What the model answers in float32, if that is known.

    Returns:
        How the export compares with `model`.

    Raises:
        ValueError: If the model cannot be exported or `path` is no new file.
        ModuleNotFoundError: If the extra is missing.
        DisagreementError: If the answers differ; nothing is written then.
    """
    path = os.fspath(path)
    check_exportable(model, images)
    check_path(path, ".onnx")
    if 4 * model.count_params() >= LARGEST:
        raise ValueError(
            "`model` must be below 2 GiB, the limit of the format. Received: "
            f"{model.count_params():,} weights of 4 bytes"
        )
    if preprocess is not None and np.asarray(images).dtype != "uint8":
        raise ValueError(
            "`images` must be pixels, uint8, with `preprocess`. Received: "
            f"dtype={np.asarray(images).dtype}"
        )
    check_extra("onnx")
    import onnx

    model = in_float32(model)
    with atomic_write(path) as draft:
        onnx.save(convert(model, preprocess, output), draft)
        onnx.checker.check_model(draft, full_check=True)
        if expected is None:
            scaled = images if preprocess is None else preprocess(images)
            expected = expected_answers(model, scaled)
        return compare(
            path,
            "onnx",
            expected,
            run(draft, images),
            os.path.getsize(draft),
            tolerance,
            must_agree,
        )


def convert(
    model: keras.Model,
    preprocess: Callable | None = None,
    output: str | None = None,
):
    """Return a float32 `model` as an `onnx.ModelProto`.

    Args:
        model: A model of fixed image size.
        preprocess: See `export_onnx`.
        output: See `name_output`.
    """
    import onnx
    import tensorflow as tf
    import tf2onnx

    name = name_output(model, output)
    forward = make_forward(model, output)
    weights = {
        f"weight_{index}": weight
        for index, weight in enumerate(model.variables)
    }

    # The weights come in as inputs: tf2onnx would copy constants dozens of
    # times, 18 GB of them for a ViT-B/16.
    @tf.function(autograph=False)
    def serve(images, *values):
        if preprocess is not None:
            images = preprocess(tf.cast(images, tf.float32))
        with keras.StatelessScope(list(zip(model.variables, values))):
            answers = forward(images)
        return {name: tf.cast(answers[name], tf.float32)}

    dtype = tf.float32 if preprocess is None else tf.uint8
    shape = (None, *model.input_shape[1:])
    proto, _ = tf2onnx.convert.from_function(
        serve,
        [
            tf.TensorSpec(shape, dtype, name="images"),
            *(
                tf.TensorSpec(weight.shape, weight.dtype, name=key)
                for key, weight in weights.items()
            ),
        ],
        opset=OPSET,
        # For this call alone: other conversions do not see it.
        custom_op_handlers={"Erfc": (convert_erfc, [])},
    )
    graph = proto.graph
    used = {key for node in graph.node for key in node.input}
    graph.initializer.extend(
        onnx.numpy_helper.from_array(weight.numpy(), key)
        for key, weight in weights.items()
        if key in used
    )
    inputs = [each for each in graph.input if each.name not in weights]
    del graph.input[:]
    graph.input.extend(inputs)
    for tensor in (*graph.input, *graph.output):
        tensor.type.tensor_type.shape.dim[0].dim_param = "batch"
    return proto


def convert_erfc(graph, node, name, arguments):
    """Write erfc(x), which TensorFlow makes of exact GELUs, as 1 - erf(x).

    Args:
        graph: tf2onnx's graph.
        node: The operation in it.
        name: Of the operation.
        arguments: None; tf2onnx's interface asks for them.
    """
    import tf2onnx

    (output,) = node.output
    kind = {
        "shapes": [graph.get_shape(output)],
        "dtypes": [graph.get_dtype(output)],
    }
    one = graph.make_const(
        tf2onnx.utils.make_name("one"), np.array(1, "float32")
    )
    erf = graph.make_node("Erf", node.input, **kind)
    graph.remove_node(node.name)
    operands = [one.output[0], erf.output[0]]
    graph.make_node("Sub", operands, outputs=[output], **kind)


def run(path: str | os.PathLike, images: np.ndarray) -> np.ndarray:
    """Return what an ONNX file answers to `images`."""
    import onnxruntime

    session = onnxruntime.InferenceSession(
        os.fspath(path), providers=["CPUExecutionProvider"]
    )
    (tensor,) = session.get_inputs()
    dtype = "uint8" if tensor.type == "tensor(uint8)" else "float32"
    return answer_in_batches(
        lambda batch: session.run(None, {tensor.name: batch})[0],
        np.asarray(images, dtype),
    )
