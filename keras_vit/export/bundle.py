"""Export a model in several formats with one call."""

import dataclasses
import os
import pathlib
import sys
from collections.abc import Sequence

import keras
import numpy as np

from keras_vit.export.agreement import Agreement, DisagreementError
from keras_vit.export.contract import ExportOptions, ExportRequest
from keras_vit.export.export_report import ExportReport
from keras_vit.export.formats import FORMATS, find_format
from keras_vit.export.latency import measure_in, started
from keras_vit.export.preconditions import (
    check_backend,
    check_exportable,
    check_packages,
)
from keras_vit.export.publishing import (
    check_destination,
    naming_a_full_disk,
    published_together,
)
from keras_vit.models.tuning import without_lora
from keras_vit.tables import pick


def export_model(
    model: keras.Model,
    export_dir: str | os.PathLike,
    images: np.ndarray,
    formats: Sequence[str] = ("saved_model", "tflite"),
    *,
    name: str | None = None,
    version: int | None = None,
    threads: Sequence[int] = (1, 2),
    force: bool = False,
    verbose: bool = True,
    **options,
) -> ExportReport:
    """Write a model in several formats, and compare each with the model.

    Each format is written to `<export_dir>/<format>/<name>/<version>/`, and a
    report to `<export_dir>/report/`. A SavedModel also gets `models.config`
    for TF Serving, in `<export_dir>/saved_model/`. At the end, either all
    files appear or none does.

    Args:
        model: A model with a fixed image size.
        export_dir: A folder; created if needed.
        images: Images to compare outputs on, (B, H, W, C), in the range of
            the model. With more images, the agreement of the classes is more
            reliable.
        formats: Keys of FORMATS.
        name: Name of the model on servers. Default: the name of `model`.
        version: A number from 1. Default: the first free one.
        threads: Numbers of threads to measure the latency with; empty to
            skip the measurement.
        force: Whether to write exports even if their outputs differ. The
            report then states the differences.
        verbose: Whether to print progress to the standard error.
        **options: The fields of `ExportOptions`, such as `serving` and
            `tflite_quantizations`.

    Returns:
        A report that compares each file with the model; `print` shows it as a
        table.

    Raises:
        ValueError: If an argument is invalid, or the version exists.
        ModuleNotFoundError: If a package is missing.
        DisagreementError: If the outputs of an export differ from those of
            the model. Nothing is written.
        OSError: If a folder cannot be written.

    Example:
        report = export_model(model, "exported", images)
    """
    options = ExportOptions(**options)
    is_calibrated = options.calibration_images is not None
    check_formats(formats, options, is_calibrated)
    check_exportable(model, images)
    model = without_lora(model)
    export_dir = pathlib.Path(export_dir)
    name = name or model.name
    version = check_destination(export_dir, name, version)
    folders = [export_dir / key / name for key in ordered(formats)]
    request = ExportRequest(model, images, options, name)
    say = _say if verbose else _keep_silent
    with (
        naming_a_full_disk(export_dir),
        published_together(folders, str(version)) as drafts,
        started(threads) as processes,  # They import while others write.
    ):
        drafts = dict(zip(ordered(formats), drafts))
        agreements = write_formats(request, formats, drafts, say)
        latencies, measurements = measure_all(
            request, agreements, processes, say
        )
        final = {
            str(drafts[key]): str(export_dir / key / name / str(version))
            for key in drafts
        }
        report = ExportReport(
            name=name,
            version=version,
            parameters=model.count_params(),
            agreements=tuple(move(a, final) for a in agreements),
            latencies=tuple(latencies),
            measurements=tuple(measurements),
        )
        if not force:
            refuse_disagreement(report)
        report.write(drafts[REPORT])
    announce(formats, export_dir)
    return report


def check_formats(
    formats: Sequence[str], options: ExportOptions, is_calibrated: bool
):
    """Raise an error if a format or one of its requirements is missing.

    Args:
        formats: Keys of FORMATS.
        options: The options of the formats.
        is_calibrated: Whether calibration images exist or will exist.

    Raises:
        ValueError: If a format is unknown, an option is invalid, or Keras
            does not run on TensorFlow.
        ModuleNotFoundError: If a package is missing.
    """
    check_backend()
    if not formats:
        raise ValueError(
            "`formats` must name one or more of "
            f"{', '.join(FORMATS)}. Received: none"
        )
    rows = [pick(FORMATS, key, "formats") for key in formats]
    for row in rows:
        check_packages(row.packages)
        row.check(options, is_calibrated)


def ordered(formats: Sequence[str]) -> list[str]:
    """Return the folders to publish; folders that servers watch come last."""
    return sorted({*formats, REPORT}, key=_is_announced)


def _is_announced(key):
    return key in FORMATS and FORMATS[key].announce is not None


def write_formats(request, formats, drafts, say) -> list[Agreement]:
    """Write each format to its draft folder; return all agreements."""
    agreements = []
    for key in dict.fromkeys(formats):
        say(f"Writing {key} and comparing it with the model ...")
        agreements += FORMATS[key].write(request, drafts[key])
    return agreements


def measure_all(request, agreements, processes, say) -> tuple[list, list]:
    """Return the latencies and the other measurements of the exports."""
    if not processes:
        return [], []
    say("Measuring latencies ...")
    rows = [(a, find_format(a.path)) for a in agreements]
    latencies = measure_in(
        processes,
        request.model,
        {a.kind: a.path for a, row in rows if row.start},
        request.options.timed_batch_size,
    )
    return latencies, [row.measure(a.path) for a, row in rows if row.measure]


def announce(formats: Sequence[str], export_dir: pathlib.Path):
    """Announce the new version to servers, for formats that they watch."""
    for key in filter(_is_announced, dict.fromkeys(formats)):
        FORMATS[key].announce(export_dir / key)


def move(agreement: Agreement, folders: dict[str, str]) -> Agreement:
    """Return the agreement of a file whose folder was renamed."""
    for old, new in folders.items():
        if agreement.path.startswith(old):
            path = new + agreement.path.removeprefix(old)
            return dataclasses.replace(agreement, path=path)
    return agreement


def refuse_disagreement(report: ExportReport):
    """Raise a DisagreementError if the report has faults."""
    if report.faults:
        raise DisagreementError(
            f"{report}\n\nNothing was written, because outputs differ from "
            f"those of the model: {'; '.join(report.faults)}"
        )


def _say(text):
    print(text, file=sys.stderr, flush=True)


def _keep_silent(text):
    pass


REPORT = "report"  # The folder beside those of the formats.
