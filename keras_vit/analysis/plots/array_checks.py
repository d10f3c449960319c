"""Checks of the arrays and names to draw."""

from collections.abc import Sequence

import numpy as np


def check_shape(values, argument: str, rank: int) -> np.ndarray:
    """Return values as a float32 array.

    Raises:
        ValueError: If they have another rank, or are empty.
    """
    values = np.asarray(values, "float32")
    if values.ndim != rank or not values.size:
        raise ValueError(
            f"`{argument}` must have {rank} dimensions, none of them empty. "
            f"Received: shape={values.shape}"
        )
    return values


def check_names(
    names: Sequence[str] | None, argument: str, count: int
) -> list[str]:
    """Return names as a list of strings; None gives empty names.

    Raises:
        ValueError: If the number of names is not `count`.
    """
    names = [""] * count if names is None else [str(name) for name in names]
    if len(names) != count:
        raise ValueError(
            f"`{argument}` must be {count} texts. Received: {len(names)}"
        )
    return names
