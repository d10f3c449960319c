"""Data sets in a table of image files: `csv:PATH`."""

import csv
import io
import os
import random
import re
import unicodedata

from trainers.data.readers.image_paths import (
    IMAGE_ENDINGS,
    leave_out_unreadable,
    printable,
    split_by_content,
)

NUM_FAULTS = 5  # Lines that an error names.
NUM_COLUMNS_NAMED = 20


def list_csv(path: str) -> dict[str, list[tuple[str, str]]]:
    """Return the (path, class) pairs of each split of a CSV table.

    The first line names the columns: one of PATH_COLUMNS, one of
    LABEL_COLUMNS, and perhaps `split`; case, spaces and underscores do not
    matter. Commas, semicolons, tabs or bars separate them. Paths are relative
    to the folder of the file, and may lack the ending of the image. Without a
    column `split`, `split_by_content` makes the splits `train` and `test`.

    Args:
        path: Path of the file, in UTF-8 or, as Excel writes it, UTF-16.

    Raises:
        ValueError: If there is no such file, a column is missing, or a line
            names no file, no label or a file that does not exist.
        OSError: If a file cannot be read.
    """
    path = os.path.expanduser(path)
    if not os.path.isfile(path):
        fault = "is a folder" if os.path.isdir(path) else "does not exist"
        raise ValueError(
            "`dataset=csv:PATH` must name a CSV file with a column `path` and "
            f"a column `label`. Received: PATH={path!r}, which {fault}"
        )
    rows = leave_out_unreadable(_read_rows(path))
    if not any(split for *_, split in rows):
        files = split_by_content([row[:2] for row in rows], f"csv:{path}")
    else:
        files = {}
        for file, label, split in rows:
            files.setdefault(split, []).append((file, label))
        for split, pairs in files.items():
            random.Random(split).shuffle(pairs)
    return files


def _read_rows(path):
    """Return (path of the image, label, split or "") of each line."""
    try:
        text = _read_text(path)
        separator, text, first = _find_separator(text)
        table = csv.DictReader(io.StringIO(text, ""), delimiter=separator)
        columns = _find_columns(path, table.fieldnames or [])
        cells = [
            (table.line_num + first, row) for row in table if _is_filled(row)
        ]
    except (UnicodeError, csv.Error) as error:
        raise ValueError(
            "`dataset=csv:PATH` must name a CSV file in UTF-8 (in Excel: "
            f"'CSV UTF-8'). Received: PATH={path!r} ({error})"
        ) from None
    files = Files(os.path.dirname(os.path.abspath(path)))
    rows, faults = [], []
    for number, row in cells:
        name, label, split = (
            ((row[column] if column else None) or "").strip()
            for column in columns
        )
        file = files.find(name)
        if not name or not label or (columns[-1] and not split):
            faults.append(f"line {number} has an empty cell")
        elif any((cell or "").strip() for cell in row.get(None, [])):
            faults.append(f"line {number} has more cells than the first line")
        elif printable(label + split) != label + split:
            faults.append(
                f"line {number}: {printable(label)} is not in UTF-8 (in Excel, "
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
    return rows


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


def _find_separator(text):
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
            for columns in (PATH_COLUMNS, LABEL_COLUMNS)
        ]
        return sum(known), len(names)

    return max(",;\t|", key=suits), stripped, skipped


def _find_columns(path, found):
    """Return the names of the columns of paths, labels and splits."""
    by_name = {}
    for name in found:
        by_name.setdefault(_plain(name), name)
    columns = []
    for known in (PATH_COLUMNS, LABEL_COLUMNS):
        name = next((n for n in known if _plain(n) in by_name), None)
        if name is None:
            listed = ", ".join(map(printable, found[:NUM_COLUMNS_NAMED]))
            raise ValueError(
                "`dataset=csv:PATH` must name a file whose first line has a "
                f"column {' or '.join(known)}. Received: PATH={path!r} with "
                f"{listed or 'no columns'}"
                + (", ..." if len(found) > NUM_COLUMNS_NAMED else "")
            )
        columns.append(by_name[_plain(name)])
    return [*columns, by_name.get("split")]


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

    def find(self, name: str) -> str | None:
        """Return the path of a file, or None if there is no such file.

        A name may have the separators of Windows, lack the ending of an image,
        or have another Unicode form than the file.
        """
        for part in dict.fromkeys([name, name.replace("\\", "/")]):
            path = os.path.join(self.folder, part)
            for endings in (("",), ENDINGS):
                found = self._resolve(path, endings)
                if found and (os.path.isfile(found) or os.path.islink(found)):
                    return found
        return None

    def hint(self, name: str) -> str:
        """Return in which folder beside the table a file is, if in any."""
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
            self._listed[place] = {_form(name): name for name in names}
        forms = (_form(name + ending) for ending in endings)
        known = self._listed[place]
        found = next((known[form] for form in forms if form in known), None)
        return found and os.path.join(place, found)


def _form(name):
    return unicodedata.normalize("NFC", name)


ENDINGS = (*IMAGE_ENDINGS, *(ending.upper() for ending in IMAGE_ENDINGS))
# The preferred ones first; case, spaces, hyphens and underscores do not matter.
PATH_COLUMNS = (
    *("path", "file", "filename", "image", "filepath", "image_path"),
    *("image_name", "image_file", "image_filename", "image_id"),
    *("img", "img_path", "img_name", "img_file", "img_id", "id"),
)
LABEL_COLUMNS = (
    *("label", "class", "category", "class_name", "label_name"),
    *("category_name", "target", "class_id", "label_id", "category_id"),
)
