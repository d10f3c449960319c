"""Looking up a name in a table, listing names, and formatting tables."""

import difflib
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

T = TypeVar("T")
# How alike two names must be: "gap" is no misspelt "map", "gleu" is "gelu".
LEAST_LIKENESS = 0.7


def pick(table: Mapping[str, T], name: str, argument: str) -> T:
    """Return the row of `table` called `name`.

    Args:
        table: Names and their values.
        name: The name to look up.
        argument: Name of the caller's argument, for the error.

    Raises:
        ValueError: If the table has no such row. The message lists its rows
            and names the one that was probably meant.

    Example:
        >>> pick({"tanh": 1, "exact": 2}, "exact", "activation")
        2
    """
    check_name(table, name, argument)
    return table[name]


def check_name(names: Iterable[str], name: str, argument: str):
    """Raise a ValueError as `pick` does unless `name` is one of `names`."""
    names = [*names]
    try:
        is_known = name in {*names}
    except TypeError:  # Such as a list.
        is_known = False
    if not is_known:
        known = ", ".join(map(repr, names))
        raise ValueError(
            f"`{argument}` must be one of {known}. "
            f"Received: {argument}={name!r}{guess(name, names)}"
        ) from None


def guess(name: str, names: Iterable[str], most: int = 1) -> str:
    """Return a sentence with the names that were probably meant, or nothing.

    Example:
        >>> guess("gleu", ["relu", "gelu"])
        ". Did you mean 'gelu'?"
    """
    if not isinstance(name, str):
        return ""
    names = [known for known in names if isinstance(known, str)]
    close = difflib.get_close_matches(name, names, most, LEAST_LIKENESS)
    return f". Did you mean {' or '.join(map(repr, close))}?" if close else ""


def list_first(names: Sequence[str], most: int = 5) -> str:
    """Return the first names in a line, and how many more there are.

    Example:
        >>> list_first(["a", "b", "c", "d"], 2)
        'a, b and 2 more'
    """
    more = len(names) - most
    listed = ", ".join(names[:most])
    return f"{listed} and {more:,} more" if more > 0 else listed


def format_table(columns: Sequence[str], rows: Iterable[Sequence]) -> str:
    """Return a Markdown table.

    Args:
        columns: The heads of the columns.
        rows: The cells of each row, strings or numbers.

    Example:
        >>> print(format_table(["model", "MB"], [["B/16", 346]]))
        | model | MB |
        |---|---|
        | B/16 | 346 |
    """
    lines = [f"| {' | '.join(map(str, row))} |" for row in (columns, *rows)]
    lines.insert(1, "|" + "---|" * len(columns))
    return "\n".join(lines)
