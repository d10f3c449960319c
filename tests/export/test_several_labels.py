"""Exports of a model that may give an image several labels."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from keras_vit import preprocess_input
from keras_vit.export import (
    FORMATS,
    DisagreementError,
    Serving,
    export_file,
    export_model,
    read_description,
)
from keras_vit.export.formats import saved_model
from tests.export.conftest import IMAGE_SIZE, KINDS, NAMES, QUIET, make_model
from tests.export.test_formats import READERS, every_format
from tests.export.web_engine import stand_in_engine

NEAR = 1e-4  # Of a threshold; the outputs may differ by 1e-5.


def sigmoid(logits):
    return 1 / (1 + np.exp(-np.asarray(logits, "float64")))


@pytest.fixture(scope="module")
def pixels():
    random = np.random.default_rng(4)
    return random.integers(0, 256, (7, *IMAGE_SIZE, 3), "uint8")


@pytest.fixture(scope="module")
def tagged(pixels, tmp_path_factory):
    """Return the exports in all formats, and what Keras says.

    The label `i` of the image `i` is just at its threshold or just below.
    """
    for package in ("onnx", "tf2onnx", "openvino"):
        pytest.importorskip(package)
    model, images = make_model(depth=1), preprocess_input(pixels)
    found = sigmoid(model.predict_on_batch(images))
    thresholds = found.diagonal() - NEAR * (-1) ** np.arange(7)
    labels = found >= thresholds
    assert labels.diagonal().tolist() == [True, False] * 3 + [True]
    with stand_in_engine() as engine:
        report = export_model(
            model,
            tmp_path_factory.mktemp("tagged"),
            images,
            [*FORMATS],
            name="tags",
            serving=Serving(
                class_names=NAMES, activation="sigmoid", thresholds=thresholds
            ),
            tflite_quantizations=["float32"],
            tflite_batch_size=None,
            web_engine_dir=engine,
            **QUIET,
        )
    paths = {agreement.kind: agreement.path for agreement in report.agreements}
    return paths, thresholds, labels


@every_format
def test_labels_at_the_thresholds_are_those_of_keras(format, tagged, pixels):
    paths, thresholds, labels = tagged
    path = paths[KINDS[format]]
    description = read_description(path)
    assert description["thresholds"] == thresholds.tolist()
    assert description["class_names"] == NAMES
    assert description["activation"] == "sigmoid"
    images = preprocess_input(pixels)
    [logits] = READERS[format](path, images).values()
    found = sigmoid(logits) >= description["thresholds"]
    np.testing.assert_array_equal(found, labels)


def encode(pixels):
    return tf.constant([tf.io.encode_png(x).numpy() for x in pixels])


def test_a_server_gives_the_threshold_of_each_label(tagged, pixels):
    """All labels, as one with a small probability may reach its threshold."""
    paths, thresholds, labels = tagged
    loaded = tf.saved_model.load(paths["saved_model"])
    answers = loaded.signatures["serve_bytes"](image_bytes=encode(pixels))
    labels_in_order = answers["labels"].numpy().tolist()
    order = np.array(
        [[NAMES.index(x.decode()) for x in row] for row in labels_in_order]
    )
    probabilities = answers["probabilities"].numpy()
    assert np.all(np.diff(probabilities) <= 0)
    assert np.all(np.sort(order) == np.arange(7))
    found = answers["thresholds"].numpy()
    np.testing.assert_allclose(found, thresholds[order], rtol=1e-6)
    wanted = np.take_along_axis(labels, order, axis=1)
    np.testing.assert_array_equal(probabilities >= found, wanted)


def test_fewer_labels_can_be_asked_for(shallow, images, tmp_path):
    serving = Serving(activation="sigmoid", thresholds=[0.5] * 7, top=2)
    export_file(shallow, tmp_path / "1", images, serving=serving)
    loaded = tf.saved_model.load(str(tmp_path / "1"))
    outputs = loaded.signatures["serve_bytes"].structured_outputs
    assert {key: x.shape[1] for key, x in outputs.items()} == dict.fromkeys(
        ("labels", "probabilities", "thresholds"), 2
    )


def test_one_label_has_no_thresholds(bundle):
    loaded = tf.saved_model.load(bundle["saved_model"].path)
    outputs = loaded.signatures["serve_bytes"].structured_outputs
    assert sorted(outputs) == ["labels", "probabilities"]


def test_thresholds_of_other_labels_are_found_out(
    shallow, images, tmp_path, monkeypatch
):
    make = saved_model.make_endpoints
    monkeypatch.setattr(
        saved_model,
        "make_endpoints",
        lambda model, serving: make(
            model,
            dataclasses.replace(serving, thresholds=serving.thresholds[::-1]),
        ),
    )
    serving = Serving(
        activation="sigmoid", thresholds=[x / 10 for x in range(1, 8)]
    )
    with pytest.raises(DisagreementError, match="serve_bytes: thresholds"):
        export_file(shallow, tmp_path / "1", images, serving=serving)


@pytest.mark.parametrize(
    "choices, match",
    [
        ({"thresholds": [0.5] * 6}, "`thresholds` .* 6 numbers for 7"),
        ({"thresholds": [0.5] * 6 + [1.5]}, r"thresholds\[6\]=1.5"),
        ({"thresholds": [np.nan] * 7}, r"`thresholds` .*\[0\]=nan"),
        ({"thresholds": ["0.5"] * 7}, r"`thresholds` .*='0.5'"),
        ({"activation": "softmax"}, "`thresholds` .*activation='softmax'"),
        ({"output": "features"}, "`thresholds` .*returns features"),
    ],
    ids=str,
)
def test_thresholds_that_do_not_fit(shallow, images, tmp_path, choices, match):
    given = {"activation": "sigmoid", "thresholds": [0.5] * 7, **choices}
    with pytest.raises(ValueError, match=match):
        export_file(shallow, tmp_path / "1", images, serving=Serving(**given))
    assert not list(tmp_path.iterdir())
