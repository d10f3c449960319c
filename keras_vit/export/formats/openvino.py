"""Export as an OpenVINO model, for Intel processors."""

import errno
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from typing import Any

import keras
import numpy as np

from keras_vit.export.agreement import (
    FLOAT32,
    Agreement,
    Tolerance,
    compare,
    expected_outputs,
    make_noise,
    run_in_batches,
    size_on_disk,
)
from keras_vit.export.contract import (
    KEY,
    Format,
    check_exportable,
    check_packages,
    check_path,
    in_float32,
    to_text,
)
from keras_vit.export.formats.saved_model import write_default_endpoint
from keras_vit.files import draft_folder
from keras_vit.models.tuning import without_lora


def export_openvino(
    model: keras.Model,
    path: str,
    images: np.ndarray,
    *,
    output: str | None = None,
    description: Mapping[str, Any] | None = None,
    tolerance: Tolerance | None = None,
    must_agree: bool = True,
    expected: np.ndarray | None = None,
) -> Agreement:
    """Write `model` as an OpenVINO model, a `.xml` and a `.bin` file.

    Inputs and outputs are those of `export_saved_model`, with any batch size;
    images of another size are an error. If you fix the batch size with
    OpenVINO's own `reshape`, the model is a few percent faster. The weights
    are float32, and a mixed-precision model is converted to float32. The files
    appear after their outputs were compared with those of `model`. Needs the
    package openvino.

    Args:
        model: A model with a fixed image size.
        path: The file to write; must end in `.xml`. Neither it nor the `.bin`
            file beside it may exist.
        images: Images to compare outputs on, (B, H, W, C).
        output: The kind of output of the model; see `name_output`.
        description: Stored in the file, under the key "keras_vit" of its
            runtime information, as JSON.
        tolerance: The allowed differences at the precision f32. By default,
            OpenVINO may choose a lower precision; see its
            INFERENCE_PRECISION_HINT. Default: those of FORMAT.
        must_agree: Whether a larger difference is an error.
        expected: The outputs of the model in float32, if known.

    Returns:
        The comparison of the export with `model`.

    Raises:
        ValueError: If the model cannot be exported or `path` exists.
        ModuleNotFoundError: If a package is missing.
        DisagreementError: If the outputs differ. Nothing is written.
    """
    path = os.fspath(path)
    weights_path = path.removesuffix(".xml") + ".bin"
    check_exportable(model, images)
    model = without_lora(model)
    check_path(path, ".xml")
    check_path(weights_path)
    check_packages(FORMAT.packages)
    model = in_float32(model)
    if expected is None:
        expected = expected_outputs(model, images)
    with draft_folder(path) as folder:
        draft = os.path.join(folder, "model.xml")
        to_openvino(model, draft, output, description)
        agreement = compare(
            path,
            "openvino",
            expected,
            run_openvino(draft, images),
            size_on_disk(folder),
            tolerance or FORMAT.tolerances["openvino"],
            must_agree,
        )
        # The .xml file refers to the .bin file, so it is renamed last.
        os.replace(os.path.join(folder, "model.bin"), weights_path)
        os.replace(draft, path)
    return agreement


def to_openvino(
    model: keras.Model,
    path: str,
    output: str | None = None,
    description: Mapping[str, Any] | None = None,
):
    """Convert a float32 `model` to OpenVINO files.

    Args:
        model: A model with a fixed image size.
        path: The `.xml` file; the `.bin` file is written beside it.
        output: See `name_output`.
        description: See `export_openvino`.
    """
    import openvino

    with tempfile.TemporaryDirectory() as folder:
        write_default_endpoint(model, folder, batch_size=None, output=output)
        # Like `openvino.convert_model`, but without its telemetry.
        graph = openvino.Core().read_model(folder)
        if description is not None:
            graph.set_rt_info(to_text(description), KEY)
        try:
            openvino.save_model(graph, path, compress_to_fp16=False)
        except RuntimeError as error:
            # The error of OpenVINO does not state the reason.
            free = shutil.disk_usage(os.path.dirname(path)).free
            if free < 4 * model.count_params():
                reason = os.strerror(errno.ENOSPC)
                raise OSError(errno.ENOSPC, reason, path) from error
            raise


def run_openvino(path: str, images: np.ndarray) -> np.ndarray:
    """Return the outputs of an OpenVINO model, computed in float32."""
    import openvino

    compiled = openvino.Core().compile_model(
        path, "CPU", {"INFERENCE_PRECISION_HINT": "f32"}
    )
    return run_in_batches(
        lambda batch: compiled({"images": batch})[0],
        np.asarray(images, "float32"),
    )


def write(request, folder) -> list[Agreement]:
    """Write `model.xml` and `model.bin` into a new folder."""
    return [
        export_openvino(
            request.float32_model,
            folder / "model.xml",
            request.images,
            output=request.options.serving.output,
            description=request.description,
            must_agree=False,
            expected=request.float32_expected,
        )
    ]


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
    tolerances={"openvino": FLOAT32},
    packages=("openvino",),
    read=read_information,
    readers=("openvino",),
)
