"""Packages of the npm registry, checked against hashes in the source.

npm is used if it is installed, with its configuration: registry, proxy,
certificates and tokens. Without npm, the packages are read from the registry
that the configuration of npm names; there is no default.
"""

import base64
import contextlib
import hashlib
import os
import pathlib
import shutil
import subprocess
import tarfile
import urllib.request
from collections.abc import Iterable
from typing import NamedTuple

from keras_vit.files import draft_folder
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


def find_archive(
    package: NpmPackage, folder: str | os.PathLike | None = None
) -> pathlib.Path:
    """Return the path of the archive of a package, fetching it if needed.

    Args:
        package: The package.
        folder: A folder that contains the archive, as `npm pack` writes it.
            Default: the cache of keras_vit, into which it is downloaded.

    Raises:
        ValueError: If the archive has another checksum.
        OSError: If it cannot be fetched.
    """
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
    """Write the archive of a package into a folder, unchecked.

    Raises:
        OSError: If it cannot be fetched.
    """
    npm = shutil.which("npm")
    if npm:
        pack_with_npm(npm, package, folder)
        return
    base = find_registry(package)
    stem = package.name.rpartition("/")[2]
    url = f"{base}/{package.name}/-/{stem}-{package.version}.tgz"
    try:
        with urllib.request.urlopen(url, timeout=FETCH_SECONDS) as answer:
            content = answer.read(MAX_FILE_BYTES)
    except OSError as error:
        raise OSError(f"{url} could not be fetched: {error}") from error
    (folder / package.file_name).write_bytes(content)


def pack_with_npm(npm: str, package: NpmPackage, folder: pathlib.Path):
    """Write the archive of a package into a folder with `npm pack`.

    Args:
        npm: Path of the program.
        package: The package.
        folder: The folder.
    """
    name = f"{package.name}@{package.version}"
    try:
        result = subprocess.run(
            [
                npm,
                "pack",
                name,
                "--ignore-scripts",
                "--loglevel=error",
                f"--pack-destination={folder}",
            ],
            capture_output=True,
            text=True,
            timeout=FETCH_SECONDS,
        )
    except subprocess.TimeoutExpired:
        raise TimeoutError(
            f"`npm pack {name}` took more than {FETCH_SECONDS} s."
        ) from None
    if result.returncode or not (folder / package.file_name).is_file():
        lines = [line for line in result.stderr.splitlines() if line.strip()]
        raise OSError(
            f"`npm pack {name}` failed:\n" + "\n".join(lines[:6] or ["?"])
        )


def find_registry(package: NpmPackage) -> str:
    """Return the address of the registry in the configuration of npm.

    Raises:
        OSError: If there is none.
    """
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
    )
    if not found:
        raise OSError(
            f"The npm package {package.name} cannot be fetched, because npm is "
            "not installed and no registry is configured. Install npm; or name "
            "a registry in the environment variable npm_config_registry; or "
            "pass a folder that contains the packages as "
            "`web_engine_dir` (in the command, --web_engine_dir)."
        )
    return found.rstrip("/")


def unpack(archive: pathlib.Path, names: Iterable[str]) -> dict[str, bytes]:
    """Return the content of files of a package.

    Args:
        archive: Path of the archive.
        names: The names of the files in the package.

    Raises:
        ValueError: If a file is missing or too large.
    """
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
