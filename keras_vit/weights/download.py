"""Downloads into the cache, with resuming, locking and checksums.

Neither `keras.utils.get_file` nor pooch resumes an interrupted download, which
matters for files of more than a gigabyte, and neither prevents several
processes from downloading the same file at the same time.
"""

import base64
import contextlib
import hashlib
import http.client
import os
import pathlib
import types
import urllib.error
import urllib.request

from keras_vit.progress import ProgressBar

CHUNK_BYTES = 2**20
TIMEOUT_SECONDS = 60
NO_HEADERS = types.MappingProxyType({})


def cache_dir() -> pathlib.Path:
    """Return the download folder: KERAS_VIT_CACHE or ~/.keras/keras_vit."""
    folder = os.environ.get("KERAS_VIT_CACHE")
    if folder:
        return pathlib.Path(folder).expanduser()
    home = os.environ.get("KERAS_HOME") or "~/.keras"
    return pathlib.Path(home).expanduser() / "keras_vit"


def fetch(
    url: str,
    path: pathlib.Path,
    sha256: str | None = None,
    headers: dict[str, str] = NO_HEADERS,
    advice: str = "or set KERAS_VIT_MIRROR to a copy of the bucket",
) -> pathlib.Path:
    """Return `path`, downloading it from `url` unless it exists.

    The first part of an interrupted download is kept beside `path`. The next
    call completes it if the server confirms that the file is unchanged. If
    several processes request the same file, one downloads it and the others
    wait.

    Args:
        url: Address of the file.
        path: Path of the downloaded file.
        sha256: Checksum of the file; None records the checksum of the first
            download beside the file.
        headers: Headers for this server, such as a token. They are not sent
            to another server that it redirects to.
        advice: What else the user can do if the download fails.

    Raises:
        ConnectionError: If the download fails. The message states where to
            place the file manually.
        ValueError: If the checksum is wrong.
    """
    path = pathlib.Path(path)
    if path.is_file():
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    # The lock is a separate file, because the process that holds the lock
    # renames or removes `part`.
    with open(path.with_name(path.name + ".lock"), "w") as lock, _alone(lock):
        if path.is_file():
            return path
        try:
            with open(part, "ab") as file:
                checksums = _receive(url, file, headers)
        except (OSError, http.client.HTTPException) as error:
            if isinstance(error, urllib.error.HTTPError):
                error.close()
            if not part.stat().st_size:
                part.unlink()  # There is nothing to go on from.
            raise ConnectionError(
                f"{url} could not be fetched: {error}. On a machine with a "
                f"connection, download it and put it at {path}; {advice}."
            ) from error
        _check(part, path, checksums, sha256)
        os.replace(part, path)
    return path


def _receive(url, file, headers) -> dict[str, str]:
    """Append the missing part of `url` to `file`; return its checksums."""
    version = pathlib.Path(f"{file.name}.version")
    with _ask(url, file, version, headers) as answer:
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


def _ask(url, file, version, headers):
    """Return the server's response: the rest of the file, or all of it.

    The rest is requested only with a strong ETag of the first part, so parts
    of two different files are never joined (RFC 9110, 13.1.5).
    """
    have = file.seek(0, os.SEEK_END)
    if have and version.is_file():
        rest = {"Range": f"bytes={have}-", "If-Range": version.read_text()}
        request = _request(url, headers, rest)
        try:
            return urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS)
        except urllib.error.HTTPError as error:
            if error.code != 416:
                raise
            # The server has nothing left to send: start again.
            error.close()
    return urllib.request.urlopen(
        _request(url, headers), timeout=TIMEOUT_SECONDS
    )


def _request(url, headers, others=NO_HEADERS):
    """Return a request; `headers` are for the first server alone."""
    request = urllib.request.Request(url, headers=others)
    for name, value in headers.items():
        request.add_unredirected_header(name, value)
    return request


def _copy(answer, file, have, total):
    """Append the response to `file` and show the progress."""
    megabytes = None if total is None else total / 1e6
    with ProgressBar("Downloading", "MB", megabytes) as bar:
        while chunk := answer.read(CHUNK_BYTES):
            file.write(chunk)
            have += len(chunk)
            bar.update(have / 1e6)
        file.flush()
        if total is not None and have != total:
            raise ConnectionError(f"it broke off after {have:,} of {total:,} B")


def _published_checksums(headers) -> dict[str, str]:
    """Return the checksums in the headers of Google's storage, as hex."""
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
                f"{path.name} was damaged in transfer or has changed: its "
                f"{name} is {found[name]} and should be {value}."
            )
    if sha256 is None and recorded is None:
        record.write_text(f"{found['sha256']}  {path.name}\n")
        if path.suffix == ".json":
            return
        print(
            f"No checksum is published for {path.name}; {found['sha256']} "
            f"(sha256) is recorded in {record}."
        )


@contextlib.contextmanager
def _alone(file):
    """Hold the lock `file`; wait until no other process holds it."""
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
