"""Export as an OpenVINO model, for Intel processors."""

import errno
import json
import os
import pathlib
import shutil
import tempfile
from collections.abc import Callable

import keras
import numpy as np

from keras_vit.export.agreement import (
    FLOAT32,
    Agreement,
    compare,
    make_noise,
    run_in_batches,
    size_on_disk,
)
from keras_vit.export.contract import (
    KEY,
    ExportRequest,
    Format,
    Serving,
    export_file,
    to_text,
)
from keras_vit.export.formats.saved_model import write_default_endpoint


def export_openvino(
    model: keras.Model,
    path: str | os.PathLike,
    images: np.ndarray,
    *,
    serving: Serving | None = None,
    **choices,
) -> Agreement:
    """Write `model` as an OpenVINO model, a `.xml` and a `.bin` file.

    Inputs and outputs are those of `export_saved_model`, with any batch size;
    images of another size are an error. If you fix the batch size with
    OpenVINO's own `reshape`, the model is a few percent faster. The weights
    are float32, and a mixed-precision model is converted to float32. The files
    appear after their outputs, at the precision f32, were compared with those
    of `model`; by default, OpenVINO may choose a lower precision, see its
    INFERENCE_PRECISION_HINT. The runtime information has the description of
    the model under the key "keras_vit", as JSON. Needs the package openvino.

    Args:
        model: A model with a fixed image size.
        path: The file to write; must end in `.xml`. Neither it nor the `.bin`
            file beside it may exist.
        images: Images to compare outputs on, (B, H, W, C).
        serving: Pre- and post-processing of the model, for the description.
        **choices: The arguments `name`, `tolerance` and `must_agree` of
            `keras_vit.export.export_file`, which also has the results and
            the errors.
    """
    serving = serving or Serving()
    return export_file(FORMAT, model, path, images, serving=serving, **choices)


def write(request: ExportRequest, folder: pathlib.Path) -> list[Agreement]:
    """Write `model.xml` and `model.bin` into an empty folder."""
    import openvino

    path, model = folder / "model.xml", request.float32_model
    with tempfile.TemporaryDirectory() as source:
        write_default_endpoint(model, source, None, request.serving.output)
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
    agreement = compare(
        request.float32_expected,
        run_openvino(path, request.images),
        request.tolerance or FLOAT32,
        path=path,
        kind="openvino",
        num_bytes=size_on_disk(folder),
    )
    return [agreement]


def run_openvino(path: pathlib.Path, images: np.ndarray) -> np.ndarray:
    """Return the outputs of an OpenVINO model, computed in float32."""
    import openvino

    compiled = openvino.Core().compile_model(
        path, "CPU", {"INFERENCE_PRECISION_HINT": "f32"}
    )
    return run_in_batches(
        lambda batch: compiled({"images": batch})[0],
        np.asarray(images, "float32"),
    )


def start(path: str, shape: tuple[int, ...], threads: int) -> Callable:
    """Load an OpenVINO model for one shape; return a function to run it."""
    import openvino

    core = openvino.Core()
    graph = core.read_model(path)
    # With a fixed batch size, a run computes no shapes.
    graph.reshape(shape)
    compiled = core.compile_model(
        graph,
        "CPU",
        {
            "INFERENCE_NUM_THREADS": threads,
            "INFERENCE_PRECISION_HINT": "f32",
            "PERFORMANCE_HINT": "LATENCY",
        },
    )
    request = compiled.create_infer_request()
    images = make_noise(shape, "float32")
    return lambda: request.infer({0: images})


def read_information(path: str) -> dict | None:
    """Return the description in an OpenVINO file, or None."""
    import openvino

    graph = openvino.Core().read_model(path)
    if not graph.has_rt_info(KEY):
        return None
    return json.loads(graph.get_rt_info(KEY).astype(str))


FORMAT = Format(
    write=write,
    start=start,
    suffix=".xml",
    packages=("openvino",),
    read=read_information,
    readers=("openvino",),
)
