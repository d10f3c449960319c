"""The page of an inspected data set: one HTML file that needs no network."""

import base64
import html
import os
from collections.abc import Sequence

from trainers.data.inspection.examination import Examined
from trainers.data.inspection.findings import Finding, count_classes
from trainers.pages import make_table, write_html
from trainers.paths import as_path

TITLE_BEGINNING = "Data set "
NUM_GROUPS = 24  # Of a finding.
PICTURES_PER_GROUP = 24  # Of a group.
NUM_SAMPLES = 12  # Of a class and split, in the contact sheet.
NUM_CLASSES = 100  # In the contact sheet.


def write_data_page(
    path: str | os.PathLike,
    dataset: str,
    images: Sequence[Examined],
    class_names: Sequence[str],
    findings: Sequence[Finding],
):
    """Write the counts, the findings and a contact sheet of a data set.

    Args:
        path: The HTML file.
        dataset: Name of the data set.
        images: Its images.
        class_names: Its classes.
        findings: What was found.
    """
    parts = [
        f"<p>{len(images):,} images of {len(class_names):,} classes.</p>",
        "<h2>Findings</h2>",
        *(_finding(finding) for finding in findings),
        "" if findings else "<p>Nothing was found.</p>",
        "<h2>Images of each class</h2>",
        _table(images, class_names),
        "<h2>Contact sheet</h2>",
        *_sheet(images, class_names),
    ]
    write_html(as_path(path), TITLE_BEGINNING + dataset, parts, DATA_STYLE)


def _finding(finding):
    groups = finding.groups
    if all(len(group) == 1 for group in groups):  # They share a row.
        groups = [[image for group in groups for image in group]]
    shown = [
        _pictures(group[:PICTURES_PER_GROUP]) for group in groups[:NUM_GROUPS]
    ]
    rest = sum(map(len, finding.groups))
    rest -= sum(
        len(group[:PICTURES_PER_GROUP]) for group in groups[:NUM_GROUPS]
    )
    return (
        f'<section class="{finding.level}"><h3>{finding.level.capitalize()}'
        f"</h3><p>{html.escape(finding.text)}</p>"
        f"{'<hr>'.join(shown)}"
        + (f"<p>and {rest:,} more</p>" if rest else "")
        + "</section>"
    )


def _table(images, class_names):
    counts = count_classes(images, class_names)
    rows = [
        (name, [f"<td>{row[name]:,}</td>" for row in counts.values()])
        for name in class_names
    ]
    return make_table(["class", *counts], rows)


def _sheet(images, class_names):
    """Yield the first images of each class."""
    of_class = {}
    for image in images:
        of_class.setdefault((image.label, image.split), []).append(image)
    splits = dict.fromkeys(image.split for image in images)
    for name in class_names[:NUM_CLASSES]:
        yield f"<h3>{html.escape(name)}</h3>"
        for split in splits:
            rows = of_class.get((name, split), [])[:NUM_SAMPLES]
            if rows:
                yield f"<h4>{html.escape(split)}</h4>{_pictures(rows)}"


def _pictures(images):
    return f'<div class="row">{"".join(map(_picture, images))}</div>'


def _picture(image):
    name = html.escape(image.name, quote=True)
    if image.thumbnail:
        data = base64.b64encode(image.thumbnail).decode()
        shown = f'<img src="data:image/jpeg;base64,{data}" alt="{name}">'
    else:
        shown = '<div class="none">cannot be read</div>'
    width, height = image.size
    facts = f"{image.label}, {image.split}"
    if image.thumbnail:
        facts += f", {width}x{height} {image.kind}"
    return (
        f'<figure title="{name}">{shown}<figcaption>'
        f"{html.escape(os.path.basename(image.name))}<br>"
        f"{html.escape(facts)}</figcaption></figure>"
    )


DATA_STYLE = """
h4 { margin: .5rem 0 0; font-weight: normal; opacity: .8; }
section { border-left: 4px solid #888; padding: 0 1rem; margin: 1rem 0; }
section.error { border-color: #d33; }
section.warning { border-color: #c80; }
section h3 { margin: 0; font-size: 1rem; }
hr { border: 0; border-top: 1px solid var(--line); }
figure { width: 7rem; }
.none { display: flex; align-items: center; justify-content: center;
 text-align: center; }
"""
