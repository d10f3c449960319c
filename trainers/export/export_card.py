"""The section on exports of the model card in the folder of the exports."""

import pathlib

from keras_vit.export import ExportReport
from keras_vit.export.bundle import REPORT
from keras_vit.tables import format_table
from trainers.paths import ContentError, parse_object, read_written

FILE_COLUMNS = (
    *("model", "version", "format", "MiB"),
    *("largest difference", "same class"),
)


def describe_exports(export_dir: pathlib.Path, report: ExportReport) -> str:
    """Return the report on a version, and a table of the others there.

    Args:
        export_dir: The folder of the exports.
        report: The report on the version that was just written.
    """
    text = f"## Export\n\n{report}\n"
    versions = list_versions(export_dir)
    this = report.name, report.version
    rows = [row for key, found in versions for row in found if key != this]
    if rows:
        text += (
            "\n### Other versions in this folder\n\n"
            f"{format_table(FILE_COLUMNS, rows)}\n\n"
            f"The folder `{REPORT}/` has the report on each of them.\n"
        )
    return text


def list_versions(
    export_dir: pathlib.Path,
) -> list[tuple[tuple[str, int], list[list[str]]]]:
    """Return name and number of each version, and a row for each of its files.

    The newest version of a name is first. Files that were deleted since are
    left out, and so are versions whose report cannot be read.

    Args:
        export_dir: The folder of the exports.
    """
    found = []
    for path in sorted(export_dir.glob(f"{REPORT}/*/*/report.json")):
        name, number = path.parts[-3:-1]
        try:
            agreements = read_written(
                path, lambda text: parse_object(text)["agreements"], ""
            )
            rows = [
                _make_row(row, name, number)
                for row in agreements
                if _is_there(export_dir, name, number, row["path"])
            ]
            found.append(((name, int(number)), rows))
        except (ContentError, KeyError, TypeError, ValueError):
            continue
    return sorted(found, key=lambda item: (item[0][0], -item[0][1]))


def _is_there(export_dir, name, number, path):
    """Return whether a file is still there; the folder may have moved."""
    parts, inner = pathlib.PurePath(path).parts, ()
    for index in range(1, len(parts) - 1):
        if parts[index : index + 2] == (name, number):
            inner = parts[index - 1 :]  # It begins with the format.
    return bool(inner) and export_dir.joinpath(*inner).exists()


def _make_row(row, name, number):
    difference = row["max_difference"]  # None if it is not finite.
    return [
        name,
        number,
        row["kind"],
        f"{row['num_bytes'] / 2**20:.2f}",
        "not finite" if difference is None else f"{difference:.1e}",
        f"{row['top1_agreement']:.2%}",
    ]
