"""Checks of arguments that are numbers, sizes or texts."""

import math
import numbers
from collections.abc import Sequence


def is_whole(value) -> bool:
    """Return whether a value is a whole number, of Python or NumPy."""
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def is_number(value) -> bool:
    """Return whether a value is a real number, of Python or NumPy."""
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def as_whole(value, argument: str, least: int = 1) -> int:
    """Return a whole number as an `int`.

    Args:
        value: The value.
        argument: Name of the caller's argument, for the error.
        least: The least that it may be, 0 or 1.

    Raises:
        ValueError: If it is not a whole number, or less.

    Example:
        >>> as_whole(np.int64(12), "num_heads")
        12
    """
    rule = "be positive" if least else "be 0 or more"
    if not is_whole(value):
        rule = "be a whole number"
    elif value >= least:
        return int(value)
    raise ValueError(
        f"`{argument}` must {rule}. Received: {argument}={value!r}"
    )


def as_number(value, argument: str) -> float:
    """Return a real number as a `float`; raise a ValueError for others."""
    if is_number(value):
        return float(value)
    raise ValueError(
        f"`{argument}` must be a number. Received: {argument}={value!r}"
    )


def as_rate(value, argument: str) -> float:
    """Return a number in [0, 1) as a `float`; raise a ValueError for others."""
    if is_number(value) and 0 <= value < 1:
        return float(value)
    raise ValueError(
        f"`{argument}` must be in [0, 1). Received: {argument}={value!r}"
    )


def as_size(value, argument: str) -> tuple[int, int]:
    """Return two positive whole numbers, as in (height, width), as `int`.

    Raises:
        ValueError: If it is anything else.
    """
    try:
        sides = tuple(value)
    except TypeError:
        sides = ()
    if len(sides) == 2 and all(is_whole(side) and side > 0 for side in sides):
        return int(sides[0]), int(sides[1])
    raise ValueError(
        f"`{argument}` must be two positive whole numbers. "
        f"Received: {argument}={value!r}"
    )


def check_pixel_range(value) -> tuple[float, float]:
    """Return a range of pixels as two floats.

    Raises:
        ValueError: If it is none.
    """
    try:
        low, high = map(float, value)
    except (TypeError, ValueError):
        low, high = math.nan, math.nan
    if not -math.inf < low < high < math.inf:
        raise ValueError(
            "`pixel_range` must be two numbers, black and white, such as "
            f"(0, 4095). Received: pixel_range={value!r}"
        )
    return low, high


def as_texts(names: Sequence, argument: str, count: int) -> tuple[str, ...]:
    """Return names as strings; raise a ValueError unless so many."""
    if len(names) == count:
        return tuple(map(str, names))
    raise ValueError(
        f"`{argument}` must be {count} texts. Received: {len(names)}"
    )
