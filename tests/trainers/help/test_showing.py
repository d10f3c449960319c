import subprocess
import sys

import pytest

from tests import commands
from trainers.help import showing
from trainers.help.commands import COMMANDS

SHOW = """
import sys
sys.argv = ["keras-vit", "train", "--recipe=photos", "--help"]
from trainers.console import main
try:
    main()
except SystemExit as end:
    heavy = {"absl", "keras", "numpy", "tensorflow"} & set(sys.modules)
    print(end.code, sorted(heavy))
"""


def run(environment, *words):
    return commands.run_anew(words, environment, timeout=30)


def test_help_imports_nothing_that_takes_seconds(subprocess_environment):
    result = run(subprocess_environment, "-c", SHOW)
    assert "--learning_rate" in result.stdout
    assert result.stdout.endswith("\nNone []\n")


@pytest.mark.parametrize("word", ["--help", "-h", "--helpfull"])
def test_a_module_shows_the_same_page(subprocess_environment, word):
    words = ["trainers.train", "--recipe=digits", word]
    result = run(subprocess_environment, "-X", "importtime", "-m", *words)
    assert result.returncode == 0
    assert result.stdout.rstrip("\n") == showing.make_page(
        "train", words[1:], word == "--helpfull"
    )
    assert "trainers.help.help_text" in result.stderr
    assert " keras" not in result.stderr


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_a_page(name, capsys):
    with pytest.raises(SystemExit) as end:
        showing.answer_early(COMMANDS[name].module, ["x", "--help"])
    assert end.value.code is None
    assert f"Usage: keras-vit {name} " in capsys.readouterr().out


@pytest.mark.parametrize(
    "words, message",
    [
        (
            ["train", "--reciep=photos"],
            "there is no flag --reciep. Did you mean --recipe?",
        ),
        (
            ["predict", "--zzz"],
            "there is no flag --zzz. --help lists them all.",
        ),
        (
            ["evaluate", "--batch_size=abc"],
            "--batch_size must be an integer. Received: abc",
        ),
        (["inspect"], "--run_dir is required: Folder of the run."),
        (["predict", "--top=0"], "--top must be at least 1. Received: 0"),
        (
            ["train", "--keep_best=maybe"],
            "--keep_best must be true or false. Received: maybe",
        ),
    ],
)
def test_a_wrong_command_line_ends_the_command(
    subprocess_environment, words, message
):
    """Before seconds of imports, and with the status of a wrong flag."""
    words = [f"trainers.{words[0]}", *words[1:]]
    result = run(subprocess_environment, "-X", "importtime", "-m", *words)
    assert result.returncode == 1
    assert result.stderr.endswith(f"Error: {message}\n")
    assert " keras" not in result.stderr


@pytest.mark.parametrize(
    "module, words",
    [
        ("trainers.train", ["--seed=1"]),
        ("trainers.train", ["--showprefixforinfo=1"]),
        ("keras_vit.convert", ["--layuot=timm"]),
        ("other", ["--help"]),
    ],
)
def test_other_starts_go_on(module, words, capsys):
    showing.answer_early(module, words)
    assert not capsys.readouterr().out


def test_a_reader_may_stop_early(subprocess_environment):
    """As `head` does: the pipe is closed before the page is written."""
    code = SHOW.replace("import sys\n", "import sys\nsys.stdin.read()\n", 1)
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        env=subprocess_environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    process.stdout.close()
    _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (0, b"")
