"""Losses and figures of maps, by plain NumPy."""

import keras
import numpy as np
import pytest
from keras import ops
from sklearn.metrics import jaccard_score

from trainers.evaluation.map_scores import DepthTally, SegmentTally
from trainers.recipes.recipe import Recipe
from trainers.training.map_objectives import (
    AbsRel,
    Delta1,
    MeanIoU,
    cross_entropy,
    dice_loss,
    make_map_loss,
    metric_loss,
    relative_loss,
    share_right,
)

NUM_CLASSES = 4
SIZE = (3, 5, 6)  # Images, height, width.


@pytest.fixture
def segments():
    """Return classes, of which some are unknown, and logits."""
    rng = np.random.default_rng(0)
    maps = rng.integers(0, NUM_CLASSES - 1, SIZE).astype("float32")
    maps[rng.random(SIZE) < 0.3] = np.nan
    return maps, rng.normal(size=(*SIZE, NUM_CLASSES)).astype("float32")


@pytest.fixture
def depths():
    rng = np.random.default_rng(1)
    maps = rng.uniform(0.5, 9, SIZE).astype("float32")
    maps[rng.random(SIZE) < 0.3] = np.nan
    found = np.nan_to_num(maps, nan=1.0) * rng.uniform(0.7, 1.5, SIZE)
    return maps, found.astype("float32")


def each(function, *arrays):
    """Return a function of the known pixels of each image."""
    maps = arrays[0]
    return [
        function(*(array[i][np.isfinite(maps[i])] for array in arrays))
        for i in range(len(maps))
    ]


def shares_of(logits):
    powers = np.exp(logits.astype("float64"))
    return powers / powers.sum(-1, keepdims=True)


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_cross_entropy_is_the_mean_over_known_pixels(segments, smoothing):
    maps, logits = segments

    def expected(classes, shares):
        wanted = np.eye(NUM_CLASSES)[classes.astype(int)]
        wanted = wanted * (1 - smoothing) + smoothing / NUM_CLASSES
        return -(wanted * np.log(shares)).sum(-1).mean()

    np.testing.assert_allclose(
        ops.convert_to_numpy(cross_entropy(maps, logits, smoothing)),
        each(expected, maps, shares_of(logits)),
        rtol=1e-5,
    )


def test_dice_is_of_the_classes_that_occur(segments):
    maps, logits = segments

    def expected(classes, shares):
        scores = [
            2
            * shares[classes == n, n].sum()
            / ((classes == n).sum() + shares[:, n].sum())
            for n in np.unique(classes).astype(int)
        ]
        return 1 - np.mean(scores)

    np.testing.assert_allclose(
        ops.convert_to_numpy(dice_loss(maps, logits)),
        each(expected, maps, shares_of(logits)),
        rtol=1e-5,
    )


def test_hits_are_the_share_of_the_known_pixels(segments):
    maps, logits = segments
    np.testing.assert_allclose(
        ops.convert_to_numpy(share_right(maps, logits)),
        each(lambda x, y: np.mean(x == y), maps, logits.argmax(-1)),
        rtol=1e-6,
    )


def test_a_recipe_chooses_its_loss(segments, depths):
    maps, logits = segments
    recipe = Recipe(objective="segment", label_smoothing=0.2, dice_weight=0.5)
    parts = make_map_loss(recipe, NUM_CLASSES)
    both = cross_entropy(maps, logits, 0.2) + 0.5 * dice_loss(maps, logits)
    np.testing.assert_allclose(parts["loss"](maps, logits), both, rtol=1e-6)
    # Figures compare runs of any smoothing.
    plain = cross_entropy(maps, logits)
    np.testing.assert_array_equal(parts["eval_loss"](maps, logits), plain)
    maps, found = depths
    for kind, loss in (("metric", metric_loss), ("relative", relative_loss)):
        recipe = Recipe(objective="depth", depth_loss=kind, max_depth=7.0)
        parts = make_map_loss(recipe, 0)
        np.testing.assert_array_equal(
            parts["loss"](maps, found[..., None]), loss(maps, found)
        )
        for figure in parts["figures"]:
            assert figure.is_relative == (kind == "relative")
            assert figure.max_depth == 7.0


def test_losses_of_unknown_images_are_0_and_unmoved_by_unknown_pixels(
    segments, depths
):
    for loss, (maps, outputs) in (
        (cross_entropy, segments),
        (dice_loss, segments),
        (share_right, segments),
        (metric_loss, depths),
        (relative_loss, depths),
    ):
        maps = maps.copy()
        maps[0] = np.nan
        changed = outputs.copy()
        changed[np.isnan(maps)] += 7.0
        before, after = (
            ops.convert_to_numpy(loss(maps, x)) for x in (outputs, changed)
        )
        np.testing.assert_array_equal(before, after)
        assert before[0] == pytest.approx(0, abs=2e-3)


def test_metric_loss_is_that_of_logarithms(depths):
    maps, found = depths

    def expected(right, found):
        d = np.log(found) - np.log(right)
        return np.sqrt((d**2).mean() - 0.85 * d.mean() ** 2)

    np.testing.assert_allclose(
        ops.convert_to_numpy(metric_loss(maps, found)),
        each(expected, maps, found),
        rtol=1e-4,
    )


def test_relative_loss_ignores_scale_and_shift(depths):
    maps, found = depths
    near = 1 / found

    def standardized(x):
        middle = np.sort(x)[(len(x) - 1) // 2]
        return (x - middle) / np.abs(x - middle).mean()

    def expected(right, near):
        both = standardized(1 / right), standardized(near)
        return np.abs(both[0] - both[1]).mean()

    got = ops.convert_to_numpy(relative_loss(maps, near))
    np.testing.assert_allclose(got, each(expected, maps, near), rtol=1e-4)
    moved = ops.convert_to_numpy(relative_loss(maps, 3 * near - 2))
    np.testing.assert_allclose(moved, got, rtol=1e-4)
    exact = ops.convert_to_numpy(
        relative_loss(maps, 5 / np.nan_to_num(maps, nan=1.0) + 1)
    )
    np.testing.assert_allclose(exact, 0, atol=1e-5)


def test_gradients_are_finite_where_little_is_known(depths):
    maps, found = depths
    maps = maps.copy()
    maps[0] = np.nan
    maps[1] = np.where(np.arange(30).reshape(5, 6) == 3, 2.0, np.nan)
    for loss in (metric_loss, relative_loss):
        found = keras.Variable(np.ones(SIZE, "float32"))
        if keras.backend.backend() != "tensorflow":
            pytest.skip("The engines compare gradients.")
        import tensorflow as tf

        with tf.GradientTape() as tape:
            value = ops.sum(loss(maps, found.value))
        gradient = tape.gradient(value, found.value)
        assert np.isfinite(gradient.numpy()).all()


def test_mean_iou_is_that_of_scikit_learn_and_of_the_evaluation(segments):
    maps, logits = segments
    weights = np.float32([1, 0, 1])
    figure = MeanIoU(NUM_CLASSES)
    sums = sum(
        ops.convert_to_numpy(figure.measure(maps[i], logits[i], weights[i]))
        for i in ([0, 1], [2])
    )
    kept = np.isfinite(maps)
    kept[1] = False
    expected = jaccard_score(
        maps[kept].astype(int), logits.argmax(-1)[kept], average="macro"
    )
    assert figure.report(sums) == pytest.approx(expected)
    tally = SegmentTally(["a", "b", "c", "d"])
    tally.add(tally.answer(logits[::2], maps[::2]), maps[::2])
    assert tally.report()["mean_iou"] == pytest.approx(expected)


def test_pixels_are_counted_beyond_the_whole_numbers_of_float32():
    """Up to 2^24: a batch may have more of a class."""
    count = 2**24 + 64
    maps = np.zeros((1, 1, count), "float32")
    figure = MeanIoU(1)
    sums = figure.measure(maps, maps[..., None], np.ones(1, "float32"))
    assert ops.convert_to_numpy(sums).tolist() == [count]


@pytest.mark.parametrize("is_relative", [False, True])
def test_figures_of_depths_are_those_of_the_evaluation(depths, is_relative):
    maps, found = depths
    outputs = (4 / found + 0.3 if is_relative else found)[..., None]
    weights = np.float32([1, 0, 1])
    tally = DepthTally(is_relative, 10.0)
    tally.add(tally.answer(outputs[::2], maps[::2]), maps[::2])
    report = tally.report()
    for kind in (AbsRel, Delta1):
        figure = kind(is_relative, 10.0)
        sums = figure.measure(maps, outputs, weights)
        got = figure.report(ops.convert_to_numpy(sums))
        assert got == pytest.approx(report[figure.name], rel=1e-4)
    if not is_relative:

        def expected(right, found):
            return np.abs(found - right).__truediv__(right).mean()

        assert report["abs_rel"] == pytest.approx(
            np.mean(each(expected, maps[::2], found[::2]))
        )
