"""The prediction of an evaluation for each image, as a table."""

import csv
import io
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from trainers.paths import Path, read_written, write_csv_file

GUESS_COLUMNS = ("position", "image", "true class", "prediction", "probability")
# Earlier versions wrote no names of images.
COLUMNS_READ = tuple(name for name in GUESS_COLUMNS if name != "image")


class Guess(NamedTuple):
    """The prediction for an image.

    Args:
        truth: Its class; of several, the most probable one.
        guess: The predicted class.
        probability: Of the predicted class.
    """

    truth: int
    guess: int
    probability: float

    @property
    def is_right(self) -> bool:
        """Return whether the predicted class is right."""
        return self.truth == self.guess


class OtherModel(NamedTuple):
    """An evaluation of another model on the same images, to compare with.

    Args:
        report: Its report, see `evaluate`.
        guesses: Its predictions by the position of the image; empty if they
            are not known.
    """

    report: Mapping
    guesses: Mapping[int, Guess]


def check_same_images(other: OtherModel | None, guesses: Mapping[int, Guess]):
    """Raise a ValueError if another evaluation is of other images.

    Args:
        other: The other evaluation, if there is one.
        guesses: The predictions of this one, by position.
    """
    if other and other.guesses and other.guesses.keys() != guesses.keys():
        raise ValueError(
            "`compare` must be an evaluation of the same images; evaluate that "
            f"model again. Received: one of {len(other.guesses)} images, and "
            f"{len(guesses)} now"
        )


def write_guesses(
    path: Path,
    guesses: Mapping[int, Guess],
    class_names: Sequence[str],
    image_names: Mapping[int, str],
):
    """Write predictions as a CSV table, in the order of the images.

    Args:
        path: The file.
        guesses: The predictions by the position of the image in its split.
        class_names: Names of the classes.
        image_names: Names of the images by their positions.
    """
    rows = [
        (
            position,
            image_names[position],
            class_names[truth],
            class_names[guess],
            f"{probability:.6g}",
        )
        for position, (truth, guess, probability) in sorted(guesses.items())
    ]
    write_csv_file(path, [GUESS_COLUMNS, *rows])


def read_guesses(path: Path, class_names: Sequence[str]) -> dict[int, Guess]:
    """Return the predictions of a file that `write_guesses` wrote.

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
            int(position): Guess(
                indices[truth], indices[guess], float(probability)
            )
            for position, truth, guess, probability in cells
        }

    return read_written(
        path,
        parse,
        "it must be a table of predictions for the same classes: evaluate "
        "that model again",
    )
