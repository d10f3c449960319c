"""Servers and the client, of models with an answer for each pixel."""

import base64
import io

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from keras_vit import VisionTransformer, ViTConfig
from keras_vit.export import Serving, export_file
from keras_vit.models import DenseConfig, dense_predictor
from keras_vit.serving import connect
from keras_vit.serving.models import ServedModel
from tests.serving.made import NAMES, SHAPE, make_files, make_images
from tests.serving.running import of_files, run_server
from tests.serving.servers import SERVERS, Models
from tests.tiny import randomize

HEADS = {
    "scene": DenseConfig(len(NAMES)),
    "deep": DenseConfig(1, activation="sigmoid", output_scale=20),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a folder of a segmenter and of a model of depths."""
    folder = tmp_path_factory.mktemp("maps")
    config = ViTConfig(24, 1, 48, 3, patch_size=4, image_size=SHAPE[:2])
    for name, head in HEADS.items():
        model = randomize(dense_predictor(VisionTransformer(config), head))
        names = NAMES if name == "scene" else None
        export_file(
            model,
            folder / name / "1",
            make_images(3),
            serving=Serving(class_names=names),
        )
    return folder


@pytest.fixture(scope="module")
def small_server(folder):
    models = {name: ServedModel(name, folder / name) for name in HEADS}
    with run_server(models) as address:
        yield address


@pytest.fixture(params=["small", *SERVERS])
def open_client(request, folder, small_server):
    """Return a function from the name of a model to a client."""
    if request.param == "small":
        yield lambda model: connect(small_server, model=model, batch_size=2)
        return
    with SERVERS[request.param](Models(folder)) as server:
        address = {request.param: server.address}
        yield lambda model: connect(**address, model=model, batch_size=2)


def in_process(folder, name, files):
    loaded = tf.saved_model.load(str(folder / name / "1"))
    outputs = loaded.signatures["serve_bytes"](image_bytes=tf.constant(files))
    return {key: x.numpy() for key, x in outputs.items()}


def test_class_maps_of_files(open_client, folder, tmp_path):
    files = make_files(3)
    (tmp_path / "a.png").write_bytes(files[0])
    with open_client("scene") as client:
        classes, names = client.segment([tmp_path / "a.png", *files[1:]])
        with pytest.raises(ValueError, match="`classify` needs .* `labels`"):
            client.classify(files)
        with pytest.raises(ValueError, match="`estimate_depth` needs a model"):
            client.estimate_depth(files)
    assert classes.dtype == np.uint8 and classes.shape == (3, *SHAPE[:2])
    assert names == [*NAMES]
    expected = in_process(folder, "scene", files)["classes"]
    np.testing.assert_array_equal(classes, expected)
    assert len(np.unique(classes)) > 1


def test_depths_of_files(open_client, folder):
    files = make_files(3)
    with open_client("deep") as client:
        depths = client.estimate_depth(files)
        with pytest.raises(ValueError, match="`segment` needs .* `classes`"):
            client.segment(files)
    assert depths.dtype == np.float32 and depths.shape == (3, *SHAPE[:2])
    expected = in_process(folder, "deep", files)["depths"][..., 0]
    np.testing.assert_allclose(depths, expected, rtol=1e-5)


def test_the_json_of_a_map(small_server):
    """The map, the classes with their shares of the pixels, and a PNG."""
    path = "/v1/models/scene:predict"
    status, answer = small_server.post(path, of_files(*make_files(1)))
    assert status == 200
    [row] = answer["predictions"]
    assert {*row} == {"classes", "class_names", "shares", "png_bytes"}
    classes = np.array(row["classes"])
    assert classes.shape == SHAPE[:2] and row["class_names"] == [*NAMES]
    counts = np.bincount(classes.ravel(), minlength=len(NAMES))
    np.testing.assert_allclose(row["shares"], counts / classes.size, rtol=1e-6)
    png = base64.b64decode(row["png_bytes"]["b64"])
    with Image.open(io.BytesIO(png)) as image:
        np.testing.assert_array_equal(np.asarray(image), classes)


def test_descriptions_are_served(small_server):
    _, descriptions = small_server.get("/models.json")
    assert {k: x["task"] for k, x in descriptions.items()} == {
        "scene": "segment",
        "deep": "depth",
    }
