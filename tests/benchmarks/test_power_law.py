import numpy as np
import pytest

from benchmarks.power_law import fit_power_law

COMPUTES = np.geomspace(1e9, 1e12, 6)


@pytest.mark.parametrize("exponent", [0.05, 0.5, 1.3])
def test_a_law_is_found_again(exponent):
    errors = dict(zip(COMPUTES, 7e4 * COMPUTES**-exponent))
    law = fit_power_law(errors)
    assert law.exponent == pytest.approx(exponent)
    assert law.scale == pytest.approx(7e4)
    assert law.margin == pytest.approx(0, abs=1e-6)
    for compute, error in errors.items():
        assert law.error_at(compute) == pytest.approx(error)


def test_the_margin_holds_the_exponent_in_95_of_100_cases():
    rng = np.random.default_rng(0)
    hits, cases = 0, 1000
    for _ in range(cases):
        noise = np.exp(rng.normal(0, 0.3, len(COMPUTES)))
        law = fit_power_law(dict(zip(COMPUTES, 50 * COMPUTES**-0.2 * noise)))
        hits += abs(law.exponent - 0.2) < law.margin
    # Of a binomial distribution, 0.014 are two standard deviations.
    assert hits / cases == pytest.approx(0.95, abs=0.02)


@pytest.mark.parametrize(
    "errors", [{}, {1: 0.5, 2: 0.4}, {1: 0.5, 2: 0.4, 3: 0.0}]
)
def test_points_that_give_no_law_are_refused(errors):
    with pytest.raises(ValueError, match="at least three points, all above 0"):
        fit_power_law(errors)
