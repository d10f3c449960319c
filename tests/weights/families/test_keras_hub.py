"""keras-hub: reading its files, and refusing some."""

import json
import shutil

import pytest

from keras_vit import from_checkpoint
from tests.weights.cases import path_of


def test_an_average_over_the_class_token_is_refused(tmp_path):
    shutil.copytree(path_of("keras_hub"), tmp_path / "gap")
    task = json.loads((tmp_path / "gap/task.json").read_text())
    task["config"]["pooling"] = "gap"
    (tmp_path / "gap/task.json").write_text(json.dumps(task))
    with pytest.raises(ValueError, match="averages the class token"):
        from_checkpoint(tmp_path / "gap")
