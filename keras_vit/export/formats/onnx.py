"""Export as an ONNX file, for ONNX Runtime and other runtimes.

The input is `images`, float32 (B, H, W, C) in the range of the model or uint8
pixels, of any batch size or of one; the output is `logits`, `probabilities`,
`features`, or for each pixel `pixel_logits` or `depths`. Images of another size
are an error. A mixed-precision model is converted to float32. ONNX's checker
validates the file. Its metadata has the description of the model under the key
"keras_vit", as JSON.
"""

import functools
import json
import os
import pathlib
from collections.abc import Callable

import keras
import numpy as np

from keras_vit.arguments import as_whole
from keras_vit.export.agreement import FLOAT32
from keras_vit.export.contract import (
    KEY,
    ExportOptions,
    ExportRequest,
    Format,
    Loaded,
    Written,
    make_forward,
    select_answers,
    to_text,
)
from keras_vit.known import KnownScore
from keras_vit.models.features import name_output
from keras_vit.preprocessing import preprocess_input
from keras_vit.preprocessing.description import to_uint8

OPSET = 15  # From 2021; nothing newer is needed.
MAX_BYTES = 2**31  # Bytes in a file of protocol buffers.


def write(request: ExportRequest, folder: pathlib.Path) -> list[Written]:
    """Write `model.onnx` into an empty folder."""
    import onnx

    model, path = request.float32_model, folder / "model.onnx"
    if 4 * model.count_params() >= MAX_BYTES:
        raise ValueError(
            "`model` must be below 2 GiB, the limit of the format. Received: "
            f"{model.count_params():,} weights of 4 bytes"
        )
    questions, preprocess, pixels_per_side = request.ask(), None, None
    if request.options.onnx_takes_pixels:
        mode = request.serving.settings.normalization
        preprocess = functools.partial(
            preprocess_input, data_format="channels_last", mode=mode
        )
        pixels, pixels_per_side = to_uint8(request.images, mode), 1
        # Rounding to pixels changes the outputs.
        questions = request.ask(pixels, preprocess(pixels))
    serving = request.serving
    proto = to_onnx(
        model,
        preprocess,
        serving.output,
        serving.known,
        request.options.onnx_batch_size,
    )
    description = request.describe(pixels_per_side)
    onnx.helper.set_model_props(proto, {KEY: to_text(description)})
    onnx.save(proto, path)
    onnx.checker.check_model(path, full_check=True)
    return [Written(path, "onnx", load(path), questions, FLOAT32)]


def to_onnx(
    model: keras.Model,
    preprocess: Callable | None = None,
    output: str | None = None,
    known: KnownScore | None = None,
    batch_size: int | None = None,
):
    """Convert a float32 `model` to an `onnx.ModelProto`.

    Args:
        model: A model with a fixed image size.
        preprocess: What is applied to uint8 pixels. Default: the file takes
            floats.
        output: See `name_output`.
        known: See `Serving`.
        batch_size: See `onnx_batch_size` of `ExportOptions`.
    """
    import tensorflow as tf
    import tf2onnx

    name = name_output(model, output)
    forward = make_forward(model, output, known=known)
    weights = {f"weight_{i}": w for i, w in enumerate(model.variables)}

    # The weights are inputs of the function, because tf2onnx would copy
    # constants dozens of times: 18 GB for a ViT-B/16.
    @tf.function(autograph=False)
    def serve(images, *values):
        if preprocess is not None:
            images = preprocess(tf.cast(images, tf.float32))
        with keras.StatelessScope(list(zip(model.variables, values))):
            return select_answers(forward(images), name)

    dtype = tf.float32 if preprocess is None else tf.uint8
    shape = (batch_size, *model.input_shape[1:])
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
    if batch_size is not None:
        fold_constants(proto)
        return proto
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


def fold_constants(proto):
    """Compute the nodes that follow from stored weights alone, and store them.

    Such as sines of learned rotary angles, and tables of relative positions.
    """
    import onnx
    from onnx.reference import ReferenceEvaluator

    graph = proto.graph
    folded = onnx.helper.make_graph([], "constants", [], [], graph.initializer)
    known = {"", *(x.name for x in graph.initializer)}  # "" is no input.
    for node in graph.node:
        if known.issuperset(node.input):
            known.update(node.output)
            folded.node.append(node)
    for node in folded.node:
        graph.node.remove(node)
    used = {key for node in graph.node for key in node.input}
    names = [k for node in folded.node for k in node.output if k in used]
    folded.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    values = ReferenceEvaluator(
        onnx.helper.make_model(folded, opset_imports=proto.opset_import)
    ).run(None, {})
    arrays = [x for x in folded.initializer if x.name in used]
    arrays += map(onnx.numpy_helper.from_array, values, names)
    del graph.initializer[:]
    graph.initializer.extend(arrays)


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


def load(
    path: str | os.PathLike,
    threads: int | None = None,
    batch_size: int | None = None,
) -> Loaded:
    """Load an ONNX file."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    if threads:
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        # Spinning threads would slow down the next measurement.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    session = onnxruntime.InferenceSession(
        str(path), options, providers=["CPUExecutionProvider"]
    )
    (tensor,) = session.get_inputs()
    names = [output.name for output in session.get_outputs()]
    dtype = "uint8" if tensor.type == "tensor(uint8)" else "float32"
    count, *shape = tensor.shape  # A name for any batch size.
    count = count if isinstance(count, int) else None

    def call(batch, signature="serving_default"):
        inputs = {tensor.name: np.asarray(batch, dtype)}
        return dict(zip(names, session.run(names, inputs)))

    return Loaded(call, (count, *shape), dtype)


def check_options(options: ExportOptions):
    """Raise an error if an option is invalid; see `Format.check`."""
    if options.onnx_batch_size is not None:
        as_whole(options.onnx_batch_size, "onnx_batch_size")


def read_metadata(path: str) -> dict | None:
    """Return the description in an ONNX file, or None."""
    import onnx

    proto = onnx.load(path, load_external_data=False)
    texts = {each.key: each.value for each in proto.metadata_props}
    return json.loads(texts[KEY]) if KEY in texts else None


FORMAT = Format(
    write=write,
    load=load,
    suffix=".onnx",
    packages=("onnx", "onnxruntime", "tf2onnx"),
    check=check_options,
    read=read_metadata,
    readers=("onnx",),
)
