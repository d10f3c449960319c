"""Export as an OpenVINO model, for Intel's processors."""

import os
import tempfile

import keras
import numpy as np

from keras_vit.export.agreement import (
    Agreement,
    Tolerance,
    compare,
    size_on_disk,
)
from keras_vit.export.answers import answer_in_batches, expected_answers
from keras_vit.export.requirements import (
    check_exportable,
    check_extra,
    check_path,
    in_float32,
)
from keras_vit.export.saved_model import write_signature


def export_openvino(
    model: keras.Model,
    path: str,
    images: np.ndarray,
    *,
    output: str | None = None,
    tolerance: Tolerance | None = None,
    must_agree: bool = True,
    expected: np.ndarray | None = None,
) -> Agreement:
    """Write `model` as an OpenVINO model, a `.xml` and a `.bin` file.

    Input and output are those of `export_saved_model`, for any number of
    images at a time; an image of another size is an error. OpenVINO's own
    `reshape` fixes that number, which makes it a few percent faster. The
    weights stay float32, and a model of mixed precision is converted in
    float32. The files appear after their answers were compared with those of
    `model`. Needs the extra `openvino`.

    Args:
        model: A model of fixed image size.
        path: The file to write; must end in `.xml`. Neither it nor the `.bin`
            file beside it may exist.
        images: Images to compare the answers on, (B, H, W, C).
        output: What the model answers with, see `name_output`.
        tolerance: How far the answers may be apart, at the precision f32.
            OpenVINO itself may choose a lower one, see its
            INFERENCE_PRECISION_HINT. Default: TOLERANCES.
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
    weights_path = path.removesuffix(".xml") + ".bin"
    check_exportable(model, images)
    check_path(path, ".xml")
    check_path(weights_path)
    check_extra("openvino")
    model = in_float32(model)
    if expected is None:
        expected = expected_answers(model, images)
    parent = os.path.dirname(os.path.abspath(path))
    os.makedirs(parent, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".draft-", dir=parent) as folder:
        draft = os.path.join(folder, "model.xml")
        convert(model, draft, output)
        agreement = compare(
            path,
            "openvino",
            expected,
            run(draft, images),
            size_on_disk(folder),
            tolerance,
            must_agree,
        )
        # The file that names the other comes last.
        os.replace(os.path.join(folder, "model.bin"), weights_path)
        os.replace(draft, path)
    return agreement


def convert(model: keras.Model, path: str, output: str | None = None):
    """Write a float32 `model` for OpenVINO.

    Args:
        model: A model of fixed image size.
        path: The `.xml` file; the `.bin` file is written beside it.
        output: See `name_output`.
    """
    import openvino

    with tempfile.TemporaryDirectory() as folder:
        write_signature(model, folder, batch_size=None, output=output)
        # `openvino.convert_model` does the same, and reports what it is given
        # to its makers.
        graph = openvino.Core().read_model(folder)
        openvino.save_model(graph, path, compress_to_fp16=False)


def run(path: str, images: np.ndarray) -> np.ndarray:
    """Return what an OpenVINO model answers to `images`, at float32."""
    import openvino

    compiled = openvino.Core().compile_model(
        path, "CPU", {"INFERENCE_PRECISION_HINT": "f32"}
    )
    return answer_in_batches(
        lambda batch: compiled({"images": batch})[0],
        np.asarray(images, "float32"),
    )
