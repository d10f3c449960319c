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

from trainers.data.readers.digits import paint, take_part

DIGIT_SIDE = 18  # Pixels.
# Images made of each digit of the data set.
COPIES = {"train": 30, "test": 2}


def make_folder(folder: pathlib.Path):
    """Write FOLDER/train/DIGIT/*.png and FOLDER/test/DIGIT/*.png."""
    rng, start = np.random.default_rng(0), 0
    for split, copies in COPIES.items():
        images, labels, views = take_part(split)
        for label in range(10):
            (folder / split / str(label)).mkdir(parents=True, exist_ok=True)
        for index, (digit, label) in enumerate(zip(images, labels), start):
            for copy in range(copies):
                photo = views[rng.integers(len(views))]
                image, _ = paint(photo, digit, rng, DIGIT_SIDE)
                name = f"{split}/{label}/{index:04d}_{copy}.png"
                Image.fromarray(image).save(folder / name)
        start += len(images)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=pathlib.Path)
    make_folder(parser.parse_args().folder)
