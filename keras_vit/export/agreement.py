"""Compare the outputs of an export with those of the Keras model.

The same images go through both. Image files are read by the server's graph on
one side, and by Pillow and NumPy on the other, so that both cannot be wrong
alike.
"""

import dataclasses
import io
import math
import os
from collections.abc import Callable, Mapping, Sequence

import keras
import numpy as np

from keras_vit.layers.resize import RESIZES, multiply_axes
from keras_vit.preprocessing import read_image
from keras_vit.preprocessing.description import (
    Normalization,
    area_weights,
    cut_size,
    resized_size,
)


@dataclasses.dataclass(frozen=True)
class Tolerance:
    """The allowed differences between an export and the model.

    Args:
        max_difference: Largest absolute difference of an output.
        relative_difference: Largest relative difference of an output; see
            `Agreement`.
        cosine: Smallest mean cosine similarity of the outputs for an image.
        top1_agreement: Smallest share of images with the same top-1 class, or
            of several labels that are decided alike; see `Agreement`. A
            single image with another class is accepted if its classes are
            nearly tied, that is, if its own cosine similarity reaches
            `cosine`. Otherwise, 99 % of fewer than 100 images would mean all
            of them. Of class maps, it is the share of the pixels.
        expected_top1_agreement: A smaller share only gives a warning.
        depth_difference: As `relative_difference`, of depths. They have one
            sign, so that even wrong ones have a cosine similarity near 1.
        mean_iou: Smallest mean IoU of class maps; see `Agreement`.
        expected_mean_iou: A smaller one only gives a warning.
    """

    max_difference: float = math.inf
    relative_difference: float = math.inf
    cosine: float = -1.0
    top1_agreement: float = 0.0
    expected_top1_agreement: float = 0.0
    depth_difference: float = math.inf
    mean_iou: float = 0.0
    expected_mean_iou: float = 0.0


DEPTH_LEVELS = 65535  # Of a grey PNG of 16 bits.
# For float32 with another order of summation: 1e-6 was measured for models
# from Ti/16 to B/16, and 3e-6 for sharper attention.
FLOAT32 = Tolerance(relative_difference=1e-5, mean_iou=0.999)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Agreement:
    """The comparison of the outputs of an export with those of the model.

    Args:
        path: The file or folder of the export; "" of outputs alone.
        kind: The kind of export, such as "saved_model" or "tflite float16".
        num_bytes: Size on disk.
        num_images: Number of images in the comparison.
        max_difference: Largest absolute difference of an output; nan if an
            output is not finite.
        relative_difference: The largest difference divided by the largest
            output for the same image or by 1, whichever is larger. Rounding
            errors of sums grow with the sums.
        cosine: Mean cosine similarity of the outputs for an image.
        top1_agreement: Share of images with the same top-1 class; if an image
            may have several labels, share of the pairs of image and label
            with the same decision at the threshold; of class maps, share of
            the pixels with the same class; nan of depths, which have none.
        mean_iou: Of class maps, the mean of the intersection over union of
            each class, over all pixels of all images and the classes that
            either has; None of other outputs.
        faults: Differences that exceed the tolerance, as sentences.
        warnings: Other remarkable differences, as sentences.
        partitions: Of a TFLite file, the number of parts of its graph that
            XNNPACK computes, LiteRT's delegate for CPUs.
        left_out: The kinds of operations outside of them.
    """

    path: str = ""
    kind: str = ""
    num_bytes: int = 0
    num_images: int
    max_difference: float
    relative_difference: float
    cosine: float
    top1_agreement: float
    mean_iou: float | None = None
    faults: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    partitions: int | None = None
    left_out: tuple[str, ...] = ()


class DisagreementError(RuntimeError):
    """The outputs of an export differ from those of the Keras model."""


def compare(
    expected: np.ndarray,
    outputs: np.ndarray,
    tolerance: Tolerance,
    decide: Callable[[np.ndarray], np.ndarray | None] | None = None,
) -> Agreement:
    """Compare the outputs of a predictor with the expected ones.

    Args:
        expected: Outputs of the Keras model, (B, ...).
        outputs: Outputs of the predictor, (B, ...).
        tolerance: The allowed differences.
        decide: Takes outputs, (B, ...), in float64. Returns whether each image
            has each of several labels, (B, C) truth values; or the class of
            each pixel, (B, H, W) integers; or None for depths, which decide
            nothing. Default: an image has one class, the top-1 class.

    Returns:
        The comparison. Differences that are too large are among its faults.
    """
    expected, outputs = (np.asarray(x, "float64") for x in (expected, outputs))
    decisions = [decide(x) for x in (expected, outputs) if decide is not None]
    expected, outputs = (x.reshape(len(x), -1) for x in (expected, outputs))
    with np.errstate(invalid="ignore"):  # Infinities are found below.
        differences = np.max(np.abs(expected - outputs), axis=1)
        sizes = np.maximum(1, np.max(np.abs(expected), axis=1))
        relative_differences = differences / sizes
        norms = np.linalg.norm([expected, outputs], axis=2).prod(axis=0)
        cosines = np.sum(expected * outputs, axis=1)
        # Two rows of zeros, the outputs of a new head, count as equal.
        cosines = np.divide(
            cosines,
            norms,
            out=np.where(differences == 0, 1.0, 0.0),
            where=norms != 0,
        )
    others, mean_iou = (), None
    if not decisions:
        is_same = np.argmax(expected, axis=1) == np.argmax(outputs, axis=1)
        others = cosines[~is_same]
        what = "of the images, {} of {}, have the same top-1 class"
    elif decisions[0] is None:
        is_same, what = np.array([math.nan]), ""
        limit = min(tolerance.relative_difference, tolerance.depth_difference)
        tolerance = dataclasses.replace(tolerance, relative_difference=limit)
    elif decisions[0].dtype == bool:
        is_same = np.equal(*decisions)  # (B, C)
        others = cosines[~is_same.all(axis=1)]
        what = "of the labels, {} of {}, are the same at their thresholds"
    else:
        is_same, mean_iou = np.equal(*decisions), find_mean_iou(*decisions)
        what = "of the pixels, {} of {}, have the same class"
    agreement = Agreement(
        num_images=len(expected),
        max_difference=float(np.max(differences)),
        relative_difference=float(np.max(relative_differences)),
        cosine=float(np.mean(cosines)),
        top1_agreement=float(np.mean(is_same)),
        mean_iou=mean_iou,
    )
    faults, warnings = [], []
    for source, x in (
        ("the Keras model", expected),
        ("the export", outputs),
    ):
        if count := np.sum(~np.isfinite(x).all(axis=1)):
            faults.append(
                f"{source} gives NaN or infinity for {count} of {len(x)} images"
            )
    if not faults:
        agrees = f"{agreement.top1_agreement:.2%} " + what.format(
            np.sum(is_same), is_same.size
        )
        faults, warnings = _judge(agreement, tolerance, others, agrees)
    return dataclasses.replace(
        agreement, faults=tuple(faults), warnings=tuple(warnings)
    )


def _judge(agreement, tolerance, cosines, agrees):
    """Return faults and warnings; `cosines` are of images of other classes."""
    faults, warnings = [], []
    difference = f"the largest difference is {agreement.max_difference:.1e}"
    if agreement.max_difference > tolerance.max_difference:
        faults.append(
            f"{difference}; allowed is {tolerance.max_difference:.0e}"
        )
    if agreement.relative_difference > tolerance.relative_difference:
        faults.append(
            f"{difference}, or {agreement.relative_difference:.1e} of the "
            "largest output for the image (of 1, if that is larger); allowed "
            f"is {tolerance.relative_difference:.0e}"
        )
    if agreement.cosine < tolerance.cosine:
        faults.append(
            f"the cosine similarity is {agreement.cosine:.6f}; it must be at "
            f"least {tolerance.cosine}"
        )
    overlap = agreement.mean_iou
    if overlap is not None and overlap < max(
        tolerance.mean_iou, tolerance.expected_mean_iou
    ):
        is_fault = overlap < tolerance.mean_iou
        limit = tolerance.mean_iou if is_fault else tolerance.expected_mean_iou
        (faults if is_fault else warnings).append(
            f"the mean IoU of the classes is {overlap:.4f}; it "
            f"{'must' if is_fault else 'should'} be at least {limit}"
        )
    share = agreement.top1_agreement
    if math.isnan(share):
        pass
    elif share >= tolerance.top1_agreement:
        if share < tolerance.expected_top1_agreement:
            warnings.append(
                f"{agrees}, fewer than {tolerance.expected_top1_agreement:.0%}"
            )
    elif len(cosines) == 1 and 0 < tolerance.cosine <= cosines[0]:
        warnings.append(
            f"{agrees}; the other image is nearly a tie, with a cosine "
            f"similarity of {cosines[0]:.6f}"
        )
    else:
        faults.append(f"{agrees}; at least {tolerance.top1_agreement:.0%} must")
    return faults, warnings


def find_mean_iou(expected: np.ndarray, found: np.ndarray) -> float:
    """Return the mean IoU of class maps, over the classes that either has.

    Shapes:
        expected, found: Integers of any equal shape, from 0.

    Example:
        >>> find_mean_iou(np.array([0, 0, 0, 5]), np.array([0, 0, 5, 5]))
        0.5833333333333333
    """
    size = 1 + max(expected.max(), found.max())
    shared, *both = (
        np.bincount(x.ravel(), minlength=size)
        for x in (expected[expected == found], expected, found)
    )
    unions = sum(both) - shared
    return float(np.mean(shared[unions > 0] / unions[unions > 0]))


def compare_outputs(
    expected: Mapping[str, np.ndarray],
    outputs: Mapping[str, np.ndarray],
    tolerance: Tolerance,
    decide: Callable[[np.ndarray], np.ndarray | None] | None = None,
) -> Agreement:
    """Compare all outputs of a predictor with the expected ones.

    `labels`, strings (B, k), are the names of the classes with the k highest
    `probabilities`. `expected` may rank more classes than that. Classes with
    nearly equal probabilities may swap places, and their `thresholds` with
    them. `classes` (B, H, W) are class maps, compared by their pixels alone:
    the difference of two numbers of classes means nothing. `class_names` must
    be equal; `shares` (B, classes) and `png_bytes` (B,) must be those of the
    maps of the same answer.

    Args:
        expected: The expected outputs by name, (B, ...).
        outputs: The outputs of the predictor by name; others are ignored.
        tolerance: The allowed differences of each output.
        decide: See `compare`.

    Returns:
        The largest differences of all outputs, and the classes of the first.
        Each fault begins with the name of its output.
    """
    num_images = len(next(iter(expected.values())))
    report = Agreement(
        num_images=num_images,
        max_difference=0.0,
        relative_difference=0.0,
        cosine=1.0,
        top1_agreement=1.0,
    )
    agreements, faults = {}, []
    for name, want in expected.items():
        found = outputs.get(name)
        if "labels" in expected and found is not None and found.ndim == 2:
            want = want[:, : found.shape[1]]
        if found is None or found.shape != want.shape:
            shape = "none" if found is None else found.shape
            faults.append(f"{name}: expected {want.shape}, got {shape}")
        elif name == "thresholds" and "labels" in expected:
            pass  # They have the places of the labels.
        elif name in ("score", "is_known"):
            pass  # Of an image, not of its classes.
        elif name == "classes":
            agreements[name] = _compare_classes(want, found, tolerance)
        elif name == "class_names":
            if not np.array_equal(want, found):
                faults.append(f"{name}: expected {want[0]}, got {found[0]}")
        elif name == "shares":
            faults += _find_wrong_shares(outputs)
        elif name == "png_bytes":
            faults += _find_wrong_pngs(outputs)
        elif want.dtype.kind not in "OSU" and want.size:
            agreements[name] = compare(want, found, tolerance, decide)
    if agreements:
        report = join(agreements)
        faults += report.faults
    warnings = report.warnings
    if "score" in expected and not faults:
        found, more = _judge_known(expected, outputs, tolerance)
        faults, warnings = [*faults, *found], (*warnings, *more)
    if "labels" in expected and not faults:
        width = max(1e-5, 2 * report.max_difference)
        faults += _find_wrong_labels(expected, outputs, width)
        if "thresholds" in expected and not faults:
            faults += _find_wrong_thresholds(expected, outputs)
    return dataclasses.replace(report, faults=tuple(faults), warnings=warnings)


def _compare_classes(expected, outputs, tolerance):
    """Return the comparison of class maps, of which no difference counts."""
    limits = Tolerance(
        top1_agreement=tolerance.top1_agreement,
        expected_top1_agreement=tolerance.expected_top1_agreement,
        mean_iou=tolerance.mean_iou,
        expected_mean_iou=tolerance.expected_mean_iou,
    )
    return dataclasses.replace(
        compare(expected, outputs, limits, lambda x: x.astype("int64")),
        max_difference=0.0,
        relative_difference=0.0,
        cosine=1.0,
    )


def _find_wrong_shares(outputs):
    """Return a fault unless the shares are those of the class maps."""
    classes, shares = outputs["classes"], outputs["shares"]
    wanted = [(classes == i).mean((1, 2)) for i in range(shares.shape[1])]
    difference = np.abs(np.stack(wanted, axis=1) - shares).max()
    if difference <= 1e-5:
        return []
    return [f"shares: {difference:.1e} away from those of the class map"]


def _find_wrong_pngs(outputs):
    """Return a fault for the first PNG that is not the map beside it."""
    from PIL import Image

    for index, content in enumerate(outputs["png_bytes"]):
        try:
            with Image.open(io.BytesIO(content), formats=("PNG",)) as image:
                levels = np.asarray(image, "float64")
        except (OSError, SyntaxError):
            return [f"png_bytes: number {index} is no PNG file"]
        if "classes" in outputs:
            wanted, least = outputs["classes"][index], 0.0
        else:
            wanted = outputs["depths"][index, ..., 0]
            low, high = outputs["png_range"][index].astype("float64")
            levels = low + levels / DEPTH_LEVELS * (high - low)
            # Half a level, and the rounding of float32.
            least = 0.51 * (high - low) / DEPTH_LEVELS
            least += 1e-6 * np.abs(wanted).max()
        is_wrong = levels.shape != wanted.shape
        if is_wrong or np.abs(levels - wanted).max() > least:
            return [f"png_bytes: number {index} is not the map of the answer"]
    return []


def _judge_known(expected, outputs, tolerance):
    """Return faults and warnings of `score` and `is_known`, (B,) each.

    One threshold must explain which images both know. Where scores are
    approximate, most images must be decided alike, except for those whose
    score is within a tenth of the deviation from the threshold.
    """
    want, score = expected["score"], outputs["score"]
    known, found = expected["is_known"], outputs["is_known"].astype(bool)
    limits = dataclasses.replace(tolerance, cosine=-1.0, top1_agreement=0.0)
    limits = dataclasses.replace(limits, expected_top1_agreement=0.0)
    faults = [f"score: {x}" for x in compare([want], [score], limits).faults]
    least = max(tolerance.top1_agreement, tolerance.expected_top1_agreement)
    band = 0.1 * np.std(want) if least else 0.0
    low, high = _edges(want, known)
    found_low, found_high = _edges(score, found)
    if max(low, found_low) - band >= min(high, found_high):
        faults.append("is_known: another threshold than that of the model")
    is_near = np.minimum(np.abs(want - low), np.abs(want - high)) <= band
    share = np.mean((known == found) | is_near)
    text = f"is_known: {share:.2%} of the images are decided alike"
    if share < tolerance.top1_agreement:
        return [*faults, f"{text}; {tolerance.top1_agreement:.0%} must"], []
    return faults, [text] if share < tolerance.expected_top1_agreement else []


def _edges(scores, known):
    """Return the scores between which a threshold lies."""
    return scores[~known].max(initial=-np.inf), scores[known].min(
        initial=np.inf
    )


def join(agreements: Mapping[str, Agreement]) -> Agreement:
    """Return the first agreement with the differences and faults of all.

    Each fault begins with the name of its agreement.
    """
    parts = [*agreements.values()]
    largest = {  # Python's max may skip nan.
        field: float(np.max([getattr(a, field) for a in parts]))
        for field in ("max_difference", "relative_difference")
    }
    faults, warnings = (
        tuple(
            f"{name}: {text}"
            for name, agreement in agreements.items()
            for text in getattr(agreement, field)
        )
        for field in ("faults", "warnings")
    )
    return dataclasses.replace(
        parts[0], faults=faults, warnings=warnings, **largest
    )


def _find_wrong_labels(expected, outputs, width):
    """Return a fault for the first label that has no right to its place."""
    for labels, numbers, others in zip(
        expected["labels"], expected["probabilities"], outputs["labels"]
    ):
        known = dict(zip(labels, numbers))
        for label, number, other in zip(labels, numbers, others):
            # Several classes may have one name.
            difference = abs(known.get(other, numbers[-1]) - number)
            if other != label and difference > width:
                return [f"labels: expected {label}, got {other}"]
    return []


def _find_wrong_thresholds(expected, outputs):
    """Return a fault for the first label with a threshold of another one."""
    for labels, numbers, others, found in zip(
        expected["labels"],
        expected["thresholds"],
        outputs["labels"],
        outputs["thresholds"],
    ):
        for label, number in zip(others, found):
            # Several classes may have one name.
            known = numbers[labels == label]
            if known.size and np.abs(known - number).min() > 1e-6:
                return [
                    f"thresholds: expected {known[0]:.6g} for {label}, got "
                    f"{number:.6g}"
                ]
    return []


def find_wrong_scale(images: np.ndarray, fractions: np.ndarray) -> list[str]:
    """Return a fault if images are not scaled as a server would scale them.

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


def read_for_model(
    content: bytes,
    channels: int,
    steps: Sequence[Mapping],
    normalization: Normalization,
    pixel_range: tuple[float, float] | None = None,
) -> np.ndarray:
    """Return the image in a file as a model reads it, without TensorFlow.

    Pillow decodes the file, and NumPy resizes it: each axis is a product with
    the parts that old pixels have in the new ones.

    Shapes:
        returns: (H, W, C), float32.

    Raises:
        ValueError: If the file is not an image.
    """
    file = io.BytesIO(content)
    image = read_image(file, channels, pixel_range=pixel_range)
    image = image.astype("float64")
    for step in steps:
        height, width = cut_size(step, image.shape[:2])
        top, left = (np.array(image.shape[:2]) - (height, width)) // 2
        image = image[top : top + height, left : left + width]
        if step["kind"] != "central_crop":
            rows, columns = resized_size(step, (height, width))
            method = step.get("method", "area")
            image = multiply_axes(
                _parts(height, rows, method),
                image,
                _parts(width, columns, method),
            ).clip(0, 255)  # A cubic kernel overshoots.
    mean, deviation = map(np.asarray, normalization)
    return ((image / 255 - mean) / deviation).astype("float32")


def _parts(size, new_size, method):
    """Return the part of each old pixel in each new one, (new, old)."""
    if method == "area":
        return area_weights(size, new_size)
    return RESIZES[RULES[method]](new_size, size)


# The methods of steps -> keys of RESIZES.
RULES = {
    "bilinear": "bilinear",
    "antialias": "bilinear_antialias",
    "bicubic": "bicubic_antialias",
}


BATCH_SIZE = 32


def expected_outputs(model: keras.Model, images: np.ndarray) -> np.ndarray:
    """Return the predictions of the Keras model, in float32."""
    outputs = model.predict(images, batch_size=BATCH_SIZE, verbose=0)
    return np.asarray(outputs, "float32")


def make_noise(shape: tuple[int, ...], dtype) -> np.ndarray:
    """Return uniform noise: floats in [-1, 1], or integers of their range."""
    random = np.random.default_rng(0)
    dtype = np.dtype(dtype)
    if dtype.kind == "f":
        return random.uniform(-1, 1, shape).astype(dtype)
    bounds = np.iinfo(dtype)
    return random.integers(bounds.min, bounds.max, shape, dtype, endpoint=True)


def size_on_disk(path: str | os.PathLike) -> int:
    """Return the size in bytes of a file, or of all files in a folder."""
    if os.path.isfile(path):
        return os.path.getsize(path)
    return sum(
        os.path.getsize(os.path.join(folder, name))
        for folder, _, names in os.walk(path)
        for name in names
    )
