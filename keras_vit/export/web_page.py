"""The files of a web page that runs a model, except for the model."""

import base64
import hashlib
import html
import importlib.resources
import json
import os
import pathlib
import re
from collections.abc import Mapping

from keras_vit.export.description import to_text
from keras_vit.export.npm import NpmPackage, find_archive, unpack
from keras_vit.version import __version__

PAGE_FILES = (
    "camera.js",
    "classifier.js",
    "description.js",
    "page.js",
    "photo.js",
    "resize.js",
)
LICENSE_FILE = "litert/LICENSE"
LITERT = NpmPackage(
    "@litertjs/core",
    "2.5.3",
    "sha512-PlGmbMOq9WitX7FO0jhbdJw9GthatsyuCQXjTt/wJZo0FLaw48q4tz8IwqgqCIkviY"
    "Gr9OFDL1kCnN4nzWoyJQ==",
)
WASM_UTILS = NpmPackage(
    "@litertjs/wasm-utils",
    "2.5.3",
    "sha512-4fJiw6tBQnIs+0jH/OQ16nYOiSl8/+zZnn5h2ul8aTKHi05sVqZW580Tmk78pC2kT3"
    "9A9OYBVdFawteZ/sI1kQ==",
)
# The files of the packages, and where the page has them. Browsers without
# relaxed SIMD load the second pair.
ENGINE_FILES = {
    LITERT: {
        "dist/index.js": "litert/index.js",
        "wasm/litert_wasm_internal.js": "litert/wasm/litert_wasm_internal.js",
        "wasm/litert_wasm_internal.wasm": (
            "litert/wasm/litert_wasm_internal.wasm"
        ),
        "wasm/litert_wasm_compat_internal.js": (
            "litert/wasm/litert_wasm_compat_internal.js"
        ),
        "wasm/litert_wasm_compat_internal.wasm": (
            "litert/wasm/litert_wasm_compat_internal.wasm"
        ),
    },
    WASM_UTILS: {"dist/index.js": "litert/wasm-utils.js"},
}
IMPORT_MAP = json.dumps(
    {
        "imports": {
            LITERT.name: "./litert/index.js",
            WASM_UTILS.name: "./litert/wasm-utils.js",
        }
    }
)
# Nothing from other servers; `data:` is the empty icon.
POLICY = (
    "default-src 'none'; base-uri 'none'; form-action 'none'; "
    "connect-src 'self'; img-src blob: data:; style-src 'self'; "
    "script-src 'self' 'wasm-unsafe-eval' 'sha256-{}'"
)


def write_page_files(folder: pathlib.Path, description: Mapping):
    """Write the files of the page into a folder."""
    data = importlib.resources.files("keras_vit") / "data"
    source = data / "web"
    for name in PAGE_FILES:
        content = (source / name).read_text(encoding="utf-8")
        write_text(folder / name, content)
    styles = (data / "cards.css", source / "style.css")
    style = "\n".join(part.read_text(encoding="utf-8") for part in styles)
    write_text(folder / "style.css", style)
    digest = hashlib.sha256(IMPORT_MAP.encode()).digest()
    parts = {
        "import_map": IMPORT_MAP,
        "policy": POLICY.format(base64.b64encode(digest).decode()),
        "title": html.escape(description["name"]),
        "version": __version__,
    }
    page = (source / "index.html").read_text(encoding="utf-8")
    page = re.sub(r"\{\{(\w+)\}\}", lambda place: parts[place[1]], page)
    write_text(folder / "index.html", page)
    write_text(folder / "model.json", to_text(description))


def fetch_engine(
    engine_dir: str | os.PathLike | None = None,
) -> dict[NpmPackage, pathlib.Path]:
    """Return the path of each npm package of LiteRT.js, fetching them once.

    Args:
        engine_dir: See `keras_vit.export.export_web`.
    """
    return {
        package: find_archive(package, engine_dir) for package in ENGINE_FILES
    }


def write_engine(
    folder: pathlib.Path, engine_dir: str | os.PathLike | None = None
):
    """Write the files of LiteRT.js and its licence into a folder.

    Args:
        folder: The folder of the page.
        engine_dir: See `keras_vit.export.export_web`.
    """
    for package, archive in fetch_engine(engine_dir).items():
        names = ENGINE_FILES[package]
        contents = unpack(archive, names)
        for name, content in contents.items():
            path = folder / names[name]
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
    # The packages state their licence, but do not contain its text.
    source = importlib.resources.files("keras_vit") / "data" / "web"
    content = (source / "LICENSE-LiteRT.txt").read_text(encoding="utf-8")
    write_text(folder / LICENSE_FILE, content)


def write_manifest(folder: pathlib.Path):
    """Write `manifest.json`: the packages, and a checksum of each file."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    manifest = {
        "packages": [package._asdict() for package in ENGINE_FILES],
        "sha256": {
            path.relative_to(folder).as_posix(): hashlib.sha256(
                path.read_bytes()
            ).hexdigest()
            for path in files
        },
    }
    write_text(folder / "manifest.json", json.dumps(manifest, indent=1))


def write_text(path: pathlib.Path, text: str):
    """Write a text with the line ends of Unix, on every system."""
    path.write_text(text, encoding="utf-8", newline="\n")
