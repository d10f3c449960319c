"""Export a model in several formats with one call."""

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
from collections.abc import Iterator, Sequence
from typing import Any

import keras
import numpy as np

from keras_vit.arguments import as_whole
from keras_vit.export.agreement import Agreement, DisagreementError
from keras_vit.export.contract import (
    ExportOptions,
    ExportRequest,
    check_backend,
    check_exportable,
    check_packages,
)
from keras_vit.export.formats import FORMATS, find_format
from keras_vit.export.latency import Latency, measure_latency, started
from keras_vit.files import DRAFT
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
            f"{a.kind}: {fault}" for a in self.agreements for fault in a.faults
        )

    @property
    def warnings(self) -> tuple[str, ...]:
        """The warnings of all files."""
        return tuple(
            f"{a.kind}: {text}" for a in self.agreements for text in a.warnings
        )

    def __str__(self):
        """Return the report as Markdown."""
        paragraphs = [
            f"{self.name}, version {self.version}: {self.parameters:,} "
            "parameters, compared with the Keras model on "
            f"{_count(self.agreements[0].num_images, 'image')}.",
            self._table(),
        ]
        if self.latencies:
            batch_size = self.latencies[0].batch_size
            paragraphs.append(
                f"Latency of {_count(batch_size, 'image')}, relative to Keras' "
                "`predict_on_batch` with as many threads."
            )
        notes = [*self.faults, *self.warnings]
        notes += dict.fromkeys(
            f"latency of {latency.name}: {latency.reason}"
            for latency in self.latencies
            if latency.reason
        )
        if notes:
            paragraphs.append("\n".join(f"- {note}" for note in notes))
        return "\n\n".join(paragraphs)

    def _table(self):
        """Return a row for each file, with a latency for each thread count."""
        threads = sorted({latency.threads for latency in self.latencies})
        latencies = {(x.name, x.threads): x for x in self.latencies}
        columns = {
            "format": lambda a: a.kind,
            "MiB": lambda a: f"{a.num_bytes / 2**20:.2f}",
            "largest difference": lambda a: f"{a.max_difference:.1e}",
            "cosine": lambda a: f"{a.cosine:.6f}",
            "same class": lambda a: f"{a.top1_agreement:.2%}",
            **{
                f"latency, {_count(number, 'thread')}": (
                    lambda a, number=number: _show(
                        latencies.get((a.kind, number))
                    )
                )
                for number in threads
            },
            "verdict": _judge,
        }
        rows = [[show(a) for show in columns.values()] for a in self.agreements]
        return format_table(columns, rows)

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


def _judge(agreement):
    if not math.isfinite(agreement.max_difference):
        return "not finite"
    if agreement.faults:
        return "differs"
    return "see below" if agreement.warnings else "ok"


def _count(number, noun):
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _show(latency):
    if latency is None or latency.ratio is None:
        return "-"
    return f"{latency.ratio:.2f} ({latency.milliseconds:.1f} ms)"


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
    check_formats(formats, options, options.calibration_images is not None)
    check_exportable(model, images)
    model = without_lora(model)
    export_dir = pathlib.Path(export_dir)
    name = name or model.name
    version = check_destination(export_dir, name, version)
    rows = {key: FORMATS[key] for key in formats}
    # Folders that servers watch are published last.
    watched = [key for key, row in rows.items() if row.announce is not None]
    keys = sorted([*rows, REPORT], key=watched.__contains__)
    folders = [export_dir / key / name for key in keys]
    request = ExportRequest(model, images, options, name)

    def say(text):
        if verbose:
            print(text, file=sys.stderr, flush=True)

    with (
        naming_a_full_disk(export_dir),
        published_together(folders, str(version)) as drafts,
        started(threads) as processes,  # They import while others write.
    ):
        drafts = dict(zip(keys, drafts))
        agreements, latencies, timed = [], [], {}
        for key, row in rows.items():
            say(f"Writing {key} and comparing it with the model ...")
            found = request.write(row, drafts[key])
            if row.start is not None:
                timed |= {a.kind: a.path for a in found}
            agreements += [
                dataclasses.replace(
                    a,
                    path=a.path.replace(
                        str(drafts[key]),
                        str(export_dir / key / name / str(version)),
                    ),
                )
                for a in found
            ]
        if processes:
            say("Measuring latencies ...")
            latencies = measure_latency(
                model,
                timed,
                batch_size=options.tflite_batch_size or 1,
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
        rows[key].announce(export_dir / key)
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
    for row in [pick(FORMATS, key, "formats") for key in formats]:
        row.check_options(options, is_calibrated)


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
    """Check that a version can be written, and return its number."""
    if name is not None:
        check_model_name(name)
    folder = next(p for p in (export_dir, *export_dir.parents) if p.exists())
    with naming_export_dir(folder):
        tempfile.TemporaryFile(dir=folder).close()
    return choose_version(export_dir, name, version)


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


def check_model_name(name: str):
    """Raise a ValueError unless servers accept the name of the model."""
    example = to_model_name(name)
    if example != name:
        raise ValueError(
            "`name` must consist of the letters A-Z and a-z, digits, '_', '-' "
            "and '.', begin with a letter, a digit or '_', and not be "
            f"{MODELS_CONFIG}. Give another one, such as name={example!r} or, "
            f"in the command, --name={example}. Received: name={name!r}"
        )


@contextlib.contextmanager
def naming_export_dir(folder: pathlib.Path):
    """Name the argument `export_dir` in errors of the operating system."""
    try:
        yield
    except OSError as error:
        raise OSError(
            "`export_dir` must be a folder that can be written. "
            f"Received: {folder}: {error.strerror}"
        ) from None


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


def choose_version(
    export_dir: pathlib.Path, name: str | None, version: int | None
) -> int:
    """Return `version`, or the first version that is free in all formats.

    Without a name, all versions are free.
    """
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


@contextlib.contextmanager
def published_together(
    folders: Sequence[pathlib.Path], name: str
) -> Iterator[list[pathlib.Path]]:
    """Yield draft folders that appear as `name` in each folder on success.

    After an error, all drafts are removed. The yielded folders are empty, in
    parents whose names begin with a dot, which servers ignore.
    """
    made = {
        path
        for folder in folders
        for path in (folder, *folder.parents)
        if not path.exists()
    }
    drafts = []
    try:
        for folder in folders:
            with naming_export_dir(folder):
                folder.mkdir(parents=True, exist_ok=True)
                parent = tempfile.mkdtemp(prefix=DRAFT, dir=folder)
                drafts.append(pathlib.Path(parent, name))
                drafts[-1].mkdir()
        yield drafts
        _rename_all(drafts, [folder / name for folder in folders])
    finally:
        for draft in drafts:
            shutil.rmtree(draft.parent, ignore_errors=True)
        # The deepest folders come first. Folders with content are kept.
        for path in sorted(made, key=lambda path: -len(path.parts)):
            with contextlib.suppress(OSError):
                path.rmdir()


def _rename_all(drafts, paths):
    """Rename either all drafts or none."""
    published = []
    try:
        for draft, path in zip(drafts, paths):
            try:
                os.rename(draft, path)
            except OSError as error:
                raise OSError(
                    f"{path} could not be published; perhaps another process "
                    f"has written it: {error.strerror}"
                ) from None
            published.append(path)
    except BaseException:
        for path in published:
            shutil.rmtree(path, ignore_errors=True)
        raise


def read_description(path: str | os.PathLike) -> dict[str, Any]:
    """Return the description of an exported file or folder, of any format.

    The keys are `name`, `input`, `image_steps`, `mean`, `deviation`, `output`,
    `activation` and `class_names`; see `keras_vit.export.contract.describe`.

    Args:
        path: A file or folder that `export_model` wrote.

    Raises:
        ValueError: If it has no description.
        ModuleNotFoundError: If a package that reads the file is missing.
    """
    path = os.fspath(path)
    row = find_format(path)
    check_packages(row.readers)
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
    names = read_description(path)["class_names"]
    if names is None:
        raise ValueError(
            "`path` must be the export of a classifier. Received: "
            f"path={os.fspath(path)!r}, which returns features"
        )
    return names
