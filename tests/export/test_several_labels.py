"""Exports of a model that may give an image several labels."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from keras_vit.export import (
    DisagreementError,
    Serving,
    export_file,
    read_description,
)
from keras_vit.export.formats import saved_model
from tests.export.conftest import KINDS, NAMES
from tests.export.test_formats import READERS, every_format


def sigmoid(logits):
    return 1 / (1 + np.exp(-np.asarray(logits, "float64")))


@pytest.fixture(scope="module")
def labels(model, images, thresholds):
    """Return which labels the images have, by Keras."""
    found = sigmoid(model.predict_on_batch(images))
    nearest = np.abs(found - thresholds).argmin(axis=0)
    labels = found >= thresholds
    near = labels[nearest, range(7)]
    assert near.tolist() == [True, True, False, False, True, True, False]
    return labels


@every_format
def test_labels_at_the_thresholds_are_those_of_keras(
    format, bundle, images, thresholds, labels
):
    path = bundle[KINDS[format]].path
    description = read_description(path)
    [logits] = READERS[format](path, images).values()
    found = sigmoid(logits) >= description["thresholds"]
    np.testing.assert_array_equal(found, labels)


def test_a_server_gives_the_threshold_of_each_label(
    bundle, pixels, thresholds, labels
):
    """All labels, as one with a small probability may reach its threshold."""
    loaded = tf.saved_model.load(bundle["saved_model"].path)
    files = tf.constant([tf.io.encode_png(x).numpy() for x in pixels])
    answers = loaded.signatures["serve_bytes"](image_bytes=files)
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


def test_thresholds_of_other_labels_are_found_out(
    flat, images, tmp_path, monkeypatch
):
    """And fewer labels can be asked for."""
    make = saved_model.make_endpoints
    serving = Serving(
        activation="sigmoid", thresholds=[x / 10 for x in range(1, 8)], top=2
    )
    export_file(flat, tmp_path / "1", images, serving=serving)
    loaded = tf.saved_model.load(str(tmp_path / "1"))
    outputs = loaded.signatures["serve_bytes"].structured_outputs
    assert {key: x.shape[1] for key, x in outputs.items()} == dict.fromkeys(
        ("labels", "probabilities", "thresholds"), 2
    )
    monkeypatch.setattr(
        saved_model,
        "make_endpoints",
        lambda model, serving: make(
            model,
            dataclasses.replace(serving, thresholds=serving.thresholds[::-1]),
        ),
    )
    with pytest.raises(DisagreementError, match="serve_bytes: thresholds"):
        export_file(flat, tmp_path / "2", images, serving=serving)


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
def test_thresholds_that_do_not_fit(flat, images, tmp_path, choices, match):
    given = {"activation": "sigmoid", "thresholds": [0.5] * 7, **choices}
    with pytest.raises(ValueError, match=match):
        export_file(flat, tmp_path / "1", images, serving=Serving(**given))
    assert not list(tmp_path.iterdir())
