"""Export as a web page that runs the model in the browser, with LiteRT.js.

The folder has only static files: the page, the model as a TFLite file, and
LiteRT.js from the npm registry, checked against a hash. Any web server can
serve it; the page sends requests only for these files, and photos stay in the
browser.
"""

import base64
import contextlib
import hashlib
import html
import importlib.resources
import json
import os
import pathlib
import re
import tarfile
import urllib.request
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from keras_vit.export.contract import (
    ExportOptions,
    ExportRequest,
    Format,
    Loaded,
    Written,
    to_text,
)
from keras_vit.export.formats import tflite
from keras_vit.export.formats.tflite import QUANTIZATIONS
from keras_vit.files import draft_folder
from keras_vit.tables import check_name
from keras_vit.version import __version__
from keras_vit.weights.hub import cache_dir

FETCH_SECONDS = 300
MAX_FILE_BYTES = 40_000_000  # Of a file in a package.


class NpmPackage(NamedTuple):
    """A version of a package.

    Args:
        name: Its name, with its scope.
        version: The exact version.
        integrity: `dist.integrity` of the registry: "sha512-" and the
            SHA-512 of the archive in base64.
    """

    name: str
    version: str
    integrity: str

    @property
    def file_name(self) -> str:
        """The name that `npm pack` gives the archive."""
        stem = self.name.removeprefix("@").replace("/", "-")
        return f"{stem}-{self.version}.tgz"


REMEDY = (
    "Without a network, leave `web` out of the formats, or pass a folder with "
    "the packages as `web_engine_dir`, see docs/web.md."
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
        **{
            f"wasm/{name}": f"litert/wasm/{name}"
            for name in (
                "litert_wasm_internal.js",
                "litert_wasm_internal.wasm",
                "litert_wasm_compat_internal.js",
                "litert_wasm_compat_internal.wasm",
            )
        },
    },
    WASM_UTILS: {"dist/index.js": "litert/wasm-utils.js"},
}
REGISTRY = "https://registry.npmjs.org"
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


def write(request: ExportRequest, folder: pathlib.Path) -> list[Written]:
    """Write the page into an empty folder."""
    quantization = request.options.web_quantization
    description = request.describe()
    channels = description["input"]["channels"]
    if channels not in (1, 3):
        raise ValueError(
            "`model` must take images with 1 or 3 channels to run in a web "
            f"page. Received: {channels} channels"
        )
    if "pixel_range" in description:
        raise ValueError(
            "`preprocessing` must have no `pixel_range` to run in a web page: "
            "browsers read 8 bits of a pixel. Received: "
            f"pixel_range={description['pixel_range']}"
        )
    if request.output == "features":
        raise ValueError(
            "`model` must have classes or depths to run in a web page; if its "
            "last layer is a classifier, pass `output`. Received: "
            f"{description['name']!r}, which returns features"
        )
    write_page_files(folder, description)
    write_engine(folder, request.options.web_engine_dir)
    written = tflite.write_file(
        request, folder / "model.tflite", quantization, 1, {}
    )
    write_manifest(folder)
    return [written._replace(path=folder, kind=f"web {quantization}")]


def load(path: str | os.PathLike, **options) -> Loaded:
    """Load the model of a page, with the LiteRT of Python."""
    return tflite.load(pathlib.Path(path, "model.tflite"), **options)


def check_options(options: ExportOptions):
    """Check the quantization and fetch the packages; see `Format.check`."""
    usable = {k: q for k, q in QUANTIZATIONS.items() if not q.needs_calibration}
    check_name(usable, options.web_quantization, "web_quantization")
    fetch_engine(options.web_engine_dir)


def write_page_files(folder: pathlib.Path, description: Mapping):
    """Write the files of the page into a folder."""
    data = importlib.resources.files("keras_vit") / "data"
    source = data / "web"
    for file in source.iterdir():
        if file.name.endswith((".js", ".json")):
            write_text(folder / file.name, file.read_text(encoding="utf-8"))
    styles = (data / "cards.css", source / "overlay.css", source / "style.css")
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
    """Return the path of each npm package of LiteRT.js, fetching them once."""
    return {
        package: find_archive(package, engine_dir) for package in ENGINE_FILES
    }


def write_engine(
    folder: pathlib.Path, engine_dir: str | os.PathLike | None = None
):
    """Write the files of LiteRT.js and its licence into a folder."""
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


def read_page(path: str) -> dict:
    """Return the description of the model of a page."""
    text = pathlib.Path(path, "model.json").read_text(encoding="utf-8")
    return json.loads(text)


def find_archive(
    package: NpmPackage, folder: str | os.PathLike | None = None
) -> pathlib.Path:
    """Return the path of the archive of a package, fetching it if needed."""
    if folder is not None:
        path = pathlib.Path(folder, package.file_name)
        if not path.is_file():
            raise FileNotFoundError(
                f"{path} does not exist. On a machine with npm, write it with "
                f"`npm pack {package.name}@{package.version}`."
            )
        check_integrity(path, package)
        return path
    path = cache_dir() / "npm" / package.file_name
    with contextlib.suppress(FileNotFoundError, ValueError):
        check_integrity(path, package)
        return path
    with draft_folder(path) as draft:
        try:
            download(package, draft)
        except OSError as error:
            raise type(error)(f"{error}\n{REMEDY}") from error
        found = draft / package.file_name
        check_integrity(found, package)
        os.replace(found, path)
    return path


def check_integrity(path: pathlib.Path, package: NpmPackage):
    """Raise a ValueError unless an archive has the expected checksum."""
    digest = hashlib.sha512(path.read_bytes()).digest()
    found = f"sha512-{base64.b64encode(digest).decode()}"
    if found != package.integrity:
        raise ValueError(
            f"{path} must be {package.name}@{package.version} with the "
            f"checksum {package.integrity}. Received: {found}"
        )


def download(package: NpmPackage, folder: pathlib.Path):
    """Write the archive of a package into a folder, unchecked."""
    stem = package.name.rpartition("/")[2]
    url = (
        f"{find_registry(package)}/{package.name}/-/"
        f"{stem}-{package.version}.tgz"
    )
    try:
        with urllib.request.urlopen(url, timeout=FETCH_SECONDS) as answer:
            content = answer.read(MAX_FILE_BYTES)
    except OSError as error:
        raise OSError(f"{url} could not be fetched: {error}") from error
    (folder / package.file_name).write_bytes(content)


def find_registry(package: NpmPackage) -> str:
    """Return the address of the registry that npm would use."""
    settings = {}
    for folder in (pathlib.Path.home(), pathlib.Path()):
        with contextlib.suppress(OSError):
            lines = (folder / ".npmrc").read_text(encoding="utf-8").splitlines()
            pairs = [line.split("=", 1) for line in lines if "=" in line]
            settings |= {key.strip(): value.strip() for key, value in pairs}
    scope = package.name.partition("/")[0]
    chosen = {name.lower(): value for name, value in os.environ.items()}
    found = (
        settings.get(f"{scope}:registry")
        or chosen.get("npm_config_registry")
        or settings.get("registry")
        or REGISTRY
    )
    return found.rstrip("/")


def unpack(archive: pathlib.Path, names: Iterable[str]) -> dict[str, bytes]:
    """Return the content of files of a package."""
    contents = {}
    with tarfile.open(archive) as tar:
        for name in names:
            try:
                member = tar.getmember(f"package/{name}")
            except KeyError:
                member = None
            if not (
                member and member.isfile() and member.size <= MAX_FILE_BYTES
            ):
                raise ValueError(
                    f"{archive} must contain {name}, of at most "
                    f"{MAX_FILE_BYTES:,} bytes."
                )
            contents[name] = tar.extractfile(member).read()
    return contents


FORMAT = Format(
    write=write,
    suffix="",
    entry="index.html",
    packages=("ai_edge_litert",),
    load=load,
    has_latency=False,
    check=check_options,
    read=read_page,
)
