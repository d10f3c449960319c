"""Finding a mistyped flag or choice, before anything slow is imported."""

import difflib
from collections.abc import Iterable, Sequence


def find_mistyped(words: Sequence[str], rows: dict[str, dict]) -> str | None:
    """Return what is wrong with the first mistyped flag of a command line.

    An unknown flag is taken for mistyped only if it resembles one of the
    command: libraries define flags as well.

    Args:
        words: The command line.
        rows: The descriptions of the flags of the command.

    Example:
        >>> rows = {"epochs": {"kind": "INTEGER"}}
        >>> find_mistyped(["--epohcs=3"], rows)
        'there is no flag --epohcs. Did you mean --epochs?'
    """
    for index, word in enumerate(words):
        if word == "--":  # What follows are no flags.
            break
        name, has_value, text = word.lstrip("-").partition("=")
        if not word.startswith("-") or not name:
            continue
        if name in rows:
            value = text if has_value else "".join(words[index + 1 : index + 2])
            choices = rows[name].get("choices")
            if choices and value not in choices:
                return (
                    f"--{name} must be one of {', '.join(choices)}. "
                    f"Received: {value}{propose(value, choices)}"
                )
        elif name.removeprefix("no") not in rows:
            switches = [f"no{x}" for x in rows if rows[x]["kind"] == "switch"]
            proposal = propose(name, [*rows, *switches], "--")
            if proposal:
                return f"there is no flag --{name}{proposal}"
    return None


def propose(word: str, names: Iterable[str], prefix: str = "") -> str:
    """Return a sentence that names what a word resembles most, or nothing.

    Example:
        >>> propose("digts", ["photos", "digits"])
        '. Did you mean digits?'
    """
    close = difflib.get_close_matches(word, names, 1, 0.8)
    return "".join(f". Did you mean {prefix}{name}?" for name in close)
