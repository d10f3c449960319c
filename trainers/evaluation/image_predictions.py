"""What an evaluation tells of single images: a table and the telling ones."""

import csv
import dataclasses
import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np

from keras_vit.analysis.rollout import attention_rollout, head_grid
from keras_vit.known import KnownScore
from keras_vit.models import VisionTransformer
from keras_vit.preprocessing.description import (
    Normalization,
    as_colours,
    to_fractions,
)
from trainers.evaluation.predictions import to_probabilities
from trainers.evaluation.scores import nearest_classes
from trainers.paths import Path, read_written, write_csv_file
from trainers.training.pictures import plot_predictions

PREDICTIONS_NAME = "image_predictions.csv"
PREDICTION_COLUMNS = (
    "position",
    "image",
    "true class",
    "prediction",
    "probability",
)
# An older table may lack the names.
COLUMNS_READ = tuple(name for name in PREDICTION_COLUMNS if name != "image")


class ImagePrediction(NamedTuple):
    """The prediction for an image.

    Args:
        truth: Its class; of several, the most probable one.
        prediction: The predicted class.
        probability: Of the predicted class.
        name: The file of the image, or its place in a file of records; empty
            if it is not known.
    """

    truth: int
    prediction: int
    probability: float
    name: str = ""

    @property
    def is_right(self) -> bool:
        """Return whether the predicted class is right."""
        return self.truth == self.prediction


class OtherModel(NamedTuple):
    """An evaluation of another model on the same images, to compare with.

    Args:
        report: Its report, see `evaluate`.
        predictions: Its predictions by the position of the image: an
            ImagePrediction, a LabelPrediction of several labels, or of maps a
            NamedImage.
    """

    report: Mapping
    predictions: Mapping[int, NamedTuple]


class NamedImage(NamedTuple):
    """An image of an evaluation of maps."""

    name: str


def check_same_images(
    other: OtherModel | None,
    predictions: Mapping[int, NamedTuple],
    has_one_class: bool = True,
):
    """Raise a ValueError if another evaluation is of other images or labels.

    Args:
        other: The other evaluation, if there is one.
        predictions: The predictions of this one, by position.
        has_one_class: Whether an image has one right class; of several, the
            truth of a prediction is the one that its model finds.
    """
    others = other.predictions if other else {}
    if others and others.keys() != predictions.keys():
        raise ValueError(
            "`compare` must be an evaluation of the same images; evaluate that "
            f"model again. Received: one of {len(others)} images, and "
            f"{len(predictions)} now"
        )
    for position, row in others.items():
        name = predictions[position].name
        if row.name and name and row.name != name:
            raise ValueError(
                "`compare` must be an evaluation of the same images; evaluate "
                f"that model again. Received: one with {row.name!r} where "
                f"{name!r} is now"
            )
        labels = "truth" if has_one_class else "labels"
        then, now = (
            getattr(x, labels, None) for x in (row, predictions[position])
        )
        if then is not None and not np.array_equal(
            np.asarray(then, float), np.asarray(now, float), equal_nan=True
        ):
            raise ValueError(
                "`compare` must be an evaluation with the same labels; "
                f"evaluate that model again. Received: one in which {name!r} "
                "has others"
            )


def write_confusion(
    path: Path, counts: np.ndarray | None, class_names: Sequence[str]
):
    """Write a confusion matrix as a CSV table.

    Shapes:
        counts: (C, C), integers.

    Args:
        path: The file.
        counts: Number of images of each class, down, and prediction, across;
            None writes nothing.
        class_names: Names of the C classes.
    """
    if counts is not None:
        rows = ([name, *row] for name, row in zip(class_names, counts))
        write_csv_file(path, [["true class", *class_names], *rows])


def write_image_predictions(
    path: Path,
    predictions: Mapping[int, ImagePrediction],
    class_names: Sequence[str],
):
    """Write predictions as a CSV table, in the order of the images.

    Args:
        path: The file.
        predictions: The predictions by the position of the image in its split.
        class_names: Names of the classes.
    """
    rows = [
        (
            position,
            row.name,
            class_names[row.truth],
            class_names[row.prediction],
            f"{row.probability:.6g}",
        )
        for position, row in sorted(predictions.items())
    ]
    write_csv_file(path, [PREDICTION_COLUMNS, *rows])


def read_image_predictions(
    path: Path, class_names: Sequence[str]
) -> dict[int, ImagePrediction]:
    """Return the predictions of a file that `write_image_predictions` wrote.

    Args:
        path: The file.
        class_names: Names of the classes.

    Raises:
        ContentError: If it is not such a file, or has other classes.
    """
    indices = {name: index for index, name in enumerate(class_names)}

    def parse_row(row):
        return ImagePrediction(
            indices[row["true class"]],
            indices[row["prediction"]],
            float(row["probability"]),
            row.get("image") or "",
        )

    return read_predictions(path, COLUMNS_READ, parse_row)


def read_predictions(
    path: Path, columns: Sequence[str], parse_row: Callable[[Mapping], Any]
) -> dict:
    """Return the rows of a table of predictions, by position.

    Args:
        path: The file.
        columns: What it must have.
        parse_row: Takes a row, {column: text}; its errors are those of a file
            of something else.

    Raises:
        ContentError: If it is not such a file, or has other classes.
    """

    def parse(text):
        rows = csv.DictReader(io.StringIO(text))
        if not {"position", *columns} <= {*(rows.fieldnames or ())}:
            raise ValueError("other columns")
        return {int(row["position"]): parse_row(row) for row in rows}

    return read_written(
        path,
        parse,
        "it must be a table of predictions for the same classes: evaluate "
        "that model again",
    )


NUM_PICTURES = 32


def own(array: np.ndarray) -> np.ndarray:
    """Return an array that keeps no larger one in memory."""
    return array if array.base is None else array.copy()


@dataclasses.dataclass(frozen=True)
class Examples:
    """Some images of a data set with their predictions, mistakes first.

    Args:
        rows: (image, logits, truths, whether the prediction is right).
    """

    rows: list[tuple] = dataclasses.field(default_factory=list)

    def add(self, images, logits, truths, hits):
        """Add a batch; keep no more than NUM_PICTURES images.

        Shapes:
            images: (B, H, W, C). logits, truths: (B, C). hits: (B,).
        """
        self.rows.extend(zip(images, logits, truths, hits))
        # Not all images of a large split fit into memory; a view of one would
        # keep its batch.
        self.rows.sort(key=lambda row: row[-1])
        del self.rows[NUM_PICTURES:]
        self.rows[:] = [
            (*map(own, arrays), is_right) for *arrays, is_right in self.rows
        ]

    def draw(
        self,
        class_names: Sequence[str],
        activation: str,
        normalization: Normalization,
        path: Path,
    ):
        """Draw the images with their predicted and their right class.

        Args:
            class_names: Names of the classes, in the order of the logits.
            activation: The function that turns logits into probabilities.
            normalization: Mean and deviation of the images.
            path: The PNG file to write.
        """
        images, rows, truths, _ = zip(*self.rows)
        logits = np.stack(rows)
        labels = nearest_classes(logits, np.stack(truths))
        probabilities = to_probabilities(logits, activation)
        plot_predictions(
            images,
            [class_names[label] for label in labels],
            [class_names[index] for index in np.argmax(logits, -1)],
            np.max(probabilities, -1),
            normalization,
            path,
        )


NUM_SHOWN = 24
NUM_OF_CELL = 6  # Of each kind of mistake.
NUM_CELLS = 60
PICTURE_SIDE = 112  # Pixels of a picture on a page.


class Telling(NamedTuple):
    """An image of an evaluation.

    Args:
        position: Its position in the evaluation split.
        image: (H, W, C), in the range of the model.
        truth: Its class; of several, the most probable one.
        prediction: The predicted class.
        probability: Of the predicted class.
        margin: How much more probable the predicted class is than the next.
        other: The prediction of another model, if there is one.
        score: How well the image fits, of a calibrated model.
    """

    position: int
    image: np.ndarray
    truth: int
    prediction: int
    probability: float
    margin: float
    other: ImagePrediction | None = None
    score: float | None = None


@dataclasses.dataclass
class TellingImages:
    """Collects the telling images of batches.

    Args:
        others: The predictions of another model by position, to compare with.
        known: Tells which images are known, by their scores.

    Attributes:
        mistakes: The most confident wrong predictions, the worst first.
        doubtful: The predictions with the smallest margin, the smallest first.
        cells: Some mistakes for each (class, prediction).
        predictions: The prediction for each image, by its position.
        won, lost: Images that only this model gets right, and only the other;
            the most confident predictions of this one first.
        unknown: Images with the lowest scores, below the threshold.
    """

    others: Mapping[int, ImagePrediction] = dataclasses.field(
        default_factory=dict
    )
    known: KnownScore | None = None
    mistakes: list[Telling] = dataclasses.field(default_factory=list)
    doubtful: list[Telling] = dataclasses.field(default_factory=list)
    cells: dict[tuple[int, int], list[Telling]] = dataclasses.field(
        default_factory=dict
    )
    predictions: dict[int, ImagePrediction] = dataclasses.field(
        default_factory=dict
    )
    won: list[Telling] = dataclasses.field(default_factory=list)
    lost: list[Telling] = dataclasses.field(default_factory=list)
    unknown: list[Telling] = dataclasses.field(default_factory=list)

    def add(
        self,
        positions: np.ndarray,
        images: np.ndarray,
        logits: np.ndarray,
        probabilities: np.ndarray,
        truths: np.ndarray,
        names: Sequence[str],
        scores: np.ndarray | None = None,
    ):
        """Add a batch.

        The logits tell the classes, as in the figures: of float32, several
        probabilities of a sigmoid may be 1.

        Shapes:
            positions: (B,). images: (B, H, W, C). logits, probabilities:
            (B, C). truths: (B, C), True for the right classes. names: B
            strings. scores: (B,), if there is a `known`.
        """
        predictions = np.argmax(logits, -1)
        nearest = nearest_classes(logits, truths)
        order = np.sort(probabilities, -1)
        margins = order[:, -1] - order[:, -2:-1].sum(-1)
        for index, position in enumerate(positions):
            prediction = int(predictions[index])
            row = Telling(
                int(position),
                images[index],
                int(nearest[index]),
                prediction,
                float(probabilities[index, prediction]),
                float(margins[index]),
                self.others.get(int(position)),
                None if scores is None else float(scores[index]),
            )
            self.predictions[row.position] = ImagePrediction(
                row.truth, row.prediction, row.probability, names[index]
            )
            self.doubtful.append(row)
            is_right = bool(truths[index, prediction])
            if not is_right:
                self.mistakes.append(row)
                self._add_to_cell(row)
            if self.known and not self.known.is_known(scores[index]):
                self.unknown.append(row)
            if row.other and row.other.is_right != is_right:
                (self.won if is_right else self.lost).append(row)
        # Not all images of a large split fit into memory.
        self.doubtful.sort(key=lambda row: row.margin)
        del self.doubtful[NUM_SHOWN:]
        self.unknown.sort(key=lambda row: row.score)
        del self.unknown[NUM_SHOWN:]
        for rows in (self.mistakes, self.won, self.lost):
            rows.sort(key=lambda row: -row.probability)
            del rows[NUM_SHOWN:]
        kept = {row.position: own(row.image) for row in self.all}
        for rows in self._lists:
            rows[:] = [row._replace(image=kept[row.position]) for row in rows]

    def _add_to_cell(self, row):
        key = row.truth, row.prediction
        if key not in self.cells and len(self.cells) == NUM_CELLS:
            return
        cell = self.cells.setdefault(key, [])
        if len(cell) < NUM_OF_CELL:
            cell.append(row)

    @property
    def _lists(self):
        """The lists of images that are kept."""
        own_lists = self.mistakes, self.doubtful, self.won, self.lost
        return [*own_lists, self.unknown, *self.cells.values()]

    @property
    def all(self) -> list[Telling]:
        """Each image once, in the order of the split."""
        return each_once(self._lists)


def each_once(lists: Iterable[Iterable]) -> list:
    """Return a row of each position in lists, in the order of these."""
    by_position = {row.position: row for x in lists for row in x}
    return [by_position[position] for position in sorted(by_position)]


class Pictures(NamedTuple):
    """The pictures of an image on a page.

    Args:
        name: Its file, or its place in a file of records.
        image: A PNG of it.
        look: A PNG that shows where the model looked; empty if that is unknown.
    """

    name: str
    image: bytes
    look: bytes = b""


def make_pictures(
    telling: TellingImages,
    model: keras.Model,
    normalization: Normalization,
) -> dict[int, Pictures]:
    """Return the pictures of the telling images by their positions.

    Where the model looked is the attention rollout, for a VisionTransformer
    that keeps all tokens.

    Args:
        telling: The images.
        model: The evaluated model.
        normalization: Mean and deviation of the images.
    """
    rows = telling.all
    if not rows:
        return {}
    images = np.stack([row.image for row in rows])
    looks = [None] * len(rows)
    is_vit = isinstance(model, VisionTransformer)
    if is_vit and not model.config.merged_tokens:
        looks = head_grid(model, images, attention_rollout(model, images))
    found = {}
    for row, image, look in zip(rows, images, looks):
        name = telling.predictions[row.position].name
        pixels = np.clip(to_fractions(image, normalization), 0, 1)
        shown = b"" if look is None else encode(shade(pixels, look))
        found[row.position] = Pictures(name, encode(pixels), shown)
    return found


def shade(pixels: np.ndarray, look: np.ndarray) -> np.ndarray:
    """Return an image that is dark where the model did not look.

    Shapes:
        pixels: (H, W, C), from 0 to 1. look: (h, w). returns: (H, W, C).
    """
    height, width = pixels.shape[:2]
    rows = np.arange(height) * look.shape[0] // height
    columns = np.arange(width) * look.shape[1] // width
    light = (look / max(look.max(), 1e-12))[rows][:, columns, None]
    return pixels * (0.15 + 0.85 * light)


def encode(pixels: np.ndarray) -> bytes:
    """Return a PNG of an image, with a longest side of PICTURE_SIDE pixels.

    Shapes:
        pixels: (H, W, C), from 0 to 1.
    """
    from PIL import Image

    levels = (255 * as_colours(pixels)).round().astype("uint8")
    if levels.shape[-1] == 1:
        levels = levels[..., 0]
    image = Image.fromarray(levels)
    scale = PICTURE_SIDE / max(image.size)
    size = [max(round(side * scale), 1) for side in image.size]
    is_small = scale > 1
    resampling = Image.Resampling
    method = resampling.NEAREST if is_small else resampling.BILINEAR
    stream = io.BytesIO()
    image.resize(size, method).save(stream, "PNG")
    return stream.getvalue()
