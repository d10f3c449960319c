import pytest

from trainers.help.reading import read_given

ROWS = {
    "size": {"kind": "INTEGER"},
    "rate": {"kind": "NUMBER"},
    "name": {"kind": "TEXT"},
    "fast": {"kind": "switch"},
    "notes": {"kind": "TEXT"},
}


@pytest.mark.parametrize(
    "line, want",
    [
        ("--size=3 --rate 1e-3", {"size": 3, "rate": 1e-3}),
        ("-name=a=b --help", {"name": "a=b"}),
        ("--fast", {"fast": True}),
        ("--nofast --fast=false", {"fast": False}),
        ("--fast=true x", {"fast": True}),
        ("--notes=n", {"notes": "n"}),
        ("--size=many --other=1 --name", {}),
        ("", {}),
    ],
)
def test_the_flags_of_a_command_line(line, want):
    assert read_given(line.split(), ROWS) == want
