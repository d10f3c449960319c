"""Compare the outputs of an export with those of the Keras model."""

import dataclasses
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence

import keras
import numpy as np


@dataclasses.dataclass(frozen=True)
class Tolerance:
    """The allowed differences between an export and the model.

    Args:
        max_difference: Largest absolute difference of an output.
        relative_difference: Largest relative difference of an output; see
            `Agreement`.
        cosine: Smallest mean cosine similarity of the outputs for an image.
        top1_agreement: Smallest share of images with the same top-1 class. A
            single image with another class is accepted if its classes are
            nearly tied, that is, if its own cosine similarity reaches
            `cosine`. Otherwise, 99 % of fewer than 100 images would mean all
            of them.
        expected_top1_agreement: A smaller share only gives a warning.
    """

    max_difference: float = math.inf
    relative_difference: float = math.inf
    cosine: float = -1.0
    top1_agreement: float = 0.0
    expected_top1_agreement: float = 0.0


@dataclasses.dataclass(frozen=True)
class Agreement:
    """The comparison of the outputs of an export with those of the model.

    Args:
        path: The file or folder of the export.
        kind: The kind of export, such as "saved_model" or "tflite float16".
        num_bytes: Size on disk.
        num_images: Number of images in the comparison.
        max_difference: Largest absolute difference of an output; nan if an
            output is not finite.
        relative_difference: The largest difference divided by the largest
            output for the same image or by 1, whichever is larger. Rounding
            errors of sums grow with the sums.
        cosine: Mean cosine similarity of the outputs for an image.
        top1_agreement: Share of images with the same top-1 class.
        faults: Differences that exceed the tolerance, as sentences.
        warnings: Other remarkable differences, as sentences.
    """

    path: str
    kind: str
    num_bytes: int
    num_images: int
    max_difference: float
    relative_difference: float
    cosine: float
    top1_agreement: float
    faults: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    def named(self, part: str) -> "Agreement":
        """Return this agreement with the name of a part before each fault."""
        faults = tuple(f"{part}: {fault}" for fault in self.faults)
        return dataclasses.replace(self, faults=faults)


class DisagreementError(RuntimeError):
    """The outputs of an export differ from those of the Keras model."""


def compare(
    expected: np.ndarray,
    outputs: np.ndarray,
    tolerance: Tolerance,
    *,
    path: str | os.PathLike = "",
    kind: str = "",
    num_bytes: int = 0,
) -> Agreement:
    """Compare the outputs of a predictor with the expected ones.

    Args:
        expected: Outputs of the Keras model, (B, ...).
        outputs: Outputs of the predictor, (B, ...).
        tolerance: The allowed differences.
        path: Path of the predictor, for the report.
        kind: The kind of predictor, for the report.
        num_bytes: Its size, for the report.

    Returns:
        The comparison. Differences that are too large are among its faults.

    Raises:
        DisagreementError: If the outputs have another shape.
    """
    if expected.shape != outputs.shape:
        raise DisagreementError(
            f"The export ({kind}) gives outputs of shape {outputs.shape}, the "
            f"Keras model {expected.shape}. Nothing was written."
        )
    expected, outputs = (
        np.asarray(x, "float64").reshape(len(x), -1)
        for x in (expected, outputs)
    )
    with np.errstate(invalid="ignore"):  # find_not_finite reports infinities.
        differences = np.max(np.abs(expected - outputs), axis=1)
        sizes = np.maximum(1, np.max(np.abs(expected), axis=1))
        relative_differences = differences / sizes
        cosines = cosine_similarities(expected, outputs)
    is_same = np.argmax(expected, axis=1) == np.argmax(outputs, axis=1)
    agreement = Agreement(
        path=os.fspath(path),
        kind=kind,
        num_bytes=num_bytes,
        num_images=len(expected),
        max_difference=float(np.max(differences)),
        relative_difference=float(np.max(relative_differences)),
        cosine=float(np.mean(cosines)),
        top1_agreement=float(np.mean(is_same)),
    )
    faults, warnings = find_not_finite(expected, outputs), []
    if not faults:
        faults, warnings = find_faults(agreement, tolerance, cosines[~is_same])
    return dataclasses.replace(
        agreement, faults=tuple(faults), warnings=tuple(warnings)
    )


def compare_outputs(
    expected: Mapping[str, np.ndarray],
    outputs: Mapping[str, np.ndarray],
    tolerance: Tolerance,
    *,
    path: str = "",
    kind: str = "",
) -> Agreement:
    """Compare all outputs of a predictor with the expected ones.

    `labels`, strings (B, k), are the names of the classes with the k highest
    `probabilities`. `expected` may rank more classes than that. Classes with
    nearly equal probabilities may swap places.

    Args:
        expected: The expected outputs by name, (B, ...).
        outputs: The outputs of the predictor by name; others are ignored.
        tolerance: The allowed differences of each output.
        path: Path of the predictor, for the report.
        kind: The kind of predictor, for the report.

    Returns:
        The largest differences of all outputs, and the classes of the first.
        Each fault begins with the name of its output.
    """
    num_images = len(next(iter(expected.values())))
    report = Agreement(path, kind, 0, num_images, 0.0, 0.0, 1.0, 1.0)
    agreements, faults = [], []
    for name, want in expected.items():
        found = outputs.get(name)
        if "labels" in expected and found is not None and found.ndim == 2:
            want = want[:, : found.shape[1]]
        if found is None or found.shape != want.shape:
            shape = "none" if found is None else found.shape
            faults.append(f"{name}: expected {want.shape}, got {shape}")
        elif want.dtype.kind not in "OSU" and want.size:
            agreement = compare(want, found, tolerance, path=path, kind=kind)
            agreements.append(agreement.named(name))
    if agreements:
        report = join(agreements)
        faults += report.faults
    if "labels" in expected and not faults:
        width = max(1e-5, 2 * report.max_difference)
        faults += find_wrong_labels(expected, outputs, width)
    return dataclasses.replace(report, faults=tuple(faults))


def join(agreements: Sequence[Agreement]) -> Agreement:
    """Return the first agreement with the differences and faults of all."""
    largest = {  # Python's max may skip nan.
        field: float(np.max([getattr(a, field) for a in agreements]))
        for field in ("max_difference", "relative_difference")
    }
    faults = sum((a.faults for a in agreements), ())
    return dataclasses.replace(agreements[0], faults=faults, **largest)


def find_wrong_scale(images: np.ndarray, fractions: np.ndarray) -> list[str]:
    """Return a fault if images are not scaled as a server would scale them.

    Otherwise both sides of a comparison could be wrong alike, such as a model
    that scales its pixels itself and a server that scales them before.

    Shapes:
        images, fractions: (B, H, W, C).

    Args:
        images: Images as the model reads them.
        fractions: The pixels that they would be on a server; 0 for black and
            1 for white.
    """
    low, high = np.min(fractions), np.max(fractions)
    outside = np.mean((fractions < -0.05) | (fractions > 1.05))
    is_one_colour = np.ptp(images) > 0 and high - low < 0.02
    if outside <= 0.5 and not is_one_colour:
        return []
    return [
        "the images reach the model as numbers from "
        f"{np.min(images):.4g} to {np.max(images):.4g}; normalised as "
        f"`preprocessing` says, these are pixels from {255 * low:.4g} to "
        f"{255 * high:.4g}, not from 0 to 255"
    ]


def find_wrong_labels(expected: Mapping, outputs: Mapping, width: float):
    """Return a fault for the first label that has no right to its place."""
    for labels, numbers, others in zip(
        expected["labels"], expected["probabilities"], outputs["labels"]
    ):
        known = dict(zip(labels, numbers))
        for label, number, other in zip(labels, numbers, others):
            if abs(known.get(other, numbers[-1]) - number) > width:
                return [f"labels: expected {label}, got {other}"]
    return []


def cosine_similarities(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return the cosine similarity of each pair of rows.

    Shapes:
        x, y: (B, C). returns: (B,).
    """
    norms = np.linalg.norm([x, y], axis=2).prod(axis=0)
    # Two rows of zeros, the outputs of a new head, count as equal.
    return np.divide(
        np.sum(x * y, axis=1), norms, out=np.ones(len(norms)), where=norms != 0
    )


def refuse_faults(agreement: Agreement):
    """Raise a DisagreementError if there are faults."""
    if agreement.faults:
        raise DisagreementError(
            f"The outputs of the export ({agreement.kind}) differ from those "
            f"of the Keras model: {'; '.join(agreement.faults)}. Nothing was "
            f"written to {agreement.path}."
        )


def find_not_finite(expected: np.ndarray, outputs: np.ndarray) -> list[str]:
    """Return a sentence for each source with outputs that are not finite."""
    return [
        f"{source} gives NaN or infinity for {count} of {len(x)} images"
        for source, x in (
            ("the Keras model", expected),
            ("the export", outputs),
        )
        if (count := np.sum(~np.isfinite(x).all(axis=1)))
    ]


def find_faults(
    agreement: Agreement, tolerance: Tolerance, cosines: np.ndarray
) -> tuple[list[str], list[str]]:
    """Return the faults and the warnings."""
    faults, warnings = [], []
    if agreement.max_difference > tolerance.max_difference:
        faults.append(
            f"the largest difference is {agreement.max_difference:.1e}; "
            f"allowed is {tolerance.max_difference:.0e}"
        )
    if agreement.relative_difference > tolerance.relative_difference:
        faults.append(
            f"the largest difference is {agreement.max_difference:.1e}, or "
            f"{agreement.relative_difference:.1e} of the largest output for "
            "the image (of 1, if that is larger); allowed is "
            f"{tolerance.relative_difference:.0e}"
        )
    if agreement.cosine < tolerance.cosine:
        faults.append(
            f"the cosine similarity is {agreement.cosine:.6f}; it must be at "
            f"least {tolerance.cosine}"
        )
    share = agreement.top1_agreement
    agrees = (
        f"{share:.2%} of the images, {agreement.num_images - len(cosines)} of "
        f"{agreement.num_images}, have the same top-1 class"
    )
    if share < tolerance.top1_agreement:
        if len(cosines) == 1 and 0 < tolerance.cosine <= cosines[0]:
            warnings.append(
                f"{agrees}; the other one is nearly a tie, with a cosine "
                f"similarity of {cosines[0]:.6f}"
            )
        else:
            faults.append(
                f"{agrees}; at least {tolerance.top1_agreement:.0%} must"
            )
    elif share < tolerance.expected_top1_agreement:
        warnings.append(
            f"{agrees}, fewer than {tolerance.expected_top1_agreement:.0%}"
        )
    return faults, warnings


def size_on_disk(path: str) -> int:
    """Return the size in bytes of a file, or of all files in a folder."""
    if os.path.isfile(path):
        return os.path.getsize(path)
    return sum(
        os.path.getsize(os.path.join(folder, name))
        for folder, _, names in os.walk(path)
        for name in names
    )


# For float32 with another order of summation: 1e-6 was measured for models
# from Ti/16 to B/16, and 3e-6 for sharper attention.
FLOAT32 = Tolerance(relative_difference=1e-5)


BATCH_SIZE = 32


def expected_outputs(model: keras.Model, images: np.ndarray) -> np.ndarray:
    """Return the predictions of the Keras model, in float32.

    An export must give the same outputs.
    """
    outputs = model.predict(images, batch_size=BATCH_SIZE, verbose=0)
    return np.asarray(outputs, "float32")


def run_in_batches(run: Callable, inputs: np.ndarray, batch_size: int = 0):
    """Return the outputs of `run` for all inputs."""
    size = batch_size or min(BATCH_SIZE, len(inputs))
    parts = [run(batch) for batch in batches(inputs, size)]
    return keras.tree.map_structure(
        lambda *arrays: np.concatenate(arrays)[: len(inputs)], *parts
    )


def batches(inputs: np.ndarray, batch_size: int) -> Iterator[np.ndarray]:
    """Yield full batches; the last input is repeated to fill the last one."""
    for start in range(0, len(inputs), batch_size):
        indices = range(start, start + batch_size)
        yield np.take(inputs, indices, 0, mode="clip")


def make_noise(shape: tuple[int, ...], dtype) -> np.ndarray:
    """Return uniform noise: floats in [-1, 1], or integers of their range."""
    random = np.random.default_rng(0)
    dtype = np.dtype(dtype)
    if dtype.kind == "f":
        return random.uniform(-1, 1, shape).astype(dtype)
    if dtype.kind not in "iu":
        raise ValueError(
            f"`dtype` must be a type of numbers. Received: dtype={dtype}"
        )
    bounds = np.iinfo(dtype)
    return random.integers(bounds.min, bounds.max, shape, dtype, endpoint=True)
