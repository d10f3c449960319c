"""Labels that are probably wrong, by a probe and neighbours that disagree."""

import csv
import html
import io
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from trainers.evaluation.embeddings import Embeddings
from trainers.evaluation.probing import TEMPERATURE, normalize
from trainers.evaluation.similarity import SIMILAR_STYLE
from trainers.pages import make_figure, make_table, write_html
from trainers.paths import Path, write_atomically

NUM_FOLDS = 5
PENALTY = 32.0  # Of the probe, whose features have a deviation of 1.
# How sharply scores become probabilities: the best of these is taken.
SCALES = 2.0 ** np.arange(-2, 7, 0.5)
CHUNK_ROWS = 2048
MOST_SHOWN = 200  # Pictures on the page.
MOST_PAIRS = 30


class LabelCheck(NamedTuple):
    """What the labels of images look like to the others.

    Shapes:
        All are (N,).

    Args:
        classes: The class of each image, -1 if it has no label.
        suggested: The most probable class.
        margins: By how much the label is more probable than any other class,
            from -1 to 1; the lowest are the most suspicious.
        are_wrong: Whether the label is probably wrong, by confident learning.
    """

    classes: np.ndarray
    suggested: np.ndarray
    margins: np.ndarray
    are_wrong: np.ndarray

    @property
    def are_suspects(self) -> np.ndarray:
        """Whether another class is more probable, or the label is wrong."""
        return self.are_wrong | (self.suggested != self.classes)

    @property
    def order(self) -> np.ndarray:
        """The rows, the most suspicious first."""
        return np.argsort(self.margins, kind="stable")


def check_labels(
    vectors: np.ndarray,
    classes: np.ndarray,
    num_classes: int,
    neighbors: int = 10,
) -> LabelCheck:
    """Return which labels are probably wrong.

    The probabilities of the classes are the mean of those of a linear probe,
    fitted to four fifths of the images and applied to the others, and of the
    votes of the nearest images. Images whose class has no other image are not
    judged.

    Shapes:
        vectors: (N, D), float32. classes: (N,), -1 for no label.

    Args:
        vectors: The vectors of the images.
        classes: Their classes.
        num_classes: Number of classes.
        neighbors: Number of neighbours that vote; 0 for the probe alone,
            which needs no time that grows with the square of N.

    Reference: Northcutt et al. 2021, arXiv:1911.00068.
    """
    judged = np.flatnonzero(classes >= 0)
    counts = np.bincount(classes[judged], minlength=num_classes)
    judged = judged[counts[classes[judged]] > 1]
    if not len(judged):
        raise ValueError(
            "`embeddings` must have two images or more of a class. Received: "
            f"{len(classes):,} images without"
        )
    x, own = vectors[judged], classes[judged]
    probabilities = probe_out_of_fold(x, own, num_classes)
    if neighbors:
        votes = vote_of_neighbors(x, own, num_classes, neighbors)
        probabilities = (probabilities + votes) / 2
    suggested, are_wrong = classes.copy(), np.zeros(len(classes), bool)
    suggested[judged] = probabilities.argmax(1)
    are_wrong[judged] = find_wrong(probabilities, own)
    rows = np.arange(len(own))
    of_label = probabilities[rows, own]
    probabilities[rows, own] = 0
    margins = np.ones(len(classes), "float32")
    margins[judged] = of_label - probabilities.max(1)
    return LabelCheck(classes, suggested, margins, are_wrong)


def probe_out_of_fold(
    vectors: np.ndarray, classes: np.ndarray, num_classes: int
) -> np.ndarray:
    """Return the probabilities of a probe for images that it has not seen.

    It is a ridge regression to +1 for the class and -1 for the others, whose
    scores a softmax turns into probabilities.

    Shapes:
        vectors: (N, D). classes: (N,). returns: (N, C), float32.
    """
    folds = np.random.default_rng(0).permutation(len(vectors)) % NUM_FOLDS
    mean, deviation = vectors.mean(0), vectors.std(0) + 1e-5

    def prepare(rows):
        scaled = (vectors[rows].astype("float64") - mean) / deviation
        return np.pad(scaled, ((0, 0), (0, 1)), constant_values=1.0)

    size = vectors.shape[1] + 1
    squares = np.zeros((NUM_FOLDS, size, size))
    products = np.zeros((NUM_FOLDS, size, num_classes))
    parts = [np.flatnonzero(folds == fold) for fold in range(NUM_FOLDS)]
    chunks = [
        np.split(part, range(CHUNK_ROWS, len(part), CHUNK_ROWS))
        for part in parts
    ]
    for fold, pieces in enumerate(chunks):
        for rows in pieces:
            x = prepare(rows)
            targets = 2.0 * np.eye(num_classes)[classes[rows]] - 1.0
            squares[fold] += x.T @ x
            products[fold] += x.T @ targets
    scores = np.empty((len(vectors), num_classes), "float32")
    penalty = PENALTY * np.eye(size)
    for fold, pieces in enumerate(chunks):
        weights = np.linalg.solve(
            squares.sum(0) - squares[fold] + penalty,
            products.sum(0) - products[fold],
        )
        for rows in pieces:
            scores[rows] = prepare(rows) @ weights
    scores -= scores.max(1, keepdims=True)
    own = scores[np.arange(len(scores)), classes]
    losses = [
        np.mean(np.log(np.exp(scale * scores).sum(1)) - scale * own)
        for scale in SCALES
    ]
    scores = np.exp(SCALES[np.argmin(losses)] * scores)
    return (scores / scores.sum(1, keepdims=True)).astype("float32")


def vote_of_neighbors(
    vectors: np.ndarray, classes: np.ndarray, num_classes: int, neighbors: int
) -> np.ndarray:
    """Return the weighted shares of the classes among the nearest others.

    The weights are those of `probing.knn`.

    Shapes:
        vectors: (N, D). classes: (N,). returns: (N, C), float32.
    """
    vectors = normalize(vectors)
    count = min(neighbors, len(vectors) - 1)
    votes = np.zeros((len(vectors), num_classes), "float32")
    for start in range(0, len(vectors), CHUNK_ROWS):
        cosines = vectors[start : start + CHUNK_ROWS] @ vectors.T
        rows = np.arange(len(cosines))
        cosines[rows, start + rows] = -np.inf
        nearest = np.argpartition(cosines, -count, axis=1)[:, -count:]
        found = np.take_along_axis(cosines, nearest, 1)
        weights = np.exp((found - found.max(1, keepdims=True)) / TEMPERATURE)
        weights /= weights.sum(1, keepdims=True)
        places = (start + rows[:, None], classes[nearest])
        np.add.at(votes, places, weights)
    return votes


def find_wrong(probabilities: np.ndarray, classes: np.ndarray) -> np.ndarray:
    """Return whose labels are probably wrong, by confident learning.

    An image is confidently of a class that is at least as probable as it is,
    on average, for the images labelled with it. If that is, of several the
    most probable, another class than the label, the label is wrong.

    Shapes:
        probabilities: (N, C). classes: (N,). returns: (N,).

    Reference: Northcutt et al. 2021, arXiv:1911.00068, section 3.1.
    """
    num_classes = probabilities.shape[1]
    counts = np.bincount(classes, minlength=num_classes)
    own = probabilities[np.arange(len(classes)), classes]
    sums = np.bincount(classes, own, minlength=num_classes)
    # No image is confidently of a class that none is labelled with.
    thresholds = np.where(counts > 0, sums / np.maximum(counts, 1), np.inf)
    confident = np.where(probabilities >= thresholds, probabilities, -1)
    return (confident.max(1) >= 0) & (confident.argmax(1) != classes)


def read_classes(embeddings: Embeddings) -> tuple[np.ndarray, list[str]]:
    """Return the class of each image, -1 for none, and the names of classes.

    Raises:
        ValueError: If images may have several labels, or none has a label.
    """
    names = list(embeddings.description["class_names"])
    labels = embeddings.labels
    if embeddings.description["has_several_labels"] or not names:
        has = "several labels" if names else "no labels"
        raise ValueError(
            "`embeddings` must be of images with one class each. "
            f"Received: embeddings={str(embeddings.folder)!r} with {has}"
        )
    numbers = {name: number for number, name in enumerate(names)}
    numbers[None] = -1
    return np.array([numbers[label] for label in labels], int), names


COLUMNS = ("path", "label", "split", "suggested", "margin", "wrong")
VERDICTS = ("no", "perhaps", "probably")


def write_label_table(path: Path, embeddings: Embeddings, found: LabelCheck):
    """Write a table of all images, the most suspicious first.

    `csv:PATH` reads it as a data set when a person has corrected the column
    `label`. Paths of files are relative to it. The byte-order mark tells Excel
    that this is UTF-8.
    """
    names = embeddings.description["class_names"]
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    has_splits = any(embeddings.splits)
    keep = [name for name in COLUMNS if name != "split" or has_splits]
    table.writerow(keep)
    folder = os.path.abspath(path.parent)
    for row in found.order.tolist():
        file = embeddings.file_of(row)
        cells = {
            "path": os.path.relpath(file, folder)
            if os.path.isfile(file)
            else embeddings.paths[row],
            "label": embeddings.labels[row],
            "split": embeddings.splits[row],
            "suggested": names[found.suggested[row]]
            if found.are_suspects[row]
            else "",
            "margin": f"{found.margins[row]:.4f}",
            "wrong": VERDICTS[
                int(found.are_wrong[row]) + int(found.are_suspects[row])
            ],
        }
        if found.classes[row] >= 0:
            table.writerow([cells[name] for name in keep])
    write_atomically(path, "\ufeff" + text.getvalue())


def write_label_page(
    path: Path,
    embeddings: Embeddings,
    found: LabelCheck,
    rows: Sequence[int],
    pictures: Mapping[int, bytes],
):
    """Write a page with the suspicious labels.

    Args:
        path: The HTML file.
        embeddings: The images.
        found: What was found of their labels.
        rows: The images to show, the most suspicious first.
        pictures: JPEGs of them.
    """
    names = embeddings.description["class_names"]
    suspects = np.flatnonzero(found.are_suspects)
    pairs = Counter(
        (names[found.classes[row]], names[found.suggested[row]])
        for row in suspects
    )
    figures = [
        make_figure(
            {embeddings.paths[row]: pictures.get(row)},
            embeddings.paths[row],
            [
                os.path.basename(embeddings.paths[row]),
                f"{names[found.classes[row]]} \N{RIGHTWARDS ARROW} "
                f"{names[found.suggested[row]]}? {found.margins[row]:.2f}",
            ],
        )
        for row in rows
    ]
    more = len(suspects) - len(rows)
    parts = [
        f"<p>{html.escape(describe(found))} Below each picture: its label, "
        "the most probable class, and the margin of the label. A suspicious "
        "label may be right.</p>",
        "<h2>Suspicious labels</h2>",
        f'<div class="row">{"".join(figures)}</div>'
        if figures
        else "<p>There are none.</p>",
        f"<p>and {more:,} more in the table</p>" if more > 0 else "",
        "<h2>Classes that are confused</h2>" if pairs else "",
        make_table(
            ["label", "more probable", "images"],
            [
                (label, [f"<td>{html.escape(other)}</td>", f"<td>{n:,}</td>"])
                for (label, other), n in pairs.most_common(MOST_PAIRS)
            ],
        )
        if pairs
        else "",
    ]
    write_html(path, "Suspicious labels", parts, SIMILAR_STYLE)


def describe(found: LabelCheck) -> str:
    """Return what was found, in a sentence."""
    labelled = int((found.classes >= 0).sum())
    more = found.are_suspects.sum() - found.are_wrong.sum()
    return (
        f"{found.are_wrong.sum():,} of {labelled:,} labels are probably wrong; "
        f"of {more:,} more, another class is more probable."
    )
