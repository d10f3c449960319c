"""Checks of the arguments of operations."""

import math
import typing


class ArgumentError(ValueError):
    """An argument of an operation is out of range.

    Args:
        name: Name of the argument.
        rule: Completes the sentence "`name` must be ...".
        value: The received value.
    """

    def __init__(self, name: str, rule: str, value: float | None):
        received = f"{value:g}" if isinstance(value, float) else value
        super().__init__(
            f"`{name}` must be {rule}. Received: {name}={received}"
        )
        self.name = name


def require(condition: bool, name: str, rule: str, value: float | None):
    """Raise an ArgumentError unless `condition` holds.

    Args:
        condition: Whether the value is allowed.
        name: Name of the argument.
        rule: Completes the sentence "`name` must be ...".
        value: The received value.
    """
    if not condition:
        raise ArgumentError(name, rule, value)


def types_of(annotation: type) -> tuple[type, ...]:
    """Return the types of an annotated parameter.

    Args:
        annotation: A type or a union.
    """
    return typing.get_args(annotation) or (annotation,)


def check_type(name: str, value: float | str | tuple | None, annotation: type):
    """Raise an ArgumentError unless `value` is of the annotated type.

    Args:
        name: Name of the argument.
        value: The received value.
        annotation: int, float, str, tuple, or a union of them and None.
    """
    types = types_of(annotation)
    if type(value) in (str, tuple) and type(value) in types:
        return
    if value is None:
        require(type(None) in types, name, "a number", value)
    else:
        require(math.isfinite(value), name, "finite", value)
        require(abs(value) < 2**31, name, "of less than 32 bits", value)
        is_whole = isinstance(value, int)
        require(float in types or is_whole, name, "a whole number", value)
