"""Export as an OpenVINO model, a `.xml` and a `.bin` file, for Intel.

The input is `images`, float32 (B, H, W, C) in the range of the model, of any
batch size; images of another size are an error. If you fix the batch size with
OpenVINO's own `reshape`, the model is a few percent faster. The weights are
float32, and a mixed-precision model is converted to float32. The outputs are
compared at the precision f32; by default, OpenVINO may choose a lower one, see
its INFERENCE_PRECISION_HINT. The runtime information has the description of
the model under the key "keras_vit", as JSON.
"""

import errno
import json
import os
import pathlib
import shutil
import tempfile

import numpy as np

from keras_vit.export.agreement import FLOAT32
from keras_vit.export.contract import (
    KEY,
    ExportRequest,
    Format,
    Loaded,
    Written,
    to_text,
)
from keras_vit.export.formats.saved_model import write_default_endpoint


def write(request: ExportRequest, folder: pathlib.Path) -> list[Written]:
    """Write `model.xml` and `model.bin` into an empty folder."""
    import openvino

    path, model = folder / "model.xml", request.float32_model
    with tempfile.TemporaryDirectory() as source:
        serving = request.serving
        write_default_endpoint(
            model, source, None, serving.output, serving.known
        )
        # Like `openvino.convert_model`, but without its telemetry.
        graph = openvino.Core().read_model(source)
        graph.set_rt_info(to_text(request.describe()), KEY)
        try:
            openvino.save_model(graph, path, compress_to_fp16=False)
        except RuntimeError as error:
            # The error of OpenVINO does not state the reason.
            if shutil.disk_usage(folder).free < 4 * model.count_params():
                reason = os.strerror(errno.ENOSPC)
                raise OSError(errno.ENOSPC, reason, str(path)) from error
            raise
    return [Written(path, "openvino", load(path), request.ask(), FLOAT32)]


def load(
    path: str | os.PathLike,
    threads: int | None = None,
    batch_size: int | None = None,
) -> Loaded:
    """Load an OpenVINO model, to compute in float32."""
    import openvino

    core = openvino.Core()
    graph = core.read_model(path)
    _, *sides = graph.input(0).partial_shape
    shape = [side.get_length() for side in sides]
    if batch_size:  # Then a run computes no shapes.
        graph.reshape((batch_size, *shape))
    options = {"INFERENCE_PRECISION_HINT": "f32"}
    if threads:
        options["INFERENCE_NUM_THREADS"] = threads
        options["PERFORMANCE_HINT"] = "LATENCY"
    compiled = core.compile_model(graph, "CPU", options)
    request = compiled.create_infer_request()
    names = [output.any_name for output in graph.outputs]

    def call(batch, signature="serving_default"):
        found = request.infer({0: np.asarray(batch, "float32")})
        return {name: found[index] for index, name in enumerate(names)}

    return Loaded(call, (None, *shape))


def read_information(path: str) -> dict | None:
    """Return the description in an OpenVINO file, or None."""
    import openvino

    graph = openvino.Core().read_model(path)
    if not graph.has_rt_info(KEY):
        return None
    return json.loads(graph.get_rt_info(KEY).astype(str))


FORMAT = Format(
    write=write,
    load=load,
    suffix=".xml",
    packages=("openvino",),
    read=read_information,
    readers=("openvino",),
)
