"""The small model that the exports are tested on, and its images."""

import pytest

from keras_vit import VisionTransformer
from tests.tiny import noise, randomize, tiny_config

IMAGE_SIZE = (32, 24)


def make_model(dtype=None, **choices):
    """Return a model whose weights are all random, none zero."""
    config = tiny_config(**{"image_size": IMAGE_SIZE, **choices})
    return randomize(VisionTransformer(config, dtype=dtype))


@pytest.fixture(scope="session")
def images():
    return noise(16, *IMAGE_SIZE, 3, seed=1, scale=0.5).clip(-1, 1)


@pytest.fixture(scope="session")
def model():
    return make_model()


@pytest.fixture(scope="session")
def shallow():
    """Return a model of one block, for tests that hold for any depth."""
    return make_model(depth=1)
