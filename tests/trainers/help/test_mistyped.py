import importlib

import pytest
from absl import flags

from trainers.help.mistyped import find_mistyped, propose
from trainers.help.reading import read_help
from trainers.help.showing import list_flags

ROWS = {
    "epochs": {"kind": "INTEGER"},
    "fast": {"kind": "switch"},
    "mode": {"kind": "NAME", "choices": ["slow", "quick"]},
}


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["--epochs=3", "-epochs", "3", "--fast", "--nofast", "--mode=slow"],
        ["--mode", "quick", "siez", "-", "-0.5"],
        ["--", "--epohcs=3"],
        ["--verbosity=1"],
    ],
)
def test_what_is_right_or_of_others_passes(words):
    assert find_mistyped(words, ROWS) is None


@pytest.mark.parametrize(
    "words, fault",
    [
        (["x", "--epohcs", "3"], "no flag --epohcs. Did you mean --epochs"),
        (["-nofats"], "no flag --nofats. Did you mean --nofast"),
        (["--mode=quik"], "--mode must be one of slow, quick. Received: quik"),
        (["--mode", "other"], "Received: other"),
        (["--mode"], "Received: "),
    ],
)
def test_what_is_mistyped_is_told(words, fault):
    assert fault in find_mistyped(words, ROWS)


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
