"""The versions of a model on the disk, loaded and replaced while serving."""

import os
import pathlib
from collections.abc import Callable

from keras_vit.serving.models_config import labels
from keras_vit.serving.server.loading import LoadedModel, load_version
from keras_vit.serving.server.refusals import (
    Refusal,
    invalid,
    server_logger,
)


class ServedModel:
    """The newest versions of a model.

    A new version is loaded before the one that it replaces is given up. If it
    cannot be loaded, the old one stays; it is tried again once its files
    change.

    Args:
        name: The name in URLs.
        folder: Holds a folder for each version, named by its number.
        num_versions: How many versions to serve.
        load: Takes the folder of a version; returns the model.
    """

    def __init__(
        self,
        name: str,
        folder: pathlib.Path,
        num_versions: int = 1,
        load: Callable[[pathlib.Path], LoadedModel] = load_version,
    ):
        self.name = name
        self._folder = folder
        self._num_versions = num_versions
        self._load = load
        self._loaded = {}  # By version.
        self._states = {}  # (state, code, message), by version.
        self._failed = {}  # The state of the files, by version.
        self._labels = {}

    def poll(self):
        """Load new versions, and give up those that they replace."""
        folders = find_versions(self._folder)
        self._labels = labels(sorted(folders))
        wanted = sorted(folders)[-self._num_versions :]
        for version in reversed(wanted):
            if version not in self._loaded:
                self._try(version, folders[version])
        if wanted and self._loaded.keys() >= set(wanted):
            for version in self._loaded.keys() - set(wanted):
                self._loaded = {
                    v: x for v, x in self._loaded.items() if v != version
                }
                self._states[version] = ("END", "OK", "")
                server_logger.info(
                    "%s: version %d unloaded", self.name, version
                )

    def _try(self, version, folder):
        files = fingerprint(folder)
        if self._failed.get(version) == files:
            return
        self._states[version] = ("LOADING", "OK", "")
        try:
            loaded = self._load(folder)
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            self._failed[version] = files
            self._states[version] = ("END", "UNKNOWN", reason)
            server_logger.error(
                "%s: version %d: %s", self.name, version, reason
            )
            return
        self._loaded = {**self._loaded, version: loaded}
        self._states[version] = ("AVAILABLE", "OK", "")
        server_logger.info("%s: version %d is served", self.name, version)

    @property
    def is_available(self) -> bool:
        """Whether any version answers."""
        return bool(self._loaded)

    def find(
        self, version: int | None, label: str | None
    ) -> tuple[int, LoadedModel]:
        """Return a version, the newest by default.

        Raises:
            Refusal: If it is not loaded.
        """
        loaded = self._loaded
        if label is not None:
            version = self._labels.get(label)
            if version not in loaded:
                raise invalid(f"Unrecognized servable version label: {label}")
        if version is None and loaded:
            version = max(loaded)
        if version not in loaded:
            raise not_found(self.name, version)
        return version, loaded[version]

    def status(self, version: int | None) -> dict:
        """Return the states of the versions, in JSON form.

        Raises:
            Refusal: If there are none.
        """
        rows = sorted(self._states.items(), reverse=True)
        if version is not None:
            rows = [row for row in rows if row[0] == version]
        if not rows:
            raise no_status(self.name, version)
        return {
            "model_version_status": [
                {
                    "version": str(number),
                    "state": state,
                    "status": {"error_code": code, "error_message": message},
                }
                for number, (state, code, message) in rows
            ]
        }


def not_found(name: str, version: int | None) -> Refusal:
    """Return the error for a model or a version that is not served."""
    wanted = f"Latest({name})"
    if version is not None:
        wanted = f"Specific({name}, {version})"
    return Refusal("NOT_FOUND", f"Servable not found for request: {wanted}")


def no_status(name: str, version: int | None) -> Refusal:
    """Return the error for a status that there is not."""
    what = "any versions" if version is None else f"version {version}"
    return Refusal("NOT_FOUND", f"Could not find {what} of model {name}")


def find_versions(folder: pathlib.Path) -> dict[int, pathlib.Path]:
    """Return the folders of the versions of a model, by number."""
    try:
        names = sorted(os.listdir(folder))
    except OSError:  # Not there for a moment.
        return {}
    return {
        int(name): folder / name
        for name in names
        if name.isdecimal()
        and name.isascii()
        and int(name) < 2**63
        and (folder / name).is_dir()
    }


def fingerprint(folder: pathlib.Path) -> frozenset:
    """Return what changes when a file in a folder does."""
    return frozenset(
        (str(path), status.st_size, status.st_mtime_ns)
        for path in folder.rglob("*")
        if (status := path.stat())
    )
