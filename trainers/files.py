"""How a file of a run is written."""

import os
import pathlib


def write_atomically(path: pathlib.Path, text: str):
    """Write a text file; a reader sees the old content or the new one."""
    draft = path.with_name(f".draft-{path.name}")
    draft.write_text(text, encoding="utf-8")
    os.replace(draft, path)
