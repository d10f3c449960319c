"""Data sets in a table of image files: `csv:PATH`."""

import csv
import os
import random

from trainers.data.content_split import split_by_content
from trainers.data.readers.image_paths import leave_out_unreadable

NUM_FAULTS = 5  # Lines that an error names.


def list_csv(path: str) -> dict[str, list[tuple[str, str]]]:
    """Return the (path, class) pairs of each split of a CSV table.

    The first line names the columns: one of PATH_COLUMNS, one of
    LABEL_COLUMNS, and perhaps `split`. Commas, semicolons or tabs separate
    them. Paths are relative to the folder of the file. Without a column
    `split`, `split_by_content` makes the splits `train` and `test`.

    Args:
        path: Path of the file, in UTF-8.

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
    folder = os.path.dirname(os.path.abspath(path))
    try:
        with open(path, newline="", encoding="utf-8-sig") as file:
            header = file.readline()
            file.seek(0)
            separator = max(",;\t", key=header.count)
            table = csv.DictReader(file, delimiter=separator)
            columns = _find_columns(path, table.fieldnames or [])
            cells = [
                (table.line_num, *(row[c] if c else "" for c in columns))
                for row in table
            ]
    except (UnicodeDecodeError, csv.Error) as error:
        raise ValueError(
            "`dataset=csv:PATH` must name a CSV file in UTF-8. "
            f"Received: PATH={path!r} ({error})"
        ) from None
    rows, faults = [], []
    for number, *texts in cells:
        name, label, split = ((text or "").strip() for text in texts)
        file = os.path.join(folder, name)
        if not name or not label or (columns[-1] and not split):
            faults.append(f"line {number} has an empty cell")
        elif not os.path.isfile(file):
            faults.append(f"line {number}: there is no file {file}")
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


def _find_columns(path, found):
    """Return the names of the columns of paths, labels and splits."""
    by_name = {name.strip().lower(): name for name in found if name}
    columns = []
    for known in (PATH_COLUMNS, LABEL_COLUMNS):
        name = next((name for name in known if name in by_name), None)
        if name is None:
            raise ValueError(
                "`dataset=csv:PATH` must name a file whose first line has a "
                f"column {' or '.join(known)}. Received: PATH={path!r} with "
                f"{', '.join(by_name) or 'no columns'}"
            )
        columns.append(by_name[name])
    return [*columns, by_name.get("split")]


PATH_COLUMNS = ("path", "file", "filename", "image")
LABEL_COLUMNS = ("label", "class", "category")
