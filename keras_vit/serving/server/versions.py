"""The newest version of a model on the disk, replaced while serving."""

import logging
import pathlib
from collections.abc import Callable

from keras_vit.serving.errors import ServingError
from keras_vit.serving.server.loaded_model import LoadedModel

server_logger = logging.getLogger("keras_vit.serving.server")


class ServedModel:
    """The newest version of a model.

    A new version is loaded before the old one is given up. If it cannot be
    loaded, the old one stays; it is tried again once its files change.

    Args:
        name: The name in URLs.
        folder: Holds a folder for each version, named by its number.
        load: Takes the folder of a version; returns the model.
    """

    def __init__(self, name: str, folder: pathlib.Path, load: Callable):
        self.name = name
        self._folder = folder
        self._load = load
        self._served = None  # (version, model).
        self._failed = None  # The state of the files of a failed version.
        self._states = {}  # (state, error), by version.

    def poll(self):
        """Load the newest version, unless it is served already."""
        folders = find_versions(self._folder)
        version = max(folders, default=None)
        served = self._served and self._served[0]
        if version in (None, served):
            return
        files = fingerprint(folders[version])
        if files == self._failed:
            return
        self._states[version] = "LOADING", ""
        try:
            self._served = version, self._load(folders[version])
        except Exception as error:
            self._failed = files
            reason = f"{type(error).__name__}: {error}"
            self._states[version] = "END", reason
            server_logger.error("%s/%d: %s", self.name, version, reason)
            return
        self._states[version] = "AVAILABLE", ""
        server_logger.info("%s: version %d is served", self.name, version)
        if served is not None:
            self._states[served] = "END", ""

    @property
    def is_available(self) -> bool:
        """Whether any version answers."""
        return self._served is not None

    def find(self, version: str | None = None) -> tuple[int, LoadedModel]:
        """Return the version that is served.

        Args:
            version: Its number, as in the URL. Default: any.

        Raises:
            ServingError: If it is not served.
        """
        if self._served and version in (None, str(self._served[0])):
            return self._served
        raise not_found(self.name, version)

    def status(self, version: str | None = None) -> dict:
        """Return the states of the versions, in JSON form.

        Args:
            version: The number of one, as in the URL. Default: all.

        Raises:
            ServingError: If there are none.
        """
        rows = [
            {
                "version": str(number),
                "state": state,
                "status": {
                    "error_code": "UNKNOWN" if error else "OK",
                    "error_message": error,
                },
            }
            for number, (state, error) in sorted([*self._states.items()])[::-1]
            if version in (None, str(number))
        ]
        if not rows:
            raise not_found(self.name, version)
        return {"model_version_status": rows}


def not_found(name: str, version: str | None) -> ServingError:
    """Return the error for a model or a version that is not served."""
    wanted = f"Latest({name})"
    if version is not None:
        wanted = f"Specific({name}, {version})"
    text = f"Servable not found for request: {wanted}"
    return ServingError(text, "NOT_FOUND")


def find_versions(folder: pathlib.Path) -> dict[int, pathlib.Path]:
    """Return the folders of the versions of a model, by number."""
    return {
        int(path.name): path
        for path in sorted(folder.glob("[0-9]*"))
        if path.name.isdecimal() and path.name.isascii() and path.is_dir()
    }


def fingerprint(folder: pathlib.Path) -> frozenset:
    """Return the path, the size and the time of each file in a folder."""
    return frozenset(
        (str(path), status.st_size, status.st_mtime_ns)
        for path in folder.rglob("*")
        if (status := path.stat())
    )
