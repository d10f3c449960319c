"""Data sets in a table of image files: `csv:PATH`."""

import collections
import csv
import io
import os
import random
import re
import unicodedata
import warnings
from collections.abc import Sequence

from trainers.data.labels import (
    AUTO,
    SEPARATORS,
    LabelOptions,
    LabelSet,
    classes_of,
    merge_rows,
    split_cells,
)
from trainers.data.readers.image_paths import (
    IMAGE_ENDINGS,
    leave_out_unreadable,
    printable,
    split_by_content,
    warn_of,
)

NUM_FAULTS = 5  # Lines that an error names.
NUM_COLUMNS_NAMED = 20


class PairLabel(LabelSet):
    """The label of a line, of an image that may have other lines."""


def list_csv(path: str, options: LabelOptions = AUTO) -> dict[str, list[tuple]]:
    """Return the (path, label) pairs of each split of a CSV table.

    The first line names the columns: one of PATH_COLUMNS, columns of labels,
    and perhaps `split`; case, spaces and underscores do not matter. Commas,
    semicolons, tabs or bars separate them. Paths are relative to the folder of
    the file, and may lack the ending of the image. Without a column `split`,
    `split_by_content` makes the splits `train` and `test`.

    The labels are in one of LABEL_COLUMNS, a class in each line; several lines
    of one image are several labels. Or they are in one of SET_COLUMNS, several
    in a cell; if `options` say so, in either. Or a column for each class has 1
    for the images of the class, 0 for the others, and nothing where it is
    unknown.

    Args:
        path: Path of the file, in UTF-8 or, as Excel writes it, UTF-16.
        options: How the labels are read.

    Raises:
        ValueError: If there is no such file, a column is missing, or a line
            names no file, no label or a file that does not exist. If it does
            not follow whether images have several labels.
        OSError: If a file cannot be read.
    """
    path = os.path.expanduser(path)
    if not os.path.isfile(path):
        fault = "is a folder" if os.path.isdir(path) else "does not exist"
        raise ValueError(
            "`dataset=csv:PATH` must name a CSV file with a column `path` and "
            f"a column `label`. Received: PATH={path!r}, which {fault}"
        )
    rows = leave_out_unreadable(_read_rows(path, options))
    if not any(split for *_, split in rows):
        rows = [row[:2] for row in rows]
        name, is_whole = f"csv:{path}", options.is_whole
        files = split_by_content(rows, name, is_whole=is_whole)
    else:
        files = {}
        for file, label, split in rows:
            files.setdefault(split, []).append((file, label))
        for split, pairs in files.items():
            random.Random(split).shuffle(pairs)
    return files


def _read_rows(path, options):
    """Return (path of the image, label, split or "") of each image."""
    header, cells = read_table(path, "dataset=csv:PATH")
    of_path, of_split, labels = _read_labels(path, header, cells, options)
    files = Files(os.path.dirname(os.path.abspath(path)))
    rows, faults = [], []
    for (number, row), label in zip(cells, labels):
        name, split = (
            ((row[column] if column else None) or "").strip()
            for column in (of_path, of_split)
        )
        file = files.find(name)
        text = split + "".join(classes_of(label))
        if not name or label == "" or (of_split and not split):
            faults.append(f"line {number} has an empty cell")
        elif fault := find_fault(row, header.index(of_path), files):
            faults.append(f"line {number} {fault}")
        elif printable(text) != text:
            faults.append(
                f"line {number}: {printable(text)} is not in UTF-8 (in Excel, "
                "save as 'CSV UTF-8')"
            )
        elif file is None:
            whole = printable(os.path.join(files.folder, name))
            hint = "" if faults else files.hint(name)
            faults.append(f"line {number}: there is no file {whole}{hint}")
        rows.append((file, label, split))
    if faults or not rows:
        more = len(faults) - NUM_FAULTS
        listed = faults[:NUM_FAULTS] + [f"and {more} more"] * (more > 0)
        raise ValueError(
            "`dataset=csv:PATH` must have an existing file and a label in "
            f"each line. Received: PATH={path!r}: "
            f"{'; '.join(listed) or 'without lines'}"
        )
    return _join_lines(path, rows, options.kind)


def find_fault(row: dict, place: int, files: "Files") -> str:
    """Return what is wrong with the cells of a line, or "".

    Args:
        row: The cells by the names of their columns.
        place: Which of the columns has the files.
        files: Finds them.
    """
    # A line within a cell has as many cells as the table, and a file where
    # the table has one.
    for cell in row.values():
        for line in cell.splitlines()[1:] if isinstance(cell, str) else ():
            parts = [part.strip() for part in re.split(r"[,;\t|]", line)]
            if len(parts) == len(row) and files.find(parts[place] or "."):
                return (
                    "has a quote that is not closed, so that "
                    f"{printable(line)!r} is part of a cell"
                )
    if any((cell or "").strip() for cell in row.get(None, [])):
        return "has more cells than the first line"
    return ""


def read_table(
    path: str, argument: str, columns: Sequence[str] = ()
) -> tuple[list[str], list[tuple[int, dict]]]:
    """Return the names of the columns of a table, and its lines.

    Args:
        path: The file.
        argument: What names it, for the error.
        columns: Names of columns by which the separator is told, beside the
            usual ones.

    Returns:
        The names, and the number of each line with its cells by name.

    Raises:
        ValueError: If it is no such file.
    """
    try:
        text = _read_text(path)
        separator, text, first = _find_separator(text, columns)
        table = csv.DictReader(io.StringIO(text, ""), delimiter=separator)
        table.fieldnames = [name.strip() for name in table.fieldnames or []]
        cells = [
            (table.line_num + first, row) for row in table if _is_filled(row)
        ]
    except (UnicodeError, csv.Error) as error:
        raise ValueError(
            f"`{argument}` must name a CSV file in UTF-8 (in Excel: "
            f"'CSV UTF-8'). Received: PATH={path!r} ({error})"
        ) from None
    return table.fieldnames, cells


def find_column(
    path: str, header: Sequence[str], known: Sequence[str]
) -> str | None:
    """Return the column that one of some names is meant by, or None.

    Raises:
        ValueError: If it is there twice.
    """
    plain = [_plain(name) for name in header]
    named = next((n for n in map(_plain, known) if n in plain), None)
    return None if named is None else _find_once(path, header, named)


def _join_lines(path, rows, kind):
    """Return a row for each image, with all labels of its lines."""
    first = rows[0][1]
    if not isinstance(first, LabelSet):
        return rows
    # A path may be written in several ways.
    keys = [(os.path.realpath(file), split) for file, _, split in rows]
    merged = merge_rows([row[:2] for row in rows], keys)
    if isinstance(first, PairLabel):
        several = [row for row in merged if len(row[1].present) > 1]
        if kind == "auto" and not several:  # In different splits.
            return _take_single(path, rows, kind)
        if kind == "auto" and len(several) < LEAST_SHARE * len(merged):
            file, labels = several[0]
            raise ValueError(
                "`labels` must be given: several if images may have several "
                "labels, or one to read each line as an image of its own. "
                f"Received: labels='auto', PATH={path!r} with "
                f"{len(several):,} of {len(merged):,} images with several "
                f"labels, such as {printable(file)}: "
                f"{', '.join(labels.present)}"
            )
        splits = dict.fromkeys(keys)
        return [(*row, split) for row, (_, split) in zip(merged, splits)]
    if len(merged) < len(rows):
        raise ValueError(
            "`dataset=csv:PATH` must have one line an image if a line has all "
            f"labels. Received: PATH={path!r} with {len(rows) - len(merged):,} "
            "lines of images of other lines"
        )
    return _take_single(path, rows, kind) if kind == "one" else rows


def _take_single(path, rows, kind):
    """Return rows of sets of one label each as rows of this label."""
    for file, label, _ in rows:
        if len(label.present) != 1:
            raise ValueError(
                "`labels` must be several or auto for a table whose images "
                f"may have several labels, or none. Received: labels={kind!r}, "
                f"PATH={path!r} with {printable(file)}: "
                f"{', '.join(label.present) or 'none'}"
            )
    return [(file, label.present[0], split) for file, label, split in rows]


def _read_labels(path, header, cells, options):
    """Return the names of the columns of paths and splits, and the labels."""
    of_path, of_label, of_set, of_split = (
        find_column(path, header, known)
        for known in (PATH_COLUMNS, LABEL_COLUMNS, SET_COLUMNS, ("split",))
    )
    if of_label and of_set:
        raise ValueError(
            "`dataset=csv:PATH` must have one column of labels. Received: "
            f"PATH={path!r} with {of_label!r} and {of_set!r}; remove or rename "
            "the one that is not to be learned"
        )
    classes, others = [], {}
    if not of_label and not of_set:
        classes, others = _find_classes(
            path, header, cells, (of_path, of_split)
        )
    for name in header if of_split is None else ():
        if _plain(name) in map(_plain, SPLIT_WORDS) and name not in classes:
            warnings.warn(
                f"the column {name!r} of {path} is not read; name it split, "
                "with cells such as train and test, if it says that",
                stacklevel=2,
            )
    if of_path is None or not (of_label or of_set or classes):
        wanted = PATH_COLUMNS if of_path is None else LABEL_COLUMNS
        columns = [printable(name) for name in header[:NUM_COLUMNS_NAMED]]
        if of_path is not None and others:
            columns = [f"{name} ({why})" for name, why in others.items()]
            wanted = (*wanted, "one for each class, of 1 and 0")
        listed = ", ".join(columns[:NUM_COLUMNS_NAMED])
        raise ValueError(
            "`dataset=csv:PATH` must name a file whose first line has a "
            f"column {' or '.join(wanted)}. Received: PATH={path!r} with "
            f"{listed or 'no columns'}"
            + (", ..." if len(header) > NUM_COLUMNS_NAMED else "")
        )
    if classes:
        if options.separator:
            raise ValueError(
                "`label_separator` is for labels in the cells of one column. "
                f"Received: label_separator={options.separator!r}, "
                f"PATH={path!r} with a column for each class"
            )
        marks = (
            {name: _mark(row[name]) for name in classes} for _, row in cells
        )
        labels = [
            LabelSet(
                *(
                    tuple(name for name, x in row.items() if x == mark)
                    for mark in (1, 0)
                )
            )
            for row in marks
        ]
        return of_path, of_split, labels
    labels = [(row[of_label or of_set] or "").strip() for _, row in cells]
    of_file = {}
    for (_, row), label in zip(cells, labels):
        file = os.path.normpath((row[of_path] or "").strip())
        of_file.setdefault(file, set()).add(label)
    has_pairs = any(len(found - {""}) > 1 for found in of_file.values())
    is_several = options.kind == "several"
    has_lines = len(of_file) < len(cells)
    if of_set or options.separator or (is_several and not has_lines):
        labels = split_cells(labels, options.separator)
        _warn_of_words(labels)
    elif is_several or (has_pairs and options.kind == "auto"):
        _check_pairs(path, header, cells, (of_path, of_label, of_split))
        # A line without a label is an image that has none.
        labels = [PairLabel((label,) if label else ()) for label in labels]
        _warn_of_words([LabelSet(tuple(x)) for x in of_file.values()])
    elif options.kind != "one":
        _check_single(path, labels)
    return of_path, of_split, labels


def _find_once(path, header, plain):
    """Return the name of a column that must not be there twice."""
    found = [name for name in header if _plain(name) == plain]
    if len(found) > 1:
        raise ValueError(
            "`dataset=csv:PATH` must not have two columns for one thing. "
            f"Received: PATH={path!r} with {' and '.join(map(repr, found))}"
        )
    return found[0]


def _find_classes(path, header, cells, others):
    """Return the columns of classes, whose cells are 1, 0 or empty.

    Of the other columns, the reason is returned by name.

    Raises:
        ValueError: If one is there twice, most of its cells are 1 or 0 and
            another one is not, or none is 0 where some are empty.
    """
    found, left = [], {}
    for name in header:
        if name in others or not name or says_split(name):
            continue
        marks = [_mark(row[name]) for _, row in cells]
        filled = [mark for mark in marks if mark is not None]
        wrong = [mark for mark in filled if mark not in (0, 1)]
        if filled and not wrong:
            if len(filled) < len(marks) and 0 not in filled:
                raise ValueError(
                    "`dataset=csv:PATH` must have a 0 where an image has not "
                    "the label of a column; an empty cell is unknown. "
                    f"Received: PATH={path!r} with 1 and empty cells alone in "
                    f"the column {name!r}"
                )
            short = [line for line, row in cells if row[name] is None]
            if short:
                raise ValueError(
                    "`dataset=csv:PATH` must have a cell, empty or not, for "
                    f"each class. Received: PATH={path!r} with fewer in line "
                    f"{short[0]}"
                )
            found.append(name)
        elif len(wrong) < len(filled) / 2:
            line, row = next(
                x for x, mark in zip(cells, marks) if mark == wrong[0]
            )
            raise ValueError(
                "`dataset=csv:PATH` must have 1, 0 or an empty cell in the "
                f"column of a class. Received: PATH={path!r} with "
                f"{row[name]!r} in line {line} of the column {name!r}; correct "
                "it or remove the column"
            )
        else:
            left[name] = repr(wrong[0]) if wrong else "empty"
    forms = collections.Counter(_form(name) for name in found)
    twice = [name for name in found if forms[_form(name)] > 1]
    if twice:
        raise ValueError(
            "`dataset=csv:PATH` must have one column for a class. "
            f"Received: PATH={path!r} with {twice[0]!r} twice"
        )
    if found and left:
        shown = {f"{name} ({why})" for name, why in left.items()}
        warn_of(shown, "column", "not read: its cells are not 0 and 1")
    return found, left


def _check_pairs(path, header, cells, known):
    """Raise a ValueError if lines may say that an image has not a label."""
    for name in header:
        marks = {_mark(row[name]) for _, row in cells}
        if not name or name in known or says_split(name):
            continue
        if marks <= {0, 1} and 0 in marks:
            raise ValueError(
                "`dataset=csv:PATH` must have a line for each label that an "
                "image has, and none for others. Received: "
                f"PATH={path!r} with 0 in the column {name!r}; remove the "
                "lines of absent labels, or the column"
            )


def _warn_of_words(labels):
    """Warn of labels that may have been meant to be none."""
    alone = {label.present[0] for label in labels if len(label.present) == 1}
    others = {
        x for label in labels if len(label.present) > 1 for x in label.present
    }
    words = {x for x in alone - others if x.lower() in EMPTY_WORDS}
    if words:
        warn_of(
            words, "label", "read as a class; an empty cell is an image of none"
        )


def _check_single(path, labels):
    """Raise a ValueError if some labels look like several in a cell."""
    known = set(labels)
    for label in dict.fromkeys(labels):
        for separator in SEPARATORS:
            parts = [part.strip() for part in label.split(separator)]
            if len(parts) > 1 and known.issuperset(parts):
                raise ValueError(
                    f"`label_separator` must be given, such as {separator!r}, "
                    "if a cell may have several labels; if not, labels=one. "
                    f"Received: label_separator=None, PATH={path!r} with "
                    f"{label!r}"
                )


def _mark(cell):
    """Return 1 or 0, None for an empty cell, or the text of another one."""
    text = (cell or "").strip().lower()
    return MARKS.get(text, text)


def _read_text(path):
    """Return the text of a table; bytes that are not UTF-8 are surrogates.

    Names of old archives are not, neither in a table nor on the disk.
    """
    with open(path, "rb") as file:
        content = file.read()
    if content[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return content.decode("utf-16")
    for place, encoding in ((0, "utf-16-be"), (1, "utf-16-le")):
        if content[place : 8 + place : 2] == bytes(4):
            return content.decode(encoding)
    if b"\0" in content:
        raise UnicodeError("it has null bytes")
    return content.decode("utf-8", "surrogateescape")


def _find_separator(text, more=()):
    """Return the separator, the text from the columns on, and lines before."""
    stripped = text.lstrip("\ufeff\r\n")
    first, _, rest = stripped.partition("\n")
    skipped = text[: len(text) - len(stripped)].count("\n")
    stated = re.fullmatch(r'"?sep=(.)"?[;,]*\r?', first, re.IGNORECASE)
    if stated:
        return stated[1], rest, skipped + 1

    def suits(separator):
        lines = csv.reader(io.StringIO(stripped, ""), delimiter=separator)
        names = [_plain(name) for name in next(lines, [])]
        known = [
            any(_plain(name) in names for name in columns)
            for columns in (
                PATH_COLUMNS,
                (*LABEL_COLUMNS, *SET_COLUMNS, *more),
            )
        ]
        return sum(known), len(names)

    return max(",;\t|", key=suits), stripped, skipped


def is_other_column(name: str) -> bool:
    """Return whether a column called so is not read as that of a class."""
    others = *PATH_COLUMNS[:1], *LABEL_COLUMNS, *SET_COLUMNS, "split"
    return _plain(name) in map(_plain, others) or says_split(name)


def says_split(name: str) -> bool:
    """Return whether a column of 1 and 0 tells of a split, not of a class."""
    return _plain(name) in map(_plain, IS_SPLIT)


def _plain(name):
    return re.sub(r"[\s_-]", "", name).lower()


def _is_filled(row):
    """Return whether a row has text; Excel leaves empty ones behind."""
    cells = [*row.values(), *row.get(None, [])]
    return any(isinstance(cell, str) and cell.strip() for cell in cells)


class Files:
    """Finds the files that a table names.

    Args:
        folder: The folder that paths begin in.
    """

    def __init__(self, folder: str):
        self.folder = folder
        self._listed = {}
        self._several = {}

    def find(self, name: str) -> str | None:
        """Return the path of a file, or None if there is no such file.

        A name may have the separators of Windows, lack the ending of an image,
        or have another Unicode form than the file. It may also have letters of
        the other case. Each only if that means a single file.
        """
        for part in dict.fromkeys([name, name.replace("\\", "/")]):
            path = os.path.join(self.folder, part)
            for endings in (("",), ENDINGS):
                found = self._resolve(path, endings)
                if found and (os.path.isfile(found) or os.path.islink(found)):
                    return found
        return None

    def hint(self, name: str) -> str:
        """Return why there is no such file, or in which folder it is, if any.

        The folder is one beside the table.
        """
        for part in (name, name.replace("\\", "/")):
            if several := self._several.get(os.path.join(self.folder, part)):
                return f", but {printable(' and '.join(several))}"
        for entry in sorted(os.scandir(self.folder), key=lambda e: e.name):
            if entry.is_dir() and self.find(os.path.join(entry.name, name)):
                where = printable(os.path.join(entry.name, name))
                return f", but {where}; paths begin in the folder of the table"
        return ""

    def _resolve(self, path, endings=("",)):
        """Return the path of equal names that exists, or None."""
        parent, name = os.path.split(path)
        if os.path.lexists(path) and "" in endings:
            return path
        if parent == path or (place := self._resolve(parent)) is None:
            return None
        if place not in self._listed:
            names = sorted(os.listdir(place)) if os.path.isdir(place) else []
            folded = collections.defaultdict(list)
            for entry in names:
                folded[_form(entry).casefold()].append(entry)
            exact = {_form(entry): entry for entry in names}
            single = {form: n[0] for form, n in folded.items() if len(n) == 1}
            self._listed[place] = exact, single
        exact, single = self._listed[place]
        forms = [_form(name + ending) for ending in endings]
        found = [exact[form] for form in forms if form in exact]
        if not found:
            forms = dict.fromkeys(form.casefold() for form in forms)
            found = [single[form] for form in forms if form in single]
        if len(found) > 1:
            self._several[path] = found
        return os.path.join(place, found[0]) if len(found) == 1 else None


def _form(name):
    return unicodedata.normalize("NFC", name)


ENDINGS = (*IMAGE_ENDINGS, *(ending.upper() for ending in IMAGE_ENDINGS))
# The preferred ones first; case, spaces, hyphens and underscores do not matter.
PATH_COLUMNS = (
    *("path", "file", "filename", "image", "filepath", "image_path"),
    *("image_name", "image_file", "image_filename", "image_id"),
    *("img", "img_path", "img_name", "img_file", "img_id", "id"),
    *("fname", "filenames", "filepaths", "name"),
)
LABEL_COLUMNS = (
    *("label", "class", "category", "class_name", "label_name"),
    *("category_name", "target", "class_id", "label_id", "category_id"),
)
# Columns that other programs have in place of `split`.
IS_SPLIT = ("is_train", "is_valid", "is_validation", "is_val", "is_test")
SPLIT_WORDS = (*IS_SPLIT, "subset", "partition", "data_set", "fold")
# Of several labels in a cell.
SET_COLUMNS = ("labels", "classes", "categories", "tags", "class_names")
# Of an image without labels, perhaps.
EMPTY_WORDS = {"none", "nothing", "n/a", "na", "nan", "null", "-", "unknown"}
MARKS = {
    **{"1": 1, "1.0": 1, "true": 1, "yes": 1},
    **{"0": 0, "0.0": 0, "false": 0, "no": 0},
    "": None,
}
# Fewer images with lines of other labels are more likely to be mistakes.
LEAST_SHARE = 0.05
