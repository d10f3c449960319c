import shutil

import pytest

from tests.weights.cases import path_of


@pytest.fixture
def alone(tmp_path):
    """Return a function that copies a golden file away from its JSON."""

    def copy(name):
        return shutil.copy(path_of(name), tmp_path / name)

    return copy
