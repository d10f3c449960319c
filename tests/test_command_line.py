"""How commands start: what is wrong is one line, soon; TensorFlow is quiet."""

import os
import pathlib
import signal
import subprocess
import sys

import pytest

from keras_vit.command_line import format_warning
from tests import commands
from trainers.console import COMMANDS

ROOT = pathlib.Path(__file__).parents[1]
KERAS_VIT = [sys.executable, "-c", "from trainers.console import main; main()"]


def run(words, environment, cwd=".", **options):
    return commands.run_anew(words, environment, cwd, timeout=120, **options)


@pytest.mark.parametrize(
    "words, code, answer",
    [
        (["keras_vit.convert", "a", "b"], 2, "required: --layout"),
        (
            ["keras_vit.convert", "a", "b", "--layout=tim"],
            2,
            "Did you mean 'timm'?",
        ),
        (
            ["keras_vit.inspect", "m", "x", "--out=d", "--formt=svg"],
            2,
            "no argument --formt=svg. Did you mean '--format'?",
        ),
        (["keras_vit.serve", "d", "--port=70000"], 2, "--port"),
        (["keras_vit.serve", "d", "--max_pixels=0"], 2, "--max_pixels"),
        (["keras_vit.inspect_checkpoint", "--help"], 0, "--brief"),
        (["trainers.train", "--help"], 0, "--label_smoothing"),
        (["trainers.train", "--help", "--recipe=no.json"], 1, "'no.json'"),
        (["trainers.train", "--epohcs=3"], 1, "Did you mean 'epochs'?\n"),
        (["trainers.train", "--epochs=ten"], 1, "epochs=ten"),
        (["trainers.train", "--epochs"], 1, "epochs"),
        (["trainers.sweep", "--recipe=digts"], 1, "Did you mean 'digits'?\n"),
        (["trainers.predict", "--top=0"], 1, "top=0"),
        (["trainers.inspect"], 1, "run_dir"),
        (["trainers.console", "trian"], 1, "Did you mean 'train'?\n"),
        (["trainers.console", "train", "--epohcs=3"], 1, "'epochs'?\n"),
        (["trainers.console", "help", "export"], 0, "--tflite_batch_size"),
        (["trainers.console"], 0, "  inspect-checkpoint  "),
        (["trainers.console", "--version"], 0, "keras_vit "),
    ],
    ids=str,
)
def test_a_command_answers_before_it_imports_keras(
    subprocess_environment, words, code, answer
):
    result = run(["-X", "importtime", "-m", *words], subprocess_environment)
    lines = result.stderr.splitlines(keepends=True)
    said = [line for line in lines if not line.startswith("import time:")]
    assert result.returncode == code
    assert answer in result.stdout + "".join(said)
    if code == 1:
        assert len(said) == 1 and said[0].startswith("Error: ")
    imported = {line.split("|")[-1].strip() for line in lines}
    assert not {"keras", "tensorflow"} & imported


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_has_help(subprocess_environment, name):
    result = commands.run(
        ["-m", "trainers.console", name, "--help"], subprocess_environment
    )
    assert result.returncode == 0 and "--" in result.stdout, result.stderr


@pytest.mark.slow
def test_the_installed_command_finds_its_own_package(
    subprocess_environment, tmp_path
):
    """Also where folders of the user have the names of ours."""
    for name in ("trainers", "tests", "keras_vit"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise SystemExit(9)")
    script = tmp_path / "bin/keras-vit"  # As pip writes it.
    script.parent.mkdir()
    script.write_text("from trainers.console import main\nmain()\n")
    for words in (["train", "--help"], ["predict", "--run_dir=none", "a.png"]):
        result = run([str(script), *words], subprocess_environment, tmp_path)
        assert result.returncode == (words[0] == "predict"), result.stderr
        assert "Traceback" not in result.stderr


def test_help_may_be_read_in_part(subprocess_environment):
    command = f"{sys.executable} -m trainers.train --help | head -n 1"
    result = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {command}"],
        env=subprocess_environment,
        capture_output=True,
        text=True,
    )
    assert (result.returncode, result.stderr) == (0, "")


NOISY = """
import os
from keras_vit import command_line
command_line.IS_LOUD = False
with command_line._without_noise():
    for line in (
        "WARNING: All log messages before absl::InitializeLog() is called are",
        "I0000 00:00:1 1 port.cc:153] oneDNN custom operations are on.",
        "E0000 00:00:1 1 cuda_platform.cc:52] failed call to cuInit: INTERNAL: "
        "CUDA error: Failed call to cuInit: UNKNOWN ERROR (303)",
        "E0000 00:00:1 1 cuda_platform.cc:52] failed call to cuInit: "
        "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH",
        "W0000 00:00:1 1 gpu_device.cc:2342] Cannot dlopen some GPU libraries",
    ):
        os.write(2, line.encode() + b"\\n")
os.write(2, b"I0000 after\\n")
"""


def test_noise_is_left_out_and_warnings_are_not(subprocess_environment):
    """Also text that C++ writes to the descriptor, past `sys.stderr`."""
    result = run(["-c", NOISY], subprocess_environment)
    starts = [line[:30] for line in result.stderr.splitlines()]
    assert starts == [
        "E0000 00:00:1 1 cuda_platform.",
        "W0000 00:00:1 1 gpu_device.cc:",
        "I0000 after",
    ]


@pytest.mark.slow
def test_a_command_starts_without_noise(subprocess_environment, tmp_path):
    """Keras imports TensorFlow to save a model, on other backends as well."""
    pytest.importorskip("jax")
    environment = {**subprocess_environment, "KERAS_BACKEND": "jax"}
    del environment["TF_CPP_MIN_LOG_LEVEL"]
    file = ROOT / "tests/golden/official_token.npz"
    words = ["-m", "keras_vit.convert", str(file), "a.keras", "--layout=keras"]
    result = run(words, environment, tmp_path)
    assert (result.returncode, result.stderr) == (0, "")


def test_a_warning_for_the_user_is_one_line():
    text = format_warning("No font", UserWarning, "fonts.py", 49)
    assert text == "Warning: No font\n"
    text = format_warning("Old", DeprecationWarning, "fonts.py", 49)
    assert "fonts.py:49" in text


@pytest.mark.slow
@pytest.mark.parametrize("module", ["trainers.predict", "keras_vit.convert"])
@pytest.mark.parametrize("backend", ["tensorflow", "tf"])
def test_a_backend_that_is_not_there_is_one_line(
    subprocess_environment, tmp_path, module, backend
):
    (tmp_path / "tensorflow.py").write_text(
        "raise ModuleNotFoundError(\"No module named 'tensorflow'\")"
    )
    words = ["-m", module, "a", "b"]
    words += ["--layout=timm"] if module.startswith("keras_vit") else []
    environment = {**subprocess_environment, "KERAS_BACKEND": backend}
    result = run(words, environment, tmp_path)
    assert result.returncode == 1
    assert result.stderr.startswith("Error: Keras cannot start (")
    assert result.stderr.count("\n") == 1 and "KERAS_BACKEND" in result.stderr


@pytest.mark.slow
@pytest.mark.parametrize("words", [["-m", "trainers.evaluate"], KERAS_VIT[1:]])
def test_ctrl_c_while_importing_is_one_line(
    subprocess_environment, tmp_path, words
):
    """Python ends by the signal itself, which a shell shows as 130."""
    # Says when the import has begun, and makes it last.
    (tmp_path / "keras.py").write_text(
        "import time\nprint('importing', flush=True)\ntime.sleep(600)\n"
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
    words = words if "-m" in words else [*words, "evaluate"]
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
