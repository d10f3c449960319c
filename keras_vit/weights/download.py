"""Downloading a file: into the cache, resumed, locked and checked.

Neither `keras.utils.get_file` nor pooch resumes a download that broke off,
which is worth having for files of more than a gigabyte, and neither keeps
several processes from downloading the same file at once.
"""

import base64
import contextlib
import hashlib
import http.client
import os
import pathlib
import sys
import urllib.error
import urllib.request

import keras

CHUNK_BYTES = 2**20
TIMEOUT_SECONDS = 60


def cache_dir() -> pathlib.Path:
    """Return the folder of downloads: KERAS_VIT_CACHE, or below ~/.keras."""
    folder = os.environ.get("KERAS_VIT_CACHE")
    if folder:
        return pathlib.Path(folder).expanduser()
    home = os.environ.get("KERAS_HOME") or "~/.keras"
    return pathlib.Path(home).expanduser() / "keras_vit"


def fetch(
    url: str, path: pathlib.Path, sha256: str | None = None
) -> pathlib.Path:
    """Return `path`, downloading it from `url` unless it exists.

    The start of a download that broke off is kept beside `path`. The next
    call completes it if the server can tell that the file is still the same.
    If several processes ask for one file, one downloads it and the others
    wait.

    Args:
        url: Address of the file.
        path: Where to put it.
        sha256: Its checksum; None records the checksum of the first download
            beside the file.

    Raises:
        ConnectionError: If it cannot be fetched; says what to put where.
        ValueError: If the checksum is wrong.
    """
    path = pathlib.Path(path)
    if path.is_file():
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    # A file of its own, because `part` is renamed or removed by the process
    # that holds the lock.
    with open(path.with_name(path.name + ".lock"), "w") as lock, _alone(lock):
        if path.is_file():
            return path
        try:
            with open(part, "ab") as file:
                checksums = _receive(url, file)
        except (OSError, http.client.HTTPException) as error:
            if isinstance(error, urllib.error.HTTPError):
                error.close()
            raise ConnectionError(
                f"{url} could not be fetched: {error}. On a machine with a "
                f"connection, download it and put it at {path}; or set "
                "KERAS_VIT_MIRROR to a copy of the bucket."
            ) from error
        _check(part, path, checksums, sha256)
        os.replace(part, path)
    return path


def _receive(url, file) -> dict[str, str]:
    """Append to `file` what is missing of `url`; return its checksums."""
    version = pathlib.Path(f"{file.name}.version")
    with _ask(url, file, version) as answer:
        if answer.status != 206:
            file.truncate(0)
            version.unlink(missing_ok=True)
        have = file.seek(0, os.SEEK_END)
        tag = answer.headers.get("ETag", "")
        if tag and not tag.startswith("W/"):
            version.write_text(tag)
        left = answer.headers.get("Content-Length")
        total = have + int(left) if left else None
        _copy(answer, file, have, total)
        version.unlink(missing_ok=True)
        return _published_checksums(answer.headers)


def _ask(url, file, version):
    """Return the server's answer: the rest of the file, or all of it.

    The rest is only asked for with a strong ETag of the first part, so that
    halves of two different files are never put together (RFC 9110, 13.1.5).
    """
    have = file.seek(0, os.SEEK_END)
    if have and version.is_file():
        headers = {"Range": f"bytes={have}-", "If-Range": version.read_text()}
        request = urllib.request.Request(url, headers=headers)
        try:
            return urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS)
        except urllib.error.HTTPError as error:
            if error.code != 416:
                raise
            # Nothing is left to send: start again.
            error.close()
    return urllib.request.urlopen(url, timeout=TIMEOUT_SECONDS)


def _copy(answer, file, have, total):
    """Append the answer to `file` and show the progress."""
    # On a terminal the bar moves; a log gets a line now and then.
    interval = 0.1 if sys.stdout.isatty() else 10
    bar = keras.utils.Progbar(total, unit_name="B", interval=interval)
    while chunk := answer.read(CHUNK_BYTES):
        file.write(chunk)
        have += len(chunk)
        bar.update(have, finalize=False)
    file.flush()
    if total is not None and have != total:
        raise ConnectionError(f"it broke off after {have:,} of {total:,} B")
    bar.update(have, finalize=True)


def _published_checksums(headers) -> dict[str, str]:
    """Return the checksums that Google's storage sends, in hexadecimal."""
    sums = {}
    for line in headers.get_all("x-goog-hash") or ():
        for item in line.split(","):
            name, _, value = item.strip().partition("=")
            if name == "md5":
                sums[name] = base64.b64decode(value).hex()
    return sums


def _check(part, path, checksums, sha256):
    """Remove `part` and raise a ValueError if its checksum is wrong."""
    record = path.with_name(path.name + ".sha256")
    recorded = record.read_text().split() if record.is_file() else []
    recorded = recorded[0] if recorded else None
    digests = {"sha256": hashlib.sha256(), "md5": hashlib.md5()}
    with open(part, "rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            for digest in digests.values():
                digest.update(chunk)
    found = {name: digest.hexdigest() for name, digest in digests.items()}
    wanted = {**checksums, "sha256": sha256 or recorded or found["sha256"]}
    for name, value in wanted.items():
        if found[name] != value:
            part.unlink()
            raise ValueError(
                f"{path.name} was damaged on the way or has changed: its "
                f"{name} is {found[name]} and should be {value}."
            )
    if sha256 is None and recorded is None:
        record.write_text(f"{found['sha256']}  {path.name}\n")
        print(
            f"No checksum is published for {path.name}; {found['sha256']} "
            f"(sha256) is recorded in {record}."
        )


@contextlib.contextmanager
def _alone(file):
    """Wait until no other process holds the lock `file`."""
    try:
        import fcntl
    except ModuleNotFoundError:  # Windows, where two downloads may collide.
        yield
        return
    fcntl.flock(file, fcntl.LOCK_EX)
    try:
        yield
    finally:
        fcntl.flock(file, fcntl.LOCK_UN)
