"""What every test and doctest finds ready."""

import numpy as np
import pytest

import keras_vit


@pytest.fixture(autouse=True)
def doctest_names(doctest_namespace):
    doctest_namespace.update(vars(keras_vit))
    doctest_namespace["np"] = np
