"""What the tests of the server share."""

import pytest

from keras_vit.serving.server.versions import ServedModel
from tests.serving.server.running import run_server


@pytest.fixture(scope="session")
def served(zoo):
    """Return the address of a server of the exported model `zoo`."""
    model = ServedModel("zoo", zoo / "zoo")
    model.poll()
    with run_server({"zoo": model}) as address:
        yield address
