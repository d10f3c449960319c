"""The prediction of an evaluation for each image, as a table."""

import csv
import io
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from trainers.paths import Path, read_written, write_csv_file

PREDICTIONS_NAME = "image_predictions.csv"
PREDICTION_COLUMNS = (
    "position",
    "image",
    "true class",
    "prediction",
    "probability",
)
COLUMNS_READ = tuple(name for name in PREDICTION_COLUMNS if name != "image")


class ImagePrediction(NamedTuple):
    """The prediction for an image.

    Args:
        truth: Its class; of several, the most probable one.
        prediction: The predicted class.
        probability: Of the predicted class.
    """

    truth: int
    prediction: int
    probability: float

    @property
    def is_right(self) -> bool:
        """Return whether the predicted class is right."""
        return self.truth == self.prediction


class OtherModel(NamedTuple):
    """An evaluation of another model on the same images, to compare with.

    Args:
        report: Its report, see `evaluate`.
        predictions: Its predictions by the position of the image.
    """

    report: Mapping
    predictions: Mapping[int, ImagePrediction]


def check_same_images(
    other: OtherModel | None, predictions: Mapping[int, ImagePrediction]
):
    """Raise a ValueError if another evaluation is of other images.

    Args:
        other: The other evaluation, if there is one.
        predictions: The predictions of this one, by position.
    """
    others = other.predictions if other else {}
    if others and others.keys() != predictions.keys():
        raise ValueError(
            "`compare` must be an evaluation of the same images; evaluate that "
            f"model again. Received: one of {len(others)} images, and "
            f"{len(predictions)} now"
        )


def write_image_predictions(
    path: Path,
    predictions: Mapping[int, ImagePrediction],
    class_names: Sequence[str],
    image_names: Mapping[int, str],
):
    """Write predictions as a CSV table, in the order of the images.

    Args:
        path: The file.
        predictions: The predictions by the position of the image in its split.
        class_names: Names of the classes.
        image_names: Names of the images by their positions.
    """
    rows = [
        (
            position,
            image_names[position],
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

    def parse(text):
        rows = csv.DictReader(io.StringIO(text))
        if not {*COLUMNS_READ} <= {*(rows.fieldnames or ())}:
            raise ValueError("other columns")
        cells = ([row[name] for name in COLUMNS_READ] for row in rows)
        return {
            int(position): ImagePrediction(
                indices[truth], indices[prediction], float(probability)
            )
            for position, truth, prediction, probability in cells
        }

    return read_written(
        path,
        parse,
        "it must be a table of predictions for the same classes: evaluate "
        "that model again",
    )
