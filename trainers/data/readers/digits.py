"""Data sets that are made of what scikit-learn ships: no download."""

from collections.abc import Sequence

import numpy as np
import tensorflow_datasets as tfds


class Digits(tfds.core.GeneratorBasedBuilder):
    """The 1,797 handwritten digits that scikit-learn ships.

    The images have 8x8 pixels with 17 grey levels. Every fifth image of each
    class is in the test split, so the split is not random and its classes are
    balanced.
    """

    VERSION = tfds.core.Version("1.0.0")
    CLASSES = range(10)

    def _info(self):
        return tfds.core.DatasetInfo(
            builder=self,
            description="Handwritten digits, shipped with scikit-learn.",
            features=tfds.features.FeaturesDict(
                {
                    "image": tfds.features.Image(shape=(8, 8, 1)),
                    "label": tfds.features.ClassLabel(
                        names=[str(digit) for digit in self.CLASSES]
                    ),
                }
            ),
            supervised_keys=("image", "label"),
            homepage="https://archive.ics.uci.edu/dataset/80",
        )

    def _split_generators(self, dl_manager):
        return {
            "train": self._generate_examples(is_test=False),
            "test": self._generate_examples(is_test=True),
        }

    def _generate_examples(self, is_test):
        from sklearn.datasets import load_digits

        digits = load_digits()
        seen = [0] * 10
        for index, (image, digit) in enumerate(
            zip(digits.images, digits.target)
        ):
            seen[digit] += 1
            if (seen[digit] % 5 == 0) == is_test and digit in self.CLASSES:
                pixels = (image * (255 / 16)).round().astype("uint8")
                yield index, {"image": pixels[..., None], "label": str(digit)}


class Digits0To4(Digits):
    """The digits from 0 to 4, to pre-train on."""

    CLASSES = range(5)


class Digits5To9(Digits):
    """The digits from 5 to 9, to fine-tune on."""

    CLASSES = range(5, 10)


SIDE = 32  # Pixels of a photograph with a digit.
# The share of the digits, and of the width of a photograph, for training.
BORDER = 0.8


class DigitsInPhotos(tfds.core.GeneratorBasedBuilder):
    """Photographs with a handwritten digit, at a distance by its size.

    Each image is a crop of one of the two photographs of scikit-learn, with
    one of its digits painted over it, somewhere, in some colour and size. To
    name the digit, a model must find it first. The mask has the classes of the
    pixels: the background, and the digits. The depth, in metres, is that of
    the digit by its size, as of numbers that are equally large, and behind it
    that of a floor: from 4 m at the bottom to 10 m at the top. Test images
    have other digits, and come from other parts of the photographs, than those
    of the training.
    """

    VERSION = tfds.core.Version("1.0.0")
    COUNTS = {"train": 4096, "test": 512}
    SIZES = range(12, 25)  # Sides of the digits, in pixels.
    METRES = 36.0  # Distance of a digit of one pixel.
    FLOOR = (10.0, 4.0)

    def _info(self):
        digits = [str(digit) for digit in range(10)]
        features = tfds.features
        return tfds.core.DatasetInfo(
            builder=self,
            description="Digits in photographs, shipped with scikit-learn.",
            features=features.FeaturesDict(
                {
                    "image": features.Image(shape=(SIDE, SIDE, 3)),
                    "label": features.ClassLabel(names=digits),
                    "segmentation_mask": features.LabeledImage(
                        labels=["background", *digits],
                        shape=(SIDE, SIDE, 1),
                    ),
                    "depth": features.Tensor(
                        shape=(SIDE, SIDE), dtype=np.float32
                    ),
                }
            ),
            supervised_keys=("image", "label"),
            homepage="https://scikit-learn.org/stable/datasets.html",
        )

    def _split_generators(self, dl_manager):
        return {name: self._generate_examples(name) for name in self.COUNTS}

    def _generate_examples(self, split):
        images, targets, photos = take_part(split)
        rng = np.random.default_rng(["train", "test"].index(split))
        floor = 1 / np.linspace(*(1 / x for x in self.FLOOR), SIDE)
        for index in range(self.COUNTS[split]):
            chosen = rng.integers(len(images))
            digit, size = int(targets[chosen]), int(rng.choice(self.SIZES))
            photo = photos[rng.integers(len(photos))]
            image, opacity = paint(photo, images[chosen], rng, size)
            is_digit = opacity > 0.5
            depth = np.broadcast_to(floor[:, None], (SIDE, SIDE))
            depth = np.where(is_digit, self.METRES / size, depth)
            yield (
                index,
                {
                    "image": image,
                    "label": str(digit),
                    "segmentation_mask": np.where(
                        is_digit, digit + 1, 0
                    ).astype("uint8")[..., None],
                    "depth": depth.astype("float32"),
                },
            )


def take_part(
    split: str,
) -> tuple[np.ndarray, np.ndarray, Sequence[np.ndarray]]:
    """Return digits (N, 8, 8), 0 to 1, their classes (N,), and photographs.

    Args:
        split: "train" or "test", which have nothing in common.
    """
    from sklearn.datasets import load_digits, load_sample_images

    digits, photos = load_digits(), load_sample_images().images
    columns = [int(BORDER * photo.shape[1]) for photo in photos]
    border = int(BORDER * len(digits.images))
    part = slice(border) if split == "train" else slice(border, None)
    photos = [
        photo[:, :c] if split == "train" else photo[:, c:]
        for photo, c in zip(photos, columns)
    ]
    return digits.images[part] / 16, digits.target[part], photos


def paint(
    photo: np.ndarray, digit: np.ndarray, rng: np.random.Generator, size: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return a crop of a photograph with a digit over it, and the paint.

    Shapes:
        photo: (H, W, 3), uint8. digit: (8, 8), 0 to 1.
        returns: (32, 32, 3), uint8, and (32, 32), 0 to 1.

    Args:
        photo: Where the crop is from.
        digit: How thick the paint is.
        rng: Says where, and in which colour.
        size: Side of the digit in pixels.
    """
    from PIL import Image

    y, x = (rng.integers(n - SIDE + 1) for n in photo.shape[:2])
    image = photo[y : y + SIDE, x : x + SIDE].astype("float32")
    mask = Image.fromarray((255 * digit).astype("uint8"))
    mask = mask.resize((size, size), Image.Resampling.BICUBIC)
    mask = np.asarray(mask, "float32")[..., None] / 255
    y, x = rng.integers(SIDE - size + 1, size=2)
    window = image[y : y + size, x : x + size]
    # Far from the brightness of what it covers, or nobody could read it.
    is_dark = window.mean() < 128
    low, high = (160, 255) if is_dark else (0, 95)
    window += mask * (rng.uniform(low, high, 3) - window)
    opacity = np.zeros((SIDE, SIDE), "float32")
    opacity[y : y + size, x : x + size] = mask[..., 0]
    return np.clip(np.round(image), 0, 255).astype("uint8"), opacity
