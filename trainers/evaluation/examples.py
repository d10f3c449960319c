"""Examples: some images of an evaluation, to draw."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from keras_vit.preprocessing.description import Normalization
from trainers.evaluation.predictions import to_probabilities
from trainers.paths import Path
from trainers.runs.pictures import plot_predictions

NUM_PICTURES = 32


def own(array: np.ndarray) -> np.ndarray:
    """Return an array that keeps no larger one in memory."""
    return array if array.base is None else array.copy()


@dataclasses.dataclass(frozen=True)
class Examples:
    """Some images of a data set with their predictions, mistakes first.

    Args:
        rows: (image, logits, label, whether the prediction is right).
    """

    rows: list[tuple]

    def add(self, images, logits, truths, hits):
        """Add a batch; keep no more than NUM_PICTURES images.

        Shapes:
            images: (B, H, W, C). logits, truths: (B, C). hits: (B,).
        """
        # Of several right classes, the one with the highest logit is shown.
        nearest = np.argmax(np.where(truths, logits, -np.inf), -1)
        self.rows.extend(zip(images, logits, nearest, hits))
        # Not all images of a large split fit into memory; a view of one would
        # keep its batch.
        self.rows.sort(key=lambda row: row[-1])
        del self.rows[NUM_PICTURES:]
        self.rows[:] = [
            (own(image), own(row), *rest) for image, row, *rest in self.rows
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
        images, logits, labels, _ = zip(*self.rows)
        probabilities = to_probabilities(np.stack(logits), activation)
        plot_predictions(
            images,
            [class_names[label] for label in labels],
            [class_names[index] for index in np.argmax(probabilities, -1)],
            np.max(probabilities, -1),
            normalization,
            path,
        )
