"""What an evaluation of several labels tells of single images."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from keras_vit.preprocessing.description import Normalization
from trainers.evaluation.image_predictions import (
    NUM_SHOWN,
    Examples,
    each_once,
    own,
    read_predictions,
)
from trainers.evaluation.label_scores import find_mistakes, sigmoid
from trainers.paths import Path, write_csv_file
from trainers.training.pictures import plot_texts, shorten

MOST_LINES = 4  # Labels below a picture.


class LabelPrediction(NamedTuple):
    """The labels of an image, and those that a model gives it.

    Shapes:
        labels, probabilities, decisions: (C,).

    Args:
        labels: 1, 0 or NaN where unknown.
        probabilities: Of each label.
        decisions: Whether the image is given the label.
        name: See `ImagePrediction`.
    """

    labels: np.ndarray
    probabilities: np.ndarray
    decisions: np.ndarray
    name: str = ""

    @property
    def is_right(self) -> bool:
        """Whether all known labels are right."""
        alarms, missed = find_mistakes(self.decisions, self.labels)
        return not (alarms | missed).any()


def write_label_predictions(
    path: Path,
    predictions: Mapping[int, LabelPrediction],
    class_names: Sequence[str],
):
    """Write labels and probabilities as a CSV table, a line an image.

    The columns are position and image, `label/CLASS` for each class, which is
    empty where it is unknown, and `probability/CLASS` for each class.

    Args:
        path: The file.
        predictions: The predictions by the position of the image in its split.
        class_names: Names of the classes.
    """
    rows = [
        (
            *(position, row.name),
            *("" if np.isnan(x) else int(x) for x in row.labels),
            *(f"{x:.6g}" for x in row.probabilities),
        )
        for position, row in sorted(predictions.items())
    ]
    write_csv_file(path, [["position", "image", *_columns(class_names)], *rows])


def _columns(class_names):
    return [
        f"{kind}/{name}"
        for kind in ("label", "probability")
        for name in class_names
    ]


def read_label_predictions(
    path: Path, class_names: Sequence[str], thresholds: Sequence[float]
) -> dict[int, LabelPrediction]:
    """Return what `write_label_predictions` wrote.

    Args:
        path: The file.
        class_names: Names of the classes.
        thresholds: Those of the model.

    Raises:
        ContentError: If it is not such a file, or has other classes.
    """
    columns = _columns(class_names)

    def parse_row(row):
        numbers = [float(row[name] or "nan") for name in columns]
        labels, probabilities = np.reshape(numbers, (2, -1))
        decisions = probabilities >= np.asarray(thresholds)
        name = row.get("image") or ""
        return LabelPrediction(labels, probabilities, decisions, name)

    return read_predictions(path, columns, parse_row)


@dataclasses.dataclass(frozen=True)
class LabelExamples(Examples):
    """Some images with their labels, mistakes first.

    Args:
        thresholds: Probability of each class from which an image gets it.
    """

    thresholds: Sequence[float] = ()

    def draw(
        self,
        class_names: Sequence[str],
        activation: str,
        normalization: Normalization,
        path: Path,
    ):
        """Draw the images with the labels that they are given, and misses."""
        images, logits, labels, hits = zip(*self.rows)
        probabilities = sigmoid(np.stack(logits))
        decisions = probabilities >= np.asarray(self.thresholds)
        texts = []
        for row, is_given, label in zip(probabilities, decisions, labels):
            kinds = np.select(
                [*find_mistakes(is_given, label), is_given],
                ["not ", "missed ", ""],
                None,
            )
            lines = [
                f"{kinds[index]}{shorten(class_names[index])} {row[index]:.0%}"
                # What is wrong first, then what is most probable.
                for index in np.lexsort([-row, [not kind for kind in kinds]])
                if kinds[index] is not None
            ]
            texts.append("\n".join(lines[:MOST_LINES]) or "no label")
        plot_texts(images, texts, hits, normalization, path)


class LabelCase(NamedTuple):
    """A label of an image of an evaluation.

    Args:
        position: Its position in the evaluation split.
        image: (H, W, C), in the range of the model.
        label: The index of the label; None for all of the image.
        probability: Of the label.
        rank: Cases of a list ascend by it.
    """

    position: int
    image: np.ndarray
    label: int | None = None
    probability: float = 0.0
    rank: float = 0.0


@dataclasses.dataclass
class TellingLabels:
    """Collects the telling images of batches, as `TellingImages`.

    Args:
        thresholds: Probability of each class from which an image gets it.
        others: The predictions of another model by position, to compare with.

    Attributes:
        alarms: Labels that images are given but do not have, the most probable
            first.
        missed: Labels that images have but are not given, the least probable
            first.
        doubtful: The labels whose logits are nearest to their threshold.
        predictions: The prediction for each image, by its position.
        won, lost: The first images whose labels are all right only with this
            model, and only with the other one.
    """

    thresholds: Sequence[float]
    others: Mapping[int, LabelPrediction] = dataclasses.field(
        default_factory=dict
    )

    def __post_init__(self):
        self.predictions: dict[int, LabelPrediction] = {}
        self._lists: list[list[LabelCase]] = [[] for _ in range(5)]

    alarms = property(lambda self: self._lists[0])
    missed = property(lambda self: self._lists[1])
    doubtful = property(lambda self: self._lists[2])
    won = property(lambda self: self._lists[3])
    lost = property(lambda self: self._lists[4])

    def add(self, positions, images, logits, probabilities, labels, names):
        """Add a batch; the logits tell the probabilities, as in the figures.

        Shapes:
            positions: (B,). images: (B, H, W, C). logits, probabilities:
            (B, C). labels: (B, C), 1, 0 or NaN. names: B strings.
        """
        probabilities = sigmoid(logits)
        thresholds = np.asarray(self.thresholds, "float64")
        decisions = probabilities >= thresholds
        with np.errstate(divide="ignore"):
            borders = np.log(thresholds) - np.log1p(-thresholds)
        alarms, missed = find_mistakes(decisions, labels)
        rankings = (
            (alarms, -probabilities),
            (missed, probabilities),
            (~np.isnan(labels), np.abs(logits - borders)),
        )
        for cases, (is_one, ranks) in zip(self._lists, rankings):
            ranks = np.where(is_one, ranks, np.inf)
            best = np.argsort(ranks, axis=None, kind="stable")[:NUM_SHOWN]
            for row, label in zip(*np.unravel_index(best, ranks.shape)):
                if is_one[row, label]:
                    case = LabelCase(
                        *(int(positions[row]), images[row], int(label)),
                        float(probabilities[row, label]),
                        float(ranks[row, label]),
                    )
                    cases.append(case)
        for row, position in enumerate(map(int, positions)):
            prediction = LabelPrediction(
                labels[row].copy(),
                probabilities[row].astype("float32"),
                decisions[row].copy(),
                names[row],
            )
            self.predictions[position] = prediction
            other = self.others.get(position)
            if other and other.is_right != prediction.is_right:
                cases = self.won if prediction.is_right else self.lost
                cases.append(LabelCase(position, images[row]))
        for cases in self._lists:
            cases.sort(key=lambda case: case.rank)
            del cases[NUM_SHOWN:]
        # Not all images of a large split fit into memory.
        kept = {case.position: own(case.image) for case in self.all}
        for cases in self._lists:
            cases[:] = [x._replace(image=kept[x.position]) for x in cases]

    @property
    def all(self) -> list[LabelCase]:
        """Each image once, in the order of the split."""
        return each_once(self._lists)
