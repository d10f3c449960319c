"""One field of a recipe: its default, help text and permitted values."""

import dataclasses
import math
import typing
from collections.abc import Callable, Iterable, Mapping

from keras_vit.arguments import is_number, is_whole
from keras_vit.tables import pick


@dataclasses.dataclass(frozen=True)
class NumberRange:
    """The allowed values of a number in a recipe.

    Args:
        text: Completes the sentence "`epochs` must be ...".
        includes: Returns whether a number is in the range.
    """

    text: str
    includes: Callable[[float], bool]


POSITIVE = NumberRange("positive", lambda x: 0 < x < math.inf)
NOT_NEGATIVE = NumberRange("0 or more", lambda x: 0 <= x < math.inf)
FRACTION = NumberRange("in [0, 1)", lambda x: 0 <= x < 1)
SEED = NumberRange("in [0, 2**32)", lambda x: 0 <= x < 2**32)
INNER_SHARE = NumberRange("in (0, 1)", lambda x: 0 < x < 1)


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
        default: The value if neither the recipe nor a flag sets one.
        text: Help text of the flag.
        choices: The allowed names; None if the value is not a name.
        range: The allowed numbers; None allows all.
        is_free: Whether a run may continue with another value.
        is_local: Whether the workers of a run may have different values.
    """
    metadata = {
        "help": text,
        "choices": choices and list(choices),
        "range": range,
        "is_free": is_free,
        "is_local": is_local,
    }
    return dataclasses.field(default=default, metadata=metadata)


def free_option(default, text: str, choices=None, **more):
    """Return the field of `option` that a run may continue with changed."""
    return option(default, text, choices, is_free=True, **more)


def note():
    """Return a field without a flag and without an effect on training."""
    metadata = {
        "choices": None,
        "range": None,
        "is_free": True,
        "is_local": True,
    }
    return dataclasses.field(default="", metadata=metadata)


def check_value(field, value):
    """Raise a ValueError if the value of a field is not allowed.

    Also one of another type, which a file may hold.
    """
    types = typing.get_args(field.type) or (field.type,)
    if value is None and type(None) in types:
        return
    is_of_type, rule = FIELD_TYPES[types[0]]
    if not is_of_type(value):
        raise ValueError(
            f"`{field.name}` must be {rule}. Received: {field.name}={value!r}"
        )
    choices, range = field.metadata["choices"], field.metadata["range"]
    if choices:
        pick(dict.fromkeys(choices), value, field.name)
    if range and not range.includes(value):
        raise ValueError(
            f"`{field.name}` must be {range.text}. "
            f"Received: {field.name}={value}"
        )
    if is_number(value) and not math.isfinite(value):
        raise ValueError(
            f"`{field.name}` must be finite. Received: {field.name}={value}"
        )


def check_unused(options, unused: Mapping, missing: str, field: str):
    """Raise a ValueError if a field is set that has no effect.

    Args:
        options: The fields of a recipe.
        unused: The value that each such field has if it is not set.
        missing: What the fields need; completes "`teacher` needs ...".
        field: Name of the field whose value is not what they need.
    """
    for name, value in unused.items():
        if getattr(options, name) != value:
            raise ValueError(
                f"`{name}` needs {missing}. Received: "
                f"{name}={getattr(options, name)!r}, "
                f"{field}={getattr(options, field)!r}"
            )


# The types of fields, and what their values must be.
FIELD_TYPES = {
    bool: (lambda value: isinstance(value, bool), "true or false"),
    float: (is_number, "a number"),
    int: (is_whole, "a whole number"),
    str: (lambda value: isinstance(value, str), "text"),
}
