"""Figures of segmentation and depth: closed forms and plain counting."""

import itertools

import numpy as np
import pytest

from trainers.evaluation.map_scores import (
    DepthTally,
    SegmentTally,
    boundary_f1,
    fit_depths,
)

NAN = np.nan


def test_two_images_by_hand():
    tally = SegmentTally(["sky", "sea", "land"])
    maps = np.float32([[[0, 0], [1, NAN]], [[0, 1], [1, 1]]])
    answers = np.array([[[0, 1], [1, 2]], [[1, 1], [0, 1]]])
    tally.add(answers, maps)
    report = tally.report()
    np.testing.assert_array_equal(
        tally.confusion, [[1, 2, 0], [1, 3, 0], [0, 0, 0]]
    )
    assert report["iou/sky"] == 1 / 4
    assert report["iou/sea"] == 3 / 6
    assert "iou/land" not in report  # It is only where nothing is known.
    assert report["mean_iou"] == pytest.approx((1 / 4 + 3 / 6) / 2)
    assert report["pixel_accuracy"] == 4 / 7
    assert report["mean_accuracy"] == pytest.approx((1 / 3 + 3 / 4) / 2)
    assert report["accuracy/sea"] == 3 / 4
    assert report["precision/sea"] == 3 / 5
    assert report["share/sea"] == 4 / 7
    assert report["num_examples"] == 2
    assert [row["pixel_accuracy"] for row in tally.rows] == [2 / 3, 2 / 4]
    assert tally.rows[1]["mean_iou"] == (0 / 2 + 2 / 4) / 2


def f1_by_counting(answer, truth, reach):
    """The definition, pixel by pixel."""

    def border(classes, label):
        height, width = classes.shape
        found = []
        for y, x in itertools.product(range(height), range(width)):
            if classes[y, x] != label:
                continue
            near = [(y - 1, x), (y + 1, x), (y, x - 1), (y, x + 1)]
            inside = [
                p for p in near if 0 <= p[0] < height and 0 <= p[1] < width
            ]
            others = [classes[p] for p in inside]
            if any(n != label and n >= 0 for n in others):
                found.append((y, x))
        return found

    def share(points, others):
        hits = [
            any(np.hypot(y - v, x - u) <= reach for v, u in others)
            for y, x in points
        ]
        return np.mean(hits)

    known = np.isfinite(truth)
    both = [np.where(known, x, -1) for x in (answer, truth)]
    scores = []
    for label in np.unique(both):
        found, right = (border(x, label) for x in both)
        if label < 0 or not (found or right):
            continue
        precision = share(found, right) if found and right else 0
        recall = share(right, found) if found and right else 0
        total = precision + recall
        scores.append(2 * precision * recall / total if total else 0)
    return np.mean(scores)


def test_borders_are_compared_within_a_reach():
    rng = np.random.default_rng(0)
    tally, wanted = SegmentTally(["a", "b", "c"]), []
    for _ in range(5):
        truth = np.kron(rng.integers(0, 3, (3, 4)), np.ones((5, 5)))
        answer = np.roll(truth, rng.integers(0, 4, 2), (0, 1)).astype(int)
        truth[rng.random(truth.shape) < 0.1] = NAN
        expected = f1_by_counting(answer, truth, 1.0)
        assert boundary_f1(answer, truth) == pytest.approx(expected)
        assert 0 < expected < 1
        tally.add(answer[None], truth[None])
        wanted.append(expected)
    nothing = np.zeros((1, 15, 20), int)  # No border: it does not count.
    tally.add(nothing, nothing)
    assert tally.report()["boundary_f1"] == pytest.approx(np.mean(wanted))
    # One that is 3 pixels off counts in an image of 390 x 290 pixels.
    truth = np.zeros((390, 290))
    truth[:, 100:] = 1
    assert boundary_f1(np.roll(truth, 1, 1)[:, 1:], truth[:, 1:]) == 1
    moved = np.zeros((390, 290), int)
    moved[:, 103:] = 1
    assert boundary_f1(moved, truth) == 1
    moved[:, 100:105] = 0
    assert boundary_f1(moved, truth) == 0
    assert np.isnan(boundary_f1(np.zeros((4, 4), int), np.zeros((4, 4))))


def test_depths_by_hand():
    tally = DepthTally(False, 10.0)
    maps = np.float32([[[1, 2], [4, NAN]], [[NAN, NAN], [NAN, 1]]])
    # What is not in front of the camera is at a millimetre.
    answers = np.float32([[[1.2, 2.6], [2.1, 9]], [[1, 1], [1, -1]]])
    tally.add(answers, maps)
    report = tally.report()
    # Of each image, and their mean.
    assert report["abs_rel"] == pytest.approx(
        ((0.2 + 0.3 + 1.9 / 4) / 3 + 0.999) / 2
    )
    assert report["rmse"] == pytest.approx(
        (np.sqrt((0.04 + 0.36 + 1.9**2) / 3) + 0.999) / 2
    )
    assert report["delta1"] == pytest.approx(1 / 3 / 2)
    assert report["delta2"] == pytest.approx(2 / 3 / 2)
    assert report["delta3"] == pytest.approx(3 / 3 / 2)


def test_outputs_up_to_scale_and_shift_are_fitted():
    rng = np.random.default_rng(0)
    truth = rng.uniform(0.5, 8, (6, 7))
    output = 3 / truth - 1
    truth[0] = NAN
    fitted = fit_depths(output, truth, 10.0)
    np.testing.assert_allclose(fitted[1:], truth[1:], rtol=1e-6)
    # What would be farther than that is cut off.
    assert fit_depths(output - 1e3 * (truth > 7), truth, 5.0).max() <= 5.0
