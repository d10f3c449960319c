"""The command that serves an export."""

import importlib.util
import shutil
import socket
import subprocess

import pytest

from keras_vit import serve
from keras_vit.serving.limits import Limits
from tests import commands
from tests.serving.made import SIGNATURES, make_files
from tests.serving.running import wait_until
from tests.test_docs import ROOT, blocks

PAGE = (ROOT / "docs/serving/local_server.md").read_text()


@pytest.mark.slow
def test_commands_of_the_page(zoo, tmp_path, subprocess_environment):
    """As a reader would type them; SIGTERM ends the server well."""
    if not shutil.which("curl"):
        pytest.skip("curl is not installed")
    folder = tmp_path / "saved_models/digits/export/saved_model/digits"
    folder.mkdir(parents=True)
    (folder / "1").symlink_to(zoo / "zoo" / "3")
    (tmp_path / "digit.png").write_bytes(make_files(1)[0])
    start, requests = blocks(PAGE, "bash")
    install, start = start.strip().splitlines()
    assert install == ".venv/bin/pip install '.[serve]'"
    python, *words = start.replace("--port=8501", "--port=0").split()
    assert python == ".venv/bin/python" and words[-1] == "--port=0"
    output = tmp_path / "output"
    process = commands.start(
        words, subprocess_environment, output, cwd=tmp_path
    )
    try:
        wait_until(
            lambda: output.exists() and ":predict" in output.read_text(), 60
        )
        text = output.read_text()
        assert "In production, use TF Serving" in text
        [address] = [
            line.removeprefix("Page: ")
            for line in text.splitlines()
            if line.startswith("Page: ")
        ]
        with commands.python() as program:
            script = requests.replace(".venv/bin/python", program)
            result = subprocess.run(
                [
                    "bash",
                    "-e",
                    "-c",
                    script.replace("http://localhost:8501/", address).replace(
                        "http://localhost:8501", address.rstrip("/")
                    ),
                ],
                cwd=tmp_path,
                env=subprocess_environment,
                capture_output=True,
                text=True,
                timeout=120,
                check=False,
            )
        assert result.returncode == 0, result.stdout + result.stderr
        assert '"AVAILABLE"' in result.stdout
        assert ":tensorflow:serving:" not in result.stdout.split("{")[0]
        assert '"predictions": [{"labels": [' in result.stdout
        assert result.stdout.count("| right |") == 2 + 3 * len(SIGNATURES)
    finally:
        process.terminate()
        process.join(20)
    assert process.exitcode == 0
    text = output.read_text()
    assert text.endswith("Stopped.\n") and "Traceback" not in text


def fail(capsys, *arguments):
    """Return the output of a command that fails."""
    assert serve.main([*map(str, arguments)]) == 1
    output = capsys.readouterr()
    assert not output.out
    return output.err


def test_a_folder_without_an_export(tmp_path, capsys):
    text = fail(capsys, tmp_path)
    assert text == (
        "Error: EXPORT_DIR must hold an export, as "
        "saved_model|tflite/NAME/VERSION; `keras-vit export` writes one. "
        f"Received: {tmp_path}\n"
    )
    text = fail(capsys, tmp_path / "absent")
    assert text.startswith("Error: EXPORT_DIR must be a folder. Received: ")


def test_a_version_that_cannot_be_loaded(tmp_path, capsys):
    (tmp_path / "m" / "1").mkdir(parents=True)
    text = fail(capsys, tmp_path, "--port=0")
    assert text.endswith("Error: The newest version of m could not be loaded\n")


def test_a_port_in_use(tmp_path, capsys):
    (tmp_path / "m" / "1").mkdir(parents=True)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        text = fail(capsys, tmp_path, f"--port={port}")
    assert f"Error: cannot listen on port {port} of 127.0.0.1" in text
    assert "in use" in text and "choose another with --port" in text


def test_limits_out_of_range(tmp_path, capsys):
    text = fail(capsys, tmp_path, "--timeout=0")
    assert text == "Error: `timeout` must be positive. Received: timeout=0.0\n"


def test_flags_reach_the_server(zoo, capsys, monkeypatch):
    given = {}

    def record(models, limits, names, is_public):
        given.update(names=names, is_public=is_public, limits=vars(limits))
        raise KeyboardInterrupt

    monkeypatch.setattr("keras_vit.serving.server.make_server", record)
    numbers = {name: index for index, name in enumerate(vars(Limits()), 2)}
    flags = [f"--{name}={number}" for name, number in numbers.items()]
    flags += ["--host=0.0.0.0", "--port=0"]
    flags += ["--allow_host=a.example", "--allow_host=b.example"]
    assert serve.main([str(zoo), *flags]) == 0
    assert given["limits"] == numbers
    assert set(given["names"]) == {*serve.LOOPBACK, "a.example", "b.example"}
    assert given["is_public"]
    assert "lets other machines send requests" in capsys.readouterr().err


def test_missing_packages_are_named(monkeypatch, capsys, tmp_path):
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name: None if name in ("uvicorn", "PIL") else find(name),
    )
    text = fail(capsys, tmp_path)
    assert text == (
        "Error: The server needs uvicorn, Pillow: pip install uvicorn Pillow\n"
    )
