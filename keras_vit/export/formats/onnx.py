"""Export as an ONNX file, for ONNX Runtime and other runtimes."""

import functools
import json
import os
import pathlib
from collections.abc import Callable

import keras
import numpy as np

from keras_vit.export.agreement import (
    FLOAT32,
    Agreement,
    compare,
    expected_outputs,
    make_noise,
    run_in_batches,
)
from keras_vit.export.contract import (
    KEY,
    ExportRequest,
    Format,
    Serving,
    export_file,
    make_forward,
    normalize_images,
    to_text,
)
from keras_vit.models.features import name_output
from keras_vit.preprocessing.description import to_uint8

OPSET = 15  # From 2021; nothing newer is needed.
MAX_BYTES = 2**31  # Bytes in a file of protocol buffers.


def export_onnx(
    model: keras.Model,
    path: str | os.PathLike,
    images: np.ndarray,
    *,
    serving: Serving | None = None,
    takes_pixels: bool = False,
    **choices,
) -> Agreement:
    """Write `model` as an ONNX file that accepts any batch size.

    The input is `images`, float32 (B, H, W, C) in the range of the model; the
    output is `logits`, `probabilities` or `features`. Images of another size
    are an error. A mixed-precision model is converted to float32. The complete
    file appears after ONNX's checker has validated it and the outputs of ONNX
    Runtime were compared with those of `model`. Its metadata has the
    description of the model under the key "keras_vit", as JSON. Needs the
    packages onnx, onnxruntime and tf2onnx.

    Args:
        model: A model with a fixed image size, below 2 GiB.
        path: The file to write; must not exist and end in `.onnx`.
        images: Images to compare outputs on, (B, H, W, C), in the range of
            the model.
        serving: Pre- and post-processing of the model, for the description.
        takes_pixels: Whether the file takes uint8 pixels from 0 to 255, which
            it normalises itself. `images` are rounded for the comparison.
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
        onnx_takes_pixels=takes_pixels,
        **choices,
    )


def write(request: ExportRequest, folder: pathlib.Path) -> list[Agreement]:
    """Write `model.onnx` into an empty folder."""
    import onnx

    model, path = request.float32_model, folder / "model.onnx"
    if 4 * model.count_params() >= MAX_BYTES:
        raise ValueError(
            "`model` must be below 2 GiB, the limit of the format. Received: "
            f"{model.count_params():,} weights of 4 bytes"
        )
    images, preprocess, pixels_per_side = request.images, None, None
    if request.options.onnx_takes_pixels:
        mode = request.serving.settings.normalization
        preprocess = functools.partial(normalize_images, mode=mode)
        images, pixels_per_side = to_uint8(images, mode), 1
        # Rounding to pixels changes the outputs.
        expected = expected_outputs(model, preprocess(images).numpy())
    else:
        expected = request.float32_expected
    proto = to_onnx(model, preprocess, request.serving.output)
    description = request.describe(pixels_per_side)
    onnx.helper.set_model_props(proto, {KEY: to_text(description)})
    onnx.save(proto, path)
    onnx.checker.check_model(path, full_check=True)
    agreement = compare(
        expected,
        run_onnx(path, images),
        request.tolerance or FLOAT32,
        path=path,
        kind="onnx",
        num_bytes=path.stat().st_size,
    )
    return [agreement]


def to_onnx(
    model: keras.Model,
    preprocess: Callable | None = None,
    output: str | None = None,
):
    """Convert a float32 `model` to an `onnx.ModelProto`."""
    import tensorflow as tf
    import tf2onnx

    name = name_output(model, output)
    forward = make_forward(model, output)
    weights = {f"weight_{i}": w for i, w in enumerate(model.variables)}

    # The weights are inputs of the function, because tf2onnx would copy
    # constants dozens of times: 18 GB for a ViT-B/16.
    @tf.function(autograph=False)
    def serve(images, *values):
        if preprocess is not None:
            images = preprocess(tf.cast(images, tf.float32))
        with keras.StatelessScope(list(zip(model.variables, values))):
            outputs = forward(images)
        return {name: tf.cast(outputs[name], tf.float32)}

    dtype = tf.float32 if preprocess is None else tf.uint8
    shape = (None, *model.input_shape[1:])
    specs = [
        tf.TensorSpec(weight.shape, weight.dtype, name=key)
        for key, weight in weights.items()
    ]
    proto, _ = tf2onnx.convert.from_function(
        serve,
        [tf.TensorSpec(shape, dtype, name="images"), *specs],
        opset=OPSET,
        # For this call only, without an effect on other conversions.
        custom_op_handlers={"Erfc": (convert_erfc, [])},
    )
    store_weights(proto.graph, weights)
    for tensor in (*proto.graph.input, *proto.graph.output):
        tensor.type.tensor_type.shape.dim[0].dim_param = "batch"
    return proto


def store_weights(graph, weights: dict):
    """Turn inputs of an ONNX graph into stored weights."""
    import onnx

    used = {key for node in graph.node for key in node.input}
    graph.initializer.extend(
        onnx.numpy_helper.from_array(weight.numpy(), key)
        for key, weight in weights.items()
        if key in used
    )
    inputs = [each for each in graph.input if each.name not in weights]
    del graph.input[:]
    graph.input.extend(inputs)


def convert_erfc(graph, node, name, arguments):
    """Replace erfc(x), which is in the exact GELU, by 1 - erf(x)."""
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


def run_onnx(path: str | os.PathLike, images: np.ndarray) -> np.ndarray:
    """Return the outputs of an ONNX file for `images`."""
    import onnxruntime

    session = onnxruntime.InferenceSession(
        os.fspath(path), providers=["CPUExecutionProvider"]
    )
    (tensor,) = session.get_inputs()
    return run_in_batches(
        lambda batch: session.run(None, {tensor.name: batch})[0],
        np.asarray(images, input_dtype(tensor)),
    )


def input_dtype(tensor) -> str:
    """Return the dtype of ONNX Runtime's description of an input."""
    return "uint8" if tensor.type == "tensor(uint8)" else "float32"


def start(path: str, shape: tuple[int, ...], threads: int) -> Callable:
    """Load an ONNX file; return a function that runs it on noise."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    # Spinning threads would slow down the next measurement.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    session = onnxruntime.InferenceSession(
        path, options, providers=["CPUExecutionProvider"]
    )
    (tensor,) = session.get_inputs()
    images = make_noise(shape, input_dtype(tensor))
    return lambda: session.run(None, {tensor.name: images})


def read_metadata(path: str) -> dict | None:
    """Return the description in an ONNX file, or None."""
    import onnx

    proto = onnx.load(path, load_external_data=False)
    texts = {each.key: each.value for each in proto.metadata_props}
    return json.loads(texts[KEY]) if KEY in texts else None


FORMAT = Format(
    write=write,
    start=start,
    suffix=".onnx",
    packages=("onnx", "onnxruntime", "tf2onnx"),
    read=read_metadata,
    readers=("onnx",),
)
