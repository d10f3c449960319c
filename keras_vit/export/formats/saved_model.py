"""Export as a TensorFlow SavedModel, for TF Serving and plain TensorFlow."""

import dataclasses
import json
import os
import pathlib
from collections.abc import Callable

import keras
import numpy as np

from keras_vit.export.agreement import (
    FLOAT32,
    Agreement,
    Tolerance,
    compare_outputs,
    join,
    refuse_faults,
    size_on_disk,
)
from keras_vit.export.contract import Format
from keras_vit.export.description import describe, to_text
from keras_vit.export.endpoint_checks import (
    call_signature,
    expected_records,
)
from keras_vit.export.endpoints import make_endpoints, write_endpoints
from keras_vit.export.float32 import computes_in_16_bits
from keras_vit.export.preconditions import (
    check_exportable,
    check_packages,
    check_path,
)
from keras_vit.export.predicting import expected_outputs, make_noise
from keras_vit.export.serving_options import Serving
from keras_vit.files import draft_folder
from keras_vit.models.tuning import without_lora
from keras_vit.serving.models_config import write_models_config
from keras_vit.serving.warmup import WARMUP_FILE, WarmupRecord, write_warmup

DESCRIPTION_FILE = "assets.extra/keras_vit.json"


def export_saved_model(
    model: keras.Model,
    path: str,
    images: np.ndarray,
    serving: Serving | None = None,
    tolerance: Tolerance | None = None,
    must_agree: bool = True,
    expected: np.ndarray | None = None,
    name: str | None = None,
) -> Agreement:
    """Write `model` as a SavedModel that runs without Keras.

    Its signatures, in float32 unless stated otherwise:

    `serving_default`: `images` (B, H, W, C) in the range of the model, to
    `logits` or `probabilities` (B, classes), or `features` of a model without
    a head. `serve_uint8`: the same for uint8 pixels from 0 to 255.
    `serve_bytes`: `image_bytes` (B,), JPEG or PNG files, to `labels` (B, k),
    strings, and `probabilities` (B, k), highest first. `features`: `images`
    to the input of the head, (B, D). On request, `attention`: `images` to
    `rollout` (B, h, w); see `keras_vit.analysis.attention_grid`; and
    `attention_bytes`: `image_bytes` to `rollout` and `images` (B, H, W, C), as
    the model receives them, scaled to [0, 1].

    Images of another size are an error. The weights are stored once. A
    warm-up file contains a request and the response for each signature; TF
    Serving runs the requests before the model receives traffic. The complete
    folder appears after the outputs of all signatures were compared with those
    of `model`.

    Args:
        model: A model with a fixed image size.
        path: The folder to write; must not exist. TF Serving expects its name
            to be a version number.
        images: Images to compare outputs on, (B, H, W, C).
        serving: Pre- and post-processing on the server.
        tolerance: The allowed differences. Default: those of FORMAT.
        must_agree: Whether a larger difference is an error.
        expected: The outputs of the model for `images`, if known.
        name: Name of the model in its description. Default: that of `model`.

    Returns:
        The comparison of the export with `model`: the largest difference of
        all signatures, and the classes of `serving_default`.

    Raises:
        ValueError: If the model cannot be exported or `path` exists.
        DisagreementError: If the outputs differ. Nothing is written.
    """
    path = os.fspath(path)
    serving = serving or Serving()
    check_exportable(model, images)
    model = without_lora(model)
    check_path(path)
    check_packages(FORMAT.packages)
    if tolerance is None:
        # In 16 bits, rounding alone can change the last bit of a pixel.
        in_16_bits = " in 16 bits" * computes_in_16_bits(model)
        tolerance = FORMAT.tolerances[f"saved_model{in_16_bits}"]
    endpoints = make_endpoints(model, serving)
    if expected is None:
        expected = expected_outputs(model, images)
    # TF Serving ignores names that begin with a dot.
    with draft_folder(path) as draft:
        write_endpoints(draft, endpoints)
        write_description(draft, describe(model, serving, name=name))
        expected = expected_records(model, serving, endpoints, images, expected)
        agreement = check_and_warm_up(draft, path, expected, tolerance)
        if must_agree:
            refuse_faults(agreement)
        os.rename(draft, path)
    return agreement


def check_and_warm_up(folder, path, expected, tolerance) -> Agreement:
    """Compare each signature with Keras and write the warm-up file.

    Args:
        folder: The SavedModel.
        path: Its final path, for the report.
        expected: Requests and responses of `expected_records`.
        tolerance: The allowed differences.
    """
    import tensorflow as tf

    loaded = tf.saved_model.load(folder)
    agreements, records = [], []
    for record in expected:
        serve = loaded.signatures[record.signature]
        outputs = call_signature(serve, record.inputs)
        agreement = compare_outputs(
            record.outputs, outputs, tolerance, path=path, kind="saved_model"
        )
        agreements.append(agreement.named(record.signature))
        first = {name: values[:1] for name, values in record.inputs.items()}
        response = call_signature(serve, first)
        records.append(WarmupRecord(record.signature, first, response))
    write_warmup(os.path.join(folder, WARMUP_FILE), records)
    return dataclasses.replace(join(agreements), num_bytes=size_on_disk(folder))


def write_description(folder: str | os.PathLike, description: dict):
    """Write a description into a SavedModel; servers ignore the file.

    Args:
        folder: The SavedModel.
        description: See `keras_vit.export.description.describe`.
    """
    path = pathlib.Path(folder, DESCRIPTION_FILE)
    path.parent.mkdir(exist_ok=True)
    path.write_text(to_text(description), encoding="utf-8")


def read_saved_description(path: str) -> dict | None:
    """Return the description in a SavedModel, or None."""
    file = pathlib.Path(path, DESCRIPTION_FILE)
    if not file.exists():
        return None
    return json.loads(file.read_text(encoding="utf-8"))


def write(request, folder) -> list[Agreement]:
    """Write the SavedModel into a new folder."""
    return [
        export_saved_model(
            request.model,
            folder,
            request.images,
            serving=request.options.serving,
            must_agree=False,
            expected=request.expected,
            name=request.name,
        )
    ]


def start(path: str, shape: tuple[int, ...], threads: int) -> Callable:
    """Load a SavedModel; return a function that runs `serving_default`."""
    import tensorflow as tf

    loaded = tf.saved_model.load(path)
    serve = loaded.signatures["serving_default"]
    ((name, spec),) = serve.structured_input_signature[1].items()
    images = make_noise(shape, spec.dtype.as_numpy_dtype)

    def run(loaded=loaded):  # The weights live as long as `loaded`.
        outputs = serve(**{name: tf.constant(images)})
        return [output.numpy() for output in outputs.values()]

    return run


FORMAT = Format(
    write=write,
    start=start,
    suffix="",
    entry="saved_model.pb",
    read=read_saved_description,
    tolerances={
        "saved_model": FLOAT32,
        "saved_model in 16 bits": Tolerance(cosine=0.9999),
    },
    packages=("tensorflow_serving",),
    announce=write_models_config,
)
