"""One field of a recipe: its default, help text and permitted values."""

import dataclasses
import math
from collections.abc import Callable, Iterable

from keras_vit.tables import pick


@dataclasses.dataclass(frozen=True)
class NumberRange:
    """The values that a number of a recipe may have.

    Args:
        text: Completes the sentence "`epochs` must be ...".
        includes: Whether a number is in the range.
    """

    text: str
    includes: Callable[[float], bool]


POSITIVE = NumberRange("positive", lambda x: 0 < x < math.inf)
NOT_NEGATIVE = NumberRange("0 or more", lambda x: 0 <= x < math.inf)
FRACTION = NumberRange("in [0, 1)", lambda x: 0 <= x < 1)


def option(
    default,
    text: str,
    choices: Iterable[str] | None = None,
    *,
    range: NumberRange | None = None,
    is_free: bool = False,
    is_local: bool = False,
):
    """Return a field that is a flag.

    Args:
        default: Its value if neither the recipe nor a flag gives one.
        text: Help text of the flag.
        choices: The names it may have; None if it is no name.
        range: The numbers it may be; None allows all.
        is_free: Whether a run may go on with another value.
        is_local: Whether the workers of one training may have different ones.
    """
    metadata = {
        "help": text,
        "choices": choices and list(choices),
        "range": range,
        "is_free": is_free,
        "is_local": is_local,
    }
    return dataclasses.field(default=default, metadata=metadata)


def note():
    """Return a field that is no flag and changes nothing."""
    metadata = {
        "choices": None,
        "range": None,
        "is_free": True,
        "is_local": True,
    }
    return dataclasses.field(default="", metadata=metadata)


def check_value(field, value):
    """Raise a ValueError if a field has a value that it must not have."""
    if value is None:
        return
    choices, range = field.metadata["choices"], field.metadata["range"]
    if choices:
        pick(dict.fromkeys(choices), value, field.name)
    if range and not range.includes(value):
        raise ValueError(
            f"`{field.name}` must be {range.text}. "
            f"Received: {field.name}={value}"
        )
