"""Images that studies make of scikit-learn's digits."""

import pathlib
from typing import NamedTuple

import numpy as np
import tensorflow_datasets as tfds
from PIL import Image
from sklearn.datasets import load_digits, load_sample_image

MOVED_SIDE, DIGIT_SIDE, PAINTED_SIDE = 12, 8, 16
# Images of each split. A handwritten digit is in one split only.
SPLIT_SIZES = {"train": 10_000, "validation": 1_000, "test": 2_000}


# TFDS knows the builder by its name as soon as this module is imported.
class MovedDigits(tfds.core.GeneratorBasedBuilder):
    """The digits of scikit-learn, each somewhere in a larger image.

    There can be more images than handwritten digits. A model must learn that a
    digit is the same in all of the 25 places, unless it is convolutional.
    """

    VERSION = tfds.core.Version("1.0.0")

    def _info(self):
        image = tfds.features.Image(shape=(MOVED_SIDE, MOVED_SIDE, 1))
        label = tfds.features.ClassLabel(num_classes=10)
        return tfds.core.DatasetInfo(
            builder=self,
            description="Handwritten digits at random places of an image.",
            features=tfds.features.FeaturesDict(
                {"image": image, "label": label}
            ),
            supervised_keys=("image", "label"),
        )

    def _split_generators(self, dl_manager):
        return {split: self._generate_examples(split) for split in SPLIT_SIZES}

    def _generate_examples(self, split):
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
    y, x = rng.integers(MOVED_SIDE - DIGIT_SIDE + 1, size=2)
    image = np.zeros((MOVED_SIDE, MOVED_SIDE, 1), "uint8")
    pixels = np.round(digit * (255 / 16))
    image[y : y + DIGIT_SIDE, x : x + DIGIT_SIDE, 0] = pixels
    return image


class ImageSplit(NamedTuple):
    """The images of a split of painted digits.

    From the share `first` to the share `last` of the handwritten digits and
    of the columns of the photograph, `copies` images of each digit.
    """

    first: float
    last: float
    copies: int

    def of(self, length: int) -> slice:
        """Return the indices among `length` that the split uses."""
        return slice(int(self.first * length), int(self.last * length))


def write_painted_digits(
    folder: pathlib.Path,
    classes: range,
    photo: str,
    splits: dict[str, ImageSplit],
    seed: int,
):
    """Write FOLDER/SPLIT/DIGIT/*.png of the digits `classes`.

    `photo` is a name of `sklearn.datasets.load_sample_image`, and `splits` are
    those of "train" and of "test".
    """
    digits, image = load_digits(), load_sample_image(photo)
    rng = np.random.default_rng(seed)
    for name, split in splits.items():
        view = image[:, split.of(image.shape[1])]
        for index in range(len(digits.images))[split.of(len(digits.images))]:
            label = digits.target[index]
            if label not in classes:
                continue
            place = folder / name / str(label)
            place.mkdir(parents=True, exist_ok=True)
            for copy in range(split.copies):
                painted = paint(view, digits.images[index] / 16, rng)
                path = place / f"{index:04d}_{copy}.png"
                Image.fromarray(painted).save(path)


def paint(photo: np.ndarray, digit: np.ndarray, rng) -> np.ndarray:
    """Return a crop of a photograph with a digit painted over it.

    Place, size, rotation and contrast of the digit are random.

    Shapes:
        photo: (H, W, 3), uint8. digit: (8, 8), the opacity of the paint, 0 to
            1. returns: (16, 16, 3).
    """
    y, x = (rng.integers(n - PAINTED_SIDE + 1) for n in photo.shape[:2])
    crop = photo[y : y + PAINTED_SIDE, x : x + PAINTED_SIDE].astype("float32")
    side = int(rng.integers(11, 16))
    mask = Image.fromarray((255 * digit).astype("uint8"))
    mask = mask.resize((side, side), Image.Resampling.BICUBIC)
    mask = mask.rotate(rng.uniform(-15, 15), Image.Resampling.BICUBIC)
    canvas = Image.new("L", (PAINTED_SIDE, PAINTED_SIDE))
    place = tuple(map(int, rng.integers(PAINTED_SIDE - side + 1, size=2)))
    canvas.paste(mask, place)
    opacity = np.asarray(canvas, "float32")[..., None] / 255
    opacity *= rng.uniform(0.7, 1.0)
    bounds = (0, 95) if crop.mean() > 128 else (160, 255)
    crop += opacity * (rng.uniform(*bounds, 3) - crop)
    return np.clip(np.round(crop), 0, 255).astype("uint8")
