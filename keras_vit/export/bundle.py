"""The bundle of an export: what its folder contains and promises."""

import contextlib
import dataclasses
import errno
import json
import math
import os
import pathlib
import re
import shutil
import sys
import tempfile
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import keras
import numpy as np

from keras_vit.arguments import as_whole
from keras_vit.errors import import_packages
from keras_vit.export.agreement import Agreement, DisagreementError, Tolerance
from keras_vit.export.contract import (
    ExportOptions,
    ExportRequest,
    check_backend,
    check_exportable,
    write_and_compare,
)
from keras_vit.export.formats import FORMATS, find_format
from keras_vit.export.latency import Latency, measure_latency, started
from keras_vit.files import check_writable, draft_folder
from keras_vit.models.tuning import without_lora
from keras_vit.serving.tf_serving import MODELS_CONFIG
from keras_vit.tables import format_table, pick
from keras_vit.version import __version__

REPORT = "report"  # The folder beside those of the formats.


@dataclasses.dataclass(frozen=True)
class ExportReport:
    """The files of an export, and their comparison with the model.

    Args:
        name: Name of the model on servers.
        version: A number from 1.
        parameters: Number of parameters of the model.
        agreements: The comparison of each file or folder.
        latencies: The measured latencies; empty if they were not measured.
    """

    name: str
    version: int
    parameters: int
    agreements: tuple[Agreement, ...]
    latencies: tuple[Latency, ...] = ()

    @property
    def faults(self) -> tuple[str, ...]:
        """The faults of all files."""
        return tuple(
            f"{a.kind}: {x}" for a in self.agreements for x in a.faults
        )

    @property
    def warnings(self) -> tuple[str, ...]:
        """The warnings of all files."""
        return tuple(
            f"{a.kind}: {x}" for a in self.agreements for x in a.warnings
        )

    def __str__(self):
        """Return the report as Markdown."""
        num_images = self.agreements[0].num_images
        text = (
            f"{self.name}, version {self.version}: {self.parameters:,} "
            "parameters, compared with the Keras model on "
            f"{_count(num_images, 'image')}.\n\n{self._table()}"
        )
        if self.latencies:
            batch_size = self.latencies[0].batch_size
            text += (
                f"\n\nLatency of {_count(batch_size, 'image')}, relative to "
                "Keras' `predict_on_batch` with as many threads."
            )
        reasons = dict.fromkeys(
            f"latency of {latency.name}: {latency.reason}"
            for latency in self.latencies
            if latency.reason
        )
        notes = [f"- {x}" for x in (*self.faults, *self.warnings, *reasons)]
        notes += [
            f"- {a.kind}: {_count(a.partitions, 'XNNPACK partition')}"
            + (f", without {', '.join(a.left_out)}" if a.left_out else "")
            for a in self.agreements
            if a.partitions is not None
        ]
        return "\n\n".join([text, "\n".join(notes)] if notes else [text])

    def _table(self):
        """Return a row for each file, with a latency for each thread count."""
        files = self.agreements
        threads = sorted({latency.threads for latency in self.latencies})
        latencies = {(x.name, x.threads): x for x in self.latencies}
        heads = ["format", "MiB", "largest difference", "cosine"]
        # Depths have no classes, and images no class maps.
        has_classes = not all(math.isnan(a.top1_agreement) for a in files)
        has_maps = any(a.mean_iou is not None for a in files)
        if has_classes:
            heads += ["same class", *(["mean IoU"] if has_maps else ())]
        else:
            heads.append("relative difference")
        heads += [f"latency, {_count(x, 'thread')}" for x in threads]
        rows = []
        for a in files:
            cells = [a.kind, f"{a.num_bytes / 2**20:.2f}"]
            cells += [f"{a.max_difference:.1e}", f"{a.cosine:.6f}"]
            if has_classes:
                cells.append(f"{a.top1_agreement:.2%}")
                cells += [f"{a.mean_iou:.4f}"] if has_maps else []
            else:
                cells.append(f"{a.relative_difference:.1e}")
            for number in threads:
                x = latencies.get((a.kind, number))
                is_known = x is not None and x.ratio is not None
                time = is_known and f"{x.ratio:.2f} ({x.milliseconds:.1f} ms)"
                cells.append(time or "-")
            if not math.isfinite(a.max_difference):
                verdict = "not finite"
            elif a.faults:
                verdict = "differs"
            else:
                verdict = "see below" if a.warnings else "ok"
            rows.append([*cells, verdict])
        return format_table([*heads, "verdict"], rows)

    def write(self, folder: pathlib.Path):
        """Write `report.json` and `report.md` into a folder."""
        folder.mkdir(parents=True, exist_ok=True)
        content = {
            "keras_vit": __version__,
            **dataclasses.asdict(self),
            "faults": self.faults,
            "warnings": self.warnings,
        }
        # JSON has neither NaN nor infinity.
        content = json.loads(json.dumps(content), parse_constant=lambda _: None)
        (folder / "report.json").write_text(
            json.dumps(content, indent=2) + "\n", encoding="utf-8"
        )
        (folder / "report.md").write_text(f"{self}\n", encoding="utf-8")


def _count(number, noun):
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


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
            reliable. Of maps, the first are compared, as many as have 2^26
            numbers in all; the report says how many.
        formats: Keys of FORMATS.
        name: Name of the model on servers. Default: the name of `model`.
        version: A number from 1. Default: the one after the newest.
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
    check_formats(formats, options)
    check_exportable(model, images)
    model = without_lora(model)
    export_dir = pathlib.Path(export_dir).expanduser()
    name = name or model.name
    version = check_destination(export_dir, name, version)
    # Folders that servers watch are published last.
    watched = [key for key in formats if FORMATS[key].announce is not None]
    keys = sorted([*formats, REPORT], key=watched.__contains__)
    paths = {key: export_dir / key / name / str(version) for key in keys}
    request = ExportRequest(model, images, options, name)

    has_latency = any(FORMATS[key].has_latency for key in formats)
    fixed = {
        "tflite": options.tflite_batch_size,
        "onnx": options.onnx_batch_size,
    }
    batch_size = next((fixed[x] for x in formats if fixed.get(x)), 1)

    def say(text):
        if verbose:
            print(text, file=sys.stderr, flush=True)

    with (
        naming_a_full_disk(export_dir),
        published_together(paths.values()) as drafts,
        # They import while others write.
        started(threads if has_latency else ()) as processes,
    ):
        drafts = dict(zip(keys, drafts))
        agreements, latencies, timed = [], [], {}
        for key in formats:
            say(f"Writing {key} and comparing it with the model ...")
            row, draft, path = FORMATS[key], drafts[key], paths[key]
            found = write_and_compare(row, request, draft, path)
            agreements += found
            if row.has_latency:
                timed |= {
                    a.kind: draft / pathlib.Path(a.path).relative_to(path)
                    for a in found
                }
        if processes:
            say("Measuring latencies ...")
            latencies = measure_latency(
                model,
                timed,
                batch_size=batch_size,
                processes=processes,
            )
        report = ExportReport(
            name=name,
            version=version,
            parameters=model.count_params(),
            agreements=tuple(agreements),
            latencies=tuple(latencies),
        )
        if report.faults and not force:
            raise DisagreementError(
                f"{report}\n\nNothing was written, because outputs differ from "
                f"those of the model: {'; '.join(report.faults)}"
            )
        report.write(drafts[REPORT])
    for key in watched:
        FORMATS[key].announce(export_dir / key)
    return report


def export_file(
    model: keras.Model,
    path: str | os.PathLike,
    images: np.ndarray,
    format: str | None = None,
    *,
    name: str | None = None,
    tolerance: Tolerance | None = None,
    must_agree: bool = True,
    **options,
) -> Agreement:
    """Write one file or folder of a format, complete or not at all.

    Args:
        model: A model with a fixed image size.
        path: The file or folder to write; must not exist. TF Serving expects
            the name of a SavedModel to be a version number.
        images: Images to compare outputs on, (B, H, W, C), in the range of
            the model.
        format: A key of FORMATS. Default: that of the ending of `path`;
            without one, "saved_model".
        name: Name of the model in its description. Default: that of `model`.
        tolerance: The allowed differences. Default: those of the format.
        must_agree: Whether a larger difference is an error.
        **options: The fields of ExportOptions; of `tflite_quantizations`, one.

    Returns:
        The comparison of the export with `model`.

    Raises:
        ValueError: If the model cannot be exported, an argument is invalid,
            or `path` exists.
        ModuleNotFoundError: If a package is missing.
        DisagreementError: If the outputs differ. Nothing is written.

    Example:
        export_file(model, "model.onnx", images)
    """
    path = pathlib.Path(path).expanduser()
    check_exportable(model, images)
    if format is None:
        found = [k for k, row in FORMATS.items() if row.suffix == path.suffix]
        # A folder may be a version, such as "1.5".
        if not found and not path.suffix[1:].isdigit():
            endings = {row.suffix for row in FORMATS.values()} - {""}
            raise ValueError(
                f"`path` must end in {', '.join(sorted(endings))}, or have no "
                f"ending. Received: path={str(path)!r}"
            )
        format = found[0] if len(found) == 1 else "saved_model"
    row = pick(FORMATS, format, "format")
    if path.suffix != row.suffix and row.suffix:
        raise ValueError(
            f"`path` must end in `{row.suffix}`. Received: path={str(path)!r}"
        )
    options = ExportOptions(**options)
    row.check_options(options)
    request = ExportRequest(
        without_lora(model), images, options, name, tolerance
    )
    check_new(path)
    # Servers ignore names that begin with a dot.
    with draft_folder(path) as draft:
        (agreement,) = write_and_compare(row, request, draft, path)
        if agreement.faults and must_agree:
            raise DisagreementError(
                f"The outputs of the export ({agreement.kind}) differ from "
                f"those of the Keras model: {'; '.join(agreement.faults)}. "
                f"Nothing was written to {path}."
            )
        if not row.suffix:
            os.rename(draft, path)
            return agreement
        written = draft / pathlib.Path(agreement.path).relative_to(path)
        # OpenVINO's .xml file refers to the .bin file, so it comes last.
        parts = sorted(draft.glob(f"{written.stem}.*"), key=written.__eq__)
        for part in parts:
            check_new(path.with_suffix(part.suffix))
            os.replace(part, path.with_suffix(part.suffix))
    return dataclasses.replace(agreement, path=str(path))


def check_new(path: pathlib.Path):
    """Raise a ValueError if there is already something at `path`."""
    if path.exists():
        raise ValueError(
            "`path` must not exist yet; nothing is overwritten. "
            f"Received: path={str(path)!r}"
        )


def check_formats(formats: Sequence[str], options: ExportOptions):
    """Raise an error if a format or one of its requirements is missing.

    Raises:
        ValueError: If a format is unknown, an option is invalid, or Keras
            does not run on TensorFlow.
        ModuleNotFoundError: If a package is missing.
    """
    check_backend()
    if not formats or len(set(formats)) < len(formats):
        raise ValueError(
            f"`formats` must name one or more of {', '.join(FORMATS)}, each "
            f"once. Received: {', '.join(formats) or 'none'}"
        )
    for row in [pick(FORMATS, key, "formats") for key in formats]:
        row.check_options(options)


# Letters that Unicode does not take apart into one of A-Z and an accent.
OTHER_LETTERS = str.maketrans(
    {
        **{"ß": "ss", "ẞ": "SS", "æ": "ae", "Æ": "AE", "œ": "oe", "Œ": "OE"},
        **{"ø": "o", "Ø": "O", "ł": "l", "Ł": "L", "đ": "d", "Đ": "D"},
        **{"ð": "d", "Ð": "D", "þ": "th", "Þ": "Th", "ħ": "h", "Ħ": "H"},
        **{"ı": "i", "ŧ": "t", "Ŧ": "T", "ŋ": "n", "Ŋ": "N"},
    }
)


def check_destination(
    export_dir: pathlib.Path, name: str | None, version: int | None
) -> int:
    """Check that a version can be written, and return its number.

    Args:
        export_dir: The folder of the export.
        name: Name of the model; without one, all versions are free.
        version: Its number. Default: the first that is free in all formats.
    """
    example = name and to_model_name(name)
    if example != name:
        raise ValueError(
            "`name` must consist of the letters A-Z and a-z, digits, '_', '-' "
            "and '.', begin with a letter, a digit or '_', and not be "
            f"{MODELS_CONFIG}. Give another one, such as name={example!r} or, "
            f"in the command, --name={example}. Received: name={name!r}"
        )
    check_writable(export_dir, "export_dir")
    taken = {
        int(path.name)
        for path in export_dir.glob(f"*/{name}/*")
        if name and path.name.isdecimal()
    }
    if version is None:
        return max(taken, default=0) + 1
    version = as_whole(version, "version")
    if version in taken:
        raise ValueError(
            "`version` must not exist yet; nothing is overwritten. Received: "
            f"version={version}, and {name!r} in {export_dir} has the versions "
            f"{', '.join(map(str, sorted(taken)))}"
        )
    return version


def to_model_name(name: str) -> str:
    """Return a name that servers accept; the same one if they accept it.

    Args:
        name: Any name, such as that of a folder.

    Example:
        >>> to_model_name("Köln, 2. Größe")
        'Koln_2._Grosse'
    """
    pattern = r"[A-Za-z0-9_][A-Za-z0-9_.-]*"
    if name != MODELS_CONFIG and re.fullmatch(pattern, name):
        return name
    letters = unicodedata.normalize("NFKD", name).translate(OTHER_LETTERS)
    letters = letters.encode("ascii", "ignore")
    allowed = re.sub(r"[^A-Za-z0-9_.-]+", "_", letters.decode())
    allowed = allowed.strip("_.-")
    return allowed if allowed not in ("", MODELS_CONFIG) else "my_model"


@contextlib.contextmanager
def naming_a_full_disk(export_dir: pathlib.Path):
    """Turn the errors of all libraries on a full disk into one OSError."""
    try:
        yield
    except Exception as error:  # Each library raises its own type.
        full = os.strerror(errno.ENOSPC)
        if full.lower() not in str(error).lower():
            raise
        raise OSError(
            "The disk is full, so nothing was written. Free some space, or "
            f"choose another `export_dir`. Received: {export_dir}, or the "
            f"folder for temporary files, {tempfile.gettempdir()}: {full}"
        ) from error


@contextlib.contextmanager
def published_together(
    paths: Iterable[pathlib.Path],
) -> Iterator[list[pathlib.Path]]:
    """Yield draft folders that appear as `paths` on success, or none of them.

    The yielded folders are empty, in parents whose names begin with a dot,
    which servers ignore.
    """
    paths = [*paths]
    made = {p for path in paths for p in path.parents if not p.exists()}
    published = []
    try:
        with contextlib.ExitStack() as stack:
            drafts = [stack.enter_context(draft_folder(path)) for path in paths]
            yield drafts
            for draft, path in zip(drafts, paths):
                os.rename(draft, path)
                published.append(path)
    except BaseException:
        for path in published:
            shutil.rmtree(path, ignore_errors=True)
        raise
    finally:
        # The deepest folders come first. Folders with content are kept.
        for path in sorted(made, key=lambda path: -len(path.parts)):
            with contextlib.suppress(OSError):
                path.rmdir()


def read_description(path: str | os.PathLike) -> dict[str, Any]:
    """Return the description of an exported file or folder, of any format.

    The keys are `name`, `input`, `image_steps`, `mean`, `deviation`, `output`,
    `activation` and `class_names`, `thresholds` if an image may have several
    labels, and `task` if each pixel has an answer; see
    `ExportRequest.describe`.

    Args:
        path: A file or folder that `export_model` wrote.

    Raises:
        ValueError: If it has no description.
        ModuleNotFoundError: If a package that reads the file is missing.
    """
    path = os.fspath(path)
    row = find_format(path)
    import_packages("This export", row.readers)
    description = row.read(path)
    if description is None:
        raise ValueError(
            "`path` must be a file with a description, as `export_model` "
            f"writes it. Received: path={path!r}"
        )
    return description


def read_class_names(path: str | os.PathLike) -> list[str]:
    """Return the names of the classes in an exported file or folder.

    Args:
        path: A file or folder that `export_model` wrote, of any format.

    Raises:
        ValueError: If it names no classes.
        ModuleNotFoundError: If a package that reads the file is missing.
    """
    description = read_description(path)
    names = description["class_names"]
    if names is None:
        raise ValueError(
            "`path` must be the export of a model with classes. Received: "
            f"path={os.fspath(path)!r}, which returns {description['output']}"
        )
    return names
