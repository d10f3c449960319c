"""Comparison of the outputs of a server with the expected ones."""

from collections.abc import Mapping

import numpy as np


def compare_outputs(
    expected: Mapping[str, np.ndarray],
    found: Mapping[str, np.ndarray],
    tolerance: float,
) -> tuple[float, str]:
    """Return the largest difference, and a description of the fault.

    Labels may differ if their probabilities are equal.

    Args:
        expected: Outputs by name.
        found: Outputs by name.
        tolerance: Largest allowed difference of two numbers.
    """
    largest, faults = 0.0, []
    for name, want in sorted(expected.items()):
        array = found.get(name)
        if array is None or array.shape != want.shape:
            shape = "none" if array is None else array.shape
            faults.append(f"{name}: expected {want.shape}, got {shape}")
        elif want.dtype == object:
            numbers = expected.get("probabilities", np.zeros(want.shape))
            if not same_labels(want, array, numbers, tolerance):
                index = np.argmax(want != array)
                faults.append(
                    f"{name}: expected {want.flat[index]}, "
                    f"got {array.flat[index]}"
                )
        elif want.size:
            want, array = (x.astype("float64") for x in (want, array))
            difference = float(np.max(np.abs(want - array)))
            largest = float(np.maximum(largest, difference))  # Keeps nan.
            # A comparison with nan is false.
            if not difference <= tolerance:
                faults.append(f"{name}: {difference:.1e} apart")
    return largest, "; ".join(faults)


def same_labels(
    expected: np.ndarray,
    found: np.ndarray,
    probabilities: np.ndarray,
    tolerance: float,
) -> bool:
    """Return whether labels are those expected, except for ties.

    Shapes:
        expected, found, probabilities: (B, k).

    Args:
        expected: Labels, the most probable first.
        found: Labels, the most probable first.
        probabilities: Probabilities of `expected`. An unexpected label can
            only replace a label that is tied with the last one.
        tolerance: Probabilities with a smaller difference are tied.
    """
    for labels, others, numbers in zip(expected, found, probabilities):
        known = dict(zip(labels, numbers))
        for label, other, number in zip(labels, others, numbers):
            tie = abs(known.get(other, numbers[-1]) - number) <= tolerance
            if label != other and not tie:
                return False
    return True
