"""The telling images of an evaluation: the worst mistakes and the doubtful."""

import dataclasses
import io
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import keras
import numpy as np

from keras_vit.analysis.rollout import attention_rollout, head_grid
from keras_vit.models import VisionTransformer
from keras_vit.preprocessing.description import (
    Normalization,
    to_fractions,
)
from trainers.evaluation.examples import own
from trainers.evaluation.image_predictions import ImagePrediction

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
    """

    position: int
    image: np.ndarray
    truth: int
    prediction: int
    probability: float
    margin: float
    other: ImagePrediction | None = None


@dataclasses.dataclass
class TellingImages:
    """Collects the telling images of batches.

    Args:
        others: The predictions of another model by position, to compare with.

    Attributes:
        mistakes: The most confident wrong predictions, the worst first.
        doubtful: The predictions with the smallest margin, the smallest first.
        cells: Some mistakes for each (class, prediction).
        predictions: The prediction for each image, by its position.
        names: The name of each image, by its position.
        won, lost: Images that only this model gets right, and only the other;
            the most confident predictions of this one first.
    """

    others: Mapping[int, ImagePrediction] = dataclasses.field(
        default_factory=dict
    )
    mistakes: list[Telling] = dataclasses.field(default_factory=list)
    doubtful: list[Telling] = dataclasses.field(default_factory=list)
    cells: dict[tuple[int, int], list[Telling]] = dataclasses.field(
        default_factory=dict
    )
    predictions: dict[int, ImagePrediction] = dataclasses.field(
        default_factory=dict
    )
    names: dict[int, str] = dataclasses.field(default_factory=dict)
    won: list[Telling] = dataclasses.field(default_factory=list)
    lost: list[Telling] = dataclasses.field(default_factory=list)

    def add(
        self,
        positions: np.ndarray,
        images: np.ndarray,
        probabilities: np.ndarray,
        truths: np.ndarray,
        names: Sequence[str],
    ):
        """Add a batch.

        Shapes:
            positions: (B,). images: (B, H, W, C). probabilities: (B, C).
            truths: (B, C), True for the right classes. names: B strings.
        """
        self.names.update(zip(map(int, positions), names))
        nearest = np.argmax(np.where(truths, probabilities, -1), -1)
        order = np.sort(probabilities, -1)
        margins = order[:, -1] - order[:, -2:-1].sum(-1)
        for index, position in enumerate(positions):
            prediction = int(np.argmax(probabilities[index]))
            row = Telling(
                int(position),
                images[index],
                int(nearest[index]),
                prediction,
                float(probabilities[index, prediction]),
                float(margins[index]),
                self.others.get(int(position)),
            )
            self.predictions[row.position] = ImagePrediction(
                row.truth, row.prediction, row.probability
            )
            self.doubtful.append(row)
            is_right = bool(truths[index, prediction])
            if not is_right:
                self.mistakes.append(row)
                self._add_to_cell(row)
            if row.other and row.other.is_right != is_right:
                (self.won if is_right else self.lost).append(row)
        # Not all images of a large split fit into memory.
        self.doubtful.sort(key=lambda row: row.margin)
        del self.doubtful[NUM_SHOWN:]
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
        return [*own_lists, *self.cells.values()]

    @property
    def all(self) -> list[Telling]:
        """Each image once, in the order of the split."""
        by_position = {row.position: row for x in self._lists for row in x}
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
    whose images have one size.

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
    if isinstance(model, VisionTransformer):
        looks = head_grid(model, images, attention_rollout(model, images))
    found = {}
    for row, image, look in zip(rows, images, looks):
        name = telling.names[row.position]
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
        pixels: (H, W, 1 or 3), from 0 to 1.
    """
    from PIL import Image

    levels = (255 * pixels).round().astype("uint8")
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
