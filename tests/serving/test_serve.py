"""The command that serves an export."""

import re
import shutil
import socket
import subprocess
import sys

import pytest

from keras_vit import serve
from keras_vit.errors import import_packages
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
        [address] = re.findall("^Page: (.*)/$", output.read_text(), re.M)
        script = requests.replace("http://localhost:8501", address)
        with commands.python() as program:
            script = script.replace(".venv/bin/python", program)
            result = subprocess.run(
                ["bash", "-e", "-c", script],
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
    return capsys.readouterr().err


def test_folders_without_a_model(tmp_path, capsys):
    for folder in (tmp_path, tmp_path / "absent"):
        text = fail(capsys, folder)
        assert "EXPORT_DIR must hold an export" in text
        assert text.endswith(f"Received: {folder}\n")
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


def test_other_machines_are_let_in_with_a_warning(zoo, capsys, monkeypatch):
    def stop(models, options):
        assert options.host == "0.0.0.0" and options.allow_host == ["a", "b"]
        raise KeyboardInterrupt

    monkeypatch.setattr("keras_vit.serving.server.make_server", stop)
    flags = ["--host=0.0.0.0", "--port=0", "--allow_host=a", "--allow_host=b"]
    assert serve.main([str(zoo), *flags]) == 0
    assert "lets other machines send requests" in capsys.readouterr().err


def test_missing_packages_are_named(monkeypatch, capsys, tmp_path):
    for name in ("uvicorn", "PIL"):
        monkeypatch.setitem(sys.modules, name, None)
    assert "pip install uvicorn Pillow\n" in fail(capsys, tmp_path)


def test_a_package_that_is_broken_is_not_called_missing(monkeypatch, tmp_path):
    (tmp_path / "broken.py").write_text("import absent")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="No module named 'absent'"):
        import_packages("A test", ["broken"])
