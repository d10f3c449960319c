"""A page to explore where models look: one HTML file for a browser."""

import base64
import hashlib
import html
import importlib.resources
import json
import os
import re
from collections.abc import Sequence

from keras_vit.analysis.page_content import (
    DETAILS,
    Detail,
    Packets,
    describe_model,
    guess_size,
)
from keras_vit.files import atomic_write
from keras_vit.version import __version__

TITLE = "Inside a Vision Transformer"
# The scripts of the page, in order. They share one scope.
SCRIPTS = (
    "numbers",
    "state",
    "views",
    "drawing",
    "panel",
    "details",
    "distances",
    "controls",
    "main",
)


def write_page(
    inspections: Sequence,
    path: str | os.PathLike,
    *,
    max_bytes: int = 15_000_000,
    title: str = TITLE,
):
    """Write the interactive page of inspections. Needs Pillow.

    The page is a single file that needs neither a server nor the network. An
    existing file is replaced atomically.

    Args:
        inspections: An Inspection, or one for each model, all of the same
            images.
        path: The file, such as "report.html". Missing folders are created.
        max_bytes: See `render_page`.
        title: Title of the page.

    Raises:
        ValueError: See `render_page`.
        OSError: If the file cannot be written.
    """
    page = render_page(inspections, max_bytes=max_bytes, title=title)
    with atomic_write(path) as draft:
        draft.write_text(page, encoding="utf-8", newline="\n")


def render_page(
    inspections: Sequence, *, max_bytes: int = 15_000_000, title: str = TITLE
) -> str:
    """Return the interactive page of inspections, as HTML. Needs Pillow.

    The page contains as much of the attention as fits, see DETAILS. It states
    what it omits and the precision of its numbers.

    Args:
        inspections: An Inspection, or one for each model, all of the same
            images.
        max_bytes: Largest size of the page.
        title: Title of the page.

    Raises:
        ValueError: If there is no inspection, if the inspections are of
            different images, if a number is not finite, or if `max_bytes` is
            too small even for the last row of DETAILS.
    """
    page = _fit(inspections, max_bytes, title)
    num_bytes = len(page.encode("utf-8"))
    if num_bytes > max_bytes:
        raise ValueError(
            f"`max_bytes` must be at least {num_bytes:,} for these "
            f"inspections. Received: max_bytes={max_bytes:,}"
        )
    return page


def render_frame(
    inspections: Sequence, *, max_bytes: int = 4_000_000, height: int = 720
) -> str:
    """Return the page inside a frame, for a notebook. Needs Pillow.

    Args:
        inspections: See `render_page`.
        max_bytes: Preferred largest size of the page. The last row of DETAILS
            is used even if the page is larger.
        height: Height of the frame, in pixels.
    """
    page = _fit(inspections, max_bytes, TITLE)
    # Without allow-same-origin, the page cannot access the notebook.
    return (
        f'<iframe title="{TITLE}" sandbox="allow-scripts" '
        f'style="width: 100%; height: {height}px; border: 0" '
        f'srcdoc="{html.escape(page)}"></iframe>'
    )


def _fit(inspections, max_bytes, title):
    """Return the page with the first of DETAILS that fits, or the last."""
    if not isinstance(inspections, Sequence):
        inspections = (inspections,)
    names = {inspection.image_names for inspection in inspections}
    if len(names) != 1 or names == {()}:
        raise ValueError(
            "`inspections` must be one or more, of the same images. "
            f"Received: {len(inspections)} inspections, of images called "
            f"{sorted(names)}"
        )
    *greater, least = DETAILS
    for detail in greater:
        # Packing the maps of a large model in vain would take minutes.
        guess = sum(
            guess_size(inspection, detail) for inspection in inspections
        )
        if guess > 1.25 * max_bytes:
            continue
        page = _render(inspections, detail, title)
        if len(page.encode("utf-8")) <= max_bytes:
            return page
    return _render(inspections, least, title)


def _render(inspections: Sequence, detail: Detail, title: str):
    packets = Packets()
    content = {
        "levels": detail.levels,
        "precision": detail.precision,
        "left_out": detail.left_out,
        "models": [
            describe_model(inspection, detail, packets)
            for inspection in inspections
        ],
    }
    # A "<" in a script could end the script.
    content = json.dumps(content, allow_nan=False).replace("<", "\\u003c")
    style = f"{_read('cards.css')}\n{_read('report/style.css')}"
    script = _join_scripts()
    policy = (
        "default-src 'none'; img-src data:; base-uri 'none'; "
        f"form-action 'none'; style-src '{_hash(style)}'; "
        f"script-src '{_hash(script)}'"
    )
    # File names may contain bytes that are not UTF-8, as surrogates.
    title = title.encode("utf-8", "replace").decode("utf-8")
    parts = {
        "title": html.escape(title),
        "version": __version__,
        "policy": policy,
        "style": style,
        "script": script,
        "content": content,
        "packets": "\n".join(packets.elements),
    }
    # In one pass, so that no text in a part is read as a placeholder.
    return re.sub(
        r"\{\{(\w+)\}\}",
        lambda place: parts[place[1]],
        _read("report/page.html"),
    )


def _join_scripts():
    """Return all scripts as one, in a separate scope."""
    scripts = "\n".join(_read(f"report/{name}.js") for name in SCRIPTS)
    return f'"use strict";\n(() => {{\n{scripts}}})();\n'


def _read(name):
    folder = importlib.resources.files("keras_vit") / "data"
    return (folder / name).read_text(encoding="utf-8")


def _hash(text):
    digest = hashlib.sha256(text.encode("utf-8")).digest()
    return f"sha256-{base64.b64encode(digest).decode('ascii')}"
