"""Fixtures of the tests of the client and of the server."""

import pytest

from keras_vit.known import KnownScore
from keras_vit.serving.models import ServedModel
from tests.serving.made import LEAST, THRESHOLDS, export_model, write_odd_model
from tests.serving.running import run_server
from tests.serving.servers import SERVERS, Models


@pytest.fixture(scope="session")
def zoo(tmp_path_factory):
    """Return a folder of version 3 of the exported model `zoo`."""
    folder = tmp_path_factory.mktemp("zoo")
    export_model(folder / "zoo" / "3", seed=0)
    return folder


@pytest.fixture(scope="session")
def other_zoo(tmp_path_factory):
    """Return the folder of another model of the same name."""
    folder = tmp_path_factory.mktemp("other_zoo")
    export_model(folder / "zoo" / "3", seed=1)
    return folder


@pytest.fixture(scope="session")
def tags(tmp_path_factory):
    """Return a folder of version 1 of the model `tags`: several labels."""
    folder = tmp_path_factory.mktemp("tags")
    choices = {"activation": "sigmoid", "thresholds": THRESHOLDS}
    export_model(folder / "tags" / "1", seed=0, top=None, **choices)
    return folder


@pytest.fixture(scope="session")
def knows(tmp_path_factory):
    """Return a folder of version 1 of `knows`: some images are unknown."""
    folder = tmp_path_factory.mktemp("knows")
    known = KnownScore("max_probability", threshold=LEAST)
    export_model(folder / "knows" / "1", seed=0, known=known)
    return folder


@pytest.fixture(scope="session")
def models(zoo, other_zoo, tags, knows, tmp_path_factory):
    """Return `tiny` in two versions, `odd`, `tags` and `knows`."""
    folder = tmp_path_factory.mktemp("models")
    (folder / "tiny").mkdir()
    for version, path in enumerate((zoo, other_zoo), 1):
        (folder / "tiny" / str(version)).symlink_to(path / "zoo" / "3")
    write_odd_model(folder / "odd" / "1")
    (folder / "tags").symlink_to(tags / "tags")
    (folder / "knows").symlink_to(knows / "knows")
    return Models(folder, {"tiny": {"stable": 1, "canary": 2}})


@pytest.fixture(params=SERVERS)
def transport(request):
    """Return the name of the argument of `connect` for the address."""
    return request.param


@pytest.fixture
def server(models, transport):
    with SERVERS[transport](models) as server:
        yield server


@pytest.fixture(scope="session")
def served(zoo, tags, knows):
    """Return a server of the exports; `zoo` is also called `model`."""
    model = ServedModel("zoo", zoo / "zoo")
    tagger = ServedModel("tags", tags / "tags")
    models = {"zoo": model, "model": model, "tags": tagger}
    models["knows"] = ServedModel("knows", knows / "knows")
    with run_server(models) as address:
        yield address
