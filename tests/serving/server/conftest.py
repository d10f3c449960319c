"""Fixtures of the tests of the server."""

import pytest
import tensorflow as tf

from tests.serving.server.running import poll_model, run_server


@pytest.fixture(scope="session")
def served(zoo):
    """Return a server of the exported model `zoo`, also called `model`."""
    model = poll_model("zoo", zoo / "zoo")
    with run_server({"zoo": model, "model": model}) as address:
        yield address


@pytest.fixture(scope="session")
def loaded(zoo):
    """Return the exported model `zoo`, as TensorFlow loads it."""
    return tf.saved_model.load(str(zoo / "zoo" / "3"))
