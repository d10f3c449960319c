"""The image that the tests of the operations share."""

import numpy as np
import pytest


@pytest.fixture
def image():
    random = np.random.default_rng(0)
    return random.uniform(0, 255, (12, 10, 3)).astype("float32")
