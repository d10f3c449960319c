"""What every test and doctest finds ready."""

import atexit
import collections
import gc
import os
import pathlib
import shutil
import tempfile

import keras
import numpy as np
import pytest

import keras_vit

ROOT = pathlib.Path(__file__).parent

# Data sets are prepared for the tests alone, not in the home of the user.
# TFDS reads the variable when it is imported.
os.environ["TFDS_DATA_DIR"] = tempfile.mkdtemp(prefix="keras_vit_tests_")
atexit.register(shutil.rmtree, os.environ["TFDS_DATA_DIR"], True)

# The trainers need TensorFlow; on another backend there is nothing to collect.
collect_ignore = (
    []
    if keras.backend.backend() == "tensorflow"
    else [
        "trainers",
        "tests/trainers",
        "tests/export",
        "tests/serving",
        "tests/test_image_decoding.py",
        "keras_vit/export",
        "keras_vit/image_decoding.py",
        "keras_vit/serving",
    ]
)

if keras.backend.backend() == "tensorflow":
    import tensorflow as tf

    # Two logical CPUs stand in for two GPUs under MirroredStrategy.
    tf.config.set_logical_device_configuration(
        tf.config.list_physical_devices("CPU")[0],
        [tf.config.LogicalDeviceConfiguration()] * 2,
    )


def pytest_collection_modifyitems(items):
    """Begin with the files of the tests that say how many seconds they take.

    The longest first: begun last, it would go on alone. A file stays in one
    piece, since its tests share fixtures.
    """
    seconds = collections.Counter()
    for item in items:
        for mark in item.iter_markers("slow"):
            seconds[item.path] = max(seconds[item.path], *mark.args, 0)
    items.sort(key=lambda item: -seconds[item.path])


def pytest_collection_finish():
    """Spare the garbage collector what was imported: it never goes away."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def doctest_names(doctest_namespace):
    """Let docstring examples use the public names without importing them."""
    doctest_namespace.update(vars(keras_vit))
    doctest_namespace["np"] = np


@pytest.fixture
def subprocess_environment():
    """Return the environment for commands that a test runs as a user would."""
    return {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "TF_CPP_MIN_LOG_LEVEL": "3",
    }
