"""Make a folder of images for training: digits hidden in photographs.

    python docs/examples/digits_in_photos.py FOLDER

Each image is 32x32 pixels of one of the two photographs of scikit-learn, with
one of its handwritten digits painted over it, somewhere, in some colour. To
name the digit a model must find it first: what it looks at can be judged by
eye. Test images have other digits, and come from other parts of the
photographs, than those of the training.
"""

import argparse
import pathlib

import numpy as np
from PIL import Image
from sklearn.datasets import load_digits, load_sample_images

SIDE, DIGIT_SIDE = 32, 18
# The share of the digits, and of the width of a photograph, for training.
BORDER = 0.8
# Images made of each digit of the data set.
COPIES = {"train": 30, "test": 2}


def paint(
    photo: np.ndarray, digit: np.ndarray, rng
) -> tuple[np.ndarray, np.ndarray]:
    """Return a crop of a photograph with a digit over it, and the paint.

    Shapes:
        photo: (H, W, 3), uint8. digit: (8, 8), 0 to 1.
        returns: (32, 32, 3), uint8, and (32, 32), 0 to 1.

    Args:
        photo: Where the crop is from.
        digit: How thick the paint is.
        rng: Says where, and in which colour.
    """
    y, x = (rng.integers(n - SIDE + 1) for n in photo.shape[:2])
    image = photo[y : y + SIDE, x : x + SIDE].astype("float32")
    mask = Image.fromarray((255 * digit).astype("uint8"))
    mask = mask.resize((DIGIT_SIDE, DIGIT_SIDE), Image.Resampling.BICUBIC)
    mask = np.asarray(mask, "float32")[..., None] / 255
    y, x = rng.integers(SIDE - DIGIT_SIDE + 1, size=2)
    window = image[y : y + DIGIT_SIDE, x : x + DIGIT_SIDE]
    # Far from the brightness of what it covers, or nobody could read it.
    is_dark = window.mean() < 128
    low, high = (160, 255) if is_dark else (0, 95)
    window += mask * (rng.uniform(low, high, 3) - window)
    opacity = np.zeros((SIDE, SIDE), "float32")
    opacity[y : y + DIGIT_SIDE, x : x + DIGIT_SIDE] = mask[..., 0]
    return np.clip(np.round(image), 0, 255).astype("uint8"), opacity


def make_folder(folder: pathlib.Path):
    """Write FOLDER/train/DIGIT/*.png and FOLDER/test/DIGIT/*.png."""
    digits, photos = load_digits(), load_sample_images().images
    first_test = int(BORDER * len(digits.images))
    parts = {
        "train": (
            range(first_test),
            [p[:, : int(BORDER * p.shape[1])] for p in photos],
        ),
        "test": (
            range(first_test, len(digits.images)),
            [p[:, int(BORDER * p.shape[1]) :] for p in photos],
        ),
    }
    rng = np.random.default_rng(0)
    for split, (indices, views) in parts.items():
        for label in range(10):
            (folder / split / str(label)).mkdir(parents=True, exist_ok=True)
        for index in indices:
            for copy in range(COPIES[split]):
                photo = views[rng.integers(len(views))]
                image, _ = paint(photo, digits.images[index] / 16, rng)
                label = digits.target[index]
                name = f"{split}/{label}/{index:04d}_{copy}.png"
                Image.fromarray(image).save(folder / name)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=pathlib.Path)
    make_folder(parser.parse_args().folder)
