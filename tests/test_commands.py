"""A command in a fork is what it would be in a process of its own."""

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


def test_an_error_is_shown_and_ends_with_1(tmp_path):
    result = commands.run(["-m", "no_such_module"], {}, tmp_path)
    assert result.returncode == 1
    assert "No module named no_such_module" in result.stderr
