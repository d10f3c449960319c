"""Reading the command line and the file that --help shows."""

import difflib
import json
import pathlib
from collections.abc import Iterable, Sequence

HELP_PATH = pathlib.Path(__file__).parent / "help.json"
HELP_WORDS = ("-h", "-help", "--help", "-helpfull", "--helpfull")


def read_help() -> dict:
    """Return the content of HELP_PATH, see `collecting.collect_help`."""
    return json.loads(HELP_PATH.read_text(encoding="utf-8"))


def read_given(words: Sequence[str], rows: dict[str, dict]) -> dict:
    """Return the values of the flags of a command line, by name.

    Values are numbers if the flag is one. What is no flag, or has a value of
    another kind, is left out: the command itself reports it.

    Args:
        words: The command line.
        rows: The descriptions of the flags of the command.

    Example:
        >>> rows = {"size": {"kind": "INTEGER"}, "fast": {"kind": "switch"}}
        >>> read_given(["--size=3", "--nofast", "--help"], rows)
        {'size': 3, 'fast': False}
    """
    given = {}
    for index, word in enumerate(words):
        name, has_value, text = word.lstrip("-").partition("=")
        positive = name.removeprefix("no")
        if not word.startswith("-") or not {name, positive} & rows.keys():
            continue
        if name not in rows:
            given[positive] = False
        elif rows[name]["kind"] in ("switch", ""):
            given[name] = text.lower() not in ("false", "f", "no", "n", "0")
        elif has_value or index + 1 < len(words):
            text = text if has_value else words[index + 1]
            given[name] = parse_value(text, rows[name]["kind"])
    return {name: value for name, value in given.items() if value is not None}


def parse_value(text: str, kind: str) -> str | float | None:
    """Return the value of a flag; None if it is of another kind."""
    try:
        return {"INTEGER": int, "NUMBER": float}.get(kind, str)(text)
    except ValueError:
        return None


def propose(word: str, names: Iterable[str], prefix: str = "") -> str:
    """Return a sentence that names what a word resembles most, or nothing.

    Example:
        >>> propose("digts", ["photos", "digits"])
        '. Did you mean digits?'
    """
    close = difflib.get_close_matches(word, names, 1, 0.75)
    return "".join(f". Did you mean {prefix}{name}?" for name in close)
