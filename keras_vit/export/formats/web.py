"""Export as a web page that runs the model in the browser, with LiteRT.js."""

import dataclasses
import json
import os
import pathlib
from collections.abc import Mapping

import keras
import numpy as np

from keras_vit.export.agreement import (
    Agreement,
    Tolerance,
    refuse_faults,
    size_on_disk,
)
from keras_vit.export.browser import measure_page
from keras_vit.export.contract import ExportOptions, Format
from keras_vit.export.description import describe
from keras_vit.export.formats.tflite import export_tflite
from keras_vit.export.preconditions import check_exportable, check_path
from keras_vit.export.quantizations import QUANTIZATIONS
from keras_vit.export.serving_options import Serving
from keras_vit.export.web_page import (
    fetch_engine,
    write_engine,
    write_manifest,
    write_page_files,
)
from keras_vit.files import draft_folder
from keras_vit.tables import pick


def export_web(
    model: keras.Model,
    path: str,
    images: np.ndarray,
    *,
    serving: Serving | None = None,
    title: str | None = None,
    quantization: str = "float32",
    engine_dir: str | os.PathLike | None = None,
    tolerance: Tolerance | None = None,
    must_agree: bool = True,
    expected: np.ndarray | None = None,
) -> Agreement:
    """Write a web page that classifies photos with `model`.

    The folder has only static files: the page, the model as a TFLite file,
    and LiteRT.js from the npm registry, checked against a hash. Any web
    server can serve it; the page sends requests only for these files, and
    photos stay in the browser. The folder appears after the outputs of the
    TFLite file were compared with those of `model`.

    Args:
        model: A classifier with a fixed image size, and 1 or 3 channels.
        path: The folder to write; must not exist.
        images: Images to compare outputs on, (B, H, W, C).
        serving: Pre- and post-processing; the page does the same.
        title: Title of the page. Default: the name of the model.
        quantization: A key of QUANTIZATIONS that needs no calibration.
        engine_dir: A folder with the packages that `npm pack` writes.
            Default: they are fetched once and kept in the cache.
        tolerance: The allowed differences. Default: those of the quantization.
        must_agree: Whether a larger difference is an error.
        expected: The outputs of the model in float32, if known.

    Returns:
        The comparison of the TFLite file with `model`. The size is that of
        the folder.

    Raises:
        ValueError: If the model cannot be exported or `path` exists.
        OSError: If the packages cannot be fetched.
        DisagreementError: If the outputs differ. Nothing is written.
    """
    path, serving = os.fspath(path), serving or Serving()
    check_exportable(model, images)
    check_path(path)
    check_web_quantization(quantization)
    description = describe(model, serving, name=title)
    check_description(description)
    with draft_folder(path) as draft:
        write_page_files(draft, description)
        write_engine(draft, engine_dir)
        agreement = export_tflite(
            model,
            draft / "model.tflite",
            images,
            quantization,
            output=serving.output,
            tolerance=tolerance,
            must_agree=False,
            expected=expected,
        )
        write_manifest(draft)
        agreement = dataclasses.replace(
            agreement,
            path=path,
            kind=f"web {quantization}",
            num_bytes=size_on_disk(draft),
        )
        if must_agree:
            refuse_faults(agreement)
        os.rename(draft, path)
    return agreement


def check_web_quantization(quantization: str):
    """Raise a ValueError unless LiteRT.js can run this quantization."""
    usable = {k: q for k, q in QUANTIZATIONS.items() if not q.needs_calibration}
    pick(usable, quantization, "web_quantization")


def check_description(description: Mapping):
    """Raise a ValueError unless the page can run such a model."""
    channels = description["input"]["channels"]
    if channels not in (1, 3):
        raise ValueError(
            "`model` must take images with 1 or 3 channels to run in a web "
            f"page. Received: {channels} channels"
        )
    if description["class_names"] is None:
        raise ValueError(
            "`model` must be a classifier to run in a web page; if its last "
            "layer is one, pass `output`. Received: "
            f"{description['name']!r}, which returns features"
        )
    if description["image_steps"] is None:
        raise ValueError(
            "`serving` must have `image_steps` beside `read_image`, because a "
            "web page cannot call Python. Received: image_steps=None"
        )


def check_web_options(options: ExportOptions, is_calibrated: bool):
    """Fetch the packages, and check the quantization; see `Format.check`."""
    check_web_quantization(options.web_quantization)
    fetch_engine(options.web_engine_dir)


def write(request, folder) -> list[Agreement]:
    """Write the page into a new folder."""
    options = request.options
    return [
        export_web(
            request.float32_model,
            folder,
            request.images,
            serving=options.serving,
            title=request.name,
            quantization=options.web_quantization,
            engine_dir=options.web_engine_dir,
            must_agree=False,
            expected=request.float32_expected,
        )
    ]


def read_page(path: str) -> dict:
    """Return the description of the model of a page."""
    text = pathlib.Path(path, "model.json").read_text(encoding="utf-8")
    return json.loads(text)


FORMAT = Format(
    write=write,
    suffix="",
    entry="index.html",
    tolerances={
        f"web {name}": row.tolerance
        for name, row in QUANTIZATIONS.items()
        if not row.needs_calibration
    },
    packages=("ai_edge_litert",),
    check=check_web_options,
    measure=measure_page,
    read=read_page,
)
