"""The hub of Hugging Face: models by the name of their repository.

A model needs only a few files, which `fetch` downloads, resumes and locks as
all others, so `huggingface_hub` is not required.
"""

import os
import pathlib
import re
import urllib.error
import urllib.parse
from typing import NamedTuple

from keras_vit.weights.containers import read_json
from keras_vit.weights.containers.checkpoint import WHY_NO_PICKLES
from keras_vit.weights.containers.descriptions import (
    OPEN_CLIP,
    OPEN_CLIP_JSON,
    WEIGHTS,
)
from keras_vit.weights.containers.folder import SHARD_INDEX
from keras_vit.weights.download import cache_dir, fetch

HUB = "https://huggingface.co"
SCHEME = "hf://"
# A repository has one or more of each. The first one there is fetched.
CONFIGURATIONS = ("config.json", OPEN_CLIP_JSON)
WEIGHT_FILES = (WEIGHTS, SHARD_INDEX, OPEN_CLIP)
# Files that tell how images are read; not every repository has one.
DESCRIPTIONS = ("preprocessor_config.json", "processor_config.json")


class Repository(NamedTuple):
    """A repository of the hub.

    Args:
        name: "owner/name".
        revision: A branch, a tag, a commit or a proposal ("refs/pr/1").
    """

    name: str
    revision: str = "main"

    @property
    def folder(self) -> pathlib.Path:
        """Where its files are kept."""
        name = self.name
        if self.revision != "main":
            # A slash would be one folder in another.
            name += f"@{urllib.parse.quote(self.revision, safe='')}"
        return cache_dir() / "huggingface" / name

    def url(self, file: str) -> str:
        """Return the address of a file, on HF_ENDPOINT if that is set.

        Args:
            file: Name of the file.
        """
        endpoint = os.environ.get("HF_ENDPOINT") or HUB
        revision = urllib.parse.quote(self.revision, safe="")
        path = f"{self.name}/resolve/{revision}/{urllib.parse.quote(file)}"
        return f"{endpoint.rstrip('/')}/{path}"


def parse_repository(text: str) -> Repository | None:
    """Return the repository that a text names, or None.

    Args:
        text: "hf://owner/name", with "@revision" behind it or not,
            "timm/name", or the address of the page of a repository.

    Raises:
        ValueError: If it starts with "hf://" and names no repository.
    """
    name = r"\w[\w.-]*"
    revision = rf"(?:@|/tree/)({name}(?:/{name})*)"
    start = f"(?:{SCHEME}|{re.escape(HUB)}/)"
    match = re.fullmatch(rf"{start}({name}/{name})(?:{revision})?/?", text)
    if match:
        return Repository(match[1], match[2] or "main")
    if text.startswith(SCHEME):
        raise ValueError(
            "A model of the hub is named hf://OWNER/NAME or "
            f"hf://OWNER/NAME@REVISION. Received: {text!r}"
        )
    if match := re.fullmatch(rf"(timm/{name})/?", text):
        return Repository(match[1])
    return None


def fetch_repository(repository: Repository) -> pathlib.Path:
    """Return the folder of a repository's model; download missing files.

    The token of the environment variable HF_TOKEN is sent to the hub, for
    models that need an account.

    Args:
        repository: The repository.

    Raises:
        ConnectionError: If a download fails. The message states which file to
            put where.
    """
    folder = repository.folder
    _fetch_first(repository, CONFIGURATIONS)
    _fetch_first(repository, WEIGHT_FILES)
    if (folder / SHARD_INDEX).is_file():
        shards = read_json(folder / SHARD_INDEX).get("weight_map") or {}
        for file in sorted(set(map(str, shards.values()))):
            # open_checkpoint refuses other names.
            if file == os.path.basename(file):
                _fetch(repository, file)
    for file in DESCRIPTIONS:
        _fetch_if_there(repository, file)
    return folder


def _fetch_first(repository, files):
    """Fetch the first of some files that a repository has."""
    folder, errors = repository.folder, []
    if any((folder / file).is_file() for file in files):
        return
    for file in files:
        try:
            return _fetch(repository, file)
        except ConnectionError as error:
            errors.append(error)
            if not _is_absent(error):
                break
    are_absent = _is_absent(errors[-1])
    error = errors[0] if are_absent else errors[-1]
    advice = ""
    if are_absent and files is WEIGHT_FILES:
        advice = (
            f" If {repository.name} has its weights as .bin or .pt alone: "
            f"such a file is {WHY_NO_PICKLES}."
        )
    raise ConnectionError(
        f"{error} In all, the folder {folder} needs {CONFIGURATIONS[0]} or "
        f"{CONFIGURATIONS[1]}, one of {', '.join(WEIGHT_FILES)} with its "
        f"shards, and {DESCRIPTIONS[0]}, as far as {repository.name} has them."
        f"{advice}"
    ) from error.__cause__


def _fetch(repository, file):
    token = os.environ.get("HF_TOKEN")
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    try:
        fetch(
            repository.url(file),
            repository.folder / file,
            headers=headers,
            advice="or set HF_ENDPOINT to a mirror of the hub",
        )
    except ConnectionError as error:
        if _status(error) in (401, 403):
            raise ConnectionError(
                f"{error} Either there is no {repository.name}: the hub "
                "answers so for a mistyped name. Or it is for accounts that "
                "accepted its licence: accept it on the page of the model, "
                "and put a token of your account into the environment "
                "variable HF_TOKEN."
            ) from error
        raise


def _fetch_if_there(repository, file):
    """Fetch a file that not every repository has; remember if it has not."""
    absent = repository.folder / f".no_{file}"
    if absent.exists():
        return
    try:
        _fetch(repository, file)
    except ConnectionError as error:
        # Without a connection, the weights are enough.
        if _is_absent(error):
            absent.touch()


def _status(error) -> int | None:
    """Return the HTTP status behind an error of `fetch`."""
    cause = error.__cause__
    return cause.code if isinstance(cause, urllib.error.HTTPError) else None


def _is_absent(error):
    return _status(error) == 404
