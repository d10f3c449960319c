"""Folders of digits in photographs, for benchmarks.fine_tuning."""

import pathlib
from typing import NamedTuple

import numpy as np
from PIL import Image
from sklearn.datasets import load_digits, load_sample_image

IMAGE_SIDE = 16


def paint(photo: np.ndarray, digit: np.ndarray, rng) -> np.ndarray:
    """Return a crop of a photograph with a digit painted over it.

    Place, size, rotation and contrast of the digit are random.

    Shapes:
        photo: (H, W, 3), uint8. digit: (8, 8), 0 to 1. returns: (16, 16, 3).

    Args:
        photo: The photograph of which a part is the background.
        digit: The opacity of the paint.
        rng: A generator of NumPy.
    """
    y, x = (rng.integers(n - IMAGE_SIDE + 1) for n in photo.shape[:2])
    crop = photo[y : y + IMAGE_SIDE, x : x + IMAGE_SIDE].astype("float32")
    side = int(rng.integers(11, 16))
    mask = Image.fromarray((255 * digit).astype("uint8"))
    mask = mask.resize((side, side), Image.Resampling.BICUBIC)
    mask = mask.rotate(rng.uniform(-15, 15), Image.Resampling.BICUBIC)
    canvas = Image.new("L", (IMAGE_SIDE, IMAGE_SIDE))
    canvas.paste(
        mask, tuple(map(int, rng.integers(IMAGE_SIDE - side + 1, size=2)))
    )
    opacity = np.asarray(canvas, "float32")[..., None] / 255
    opacity *= rng.uniform(0.7, 1.0)
    color = rng.uniform(0, 95, 3) if crop.mean() > 128 else None
    color = rng.uniform(160, 255, 3) if color is None else color
    crop += opacity * (color - crop)
    return np.clip(np.round(crop), 0, 255).astype("uint8")


class ImageSplit(NamedTuple):
    """The images of a split.

    Args:
        first, last: The handwritten digits and the columns of the photograph
            that are used, as shares of all.
        copies: Number of images of each digit.
    """

    first: float
    last: float
    copies: int


def write_images(
    folder: pathlib.Path,
    classes: range,
    photo: str,
    parts: dict[str, ImageSplit],
    seed: int,
):
    """Write FOLDER/SPLIT/DIGIT/*.png.

    Args:
        folder: The folder to write.
        classes: The digits.
        photo: A name of `sklearn.datasets.load_sample_image`.
        parts: The images of "train" and of "test".
        seed: Seed of everything random.
    """
    digits, image = load_digits(), load_sample_image(photo)
    rng = np.random.default_rng(seed)
    for split, part in parts.items():
        view = image[:, _slice(image.shape[1], part)]
        window = _slice(len(digits.images), part)
        for index in range(len(digits.images))[window]:
            label = digits.target[index]
            if label not in classes:
                continue
            place = folder / split / str(label)
            place.mkdir(parents=True, exist_ok=True)
            for copy in range(part.copies):
                painted = paint(view, digits.images[index] / 16, rng)
                path = place / f"{index:04d}_{copy}.png"
                Image.fromarray(painted).save(path)


def _slice(length, part):
    return slice(int(part.first * length), int(part.last * length))
