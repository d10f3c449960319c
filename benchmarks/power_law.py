"""Power laws: error = scale * compute ** -exponent."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

CONFIDENCE = 0.95


class PowerLaw(NamedTuple):
    """A law fitted to measured errors.

    Args:
        scale: The error at a compute of 1.
        exponent: How fast the error falls.
        margin: The exponent is in exponent - margin to exponent + margin with
            a confidence of 95 %.
    """

    scale: float
    exponent: float
    margin: float

    def error_at(self, compute: float) -> float:
        """Return the error that the law predicts."""
        return self.scale * compute**-self.exponent


def fit_power_law(errors: Mapping[float, float]) -> PowerLaw:
    """Fit a law by least squares of the logarithms.

    The margin comes from the distances of the points to the law, with the
    quantile of Student's t distribution for as many points. The law has no
    constant term for an error that no compute removes: few points within one
    or two orders of magnitude do not determine it.

    Args:
        errors: Compute -> error, both above 0.

    Raises:
        ValueError: If there are fewer than three points, or one is not above
            0.

    Example:
        >>> fit_power_law({1: 0.8, 4: 0.4, 16: 0.2}).exponent
        0.5
    """
    from scipy import stats

    points = np.array(list(errors.items()), "float64").reshape(-1, 2)
    if len(points) < 3 or not points.min() > 0:
        raise ValueError(
            "`errors` must have at least three points, all above 0. "
            f"Received: errors={dict(errors)}"
        )
    line = stats.linregress(*np.log(points).T)
    quantile = stats.t.ppf((1 + CONFIDENCE) / 2, len(points) - 2)
    return PowerLaw(
        float(np.exp(line.intercept)),
        float(-line.slope),
        float(quantile * line.stderr),
    )
