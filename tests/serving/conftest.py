"""Fixtures of the tests of the client and of the server."""

import pytest

from keras_vit.known import KnownScore
from keras_vit.serving.models import ServedModel
from tests.serving.made import LEAST, THRESHOLDS, export_model, write_odd_model
from tests.serving.running import run_server
from tests.serving.servers import SERVERS, Models
from tests.shared import made_once


def exported(tmp_path_factory, name, place, **choices):
    """Return a folder of an export at a place in it."""

    def make(folder):
        export_model(folder / place, **choices)
        return folder

    return made_once(tmp_path_factory, name, make)


@pytest.fixture(scope="session")
def zoo(tmp_path_factory):
    """Return a folder of version 3 of the exported model `zoo`."""
    return exported(tmp_path_factory, "zoo", "zoo/3", seed=0)


@pytest.fixture(scope="session")
def other_zoo(tmp_path_factory):
    """Return the folder of another model of the same name."""
    return exported(tmp_path_factory, "other_zoo", "zoo/3", seed=1)


@pytest.fixture(scope="session")
def tags(tmp_path_factory):
    """Return a folder of version 1 of the model `tags`: several labels."""
    choices = {"activation": "sigmoid", "thresholds": THRESHOLDS, "top": None}
    choices |= {"seed": 0, "use_attention": False}
    return exported(tmp_path_factory, "tags", "tags/1", **choices)


@pytest.fixture(scope="session")
def knows(tmp_path_factory):
    """Return a folder of version 1 of `knows`: some images are unknown."""
    known = KnownScore("max_probability", threshold=LEAST)
    choices = {"seed": 0, "use_attention": False, "known": known}
    return exported(tmp_path_factory, "knows", "knows/1", **choices)


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
