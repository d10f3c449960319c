"""Finding a mistyped command line, before anything slow is imported."""

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

from absl import app, flags, logging  # noqa: F401  Two define flags.

from trainers.help.reading import propose


def find_mistyped(
    words: Sequence[str],
    rows: dict[str, dict],
    aliases: Mapping[str, str] = MappingProxyType({}),
) -> str | None:
    """Return what is wrong with the flags of a command line, if anything is.

    Args:
        words: The command line.
        rows: The descriptions of the flags of the command.
        aliases: The flags of the command by their other names.

    Example:
        >>> rows = {"epochs": {"kind": "INTEGER"}}
        >>> find_mistyped(["--epohcs=3"], rows)
        'there is no flag --epohcs. Did you mean --epochs?'
        >>> find_mistyped(["--epochs=ten"], rows)
        '--epochs must be an integer. Received: ten'
        >>> find_mistyped(["--top=0"], {"top": {"kind": "INTEGER", "least": 1}})
        '--top must be at least 1. Received: 0'
    """
    given = list(split_flags(words, rows, aliases))
    names = {name for name, _ in given}
    if names & {"flagfile", "undefok"}:
        return None  # More flags are in a file, or may be unknown.
    for name, value in given:
        if name in rows:
            fault = find_fault(name, value, rows[name])
        else:
            fault = find_stranger(name, rows)
        if fault:
            return fault
    for name, row in rows.items():
        if row.get("absent") == "required" and name not in names:
            return f"--{name} is required: {row['text']}"
    return None


def split_flags(
    words: Sequence[str], rows: dict[str, dict], aliases: Mapping[str, str]
) -> Iterable[tuple[str, str]]:
    """Yield the flags of a command line, each with its value as text.

    Args:
        words: The command line.
        rows: The descriptions of the flags of the command.
        aliases: See `find_mistyped`.
    """
    rest = iter(words)
    for word in rest:
        if word == "--":  # What follows are no flags.
            break
        name, has_value, value = word.lstrip("-").partition("=")
        if not word.startswith("-") or not name:
            continue
        name = aliases.get(name, name)
        if not has_value:
            is_switch = rows.get(name, SWITCH)["kind"] == "switch"
            value = "true" if is_switch else next(rest, "")
        yield name, value


def find_fault(name: str, value: str, row: dict) -> str | None:
    """Return what is wrong with the value of a flag, if anything is."""
    choices = row.get("choices")
    if choices and value not in choices:
        return (
            f"--{name} must be one of {', '.join(choices)}. "
            f"Received: {value}{propose(value, choices)}"
        )
    parse, kind = VALUE_PARSERS.get(row["kind"], (str, ""))
    try:
        number = parse(value)
    except ValueError:
        return f"--{name} must be {kind}. Received: {value}"
    if "least" in row and number < row["least"]:
        return f"--{name} must be at least {row['least']}. Received: {value}"
    return None


def find_stranger(name: str, rows: dict[str, dict]) -> str | None:
    """Return that there is no such flag, unless a library has it."""
    switches = [f"no{x}" for x in rows if rows[x]["kind"] == "switch"]
    plain = name.removeprefix("no")
    known = {*switches, *flags.FLAGS, *FLAGS_OF_LIBRARIES}
    if name in known or plain in known:
        return None
    proposal = propose(name, [*rows, *switches], "--")
    return f"there is no flag --{name}{proposal or '. --help lists them all.'}"


# How a kind of flag is read, and what it is called.
VALUE_PARSERS = {
    "INTEGER": (flags.IntegerParser().convert, "an integer"),
    "NUMBER": (flags.FloatParser().convert, "a number"),
    "switch": (flags.BooleanParser().parse, "true or false"),
}
SWITCH = {"kind": "switch"}
# Those of TensorFlow and tensorflow-datasets, which take seconds to import, and
# of the tests of absl, which they import.
FLAGS_OF_LIBRARIES = (
    "delta_threshold",
    "hbm_oom_exit",
    "op_conversion_fallback_to_while_loop",
    "runtime_oom_exit",
    "test_random_seed",
    "test_randomize_ordering_seed",
    "test_srcdir",
    "test_tmpdir",
    "tfds_debug_list_dir",
    "tt_check_filter",
    "tt_single_core_summaries",
    "xml_output_file",
)
