"""The field of a recipe that lists the milestones of the steps schedule."""

from fractions import Fraction

from trainers.optim.schedules import check_milestones


def read_milestones(text: str) -> tuple[float, ...]:
    """Return the milestones as shares of the training.

    Args:
        text: Numbers or fractions, separated by commas.

    Raises:
        ValueError: If one is not a number; see also `check_milestones`.

    Example:
        >>> read_milestones("1/4,0.5")
        (0.25, 0.5)
    """
    try:
        shares = tuple(float(Fraction(word)) for word in text.split(","))
    except (ValueError, ZeroDivisionError):
        raise ValueError(
            "`milestones` must be shares such as '0.3,0.6,0.9' or '1/3,2/3'. "
            f"Received: milestones={text!r}"
        ) from None
    check_milestones(shares)
    return shares
