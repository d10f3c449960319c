"""The output of a command before its work, and its end by Ctrl-C."""

import contextlib
import gc
import os
import pathlib
import signal
import subprocess
import sys
import warnings

import pytest

from keras_vit import interrupts, startup
from tests import commands

PRINT = """
import os
from keras_vit.startup import NOISE, filtered_stderr
with filtered_stderr(NOISE):
    for line in (
        "WARNING: All log messages before absl::InitializeLog() is called are",
        "I0000 00:00:1 1 port.cc:153] oneDNN custom operations are on.",
        "E0000 00:00:1 1 cuda_platform.cc:52] failed call to cuInit: INTERNAL: "
        "CUDA error: Failed call to cuInit: UNKNOWN ERROR (303)",
        "E0000 00:00:1 1 cuda_platform.cc:52] failed call to cuInit: "
        "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH",
        "W0000 00:00:1 1 gpu_device.cc:2342] Cannot dlopen some GPU libraries",
        "Illegal instruction",
    ):
        os.write(2, line.encode() + b"\\n")
os.write(2, b"I0000 after\\n")
"""


def test_noise_is_left_out_and_warnings_are_not(subprocess_environment):
    """Also text that C++ writes to the descriptor, past `sys.stderr`."""
    result = commands.run_anew(
        ["-S", "-c", load_startup() + PRINT], subprocess_environment
    )
    starts = [line[:30] for line in result.stderr.splitlines()]
    assert starts == [
        "E0000 00:00:1 1 cuda_platform.",
        "W0000 00:00:1 1 gpu_device.cc:",
        "Illegal instruction",
        "I0000 after",
    ]


def load_startup():
    """Return code that imports the module without its package, quickly."""
    return (
        "import sys, types\n"
        "package = types.ModuleType('keras_vit')\n"
        f"package.__path__ = [{os.path.dirname(startup.__file__)!r}]\n"
        "sys.modules['keras_vit'] = package\n"
        "import keras_vit.startup\n"
    )


def test_a_program_that_imports_the_package_is_left_alone(
    subprocess_environment, tmp_path
):
    assert sys.excepthook is not interrupts.report_error
    # Its __init__ runs while `sys.argv` is ["-m"], as that of a command does.
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs/__init__.py").write_text(load_startup())
    (tmp_path / "theirs/__main__.py").write_text(
        "import gc, sys\n"
        "print(sys.excepthook is sys.__excepthook__, gc.get_freeze_count())"
    )
    result = commands.run_anew(
        ["-m", "theirs"], subprocess_environment, tmp_path
    )
    assert not result.returncode
    assert result.stdout == "True 0\n"


@pytest.mark.parametrize("module", ["keras_vit.inspect", "their.inspect"])
def test_the_warnings_of_a_command_are_one_line(monkeypatch, module):
    monkeypatch.setattr(sys, "argv", ["-m"])
    monkeypatch.setattr(sys, "orig_argv", ["python", "-m", module])
    monkeypatch.setattr(warnings, "formatwarning", warnings.formatwarning)
    for name in ("kept_from_collector", "filtered_stderr"):
        monkeypatch.setattr(startup, name, contextlib.nullcontext)
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "2")
    monkeypatch.setattr(startup, "check_command_line", lambda module: None)
    startup.prepare_command()
    text = warnings.formatwarning("No font", UserWarning, "fonts.py", 49, "x")
    assert (text == "Warning: No font\n") == (module == "keras_vit.inspect")


def test_what_a_command_imports_is_kept_from_the_collector():
    before = gc.get_freeze_count()
    try:
        with startup.kept_from_collector():
            assert not gc.isenabled()
        assert gc.isenabled()
        assert gc.get_freeze_count() > before
    finally:
        gc.unfreeze()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["trainers.train", "keras_vit.convert"])
def test_a_command_starts_without_noise(subprocess_environment, tmp_path, name):
    environment = dict(subprocess_environment)
    del environment["TF_CPP_MIN_LOG_LEVEL"]
    result = commands.run_anew(
        ["-m", name, "no_such_file"], environment, tmp_path
    )
    assert result.returncode
    assert "Traceback" not in result.stderr
    for word in ("oneDNN", "cuInit", "InitializeLog", "CUDA"):
        assert word not in result.stderr


@pytest.mark.slow
def test_saving_on_jax_is_without_noise(subprocess_environment, tmp_path):
    """Keras imports TensorFlow for it, if it is installed."""
    pytest.importorskip("jax")
    checkpoint = pathlib.Path(__file__).parent / "golden/timm_token.safetensors"
    environment = {**subprocess_environment, "KERAS_BACKEND": "jax"}
    del environment["TF_CPP_MIN_LOG_LEVEL"]
    words = ["-m", "keras_vit.convert", str(checkpoint), "a.keras"]
    result = commands.run_anew(
        [*words, "--layout=keras"], environment, tmp_path
    )
    assert result.stdout == "a.keras: written, keras\n"
    assert result.stderr == ""


@pytest.mark.slow
@pytest.mark.parametrize("name", ["trainers.predict", "keras_vit.convert"])
def test_a_backend_that_is_not_installed(
    subprocess_environment, tmp_path, name
):
    (tmp_path / "tensorflow.py").write_text(
        "raise ModuleNotFoundError(\"No module named 'tensorflow'\")"
    )
    words = ["-m", name, "a", "b"]
    words += [] if name.startswith("trainers") else ["--layout=timm"]
    result = commands.run_anew(
        words,
        {**subprocess_environment, "KERAS_BACKEND": "tensorflow"},
        tmp_path,
    )
    assert result.returncode == 1
    assert result.stderr == (
        "Error: Keras cannot start (No module named 'tensorflow'). Install its "
        "backend, or choose another one: KERAS_BACKEND=tensorflow, jax or "
        "torch.\n"
    )


def test_a_backend_that_does_not_exist(subprocess_environment, tmp_path):
    environment = {**subprocess_environment, "KERAS_BACKEND": "tf"}
    words = ["-m", "trainers.predict", "a", "b"]
    result = commands.run_anew(words, environment, tmp_path)
    assert result.returncode == 1
    assert result.stderr == (
        "Error: Keras cannot start (Unable to import backend : tf). Install "
        "its backend, or choose another one: KERAS_BACKEND=tensorflow, jax or "
        "torch.\n"
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "words, module",
    [
        (["-m", "trainers.evaluate"], "keras"),
        (["-m", "trainers.evaluate"], "absl"),
        (["-m", "trainers.evaluate"], "difflib"),
        (["-m", "keras_vit.convert"], "subprocess"),
        (["keras-vit", "evaluate"], "difflib"),
    ],
)
def test_ctrl_c_while_importing_is_one_line(
    subprocess_environment, tmp_path, words, module
):
    """Python ends by the signal itself, which a shell shows as 130."""
    # Says when the import has begun, and makes it last.
    (tmp_path / f"{module}.py").write_text(
        "import time\nprint('importing', flush=True)\ntime.sleep(600)\n"
    )
    (tmp_path / "keras-vit").write_text(
        "from trainers.console import main\nmain()\n"
    )
    path = os.pathsep.join(
        [str(tmp_path), subprocess_environment["PYTHONPATH"]]
    )
    # A shell's job in the background ignores the signal, and so would the
    # command.
    start = (
        "import os, _signal, sys; "
        "_signal.signal(_signal.SIGINT, _signal.SIG_DFL); "
        "os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
    )
    with subprocess.Popen(
        [sys.executable, "-Sc", start, *words],
        env={**subprocess_environment, "PYTHONPATH": path},
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout.readline() == "importing\n"
        process.send_signal(signal.SIGINT)
        errors = process.stderr.read()
    assert process.returncode == -signal.SIGINT
    assert errors == "Interrupted.\n"
