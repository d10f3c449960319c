"""The models on the disk: versions that come and go, and TFLite files."""

import shutil

import keras
import numpy as np
import pytest

from keras_vit.export import export_file
from keras_vit.export.formats.tflite import to_tflite
from keras_vit.serving import ServingError, connect
from keras_vit.serving.models import ServedModel, find_models
from tests.serving.running import make_model, run_server, spec, wait_until

SHAPE = (6, 4, 3)
# Not symmetric, so that the zero of int8 is not that of the images.
IMAGES = np.random.default_rng(0).uniform(-0.5, 2, (5, *SHAPE)).astype("f4")


def put(folder, version, content="good"):
    """Put a version in its place as a whole."""
    draft = folder / f".{version}"
    draft.mkdir()
    (draft / "model").write_text(content)
    draft.rename(folder / str(version))


def load(folder):
    """Return a model that returns its version."""
    content = (folder / "model").read_text()
    if content != "good":
        raise ValueError(f"damaged: {content}")
    tensor = {"x": spec("DT_FLOAT", -1)}
    number = float(folder.name)
    return make_model(
        {"serving_default": (tensor, tensor, lambda x: {"x": x * 0 + number})}
    )


@pytest.fixture
def model(tmp_path):
    put(tmp_path, 1)
    return ServedModel("m", tmp_path, load)


def states(model):
    return {
        int(row["version"]): row["state"]
        for row in model.status()["model_version_status"]
    }


def test_the_newest_is_served(model, tmp_path):
    put(tmp_path, 2)
    put(tmp_path, 10)
    (tmp_path / "notes").mkdir()
    (tmp_path / ".11").mkdir()
    (tmp_path / "12").write_text("a file")
    model.poll()
    assert states(model) == {10: "AVAILABLE", 1: "END"}
    assert list(states(model)) == [10, 1]
    assert model.find()[0] == 10
    assert model.find(10) == model.find()
    with pytest.raises(ServingError, match=r"Specific\(m, 1\)"):
        model.find(1)


def test_a_broken_version_leaves_the_old_one(model, tmp_path):
    put(tmp_path, 2, "cut")
    model.poll()
    assert states(model) == {2: "END", 1: "AVAILABLE"}
    [row] = model.status(2)["model_version_status"]
    error = {"error_message": "ValueError: damaged: cut"}
    assert row["status"] == {"error_code": "UNKNOWN", **error}
    assert model.find()[0] == 1
    tries = []
    model._load = lambda folder: tries.append(folder) or load(folder)
    model.poll()
    assert not tries  # Nothing has changed.
    (tmp_path / "2" / "model").write_text("good")
    model.poll()
    assert len(tries) == 1
    assert states(model) == {2: "AVAILABLE", 1: "END"}


def test_an_older_version_returns_when_the_newest_vanishes(model, tmp_path):
    put(tmp_path, 2)
    model.poll()
    shutil.rmtree(tmp_path / "2")
    model.poll()
    assert states(model) == {2: "END", 1: "AVAILABLE"}
    # Without any, what is loaded stays.
    shutil.rmtree(tmp_path / "1")
    model.poll()
    assert model.find()[0] == 1


def test_a_new_version_while_the_server_runs(model, tmp_path):
    path = "/v1/models/m:predict"
    with run_server({"m": model}, poll_seconds=0.05) as address:
        assert address.post(path, {"instances": [0]})[1] == {
            "predictions": [1.0]
        }
        put(tmp_path, 2)
        wait_until(lambda: states(model).get(2) == "AVAILABLE")
        assert address.post(path, {"instances": [0]})[1] == {
            "predictions": [2.0]
        }
        status, answer = address.get("/v1/models/m/versions/2")
        assert answer["model_version_status"][0]["state"] == "AVAILABLE"


def test_without_a_version_the_server_is_not_well(tmp_path):
    put(tmp_path, 1, "cut")
    with run_server({"m": ServedModel("m", tmp_path, load)}) as address:
        assert address.get("/healthz") == (503, {"status": "unavailable"})
        assert address.get("/models.json") == (200, {})
        path, body = "/v1/models/m:predict", {"instances": [1]}
        assert address.post(path, body)[0] == 404


def test_folders_that_can_be_served(tmp_path):
    export = tmp_path / "run" / "export"
    for name in (
        "saved_model/a/1",
        "saved_model/b/2",
        "tflite/a/1",
        "report/a/1",
    ):
        (export / name).mkdir(parents=True)
    (export / "saved_model" / "models.config").touch()
    saved = export / "saved_model"
    both = {"a": saved / "a", "b": saved / "b"}
    assert find_models(export) == both
    assert find_models(tmp_path / "run") == both
    assert find_models(saved) == both
    assert find_models(saved / "a") == {"a": saved / "a"}
    assert find_models(export / "tflite") == {"a": export / "tflite" / "a"}
    with pytest.raises(ValueError, match=r"saved_model\|tflite/NAME/VERSION"):
        find_models(tmp_path)
    with pytest.raises(ValueError, match="not of a version"):
        find_models(saved / "a" / "1")


def test_a_half_copied_saved_model_is_not_served(zoo, tmp_path):
    """TF Serving would serve it, and answer 400."""
    shutil.copytree(zoo / "zoo" / "3", tmp_path / "4")
    shutil.rmtree(tmp_path / "4" / "variables")
    model = ServedModel("zoo", tmp_path)
    assert states(model) == {4: "END"}
    shutil.copytree(
        zoo / "zoo" / "3" / "variables", tmp_path / "4" / "variables"
    )
    model.poll()
    assert states(model) == {4: "AVAILABLE"}
    _, loaded = model.find(4)
    answer = loaded.call(
        "serve_uint8", {"images": np.zeros((2, 8, 12, 3), "uint8")}
    )
    assert answer["logits"].shape == (2, 7)


# --------------------------------------------------------------- TFLite files


@pytest.fixture(scope="module")
def network():
    keras.utils.set_random_seed(0)
    return keras.Sequential(
        [
            keras.Input(SHAPE),
            keras.layers.Flatten(),
            keras.layers.Dense(5, activation="softmax"),
        ]
    )


@pytest.fixture(scope="module")
def address(network, tmp_path_factory):
    """Return a server of three files: of any batch, of 2, and in int8."""
    folder = tmp_path_factory.mktemp("tflite")
    path = folder / "any" / "1" / "float32.tflite"
    path.parent.mkdir(parents=True)
    export_file(
        network,
        path,
        IMAGES,
        tflite_quantizations=["float32"],
        tflite_batch_size=None,
    )
    for name, arguments in (
        ("two", ("float32", 2)),
        ("int8", ("int8", 1, IMAGES)),
    ):
        (folder / name / "1").mkdir(parents=True)
        content = to_tflite(network, *arguments)
        (folder / name / "1" / "model.tflite").write_bytes(content)
    names = ("any", "two", "int8")
    models = {name: ServedModel(name, folder / name) for name in names}
    with run_server(models) as address:
        yield address


@pytest.mark.parametrize("name", ["any", "two", "int8"])
def test_answers_are_those_of_the_model(address, network, name):
    """For any number of images, floats in and out."""
    with connect(address, model=name) as client:
        [(_, signature)] = client.metadata().items()
        found = client.predict({"images": IMAGES})["probabilities"]
        alone = client.predict({"images": IMAGES[4:]})["probabilities"]
    np.testing.assert_allclose(alone, found[4:], atol=1e-6)
    assert signature.inputs["images"].shape == (None, *SHAPE)
    assert signature.outputs["probabilities"].dtype == "float32"
    np.testing.assert_allclose(
        found,
        network.predict(IMAGES, verbose=0),
        atol=0.03 if name == "int8" else 1e-5,
    )


def test_images_of_another_size(address):
    """LiteRT would resize its input."""
    with connect(address, model="any") as client:
        with pytest.raises(ServingError, match="not compatible with expected"):
            client.predict({"images": IMAGES.reshape(10, 3, 4, 3)})


@pytest.mark.parametrize(
    "files, message",
    [
        ({}, "Received: neither"),
        ({"a.tflite": b"", "b.tflite": b""}, "Received: a.tflite, b.tflite"),
        ({"damaged.tflite": b"no model"}, "ValueError: "),
    ],
)
def test_folders_that_hold_no_model(tmp_path, files, message):
    (tmp_path / "1").mkdir()
    for name, content in files.items():
        (tmp_path / "1" / name).write_bytes(content)
    model = ServedModel("m", tmp_path)
    [row] = model.status()["model_version_status"]
    assert row["state"] == "END" and not model.served
    assert message in row["status"]["error_message"]
