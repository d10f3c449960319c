"""Moved digits: the images of the studies of data and compute."""

import dataclasses

import numpy as np
import tensorflow_datasets as tfds

from benchmarks.study import CHOICE, REPORT
from trainers.recipes.recipes import RECIPES

STUDY_SIDE, DIGIT_SIDE = 12, 8
# Images of each split. A handwritten digit is in one split only.
SPLIT_SIZES = {"train": 10_000, "validation": 1_000, "test": 2_000}


class MovedDigits(tfds.core.GeneratorBasedBuilder):
    """The digits of scikit-learn, each somewhere in a larger image.

    There can be more images than handwritten digits. A model must learn that a
    digit is the same in all of the 25 places, unless it is convolutional.
    """

    VERSION = tfds.core.Version("1.0.0")

    def _info(self):
        return tfds.core.DatasetInfo(
            builder=self,
            description="Handwritten digits at random places of an image.",
            features=tfds.features.FeaturesDict(
                {
                    "image": tfds.features.Image(
                        shape=(STUDY_SIDE, STUDY_SIDE, 1)
                    ),
                    "label": tfds.features.ClassLabel(num_classes=10),
                }
            ),
            supervised_keys=("image", "label"),
        )

    def _split_generators(self, dl_manager):
        return {split: self._generate_examples(split) for split in SPLIT_SIZES}

    def _generate_examples(self, split):
        from sklearn.datasets import load_digits

        digits = load_digits()
        own = np.flatnonzero(split_of(digits.target) == split)
        rng = np.random.default_rng(list(SPLIT_SIZES).index(split))
        for key in range(SPLIT_SIZES[split]):
            index = rng.choice(own)
            image = place_digit(digits.images[index], rng)
            yield key, {"image": image, "label": int(digits.target[index])}


def split_of(labels: np.ndarray) -> np.ndarray:
    """Return the split of each handwritten digit.

    Of ten digits of a class, seven are for training, one is for validation
    and two are for testing.

    Shapes:
        labels: (N,). returns: (N,), strings.
    """
    names = np.array([*7 * ["train"], "validation", *2 * ["test"]])
    places = np.empty(len(labels), int)
    for label in np.unique(labels):
        own = np.flatnonzero(labels == label)
        places[own] = np.arange(len(own))
    return names[places % len(names)]


def place_digit(digit: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return an image with the digit at a random place.

    Shapes:
        digit: (8, 8), 0 to 16. returns: (12, 12, 1), uint8.
    """
    y, x = rng.integers(STUDY_SIDE - DIGIT_SIDE + 1, size=2)
    image = np.zeros((STUDY_SIDE, STUDY_SIDE, 1), "uint8")
    image[y : y + DIGIT_SIDE, x : x + DIGIT_SIDE, 0] = np.round(
        digit * (255 / 16)
    )
    return image


# TFDS knows the builder by its name as soon as this module is imported.
RECIPE = dataclasses.replace(
    RECIPES["digits"],
    dataset=MovedDigits.name,
    image_size=STUDY_SIDE,
    augment="",
    label_smoothing=0.0,
    batch_size=32,
)
PICTURE_SPLITS = {
    CHOICE: {"eval_split": "validation"},
    REPORT: {"eval_split": "test"},
}
