"""Predictions for image files and folders, in any number."""

import concurrent.futures
import csv
import dataclasses
import functools
import glob
import itertools
import json
import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, TextIO

import numpy as np

from keras_vit.errors import message_of
from keras_vit.preprocessing import decode_predictions
from trainers.data.labels import SEPARATORS
from trainers.data.readers.csv_table import is_other_column
from trainers.data.readers.image_paths import (
    can_read_heif,
    is_heif,
    list_images,
    printable,
)
from trainers.evaluation.calibration import set_limit
from trainers.evaluation.map_predictions import (
    check_apart,
    make_predict_maps,
    name_maps,
)
from trainers.evaluation.predictions import make_load_image, make_predict
from trainers.evaluation.ray_workers import RayCluster
from trainers.paths import as_path
from trainers.training.run_folder import (
    NamedModel,
    RunFolder,
    check_has_classes,
)

BATCH_SIZE = 32


class Label(NamedTuple):
    """One of several labels, as a model judges it for an image.

    Args:
        name: The class.
        probability: That the image has it.
        threshold: The probability from which it is given.
    """

    name: str
    probability: float
    threshold: float

    @property
    def is_present(self) -> bool:
        """Whether the image is given the label."""
        return self.probability >= self.threshold


class FilePrediction(NamedTuple):
    """The most probable classes of an image file.

    Args:
        path: The file; bytes that are not UTF-8 are escapes.
        classes: (name, probability) pairs, best first; empty with a fault.
        fault: Why the file could not be read; empty if it could.
        labels: Each class of a model of several labels, in its order; empty of
            one label.
        score: How well the image fits what the model has learned, see
            `keras_vit.known`; None of a model that is not calibrated.
        is_known: Whether the score reaches its threshold.
        candidates: The classes that the right one is among, with the coverage
            that was asked for, best first; None if none was.
        map: The file with an answer for each pixel; then the classes have
            their shares of the pixels in place of probabilities.
        summary: What that says, as words.
    """

    path: str
    classes: list[tuple[str, float]]
    fault: str = ""
    labels: Sequence[Label] = ()
    score: float | None = None
    is_known: bool = True
    candidates: list[tuple[str, float]] | None = None
    map: str = ""
    summary: str = ""

    @property
    def present(self) -> list[Label]:
        """The labels that the image is given, the most probable first."""
        found = [label for label in self.labels if label.is_present]
        return sorted(found, key=lambda label: -label.probability)


def expand_folders(paths: Iterable[str]) -> list[str]:
    """Return the paths, with the image files of folders in their place.

    A pattern, such as *.jpg, that the shell has left as it is stands for the
    files that it matches.

    Raises:
        ValueError: If a folder has no image files, or a pattern matches
            nothing.
    """
    found = []
    paths = map(os.path.expanduser, paths)
    for path in itertools.chain.from_iterable(map(_expand_pattern, paths)):
        files = list_images(path) if os.path.isdir(path) else [path]
        if not files:
            raise ValueError(
                "A folder must contain image files. "
                f"Received: {path!r} without any"
            )
        found += files
    return found


def _expand_pattern(path):
    """Return the matches of a pattern, or the path if it is not a pattern."""
    if os.path.exists(path) or not glob.has_magic(path):
        return [path]
    matches = sorted(glob.glob(path))
    if not matches:
        raise ValueError(
            f"A pattern must match image files or folders. Received: {path!r}"
        )
    return matches


def predict_each(
    source: RunFolder | NamedModel,
    paths: Sequence[str],
    top: int = 5,
    preprocess: str | None = None,
    coverage: float | None = None,
    cluster: RayCluster | None = None,
    out: str | None = None,
    use_windows: bool = False,
) -> Iterator[FilePrediction]:
    """Yield the predictions for image files, in their order.

    A file that cannot be read has a fault and no classes.

    Args:
        source: A finished run, or a model known by name. If that has no class
            names, those of ImageNet are used for 1000 classes, and numbers for
            others.
        paths: Image files.
        top: Largest number of classes of an image.
        preprocess: Operations on the images, see `eval_batches`; None for
            those of the run.
        coverage: Share of images with the right class among the `candidates`;
            None for none.
        cluster: Its workers predict; None for this process.
        out: Folder for the maps of a model with an answer for each pixel.
        use_windows: See `make_predict_maps`.

    Raises:
        ValueError: If there is no such model, or it gives no vector for each
            image or pixel; if an option is not for such a model, or `out` is
            missing, or has one of the images.
    """
    map_names = name_maps(paths) if out else None
    if out:
        check_apart(map_names, as_path(out))
    make = functools.partial(
        make_predict_files,
        # Without the model, if it is loaded.
        dataclasses.replace(source) if cluster else source,
        top,
        preprocess,
        coverage,
        map_names,
        out,
        use_windows,
    )
    batches = (
        paths[start : start + BATCH_SIZE]
        for start in range(0, len(paths), BATCH_SIZE)
    )
    if cluster:
        found = cluster.map(functools.partial(_make_predict_one, make), batches)
    else:
        found = make()(batches)
    return itertools.chain.from_iterable(found)


def _make_predict_one(make):
    """Return the function from one batch to its predictions."""
    predict_batches = make()
    return lambda paths: next(predict_batches([paths]))


def make_predict_files(
    source: RunFolder | NamedModel,
    top: int,
    preprocess: str | None,
    coverage: float | None,
    map_names: dict[str, str] | None = None,
    out: str | None = None,
    use_windows: bool = False,
) -> Callable[[Iterable[Sequence[str]]], Iterator[list[FilePrediction]]]:
    """Return the function from batches of image files to their predictions.

    The arguments and the errors are those of `predict_each`; `map_names` are
    those of `name_maps` for all files.
    """
    model = source.load_model()
    has_maps = len(model.output_shape) == 4
    if has_maps and not out:
        raise ValueError(
            "`out` must be a folder for the maps, as the model has an answer "
            f"for each pixel. Received: out={out!r}"
        )
    if has_maps and coverage:
        raise ValueError(
            "`coverage` needs a model of classes of images, not of pixels. "
            f"Received: coverage={coverage}"
        )
    if not has_maps and (out or use_windows):
        raise ValueError(
            "`out` and `windows` need a model with an answer for each pixel. "
            f"Received: out={out!r}, windows={use_windows}, "
            f"output_shape={model.output_shape}"
        )
    if has_maps:
        return _make_predict_maps(
            source, model, preprocess, map_names, out, use_windows, top
        )
    if len(model.output_shape) != 2 or None in model.input_shape[1:3]:
        raise ValueError(
            "`model` must take images of a fixed size and give a vector for "
            f"each. Received: input_shape={model.input_shape}, "
            f"output_shape={model.output_shape}"
        )
    if preprocess is None:
        preprocess = source.preprocess
    names = source.load_class_names()
    check_has_classes(source, names)
    if names is None and isinstance(source, NamedModel):
        names = source.stated_class_names()
    num_classes = model.output_shape[-1]
    if names is None and num_classes != 1000:
        names = [str(index) for index in range(num_classes)]
    thresholds = source.used_thresholds or ()
    calibration, limit = source.calibration, None
    if coverage is not None:
        if calibration is None:
            raise ValueError(
                "`coverage` needs a run of one class an image that `keras-vit "
                "calibrate` has measured. Received: "
                f"coverage={coverage}, run_dir={str(source)!r}"
            )
        limit = set_limit(calibration.truths, coverage)
    known = calibration and calibration.known
    predict = make_predict(model, source.activation, known)
    load_image = make_load_image(
        model.input_shape[1:], preprocess, source.pixel_range
    )

    def load(path):
        """Return an image and no fault, or the other way round."""
        try:
            return load_image(path), None
        except (OSError, ValueError) as error:
            return None, message_of(error) + _advise(path)

    def predict_batches(batches):
        with warnings.catch_warnings():  # Threads that do leave other filters.
            for loaded in read_ahead(load, batches):
                yield predict_loaded(loaded)

    def predict_loaded(loaded):
        images = {path: x for path, (x, fault) in loaded if not fault}
        faults = {path: fault for path, (_, fault) in loaded if fault}
        found = {}
        if images:
            probabilities, scores = predict([*images.values()])
            every = decode_predictions(probabilities, num_classes, names)
            for path, *row in zip(images, every, probabilities, scores):
                if np.isfinite(row[1]).all():
                    found[path] = row
                else:  # An evaluation refuses it, too.
                    faults[path] = f"{path}: the model gives NaN or infinity"
        return [
            describe(path, *found.get(path, ([], [], None)), faults.get(path))
            for path, _ in loaded
        ]

    def describe(path, rows, row, score, fault):
        classes = [(name, float(p)) for _, name, p in rows]
        return FilePrediction(
            printable(path),
            classes[:top],
            printable(fault or ""),
            # A model of one label has no thresholds.
            [*map(Label, names or (), map(float, row), thresholds)],
            None if score is None else float(score),
            score is None or bool(calibration.known.is_known(score)),
            None
            if limit is None
            else [(name, p) for name, p in classes if p >= limit],
        )

    return predict_batches


def read_ahead(
    load: Callable[[str], Any], batches: Iterable[Sequence[str]]
) -> Iterator[list[tuple[str, Any]]]:
    """Yield batches of paths, each path with what is loaded from it.

    Threads load the next batch while the caller uses this one: otherwise, the
    model would wait for the files, and all processors but one would be idle.
    """
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        ahead = None
        for paths in batches:
            loading, ahead = ahead, [(x, pool.submit(load, x)) for x in paths]
            if loading:
                yield [(path, found.result()) for path, found in loading]
        if ahead:
            yield [(path, found.result()) for path, found in ahead]


def _make_predict_maps(
    source, model, preprocess, map_names, out, use_windows, top
):
    """Return the function of `make_predict_files` of answers for each pixel."""
    if None in model.input_shape[1:3]:
        raise ValueError(
            "`model` must take images of a fixed size. Received: "
            f"input_shape={model.input_shape}"
        )
    names = source.load_class_names()
    names = names or [str(n) for n in range(model.output_shape[-1])]
    if preprocess is None:
        preprocess = source.preprocess
    predict = make_predict_maps(
        source,
        model,
        names,
        preprocess,
        as_path(out),
        map_names,
        use_windows,
        top,
    )

    def predict_files(paths):
        rows = []
        for path in paths:
            try:
                place, classes, summary = predict(path)
                row = FilePrediction(
                    printable(path), classes, map=place, summary=summary
                )
            except (OSError, ValueError) as error:
                fault = printable(message_of(error) + _advise(path))
                row = FilePrediction(printable(path), [], fault)
            rows.append(row)
        return rows

    return functools.partial(map, predict_files)


def _advise(path):
    """Return advice on packages for a file; empty if it needs none."""
    if is_heif(path) and not can_read_heif():
        return ". A HEIC file needs the package pi-heif"
    return ""


def write_lines(rows: Iterable[FilePrediction], file: TextIO):
    """Write a line for each image that could be read, for people."""
    for row in rows:
        if row.fault:
            continue
        shown, start = row.classes, ""
        if row.present:
            shown = [label[:2] for label in row.present]
        elif row.labels:
            start = "no label; most probable: "
        elif not row.is_known:
            start = "unknown; most probable: "
        elif row.candidates:
            shown, start = row.candidates, "one of: "
        elif row.candidates is not None:
            start = "no class is probable enough; most probable: "
        scores = ", ".join(f"{name} {p:.1%}" for name, p in shown)
        if row.map:
            scores = f"{row.summary} ({row.map})"
        file.write(f"{row.path}: {start}{scores}\n")


def write_csv(rows: Iterable[FilePrediction], file: TextIO):
    """Write a CSV table: path, fault, and columns for each class.

    Between these are the labels of the image, if it may have several; whether
    it is known and its score, if the model is calibrated; and the classes that
    the right one is among, if a coverage was asked for.
    """
    rows, begun = iter(rows), []
    for row in rows:
        begun.append(row)
        # All that could be read have as many, but for the classes of maps.
        if row.classes and not row.map:
            break
    width = max((len(row.classes) for row in begun), default=0)
    kind = "share" if any(row.map for row in begun) else "probability"
    columns = [(f"class_{n + 1}", f"{kind}_{n + 1}") for n in range(width)]
    table = csv.writer(file, lineterminator="\n")
    shown = dict.fromkeys(itertools.chain(*map(_more_cells, begun)))
    table.writerow(["path", "fault", *shown, *itertools.chain(*columns)])
    for row in itertools.chain(begun, rows):
        cells = [(name, f"{p:.6g}") for name, p in row.classes]
        cells += [("", "")] * (width - len(cells))
        more = _more_cells(row)
        more = [more.get(name, "") for name in shown]
        table.writerow([row.path, row.fault, *more, *itertools.chain(*cells)])


def _more_cells(row):
    """Return cells of a table between the fault and the classes, by column."""
    cells = {"map": row.map} if row.map else {}
    if row.labels:
        cells["labels"] = SEPARATORS[0].join(x.name for x in row.present)
    if row.score is not None:
        cells |= {"known": int(row.is_known), "score": f"{row.score:.6g}"}
    if row.candidates is not None:
        names = [name for name, _ in row.candidates]
        cells["candidates"] = SEPARATORS[0].join(names)
    return cells


def write_table(rows: Iterable[FilePrediction], file: TextIO):
    """Write a table for a spreadsheet, which `csv:PATH` reads as labels.

    Of several labels, there is a column for each class, with 1 if the image is
    given it and 0 if not; otherwise, a column `label`, empty for an unknown
    image. Files that cannot be read are left out. The byte-order mark tells
    Excel that this is UTF-8.

    Raises:
        ValueError: If the name of a class is that of another column.
    """
    table = csv.writer(file, lineterminator="\n")
    is_begun = False
    for row in rows:
        if row.fault:
            continue
        if row.map:
            raise ValueError(
                "`format` must be text, csv or jsonl for a model with an "
                "answer for each pixel. Received: format='table'"
            )
        if not is_begun:
            names = [label.name for label in row.labels]
            for name in names:
                if is_other_column(name):
                    raise ValueError(
                        "`format` must be text, csv or jsonl if the name of a "
                        "class is that of another column of the table. "
                        f"Received: format='table', the class {name!r}"
                    )
            file.write("\ufeff")
            table.writerow(["path", *(names or ["label"])])
            is_begun = True
        labels = [int(label.is_present) for label in row.labels]
        label = row.classes[0][0] if row.is_known else ""
        table.writerow([row.path, *(labels or [label])])


def write_jsonl(rows: Iterable[FilePrediction], file: TextIO):
    """Write a JSON object on a line for each image."""
    for row in rows:
        classes = [{"name": n, "probability": p} for n, p in row.classes]
        content = {"path": row.path, "classes": classes, "fault": row.fault}
        if row.map:
            content["map"] = row.map
            content["classes"] = [
                {"name": n, "share": p} for n, p in row.classes
            ]
        if row.labels:
            content["labels"] = [
                {**label._asdict(), "is_present": label.is_present}
                for label in row.labels
            ]
        if row.score is not None:
            content |= {"score": row.score, "is_known": row.is_known}
        if row.candidates is not None:
            content["candidates"] = [
                {"name": n, "probability": p} for n, p in row.candidates
            ]
        file.write(json.dumps(content, ensure_ascii=False) + "\n")


OUTPUT_FORMS = {
    "text": write_lines,
    "csv": write_csv,
    "jsonl": write_jsonl,
    "table": write_table,
}
