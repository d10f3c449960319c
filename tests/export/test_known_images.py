"""Exports that tell the images which the model knows from others."""

import dataclasses
import re

import numpy as np
import pytest
import tensorflow as tf

from keras_vit import preprocess_input
from keras_vit.export import (
    QUANTIZATIONS,
    DisagreementError,
    Serving,
    export_file,
    read_description,
)
from keras_vit.export.agreement import Tolerance, compare_outputs
from keras_vit.export.formats import saved_model, tflite
from keras_vit.known import SCORES, fit_score, with_features
from tests.export.conftest import IMAGE_SIZE, KINDS, NAMES, export_all
from tests.export.test_formats import READERS, every_format
from tests.shared import made_once
from tests.tiny import noise


@pytest.fixture(scope="module")
def pixels(pixels):
    """Return fewer: by random weights, classes are soon tied."""
    return pixels[:24]


@pytest.fixture(scope="module")
def images(pixels):
    return preprocess_input(pixels)


def split_outputs(model, images):
    found = with_features(model).predict(images, verbose=0)
    return np.split(found, [-len(NAMES)], axis=1)


def fit(model, images, kind):
    """Return a score that half of the images reach, and their scores."""
    train = noise(60, *IMAGE_SIZE, 3, seed=9, scale=0.5)
    features, _ = split_outputs(model, train)
    score = fit_score(kind, features, np.arange(60) % len(NAMES))
    scores = np.asarray(score(*split_outputs(model, images)))
    middle = len(scores) // 2
    low, high = np.sort(scores)[middle - 1 : middle + 1]
    threshold = float(low / 2 + high / 2)
    return dataclasses.replace(score, threshold=threshold), scores


@pytest.fixture(scope="module")
def exported(shallow, images, tmp_path_factory):
    """Return the comparisons of all formats, and the scores of Keras."""
    score, scores = fit(shallow, images, "class_means")
    serving = Serving(class_names=NAMES, top=2, known=score)
    files = made_once(
        tmp_path_factory,
        "known",
        lambda folder: export_all(folder, shallow, images, serving),
    )
    return files, score, scores


@every_format
def test_scores_are_those_of_keras(format, exported, images):
    files, score, scores = exported
    path = files[KINDS[format]].path
    assert read_description(path)["known"] == {
        "score": "class_means",
        "threshold": score.threshold,
    }
    answers = READERS[format](path, images)
    assert set(answers) == {"logits", "score", "is_known"}
    np.testing.assert_allclose(answers["score"], scores, atol=1e-4)
    # A browser has no truth values.
    dtype = "int32" if format in ("tflite", "web") else "bool"
    assert answers["is_known"].dtype == dtype
    found = answers["is_known"].astype(bool)
    np.testing.assert_array_equal(found, scores >= score.threshold)


@pytest.mark.parametrize("quantization", QUANTIZATIONS)
def test_quantized_files_tell_it_nearly_alike(quantization, exported, images):
    files, score, scores = exported
    report = files[f"tflite {quantization}"]
    assert not report.faults
    answers = tflite.load(report.path).call(images)
    assert set(answers) == {"logits", "score", "is_known"}
    agree = answers["is_known"].astype(bool) == (scores >= score.threshold)
    assert agree.mean() >= 0.9


def test_a_server_tells_it_of_files_and_pixels(exported, pixels):
    files, score, scores = exported
    loaded = tf.saved_model.load(str(files["saved_model"].path))
    png = tf.constant([tf.io.encode_png(x).numpy() for x in pixels])
    answers = {
        "serve_bytes": loaded.signatures["serve_bytes"](image_bytes=png),
        "serve_uint8": loaded.signatures["serve_uint8"](images=pixels),
    }
    for found in answers.values():
        np.testing.assert_allclose(found["score"], scores, atol=1e-4)
        known = found["is_known"].numpy()
        np.testing.assert_array_equal(known, scores >= score.threshold)
    # The classes are there in any case; thresholds are of several labels.
    assert answers["serve_bytes"]["labels"].shape == (len(pixels), 2)
    assert set(answers["serve_bytes"]) == {
        *("labels", "probabilities", "score", "is_known")
    }


# The bundle has class means.
@pytest.mark.parametrize("kind", sorted({*SCORES} - {"class_means"}))
def test_each_score_is_computed_in_a_graph(kind, shallow, images, tmp_path):
    score, scores = fit(shallow, images, kind)
    path, serving = tmp_path / "model.tflite", Serving(known=score)
    choices = {"tflite_quantizations": ["float32"], "tflite_batch_size": None}
    export_file(shallow, path, images, serving=serving, **choices)
    answers = READERS["tflite"](path, images)
    np.testing.assert_allclose(answers["score"], scores, atol=1e-4)


def test_another_threshold_is_found_out(shallow, images, tmp_path, monkeypatch):
    score, _ = fit(shallow, images, "energy")
    other = dataclasses.replace(score, threshold=score.threshold + 1)
    make = saved_model.make_endpoints
    monkeypatch.setattr(
        saved_model,
        "make_endpoints",
        lambda model, serving: make(
            model, dataclasses.replace(serving, known=other)
        ),
    )
    with pytest.raises(DisagreementError, match="is_known: another threshold"):
        serving = Serving(known=score)
        export_file(shallow, tmp_path / "1", images, serving=serving)


def answers_of(scores, known):
    logits = noise(len(scores), 3)
    scores, known = np.float32(scores), np.array(known)
    return {"logits": logits, "score": scores, "is_known": known}


@pytest.mark.parametrize(
    "scores, known, fault",
    [
        ([1, 2, 3, 4], [False, False, True, True], None),
        ([1, 2, 3, 4.1], [False, False, True, True], "score: "),
        ([1, 2, 3, 4], [True, False, True, True], "another threshold"),
        ([1, 2, 3, 4], [False, False, False, True], "another threshold"),
        ([1, 2, 3, 4], [False, True, True, True], "another threshold"),
        ([1, 3, 3, 4], [False, True, True, True], "score: "),
        ([np.nan, 2, 3, 4], [False, False, True, True], "score: "),
    ],
)
def test_what_counts_as_agreement(scores, known, fault):
    expected = answers_of([1, 2, 3, 4], [False, False, True, True])
    tolerance = Tolerance(max_difference=0.01)
    found = compare_outputs(expected, answers_of(scores, known), tolerance)
    assert bool(found.faults) == (fault is not None), found.faults
    assert fault is None or any(fault in x for x in found.faults)


@pytest.mark.parametrize(
    "shift, said", [(2, ""), (-3, ""), (9, "94.00%"), (15, "88.00% .* must")]
)
def test_quantized_scores_decide_most_images_alike(shift, said):
    """Except for those within 2.9 of the threshold."""
    scores = np.arange(100)
    expected = answers_of(scores, scores >= 30)
    answers = answers_of(scores + shift, scores + shift >= 30)
    answers["logits"] = expected["logits"]
    for least in (0.9, 0.0):  # Without a least one, it is a warning.
        tolerance = Tolerance(
            top1_agreement=least, expected_top1_agreement=0.95
        )
        found = compare_outputs(expected, answers, tolerance)
        text = " ".join([*found.faults, *found.warnings])
        assert re.search(said if least else said[:6], text)
        assert bool(text) == bool(said)
        assert bool(found.faults) == (least > 0 and "must" in said)


def test_a_score_that_is_missing_is_named():
    expected = answers_of([1, 2], [False, True])
    answers = {"logits": expected["logits"]}
    found = compare_outputs(expected, answers, Tolerance())
    text = " ".join(found.faults)
    assert "score: " in text and "is_known: " in text


@pytest.mark.parametrize(
    "choices, match",
    [
        ({"output": "features"}, "`known` is for a model that returns logits"),
        (
            {"thresholds": [0.5] * 7, "activation": "sigmoid"},
            "`known` .*thresholds",
        ),
    ],
    ids=str,
)
def test_models_that_it_does_not_fit(choices, match, shallow, images, tmp_path):
    score, _ = fit(shallow, images, "energy")
    with pytest.raises(ValueError, match=match):
        serving = Serving(known=score, **choices)
        export_file(shallow, tmp_path / "1", images, serving=serving)
    assert not list(tmp_path.iterdir())
