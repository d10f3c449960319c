"""A command in a fork behaves as in a process of its own."""

import os
import pathlib
import subprocess

import pytest

from tests import commands

pytestmark = pytest.mark.slow

PROGRAM = """
import os, sys
ours = {name.split(".")[0] for name in sys.modules} & {"keras_vit", "trainers"}
print(__name__, sys.argv[1:], os.getcwd(), os.environ["SEEN"], sorted(ours))
print("HOME" in os.environ, "tensorflow" in sys.modules)
print("a warning", file=sys.stderr)
sys.exit(3)
"""


def test_arguments_environment_folder_outputs_and_exit_code(tmp_path):
    words = ["-c", PROGRAM, "--x=1", 2]
    result = commands.run(words, {"SEEN": "yes"}, tmp_path)
    assert result.returncode == 3
    assert result.stdout.splitlines() == [
        f"__main__ ['--x=1', '2'] {tmp_path} yes []",
        "False True",
    ]
    assert result.stderr == "a warning\n"


def test_the_environment_chooses_the_backend_and_its_devices(tmp_path):
    code = "import jax, keras; print(keras.backend.backend(), len(jax.devices"
    environment = {
        "KERAS_BACKEND": "jax",
        "XLA_FLAGS": "--xla_force_host_platform_device_count=3",
    }
    result = commands.run(["-c", f"{code}()))"], environment, tmp_path)
    assert result.stdout == "jax 3\n", result.stderr


def test_an_error_is_shown_and_ends_with_1(tmp_path):
    result = commands.run(["-m", "no_such_module"], {}, tmp_path)
    assert result.returncode == 1
    assert "No module named no_such_module" in result.stderr


def test_one_that_takes_too_long_is_killed(tmp_path):
    code = "import os, time; open(str(os.getpid()), 'w'); time.sleep(60)"
    with pytest.raises(subprocess.TimeoutExpired, match="after 5 seconds"):
        commands.run(["-c", code], {}, tmp_path, timeout=5)
    (path,) = tmp_path.iterdir()
    assert not pathlib.Path("/proc", path.name).exists()


def test_a_program_that_scripts_call(tmp_path):
    """Options, input, files and exit codes; its end is that of the fork."""
    file = tmp_path / "file.py"
    file.write_text("import sys\nprint(__name__, sys.argv[1:])\nsys.exit(4)")
    script = """
    $PYTHON file.py a "b c"; echo $?
    echo words | $PYTHON -c 'print(input())'
    $PYTHON -c 'import os; os.kill(os.getpid(), 9)'
    echo $?
    $PYTHON -c 'import os, time
print(os.getpid(), flush=True)
time.sleep(60)' > number &
    until [ -s number ]; do sleep 0.05; done
    kill $!
    while kill -0 $(cat number) 2> /dev/null; do sleep 0.05; done
    """
    with commands.python() as program:
        result = subprocess.run(
            ["bash", "-c", script],
            env={**os.environ, "PYTHON": program},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=200,
            check=True,
        )
    assert result.stdout == "__main__ ['a', 'b c']\n4\nwords\n137\n"
