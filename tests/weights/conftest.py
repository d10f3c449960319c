import pathlib
import shutil
import tempfile

import pytest

from tests.weights.cases import path_of


@pytest.fixture
def alone(tmp_path):
    """Return a function that copies a golden file away from its JSON."""

    def copy(name):
        return shutil.copy(path_of(name), tmp_path / name)

    return copy


@pytest.fixture(scope="module")
def peers_folder():
    """Return a folder for the files of other libraries and for them."""
    # Real sizes take a gigabyte: too much for the folders that pytest keeps.
    with tempfile.TemporaryDirectory(prefix="keras_vit_peers_") as path:
        yield pathlib.Path(path)
