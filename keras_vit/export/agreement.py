"""The check that an exported model answers as the Keras model does."""

import dataclasses
import math
import os

import numpy as np


@dataclasses.dataclass(frozen=True)
class Tolerance:
    """How far the answers of an export may be from those of the model.

    Args:
        relative_difference: Largest difference of an output, see Agreement.
        cosine: Smallest mean cosine of the two answers to an image.
        top1_agreement: Smallest share of images given the same class. If
            all but one are, that one may be nearly a tie: a cosine is asked,
            and it keeps it alone. Of fewer than 100 images 99 % are all.
        expected_top1_agreement: A smaller share is worth a warning.
    """

    relative_difference: float = math.inf
    cosine: float = -1.0
    top1_agreement: float = 0.0
    expected_top1_agreement: float = 0.0


@dataclasses.dataclass(frozen=True)
class Agreement:
    """How an export compares with the model it came from.

    Args:
        path: The file or folder that was written.
        kind: What was written, such as "saved_model" or "tflite float16".
        num_bytes: Size on disk.
        num_images: Images that both were asked about.
        max_difference: Largest absolute difference of an output; nan if an
            answer is not finite.
        relative_difference: The same in parts of the largest answer to the
            image, if that is above 1: sums are rounded in parts of what they
            come to, in float32 each time by 6e-8 of it.
        cosine: Mean cosine of the two answers to an image.
        top1_agreement: Share of images given the same class by both.
        faults: Where it is outside the tolerance, sentences.
        warnings: What is worth knowing, sentences.
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


class DisagreementError(RuntimeError):
    """An export answers differently from the Keras model."""


def compare(
    path: str,
    kind: str,
    expected: np.ndarray,
    answers: np.ndarray,
    num_bytes: int,
    tolerance: Tolerance | None = None,
    must_agree: bool = True,
) -> Agreement:
    """Return how far `answers` are from `expected`.

    Args:
        path: Where the export will stand, for the report.
        kind: What was written.
        expected: What the Keras model answers, (B, ...).
        answers: What the export answers, (B, ...).
        num_bytes: Size of the export.
        tolerance: How far they may be apart; None for that of `kind`.
        must_agree: Whether to raise an error if they are further apart;
            otherwise the faults are in the result.

    Raises:
        DisagreementError: If the answers are further apart than allowed, or
            are not numbers.
    """
    if expected.shape != answers.shape:
        raise DisagreementError(
            f"The export ({kind}) answers in the shape {answers.shape}, the "
            f"Keras model in {expected.shape}. Nothing was written to {path}."
        )
    expected, answers = (
        np.asarray(x, "float64").reshape(len(x), -1)
        for x in (expected, answers)
    )
    with np.errstate(invalid="ignore"):  # Infinities are found out below.
        differences = np.max(np.abs(expected - answers), axis=1)
        sizes = np.maximum(1, np.max(np.abs(expected), axis=1))
        relative_differences = differences / sizes
        norms = np.linalg.norm([expected, answers], axis=2).prod(axis=0)
        # Two answers of zeros, as a new head gives, point the same way.
        cosines = np.divide(
            np.sum(expected * answers, axis=1),
            norms,
            out=np.ones(len(norms)),
            where=norms != 0,
        )
    is_same = np.argmax(expected, axis=1) == np.argmax(answers, axis=1)
    agreement = Agreement(
        path=path,
        kind=kind,
        num_bytes=num_bytes,
        num_images=len(expected),
        max_difference=float(np.max(differences)),
        relative_difference=float(np.max(relative_differences)),
        cosine=float(np.mean(cosines)),
        top1_agreement=float(np.mean(is_same)),
    )
    faults = find_infinite(expected, answers)
    warnings = ()
    if not faults:
        faults, warnings = judge(
            agreement, tolerance or TOLERANCES[kind], cosines[~is_same]
        )
    agreement = dataclasses.replace(
        agreement, faults=tuple(faults), warnings=tuple(warnings)
    )
    if must_agree:
        refuse_faults(agreement)
    return agreement


def refuse_faults(agreement: Agreement):
    """Raise a DisagreementError if there are faults."""
    if agreement.faults:
        raise DisagreementError(
            f"The export ({agreement.kind}) answers differently from the "
            f"Keras model: {'; '.join(agreement.faults)}. Nothing was written "
            f"to {agreement.path}."
        )


def find_infinite(expected: np.ndarray, answers: np.ndarray) -> list[str]:
    """Return who answers with what is no number, in sentences."""
    return [
        f"{who} answers {count} of {len(x)} images with NaN or infinity"
        for who, x in (("the Keras model", expected), ("the export", answers))
        if (count := np.sum(~np.isfinite(x).all(axis=1)))
    ]


def judge(
    agreement: Agreement, tolerance: Tolerance, cosines: np.ndarray
) -> tuple[list[str], list[str]]:
    """Return what is outside the tolerance, and what is worth a warning.

    Args:
        agreement: The figures.
        tolerance: Their bounds.
        cosines: Of the images that are given another class.
    """
    faults, warnings = [], []
    if agreement.relative_difference > tolerance.relative_difference:
        faults.append(
            f"the largest difference is {agreement.max_difference:.1e}, "
            f"{agreement.relative_difference:.1e} of the largest answer to "
            "the image or of 1, allowed is "
            f"{tolerance.relative_difference:.0e}"
        )
    if agreement.cosine < tolerance.cosine:
        faults.append(
            f"the cosine is {agreement.cosine:.6f}, at least "
            f"{tolerance.cosine} is asked"
        )
    share = agreement.top1_agreement
    agrees = (
        f"{share:.2%} of the images, {agreement.num_images - len(cosines)} of "
        f"{agreement.num_images}, are given the same class"
    )
    if share < tolerance.top1_agreement:
        if len(cosines) == 1 and 0 < tolerance.cosine <= cosines[0]:
            warnings.append(
                f"{agrees}; the other one is nearly a tie, of the cosine "
                f"{cosines[0]:.6f}"
            )
        else:
            faults.append(
                f"{agrees}, at least {tolerance.top1_agreement:.0%} asked"
            )
    elif share < tolerance.expected_top1_agreement:
        warnings.append(
            f"{agrees}, fewer than {tolerance.expected_top1_agreement:.0%}"
        )
    return faults, warnings


def size_on_disk(path: str) -> int:
    """Return the bytes of a file, or of all files of a folder."""
    if os.path.isfile(path):
        return os.path.getsize(path)
    return sum(
        os.path.getsize(os.path.join(folder, name))
        for folder, _, names in os.walk(path)
        for name in names
    )


TOLERANCES = {
    # Of float32 and other orders of summation, in Keras as well: 1e-6 for
    # models from Ti/16 to B/16, 3e-6 where attention is sharper.
    "saved_model": Tolerance(relative_difference=1e-5),
    "saved_model in 16 bits": Tolerance(cosine=0.9999),
    "tflite float32": Tolerance(relative_difference=1e-5),
    "tflite float16": Tolerance(cosine=0.9999),
    "tflite dynamic_int8": Tolerance(cosine=0.999, top1_agreement=0.99),
    "tflite int8": Tolerance(expected_top1_agreement=0.95),
    "tflite static_int8": Tolerance(expected_top1_agreement=0.95),
    "onnx": Tolerance(relative_difference=1e-5),
    "openvino": Tolerance(relative_difference=1e-5),
}
