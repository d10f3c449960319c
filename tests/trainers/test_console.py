import importlib.metadata
import importlib.util
import sys

import pytest

from keras_vit.command_lines import PROGRAM_VARIABLE, make_inspect_parser
from tests import commands
from trainers import console
from trainers.help.commands import COMMANDS


def test_the_package_installs_the_command():
    [script] = importlib.metadata.entry_points(
        group="console_scripts", name="keras-vit"
    )
    assert script.load() is console.main


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_is_a_module_with_that_purpose(name):
    assert importlib.util.find_spec(COMMANDS[name].module) is not None
    assert COMMANDS[name].purpose.endswith(".")


@pytest.mark.parametrize("arguments", [[], ["--help"]])
def test_without_a_command_they_are_listed(monkeypatch, capsys, arguments):
    monkeypatch.setattr(sys, "argv", ["keras-vit", *arguments])
    console.main()
    printed = capsys.readouterr().out
    for name in COMMANDS:
        assert f"\n  {name} " in printed


def test_the_version_is_printed(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["keras-vit", "--version"])
    console.main()
    installed = importlib.metadata.version("keras-vision-transformer")
    assert capsys.readouterr().out == f"keras_vit {installed}\n"


def test_help_and_a_command_is_the_help_of_the_command(monkeypatch, capsys):
    pages = []
    for words in (["help", "probe"], ["probe", "--help"]):
        monkeypatch.setattr(sys, "argv", ["keras-vit", *words])
        with pytest.raises(SystemExit) as end:
            console.main()
        assert not end.value.code
        pages.append(capsys.readouterr().out)
    assert "--max_bad_examples" in pages[0] and pages[0] == pages[1]


def test_the_command_takes_the_place_of_the_process(monkeypatch):
    started = []
    monkeypatch.setattr(sys, "argv", ["keras-vit", "train", "--epochs=2"])
    monkeypatch.setattr(console.os, "execv", lambda *call: started.append(call))
    monkeypatch.setenv(PROGRAM_VARIABLE, "another")  # To restore it.
    console.main()
    words = [sys.executable, "-m", "trainers.train", "--epochs=2"]
    assert started == [(sys.executable, words)]


def test_a_wrong_command_line_is_answered_by_the_program_that_was_started(
    subprocess_environment, monkeypatch
):
    script = "from trainers.console import main; main()"
    result = commands.run_anew(
        ["-c", script, "convert", "a", "b", "--layout=tim"],
        subprocess_environment,
        timeout=30,
    )
    assert result.returncode == 2
    assert result.stderr.startswith("usage: keras-vit convert [-h] ")
    assert result.stderr.splitlines()[-1].startswith(
        "keras-vit convert: error: argument --layout: invalid choice: 'tim' "
    )
    monkeypatch.setenv(PROGRAM_VARIABLE, "keras-vit inspect-model")
    assert make_inspect_parser().prog == "keras-vit inspect-model"


def test_an_unknown_command_ends_in_a_message(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["keras-vit", "trian"])
    with pytest.raises(
        SystemExit,
        match="must be one of .*, train, .*trian. Did you mean train",
    ):
        console.main()
