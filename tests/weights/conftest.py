import json
import pathlib
import shutil
import tempfile

import numpy as np
import pytest

from keras_vit import from_checkpoint
from tests.weights.cases import path_of


@pytest.fixture
def load(tmp_path):
    """Return a function that makes a model of arrays, and of JSON beside."""

    def load(arrays, json_beside=None, **options):
        np.savez(tmp_path / "m.npz", **arrays)
        (tmp_path / "m.json").unlink(missing_ok=True)
        if json_beside is not None:
            (tmp_path / "m.json").write_text(json.dumps(json_beside))
        return from_checkpoint(tmp_path / "m.npz", **options)

    return load


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
