"""One call from a model to everything that servers and phones need of it."""

import contextlib
import dataclasses
import functools
import os
import pathlib
import re
import shutil
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import keras
import numpy as np

from keras_vit.export.agreement import Agreement, DisagreementError
from keras_vit.export.answers import expected_answers
from keras_vit.export.latency import measure_latency
from keras_vit.export.onnx import export_onnx
from keras_vit.export.openvino import export_openvino
from keras_vit.export.report import ExportReport
from keras_vit.export.requirements import (
    check_exportable,
    check_extra,
    in_float32,
)
from keras_vit.export.saved_model import export_saved_model
from keras_vit.export.serving_config import models_config
from keras_vit.export.signatures import Serving, to_pixels, to_range
from keras_vit.export.tflite import VARIANTS, check_variant, export_tflite
from keras_vit.files import atomic_write
from keras_vit.tables import pick


@dataclasses.dataclass(frozen=True, eq=False)
class Export:
    """What is to be exported, and how.

    Args:
        model: A model of fixed image size.
        images: Images to compare the answers on, (B, H, W, C).
        serving: How images are read and classes are named.
        tflite_variants: Keys of its VARIANTS.
        tflite_batch_size: Images that a TFLite file answers at a time; None
            for any number.
        calibration_images: For the variants of TFLite that need them.
        onnx_takes_pixels: Whether the input of an ONNX file is uint8.
    """

    model: keras.Model
    images: np.ndarray
    serving: Serving
    tflite_variants: Sequence[str]
    tflite_batch_size: int | None
    calibration_images: np.ndarray | None
    onnx_takes_pixels: bool

    @functools.cached_property
    def float32_model(self) -> keras.Model:
        """What all formats but a SavedModel are converted from."""
        return in_float32(self.model)

    @functools.cached_property
    def answers(self) -> np.ndarray:
        """What the model answers to the images."""
        return expected_answers(self.model, self.images)

    @functools.cached_property
    def float32_answers(self) -> np.ndarray:
        """What it answers in float32."""
        if self.float32_model is self.model:
            return self.answers
        return expected_answers(self.float32_model, self.images)


def export_model(
    model: keras.Model,
    export_dir: str | os.PathLike,
    images: np.ndarray,
    formats: Sequence[str] = ("saved_model", "tflite"),
    *,
    name: str | None = None,
    version: int | None = None,
    serving: Serving | None = None,
    tflite_variants: Sequence[str] = ("dynamic_int8",),
    tflite_batch_size: int | None = 1,
    calibration_images: np.ndarray | None = None,
    onnx_takes_pixels: bool = False,
    threads: Sequence[int] = (1, 2),
    force: bool = False,
    verbose: bool = True,
) -> ExportReport:
    """Write a model in several formats, and check each against the model.

    Each goes to `<export_dir>/<format>/<name>/<version>/`, beside them a
    report, and `models.config` for TF Serving to `<export_dir>/saved_model/`.
    All appear at the end, complete, or none does.

    Args:
        model: A model of fixed image size.
        export_dir: A folder, made if it is not there.
        images: Images to compare the answers on, (B, H, W, C), in the range
            of the model. More of them say more about the classes.
        formats: Keys of FORMATS.
        name: What servers call the model. Default: its own name.
        version: A number from 1. Default: the first that is free.
        serving: How images are read and classes are named.
        tflite_variants: See `export_tflite`.
        tflite_batch_size: Images that a TFLite file answers at a time; None
            for any number.
        calibration_images: For TFLite's "int8" and "static_int8".
        onnx_takes_pixels: Let the ONNX file take pixels from 0 to 255, uint8,
            in place of floats in the range of the model.
        threads: Numbers of threads to measure the latency with; none for
            not at all.
        force: Write what answers differently, too; the report says so.
        verbose: Whether to say on the standard error what is going on.

    Returns:
        What was found out about each file, as a table by `print`.

    Raises:
        ValueError: If an argument does not fit, or the version exists.
        ModuleNotFoundError: If an extra is missing.
        DisagreementError: If an export answers differently from the model;
            nothing is written then.
        OSError: If a folder cannot be written.

    Example:
        report = export_model(model, "exported", images)
    """
    is_calibrated = calibration_images is not None
    check_formats(formats, tflite_variants, is_calibrated)
    check_exportable(model, images)
    export_dir = pathlib.Path(export_dir)
    name = name or model.name
    version = check_place(export_dir, name, version)
    places = {
        key: export_dir / key / name
        # What servers look for comes last, when nothing can be in the way.
        for key in sorted({*formats, "report"}, key="saved_model".__eq__)
    }
    export = Export(
        model,
        images,
        serving or Serving(),
        tflite_variants,
        tflite_batch_size,
        calibration_images,
        onnx_takes_pixels,
    )
    say = _say if verbose else _keep_silent
    with published_together(list(places.values()), str(version)) as folders:
        drafts = dict(zip(places, folders))
        agreements = []
        for key in dict.fromkeys(formats):
            say(f"Writing {key}, and comparing it with the model ...")
            agreements += FORMATS[key].write(export, drafts[key])
        latencies = []
        if threads:
            say("Measuring how fast they are ...")
            files = {a.kind: a.path for a in agreements}
            latencies = measure_latency(
                model, files, threads, tflite_batch_size or 1
            )
        final = {
            str(drafts[key]): str(places[key] / str(version)) for key in places
        }
        report = ExportReport(
            name=name,
            version=version,
            parameters=model.count_params(),
            agreements=tuple(move(a, final) for a in agreements),
            latencies=tuple(latencies),
        )
        if report.faults and not force:
            raise DisagreementError(
                f"{report}\n\nNothing was written, for what answers "
                f"differently from the model: {'; '.join(report.faults)}"
            )
        report.write(drafts["report"])
    if "saved_model" in formats:
        write_models_config(export_dir / "saved_model")
    return report


def check_formats(
    formats: Sequence[str],
    tflite_variants: Sequence[str],
    is_calibrated: bool,
    argument: str = "calibration_images",
):
    """Raise an error unless formats are known, and what they need is there.

    Args:
        formats: Keys of FORMATS.
        tflite_variants: See `export_tflite`.
        is_calibrated: Whether there are images to calibrate on.
        argument: What says where they are.

    Raises:
        ValueError: If one is unknown, or must be calibrated and is not.
        ModuleNotFoundError: If an extra is missing.
    """
    if not formats:
        raise ValueError(
            "`formats` must name one or more of "
            f"{', '.join(FORMATS)}. Received: none"
        )
    for key in formats:
        for extra in pick(FORMATS, key, "formats").extras:
            check_extra(extra)
    if "tflite" not in formats:
        return
    if not tflite_variants or len(set(tflite_variants)) < len(tflite_variants):
        raise ValueError(
            "`tflite_variants` must name one or more of "
            f"{', '.join(VARIANTS)}, each once. "
            f"Received: {', '.join(tflite_variants) or 'none'}"
        )
    for variant in tflite_variants:
        check_variant(variant, is_calibrated, argument)


def check_place(
    export_dir: pathlib.Path, name: str | None, version: int | None
) -> int:
    """Return the number of the version, if it can be written.

    Args:
        export_dir: See `export_model`.
        name: What servers call the model; None if that is not known yet.
        version: See `export_model`.

    Raises:
        ValueError: If the name does not fit, or the version exists.
        OSError: If nothing can be written there.
    """
    if name is not None and (
        name == MODELS_CONFIG
        or not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]*", name)
    ):
        raise ValueError(
            "`name` must be of letters, digits, '_', '-' and '.', begin with "
            f"one of the first three, and not be {MODELS_CONFIG}. "
            f"Received: name={name!r}"
        )
    folder = next(p for p in (export_dir, *export_dir.parents) if p.exists())
    with explained(folder):
        tempfile.TemporaryFile(dir=folder).close()
    return choose_version(export_dir, name, version)


@contextlib.contextmanager
def explained(folder: pathlib.Path):
    """Say of an error of the system which argument it is about."""
    try:
        yield
    except OSError as error:
        raise OSError(
            "`export_dir` must be a folder that can be written. "
            f"Received: {folder}: {error.strerror}"
        ) from None


def choose_version(
    export_dir: pathlib.Path, name: str | None, version: int | None
) -> int:
    """Return `version`, or the first that is free in all formats.

    Without a name all are free.

    Raises:
        ValueError: If it is no number from 1, or it is there already.
    """
    taken = {
        int(path.name)
        for path in export_dir.glob(f"*/{name}/*")
        if name and path.name.isdecimal()
    }
    if version is None:
        return max(taken, default=0) + 1
    if version < 1:
        raise ValueError(
            f"`version` must be 1 or more. Received: version={version}"
        )
    if version in taken:
        raise ValueError(
            "`version` must not exist yet; nothing is overwritten. Received: "
            f"version={version}, and there are "
            f"{', '.join(map(str, sorted(taken)))} of {name!r} in {export_dir}"
        )
    return version


@contextlib.contextmanager
def published_together(
    folders: Sequence[pathlib.Path], name: str
) -> Iterator[list[pathlib.Path]]:
    """Yield where to write what then appears as `name` in each folder.

    After an error there is nothing. What is yielded does not exist, and its
    name begins with a dot: a server passes it over.
    """
    made = {
        path
        for folder in folders
        for path in (folder, *folder.parents)
        if not path.exists()
    }
    drafts, published = [], []
    try:
        for folder in folders:
            with explained(folder):
                folder.mkdir(parents=True, exist_ok=True)
                parent = tempfile.mkdtemp(prefix=".draft-", dir=folder)
            drafts.append(pathlib.Path(parent, name))
        yield drafts
        for draft, folder in zip(drafts, folders):
            try:
                os.rename(draft, folder / name)
            except OSError as error:
                raise OSError(
                    f"{folder / name} could not be put in its place; perhaps "
                    f"another process has written it: {error.strerror}"
                ) from None
            published.append(folder / name)
    except BaseException:
        for path in published:
            shutil.rmtree(path, ignore_errors=True)
        raise
    finally:
        for draft in drafts:
            shutil.rmtree(draft.parent, ignore_errors=True)
        # The deepest first; what is not empty stays.
        for path in sorted(made, key=lambda path: -len(path.parts)):
            with contextlib.suppress(OSError):
                path.rmdir()


def move(agreement: Agreement, folders: dict[str, str]) -> Agreement:
    """Return the agreement of a file that was moved to another folder."""
    for old, new in folders.items():
        if agreement.path.startswith(old):
            path = new + agreement.path.removeprefix(old)
            return dataclasses.replace(agreement, path=path)
    return agreement


def write_models_config(folder: pathlib.Path):
    """Write models.config, unless someone has put his own in its place."""
    path = folder / MODELS_CONFIG
    if path.exists() and not path.read_bytes().startswith(HEADER.encode()):
        warnings.warn(
            f"{path} is not as an export has written it, and stays as it is.",
            stacklevel=3,
        )
        return
    try:
        with atomic_write(path) as draft:
            draft.write_text(HEADER + models_config(folder), encoding="utf-8")
    except OSError as error:  # The exports are there all the same.
        warnings.warn(f"{path} could not be written: {error}", stacklevel=3)


def _write_saved_model(export, folder):
    return [
        export_saved_model(
            export.model,
            folder,
            export.images,
            serving=export.serving,
            must_agree=False,
            expected=export.answers,
        )
    ]


def _write_tflite(export, folder):
    return [
        export_tflite(
            export.float32_model,
            folder / f"{variant}.tflite",
            export.images,
            variant,
            batch_size=export.tflite_batch_size,
            class_names=export.serving.class_names,
            calibration_images=export.calibration_images,
            output=export.serving.output,
            must_agree=False,
            expected=export.float32_answers,
        )
        for variant in export.tflite_variants
    ]


def _write_onnx(export, folder):
    images, preprocess = export.images, None
    if export.onnx_takes_pixels:
        value_range = export.serving.value_range
        images = to_pixels(images, value_range)
        preprocess = functools.partial(to_range, value_range=value_range)
    return [
        export_onnx(
            export.float32_model,
            folder / "model.onnx",
            images,
            preprocess=preprocess,
            output=export.serving.output,
            must_agree=False,
            # Of pixels, which are rounded, the answers are others.
            expected=None if preprocess else export.float32_answers,
        )
    ]


def _write_openvino(export, folder):
    return [
        export_openvino(
            export.float32_model,
            folder / "model.xml",
            export.images,
            output=export.serving.output,
            must_agree=False,
            expected=export.float32_answers,
        )
    ]


def _say(text):
    print(text, file=sys.stderr, flush=True)


def _keep_silent(text):
    pass


MODELS_CONFIG = "models.config"
HEADER = (
    "# Written anew by each export. To keep changes of your own, take this "
    "line out.\n"
)


class Format(NamedTuple):
    """How a format is written.

    Args:
        write: To a folder that is not there yet.
        extras: Those of this package that it needs.
    """

    write: Callable[[Export, pathlib.Path], list[Agreement]]
    extras: tuple[str, ...] = ()


FORMATS = {
    "saved_model": Format(_write_saved_model),
    "tflite": Format(_write_tflite),
    "onnx": Format(_write_onnx, ("onnx",)),
    "openvino": Format(_write_openvino, ("openvino",)),
}
