"""What a program and an editor see of the package."""

import json
import pathlib

import pytest

import keras_vit
from tests import commands

ROOT = pathlib.Path(__file__).parents[1]
# As a user types it; the last lines are mistakes.
SCRIPT = """
import keras
import numpy as np

import keras_vit
from keras_vit import ViT_L16, VisionTransformer, layers, models
from keras_vit.applications import ViT_S16

model: VisionTransformer = keras_vit.ViT_B16(weights=None, classes=10)
width: int = keras_vit.from_checkpoint("a.npz").config.width
ViT_S16(input_tensor=keras.Input((224, 224, 3)))
ViT_L16(classes=3).predict(np.zeros((1, 224, 224, 3)))
keras_vit.save_checkpoint(model, "a.npz", layout="timm")
block = layers.TransformerBlock
depth: int = models.VARIANTS["B/16"].config.depth
print(keras_vit.weights.load_checkpoint, keras_vit.analysis.attention_rollout)
print(keras_vit.export.export_model, keras_vit.serving.connect)
print(keras_vit.preprocessing.Preprocessing, keras_vit.pretraining)
print(keras_vit.layers.POOLINGS, keras_vit.distribution)
keras_vit.ViT_B17()
keras_vit.ViT_B16(include_top="no")
"""
# Without site packages: TensorFlow and Keras have no types, and to infer them
# takes minutes.
CHECKERS = {
    "pyright": ["-m", "pyright", "-p", "pyrightconfig.json"],
    "mypy": [
        *("-m", "mypy", "--no-site-packages", "--ignore-missing-imports"),
        *("--follow-imports=silent", "--cache-dir=.mypy", "script.py"),
    ],
}


@pytest.mark.slow
@pytest.mark.parametrize("checker", CHECKERS)
def test_a_type_checker_sees_the_names(
    tmp_path, subprocess_environment, checker
):
    pytest.importorskip(checker)
    (tmp_path / "script.py").write_text(SCRIPT)
    settings = {
        "extraPaths": [str(ROOT)],
        "useLibraryCodeForTypes": False,
        "reportMissingImports": False,
        "reportMissingModuleSource": False,
    }
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings))
    # The packages of an interpreter that does not exist are not looked at.
    words = list(CHECKERS[checker])
    words += ["--pythonpath", "/nowhere"] if checker == "pyright" else []
    environment = {
        **subprocess_environment,
        "MYPYPATH": str(ROOT),
        "PYRIGHT_PYTHON_IGNORE_WARNINGS": "1",  # It would ask for news.
    }
    result = commands.run_anew(words, environment, tmp_path, timeout=300)
    found = {
        int(line.split("script.py:")[1].split(":")[0])
        for line in result.stdout.splitlines()
        if "script.py:" in line and "error" in line
    }
    last = len(SCRIPT.splitlines())
    assert found == {last - 1, last}, result.stdout


def test_the_marker_of_types_is_shipped():
    assert (ROOT / "keras_vit/py.typed").is_file()
    assert "py.typed" in (ROOT / "setup.py").read_text()


def test_every_public_name_resolves():
    for name in keras_vit.__all__:
        assert getattr(keras_vit, name) is not None
    assert set(keras_vit.__all__) <= set(dir(keras_vit))
    with pytest.raises(AttributeError, match="nothing"):
        keras_vit.nothing  # noqa: B018


IMPORTED = """
import os, sys

class Untouchable(list):
    def __getattribute__(self, name):
        raise RuntimeError("sys.argv is looked at")
    __getitem__ = __iter__ = __len__ = __getattribute__

def refuse(event, arguments):
    if event.startswith(("subprocess.", "os.fork", "os.exec", "os.posix_sp")):
        raise RuntimeError(f"{event} {arguments}")

os.dup2 = os.dup = os._exit = sys.exit = None
sys.addaudithook(refuse)
arguments = sys.argv, sys.orig_argv
sys.argv = sys.orig_argv = Untouchable()
before = dict(os.environ), sys.excepthook, set(os.listdir("/proc/self/fd"))
MODULES
assert before[0] == dict(os.environ)
assert before[1] is sys.excepthook
assert before[2] == set(os.listdir("/proc/self/fd"))
slow = {"keras", "tensorflow", "tensorflow_datasets"}
assert not slow & set(sys.modules)
"""


def test_an_import_leaves_the_process_alone(subprocess_environment):
    """As it is in a program `python -m`, too."""
    modules = (
        "import keras_vit, keras_vit.command_line, keras_vit.serving\n"
        "import trainers, trainers.console, trainers.command_line"
    )
    program = IMPORTED.replace("MODULES", modules)
    result = commands.run_anew(["-c", program], subprocess_environment)
    assert result.returncode == 0, result.stderr


# Each order starts with neither package, as far as their names go.
ORDERS = """
import sys

for imports in (
    "import keras, keras_vit",
    "import keras_vit, keras",
    "import keras; from keras_vit.layers import TransformerBlock",
    "from keras_vit.models import ViTConfig; import keras",
    "from keras_vit import preprocess_input; import keras",
    "from keras_vit.preprocessing import read_image; import keras",
    "import keras_vit.distribution, keras",
    "import keras_vit.weights, keras",
):
    for name in [*sys.modules]:
        if name == "keras" or name.split(".")[0] == "keras_vit":
            del sys.modules[name]
    exec(imports)
    print(keras.saving.load_model("model.keras").name)
    assert keras.saving.get_registered_object("keras_vit>MaskedAutoencoder")
    keras.saving.get_custom_objects().clear()
"""


@pytest.mark.slow
def test_keras_loads_a_model_in_any_order_of_imports(
    tmp_path, subprocess_environment
):
    config = keras_vit.ViTConfig(12, 1, 24, 3, patch_size=4, image_size=8)
    keras_vit.VisionTransformer(config).save(tmp_path / "model.keras")
    result = commands.run_anew(["-c", ORDERS], subprocess_environment, tmp_path)
    assert result.stdout == 8 * "vision_transformer\n", result.stderr
