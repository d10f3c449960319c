import math
import re

import numpy as np
import pytest
import tensorflow as tf

from keras_vit.export import QUANTIZATIONS, Tolerance
from keras_vit.export.agreement import (
    FLOAT32,
    compare,
    compare_outputs,
    find_wrong_scale,
    read_for_model,
)
from keras_vit.preprocessing import resizing
from keras_vit.preprocessing.description import (
    central_crop_step,
    from_range,
    resize_small_step,
    resize_step,
    to_fractions,
)
from tests.pictures import encode


def test_agreement_is_that_of_the_classes_and_the_largest_difference():
    expected = np.array([[0.0, 1.0], [0.0, 1.0], [0.0, 1.0], [8.0, 0.0]])
    answers = expected.copy()
    answers[0] = [1.0, 0.5]
    answers[3, 0] = 10.0
    report = compare(expected, answers, Tolerance())
    assert report.num_images == 4
    assert report.max_difference == 2.0
    # Of an answer of 8 it is a quarter, less than the other 1 of 1.
    assert report.relative_difference == 1.0
    assert report.top1_agreement == 0.75
    assert report.cosine == pytest.approx((3 + 0.5 / 1.25**0.5) / 4)
    assert report.faults == report.warnings == ()


@pytest.mark.parametrize(
    ("bound", "words"),
    [
        (Tolerance(max_difference=0.5), "difference is 1.0e.00"),
        (Tolerance(relative_difference=0.5), "difference is 1.0e.00"),
        (Tolerance(cosine=0.8), "similarity is 0.75"),
        (Tolerance(top1_agreement=0.8), "75.00% of the images"),
    ],
)
def test_every_bound_of_a_tolerance_is_checked(bound, words):
    report = compare(np.eye(4), np.eye(4)[[0, 1, 2, 2]], bound)
    assert re.search(words, report.faults[0])


def test_class_maps_agree_by_their_pixels():
    maps = np.array([[[0, 0, 0], [2, 2, 2]], [[2, 2, 0], [0, 2, 2]]])
    found = maps.copy()
    found[0, 0, 0], found[1, 0, 0], found[1, 0, 1] = 2, 0, 3
    # Class 0: 4 shared of 6; class 2: 5 of 8; class 3: 0 of 1; class 1: none.
    logits, answers = (np.eye(4)[x] for x in (maps, found))

    def decide(outputs):
        return outputs.argmax(axis=-1)

    report = compare(logits, answers, Tolerance(), decide)
    assert report.mean_iou == pytest.approx((4 / 6 + 5 / 8 + 0) / 3)
    assert report.top1_agreement == 9 / 12 and not report.faults
    for limits, words in (
        (Tolerance(mean_iou=0.5), "IoU of the classes is 0.4306; it must be"),
        (Tolerance(top1_agreement=0.8), "75.00% of the pixels, 9 of 12, have"),
    ):
        [fault] = compare(logits, answers, limits, decide).faults
        assert words in fault
    [warning] = compare(
        logits, answers, Tolerance(expected_mean_iou=0.5), decide
    ).warnings
    assert "it should be at least 0.5" in warning
    report = compare(logits, logits, FLOAT32, decide)
    assert report.mean_iou == 1 and not report.faults


def test_depths_have_no_classes():
    depths = np.array([[[[1.0], [4.0]]]])
    limits = Tolerance(relative_difference=0.1, top1_agreement=1.0)
    report = compare(depths, depths * 1.2, limits, lambda outputs: None)
    assert np.isnan(report.top1_agreement) and report.mean_iou is None
    assert report.relative_difference == pytest.approx(0.2)
    [fault] = report.faults
    assert "2.0e-01 of the largest output" in fault
    limits = Tolerance(depth_difference=0.1)
    assert compare(depths, depths * 1.2, limits, lambda outputs: None).faults
    assert not compare(depths, depths * 1.2, limits).faults


def test_a_smaller_share_of_classes_may_be_a_warning():
    wish = Tolerance(expected_top1_agreement=0.8)
    report = compare(np.eye(4), np.eye(4)[[0, 1, 2, 2]], wish)
    assert "fewer than 80%" in report.warnings[0] and not report.faults


def test_answers_of_zeros_point_the_same_way():
    zeros = np.zeros((2, 3))
    report = compare(zeros, zeros, Tolerance())
    assert report.cosine == 1


def test_zeros_in_place_of_answers_are_a_fault():
    report = compare(np.ones((2, 3)), np.zeros((2, 3)), Tolerance(cosine=0.9))
    assert report.cosine == 0 and report.faults


@pytest.mark.parametrize("size", [0.01, 1, 50])
def test_large_answers_may_differ_by_more(size):
    """Large ones by 1e-5 of their size; small ones by 1e-5 absolute."""
    expected = size * np.eye(3)
    for difference, is_fault in [(0.9e-5, False), (1.1e-5, True)]:
        answers = expected - difference * max(1, size)
        report = compare(expected, answers, FLOAT32)
        assert bool(report.faults) == is_fault
        assert report.relative_difference == pytest.approx(difference)


def test_an_image_does_not_excuse_another():
    expected = np.array([[0.0, 1.0], [0.0, 100.0]])
    answers = expected + [[2e-5, 0.0], [0.0, 0.0]]
    [fault] = compare(expected, answers, FLOAT32).faults
    assert "2.0e-05 of the largest" in fault


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_a_fault_whatever_is_allowed(bad):
    expected = np.eye(4)
    answers = expected.copy()
    answers[1, 2] = bad
    for pair, words in [
        ((expected, answers), "^the export gives NaN or infinity for 1 of 4"),
        ((answers, expected), "^the Keras model gives NaN or infinity for 1"),
        ((answers, answers), "^the Keras model gives NaN or infinity for 1"),
    ]:
        report = compare(*pair, Tolerance())
        assert re.search(words, report.faults[0])
        assert not math.isfinite(report.max_difference)


INT8 = QUANTIZATIONS["dynamic_int8"].tolerance


def turn_classes(num_images, num_ties, num_turned):
    """Return answers of which some have another class."""
    expected = np.tile([10.0, 0.0, 0.0], (num_images, 1))
    expected[:num_ties] = [10.0, 9.999, 0.0]
    answers = expected.copy()
    changed = slice(num_ties - num_turned, num_ties)
    answers[changed] = expected[changed][:, [1, 0, 2]]
    return expected, answers


@pytest.mark.parametrize(
    "num_images, num_turned, is_right",
    [
        (1, 1, True),
        (16, 1, True),
        (16, 2, False),
        (99, 1, True),
        (100, 1, True),
        (199, 2, False),
        (200, 2, True),
        (200, 3, False),
    ],
)
def test_one_of_few_images_may_be_a_tie(num_images, num_turned, is_right):
    pair = turn_classes(num_images, num_turned, num_turned)
    report = compare(*pair, INT8)
    assert report.cosine > 0.999
    assert bool(report.faults) != is_right
    share = 1 - num_turned / num_images
    assert report.top1_agreement == pytest.approx(share)
    # What is let pass is said.
    is_said = "nearly a tie" in " ".join(report.warnings)
    assert is_said == (is_right and share < 0.99)


def test_one_of_few_images_must_not_be_another_class():
    """Hidden by the mean: 0.9993 over 99 images."""
    expected, answers = turn_classes(99, 1, 0)
    answers[0] = [10.0, 14.5, 0.0]
    report = compare(expected, answers, INT8)
    assert report.cosine > 0.999
    assert report.faults[0].startswith("98.99% of the images, 98 of 99")


@pytest.mark.parametrize(
    "decide, share, fault",
    [
        (None, 0.5, "50.00% of the images, 1 of 2, have the same top-1"),
        (lambda x: x >= 2, 5 / 6, "83.33% of the labels, 5 of 6, are the"),
        (lambda x: x >= 5, 1, None),
    ],
)
def test_several_labels_are_compared_at_their_thresholds(decide, share, fault):
    """And not by which of two sure ones is the surest."""
    expected = np.array([[9.0, 8.0, 1.9], [0.0, 0.0, 9.0]])
    answers = np.array([[8.0, 9.0, 2.1], [0.0, 0.0, 9.0]])
    report = compare(expected, answers, Tolerance(top1_agreement=0.9), decide)
    assert report.top1_agreement == pytest.approx(share)
    assert len(report.faults) == bool(fault)
    assert "".join(report.faults).startswith(fault or "")


RANKING = {
    "labels": np.array([["a", "b", "c"]]),
    "probabilities": np.array([[0.45, 0.449, 0.101]]),
}


def test_two_classes_may_have_one_name():
    answers = {
        "labels": np.array([["crane", "crane", "b"]]),
        "probabilities": np.array([[0.5, 0.3, 0.2]]),
    }
    assert not compare_outputs(answers, answers, FLOAT32).faults


@pytest.mark.parametrize(
    ("labels", "probabilities", "difference", "fault"),
    [
        (["a", "b"], [0.45, 0.449], 1e-5, ""),
        (["b", "a"], [0.4495, 0.4495], 1e-2, ""),
        (["b", "a"], [0.45, 0.449], 1e-5, "labels: expected a, got b"),
        (["c"], [0.45], 1e-2, "labels: expected a, got c"),
        (["a", "b"], [0.45, 0.43], 1e-2, "probabilities: the largest diff"),
        (["a"], [np.nan], 1.0, "probabilities: the export gives NaN"),
    ],
)
def test_labels_may_change_places_only_if_tied(
    labels, probabilities, difference, fault
):
    answers = {
        "labels": np.array([labels]),
        "probabilities": np.array([probabilities]),
    }
    bound = Tolerance(max_difference=difference)
    faults = compare_outputs(RANKING, answers, bound).faults
    assert len(faults) == bool(fault) and "".join(faults).startswith(fault)


@pytest.mark.parametrize(
    ("labels", "thresholds", "fault"),
    [
        (["a", "b"], [0.3, 0.2], ""),
        (["b", "a"], [0.2, 0.3], ""),
        (["b", "a"], [0.3, 0.2], "thresholds: expected 0.2 for b, got 0.3"),
        (["a", "a"], [0.1, 0.3], ""),  # Two classes of one name.
    ],
)
def test_thresholds_are_those_of_their_labels(labels, thresholds, fault):
    expected = {
        "labels": np.array([["a", "b", "a"]]),
        "probabilities": np.array([[0.4, 0.4, 0.4]]),
        "thresholds": np.array([[0.3, 0.2, 0.1]]),
    }
    answers = {
        "labels": np.array([labels]),
        "probabilities": np.array([[0.4, 0.4]]),
        "thresholds": np.array([thresholds]),
    }
    faults = compare_outputs(expected, answers, FLOAT32).faults
    assert "".join(faults) == fault


def test_all_outputs_of_a_predictor_are_compared():
    expected = {"x": np.eye(3), "y": np.ones((3, 2, 2)), "z": np.ones((3, 1))}
    outputs = {"x": np.eye(3) + 0.1, "y": np.ones((3, 2, 2)), "more": 1}
    outputs["y"][2, 1, 1] = 3
    report = compare_outputs(expected, outputs, Tolerance(max_difference=0.5))
    assert report.max_difference == 2 and report.num_images == 3
    assert report.top1_agreement == 1
    missing, difference = report.faults
    assert missing == "z: expected (3, 1), got none"
    assert difference.startswith("y: ") and "2.0e+00" in difference
    outputs["z"] = np.ones((3, 2))
    report = compare_outputs(expected, outputs, Tolerance())
    assert report.faults == ("z: expected (3, 1), got (3, 2)",)


STEPS = {
    **{
        method: [resize_step((24, 17), method)]
        for method in ("antialias", "area", "bicubic", "bilinear")
    },
    "cover": [
        resize_step((24, 17), "bicubic", "resize_to_cover"),
        central_crop_step((24, 17)),
    ],
    "small": [resize_small_step(20), central_crop_step((17, 20))],
}


@pytest.mark.parametrize("steps", STEPS)
@pytest.mark.parametrize("shape", [(61, 47), (20, 33), (5, 90)], ids=str)
def test_the_second_reader_agrees_with_the_graph(shape, steps):
    """Which share no line of code but the sizes."""
    random = np.random.default_rng(0)
    pixels = random.integers(0, 256, (*shape, 3), "uint8")
    normalization = ((0.1, 0.2, 0.3), (0.5, 0.6, 0.7))
    found = read_for_model(encode(pixels), 3, STEPS[steps], normalization)
    image = tf.constant(pixels, tf.float32)
    want = resizing.apply_steps(image, STEPS[steps]).numpy()
    found = 255 * to_fractions(found, normalization)
    np.testing.assert_allclose(found, want, atol=2e-3)


@pytest.mark.parametrize(
    ("normalization", "low", "high", "is_right"),
    [
        ("vit", -1, 1, True),
        ("vit", -0.2, 0.1, True),
        ("zero_one", 0, 1, True),
        # A model that scales its pixels itself, and a server that does.
        ("vit", 0, 255, False),
        (from_range(0, 255), -1, 1, False),
        (from_range(0, 255), 0, 1, False),
        ("zero_one", 0, 255, False),
    ],
)
def test_images_must_have_the_scale_that_a_server_gives_them(
    normalization, low, high, is_right
):
    images = np.linspace(low, high, 96, dtype="float32").reshape(2, 4, 4, 3)
    fractions = to_fractions(images, normalization)
    assert (not find_wrong_scale(images, fractions)) == is_right


def test_images_of_one_colour_may_have_any_scale():
    black = np.zeros((2, 4, 4, 3))
    assert not find_wrong_scale(black, black)
