"""HTML pages of one file, which need no network and run no scripts."""

import base64
import html
from collections.abc import Iterable, Mapping

from trainers.paths import (
    Path,
    RemotePath,
    as_path,
    check_folder,
    check_writable,
    write_atomically,
)


def write_html(path: Path, title: str, parts: Iterable[str], style: str = ""):
    """Write a page.

    Args:
        path: The HTML file.
        title: Its title and heading, as text.
        parts: What follows the heading, as HTML.
        style: CSS rules of this page alone.
    """
    body = "\n".join([f"<h1>{html.escape(title)}</h1>", *parts])
    text = FRAME.format(title=html.escape(title), style=style, body=body)
    write_atomically(path, text)


def page_path(out: str) -> Path:
    """Return the file of a page that a flag `out` names.

    Raises:
        ValueError: If its name does not end as that of a page, or its folder
            is a file.
        OSError: If its folder cannot be written.
    """
    path = as_path(out)
    if not path.name.lower().endswith((".html", ".htm")):
        raise ValueError(
            "`out` must be the name of a page, which ends in .html. "
            f"Received: out={out!r}"
        )
    if not isinstance(path, RemotePath):
        check_folder(path.parent, "out")
        check_writable(path.parent, "out")
    return path


def make_table(
    titles: Iterable[str], rows: Iterable[tuple[str, Iterable[str]]]
) -> str:
    """Return a table as HTML. It scrolls if it is wider than the page.

    Args:
        titles: The titles of the columns, as text.
        rows: The name of each row, as text, and its other cells, as HTML with
            their tags.
    """
    head = "".join(f"<th>{html.escape(title)}</th>" for title in titles)
    body = "".join(
        f"<tr><th>{html.escape(name)}</th>{''.join(cells)}</tr>"
        for name, cells in rows
    )
    return f'<div class="wide"><table><tr>{head}</tr>{body}</table></div>'


def make_figure(
    pictures: Mapping[str, bytes | None],
    name: str,
    lines: Iterable[str],
    kind: str = "",
) -> str:
    """Return pictures of an image with lines of text below them, as HTML.

    Args:
        pictures: PNG or JPEG files by what they show, as text; None is left
            out. Without any, it says that the image cannot be read.
        name: The path of the image, which is shown as a hint.
        lines: The lines, as text.
        kind: A class of CSS.
    """
    shown = "".join(
        f'<img src="data:image/{"png" if data[:4] == PNG else "jpeg"};base64,'
        f'{base64.b64encode(data).decode()}" alt="{html.escape(alt)}">'
        for alt, data in pictures.items()
        if data
    )
    kind = f' class="{kind}"' if kind else ""
    return (
        f'<figure{kind} title="{html.escape(name)}">'
        f"{shown or UNREADABLE}<figcaption>"
        f"{'<br>'.join(map(html.escape, lines))}</figcaption></figure>"
    )


PNG = b"\x89PNG"
UNREADABLE = '<div class="none">cannot be read</div>'
FRAME = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy"
 content="default-src 'none'; img-src data:; style-src 'unsafe-inline'">
<title>{title}</title>
<style>
:root {{ color-scheme: light dark; --line: #8884; }}
body {{ font: 15px/1.5 system-ui, sans-serif; max-width: 70rem;
 margin: 2rem auto; padding: 0 1rem; overflow-wrap: anywhere; }}
h1 {{ font-size: 1.5rem; }} h2 {{ margin-top: 2rem; }}
.row {{ display: flex; flex-wrap: wrap; gap: .5rem; }}
figure {{ margin: 0; font-size: .75rem; line-height: 1.3; }}
img, .none {{ width: 7rem; height: 7rem; object-fit: contain;
 background: #8882; }}
.none {{ display: flex; align-items: center; justify-content: center;
 text-align: center; }}
.wide {{ overflow-x: auto; }}
table {{ border-collapse: collapse; }}
th, td {{ border: 1px solid var(--line); padding: .2rem .6rem;
 text-align: right; overflow-wrap: normal; }}
tr > th:first-child {{ text-align: left; }}
@media (max-width: 40rem) {{
 body {{ margin: 1rem auto; }}
 .wide {{ font-size: .85rem; }}
 th, td {{ padding: .2rem .4rem; }}
 td {{ text-align: left; white-space: nowrap; }}
 .wide tr > th:first-child {{ position: sticky; left: 0; max-width: 9rem;
  min-width: 7rem; overflow-wrap: anywhere; background: Canvas; }}
}}
{style}
</style>
</head>
<body>
{body}
</body>
</html>
"""
