"""The folder of images that the tests of the batches share."""

import numpy as np
import pytest
import tensorflow as tf

from trainers.data.datasets import open_dataset


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return 24 images of noise to train on and 7 to test on, three classes.

    The first pixels of an image encode its number, which identifies it.
    """
    path = tmp_path_factory.mktemp("folder")
    random = np.random.default_rng(0)
    for split, count in (("train", 24), ("test", 7)):
        for index in range(count):
            file = path / split / "abc"[index % 3] / f"{index}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            pixels = random.integers(0, 255, (12, 10, 3), "uint8")
            tf.io.write_file(str(file), tf.io.encode_png(pixels))
    return path


@pytest.fixture
def photos(folder):
    return open_dataset(f"folder:{folder}")
