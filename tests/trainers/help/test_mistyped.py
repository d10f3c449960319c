import importlib

import pytest
from absl import flags

from trainers.help.commands import COMMANDS
from trainers.help.mistyped import find_mistyped
from trainers.help.reading import propose, read_help
from trainers.help.showing import list_flags

ROWS = {
    "epochs": {"kind": "INTEGER"},
    "rate": {"kind": "NUMBER"},
    "fast": {"kind": "switch"},
    "mode": {"kind": "NAME", "choices": ["slow", "quick"]},
    "top": {"kind": "INTEGER", "least": 1},
}

REQUIRED = {
    "inspect": ["run_dir"],
    "convert": ["layout"],
    "serve-check": ["export"],
}


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["--epochs=3", "-epochs", "3", "--fast", "--nofast", "--mode=slow"],
        ["--mode", "quick", "siez", "-", "--epochs", "-3"],
        ["--epochs=0x10", "--rate", "1e-3", "--days=3"],
        ["--", "--epohcs=3"],
        ["--top=1", "--fast=false", "--fast=T", "--fast", "maybe"],
        ["--verbosity=1", "--noshowprefixforinfo"],
        ["--flagfile=flags.txt", "--defined_there"],
        ["--undefok=other", "--other"],
    ],
)
def test_what_is_right_or_of_others_passes(words):
    assert find_mistyped(words, ROWS, {"days": "epochs"}) is None


@pytest.mark.parametrize(
    "words, fault",
    [
        (["x", "--epohcs", "3"], "no flag --epohcs. Did you mean --epochs"),
        (["--rat=1"], "no flag --rat. Did you mean --rate"),
        (["--mod=x"], "no flag --mod. Did you mean --mode"),
        (["-nofats"], "no flag --nofats. Did you mean --nofast"),
        (["--mode=quik"], "--mode must be one of slow, quick. Received: quik"),
        (["--mode", "other"], "Received: other"),
        (["--mode"], "Received: "),
        (["--epochs=1e3"], "--epochs must be an integer. Received: 1e3"),
        (["--days", "many"], "--epochs must be an integer. Received: many"),
        (["--rate="], "--rate must be a number. Received: "),
        (["--top=0"], "--top must be at least 1. Received: 0"),
        (["--top", "-3"], "--top must be at least 1. Received: -3"),
        (["--fast=maybe"], "--fast must be true or false. Received: maybe"),
        (["--fast="], "--fast must be true or false. Received: "),
        (["--zzz=3"], "there is no flag --zzz. --help lists them all."),
        (["--noepochs"], "there is no flag --noepochs"),
        (["--epochs", "3", "-0.5"], "there is no flag --0.5"),
    ],
)
def test_what_is_mistyped_is_told(words, fault):
    assert fault in find_mistyped(words, ROWS, {"days": "epochs"})


def test_a_required_flag_is_named():
    rows = {"out": {"kind": "TEXT", "absent": "required", "text": "A folder."}}
    assert find_mistyped([], rows) == "--out is required: A folder."
    assert find_mistyped(["--out", "x"], rows) is None
    assert find_mistyped(["--flagfile=x"], rows) is None


@pytest.mark.parametrize("name", COMMANDS)
def test_a_flag_is_required_where_absl_says_so(name):
    """A limit of its values is a validator of absl as well."""
    required = [
        flag
        for flag, row in list_flags(read_help()["commands"][name]).items()
        if row.get("absent") == "required"
    ]
    assert required == REQUIRED.get(name, [])


def test_flags_of_libraries_pass():
    importlib.import_module("trainers.train")
    rows = list_flags(read_help()["commands"]["train"])
    others = [f"--{name}" for name in flags.FLAGS if name not in rows]
    assert len(others) > 20
    assert find_mistyped(others, rows) is None


def test_the_choice_that_is_meant_is_named():
    fault = find_mistyped(
        ["--recipe=phtoos"], list_flags(read_help()["commands"]["train"])
    )
    assert fault.endswith("Received: phtoos. Did you mean photos?")
    assert not propose("abc", ["photos"])
