import keras
import numpy as np
import pytest
from sklearn.metrics import (
    average_precision_score,
    coverage_error,
    f1_score,
    label_ranking_average_precision_score,
    label_ranking_loss,
    precision_recall_curve,
    precision_recall_fscore_support,
)

from trainers.evaluation.label_scores import (
    LabelTally,
    average_precisions,
    choose_thresholds,
    mean_average_precision,
    ranking_scores,
    sigmoid,
    sigmoid_losses,
)
from trainers.evaluation.scores import wilson_interval

NAMES = [f"class {index}" for index in range(7)]
EXACT = {"rtol": 1e-12, "atol": 1e-12}


@pytest.fixture
def logits():
    """Return logits (200, 7), many of which are equal."""
    return np.random.default_rng(0).normal(0, 2, (200, 7)).round(1)


@pytest.fixture
def labels(logits):
    """Return labels that the logits tell in part; class 6 has no positives."""
    draws = np.random.default_rng(1)
    labels = (logits + draws.normal(0, 2, logits.shape) > 1.5).astype(float)
    labels[:, 6] = 0
    assert (labels.sum(-1) == 0).any() and (labels.sum(-1) > 2).any()
    return labels


@pytest.fixture
def masked(labels):
    """Return these labels, a third of which nobody knows, of 5 images all."""
    masked = labels.copy()
    masked[np.random.default_rng(2).random(labels.shape) < 0.3] = np.nan
    masked[:5] = np.nan
    return masked


def test_average_precisions_are_those_of_scikit_learn(logits, labels):
    found = average_precisions(logits.T, labels.T)
    want = [average_precision_score(*x) for x in zip(labels.T[:6], logits.T)]
    np.testing.assert_allclose(found[:6], want, **EXACT)
    assert np.isnan(found[6])
    macro = mean_average_precision(logits, labels)
    np.testing.assert_allclose(macro, np.mean(want), **EXACT)
    micro = average_precision_score(labels, logits, average="micro")
    found = mean_average_precision(logits, labels, "micro")
    np.testing.assert_allclose(found, micro, **EXACT)


def test_unknown_labels_count_nowhere(logits, masked):
    columns = []
    for scores, column in zip(logits.T[:6], masked.T):
        is_known = ~np.isnan(column)
        columns.append(
            average_precision_score(column[is_known], scores[is_known])
        )
    found = average_precisions(logits.T, masked.T)[:6]
    np.testing.assert_allclose(found, columns, **EXACT)
    is_known = ~np.isnan(masked)
    micro = average_precision_score(masked[is_known], logits[is_known])
    found = mean_average_precision(logits, masked, "micro")
    np.testing.assert_allclose(found, micro, **EXACT)
    rows, losses = (
        ranking_scores(logits, masked),
        sigmoid_losses(logits, masked),
    )
    for index in range(5, 200):
        row = is_known[index]
        pair = masked[index : index + 1, row], logits[index : index + 1, row]
        loss = keras.losses.binary_crossentropy(*pair, from_logits=True)
        np.testing.assert_allclose(
            losses[index], float(loss[0]) * row.sum(), rtol=1e-5
        )
        if row.sum() == 1:
            continue  # Of one label, scikit-learn ranks nothing.
        for name, function in RANKINGS.items():
            np.testing.assert_allclose(
                rows[name][index], function(*pair), **EXACT, err_msg=name
            )


RANKINGS = {
    "label_ranking_average_precision": label_ranking_average_precision_score,
    "coverage_error": coverage_error,
    "ranking_loss": label_ranking_loss,
}


def test_rankings_are_those_of_scikit_learn(logits, labels):
    found = ranking_scores(logits, labels)
    for name, function in RANKINGS.items():
        want = function(labels, logits)
        np.testing.assert_allclose(
            found[name].mean(), want, **EXACT, err_msg=name
        )


def test_figures_at_the_thresholds_are_those_of_scikit_learn(logits, labels):
    thresholds = np.linspace(0.2, 0.8, 7)
    tally = LabelTally(NAMES, thresholds)
    decisions = 1 / (1 + np.exp(-logits)) >= thresholds
    parts = slice(0, 150), slice(150, 200)
    exact = [tally.add(logits[part], labels[part]) for part in parts]
    report = tally.report()
    is_exact = (decisions == labels).all(-1)
    np.testing.assert_array_equal(np.concatenate(exact), is_exact)
    assert report["exact_match"] == is_exact.mean()
    precisions, recalls, f1, positives = precision_recall_fscore_support(
        labels, decisions, zero_division=0
    )
    for index, name in enumerate(NAMES):
        assert report[f"threshold/{name}"] == thresholds[index]
        assert report[f"positives/{name}"] == positives[index]
        assert report[f"images/{name}"] == 200
        own = report[f"precision/{name}"]
        assert own == pytest.approx(precisions[index], rel=1e-12)
        if index < 6:
            assert report[f"recall/{name}"] == pytest.approx(recalls[index])
            assert report[f"f1/{name}"] == pytest.approx(f1[index])
    for name in ("recall", "f1", "average_precision"):
        assert f"{name}/class 6" not in report
    kept = range(6)
    macro = f1_score(labels, decisions, labels=kept, average="macro")
    assert report["macro_f1"] == pytest.approx(macro, rel=1e-12)
    micro = f1_score(labels, decisions, average="micro")
    assert report["micro_f1"] == pytest.approx(micro, rel=1e-12)
    np.testing.assert_array_equal(
        tally.confusion,
        [[((a > 0) & d & (b == 0)).sum() for b, d in zip(labels.T, decisions.T)]
         for a in labels.T],
    )  # fmt: skip


def test_intervals_of_the_classes():
    """Ten positives of twelve images: eight are found, with one false alarm."""
    logits = np.array([*[1.0] * 8, -1, -1, 1, -1])[:, None]
    labels = np.array([*[1.0] * 10, 0, 0])[:, None]
    tally = LabelTally(["a/b"])
    tally.add(logits, labels)
    report = tally.report()

    def interval(metric):
        return [report[f"{metric}_{end}/a/b"] for end in ("low", "high")]

    assert interval("recall") == pytest.approx(wilson_interval(8, 10))
    assert interval("precision") == pytest.approx(wilson_interval(8, 9))
    shares = np.array(wilson_interval(8, 11))  # Of hits, misses and alarms.
    assert report["f1/a/b"] == pytest.approx(16 / 19)
    assert interval("f1") == pytest.approx(2 * shares / (1 + shares))
    assert (report["exact_match_low"], report["exact_match_high"]) == (
        wilson_interval(9, 12)
    )


def test_unknown_labels_in_the_report(logits, masked):
    """Those that are filled with what the model says change no count."""
    tally, filled = LabelTally(NAMES), LabelTally(NAMES)
    exact = tally.add(logits, masked)
    is_known = ~np.isnan(masked)
    decisions = (logits >= 0).astype(float)
    same = np.where(is_known, masked, decisions)
    np.testing.assert_array_equal(exact, filled.add(logits, same))
    report = tally.report()
    assert report["num_examples"] == 195  # Five have no known label.
    assert report["exact_match"] == exact[5:].mean()
    chances = (1 / (1 + np.exp(-logits)))[is_known]
    assert sum(row.count for row in tally.bins()) == is_known.sum()
    edges = np.minimum((chances * 15).astype(int), 14)
    gaps = [
        abs((chances - masked[is_known])[edges == edge].sum())
        for edge in range(15)
    ]
    found = report["calibration_error"]
    assert found == pytest.approx(sum(gaps) / is_known.sum())
    column = is_known[:, 2]
    assert report["images/class 2"] == column.sum()
    hits = (decisions * masked)[column, 2].sum()
    share = hits / decisions[column, 2].sum()
    assert report["precision/class 2"] == pytest.approx(share)
    assert report["loss"] == pytest.approx(
        -np.log(np.where(masked == 1, sigmoid(logits), sigmoid(-logits)))[
            is_known
        ].sum()
        / 195
    )


def test_images_without_any_label_have_no_figures():
    tally = LabelTally(NAMES)
    tally.add(np.zeros((3, 7)), np.zeros((3, 7)))
    with pytest.raises(ValueError, match="`dataset` must have images with"):
        tally.report()


def test_an_image_without_labels_is_right_if_it_gets_none():
    tally = LabelTally(["a", "b"])
    logits = np.array([[-1.0, -1], [-1, 1], [1, -1]])
    exact = tally.add(logits, np.array([[0.0, 0], [0, 0], [1, 0]]))
    assert exact.tolist() == [True, False, True]
    assert tally.report()["exact_match"] == pytest.approx(2 / 3)


def test_large_logits_do_not_overflow():
    logits = np.array([[1e5, -1e5]], "float32")
    np.testing.assert_array_equal(sigmoid(logits), [[1, 0]])
    losses = sigmoid_losses(logits, np.array([[0.0, 0]]))
    np.testing.assert_array_equal(losses, [1e5])


def test_no_threshold_has_a_higher_f1(logits, masked):
    chances = sigmoid(logits)
    thresholds = choose_thresholds(chances, masked)
    assert thresholds[6] == 0.5
    for scores, column, threshold in zip(chances.T[:6], masked.T, thresholds):
        is_known = ~np.isnan(column)
        scores, truths = scores[is_known], column[is_known] == 1
        highest = max(f1_score(truths, scores >= cut) for cut in scores)
        assert f1_score(truths, scores >= threshold) == highest


@pytest.mark.parametrize("least", [0.5, 0.9, 1.0])
def test_the_lowest_threshold_of_a_precision(logits, masked, least):
    chances = sigmoid(logits)
    thresholds = choose_thresholds(chances, masked, f"precision:{least}")
    for scores, column, threshold in zip(chances.T[:6], masked.T, thresholds):
        is_known = ~np.isnan(column)
        scores, truths = scores[is_known], column[is_known] == 1
        reached, recalls, cuts = precision_recall_curve(truths, scores)
        reached, recalls = reached[:-1], recalls[:-1]
        is_enough = reached >= min(least, reached.max())
        lowest = cuts[is_enough].min()
        below = scores[scores < lowest].max(initial=0.0)
        assert threshold == pytest.approx((lowest + below) / 2, rel=1e-12)


def test_a_threshold_lies_midway_and_takes_no_side_of_a_tie():
    chances = np.array([[0.9], [0.8], [0.8], [0.4], [0.2]])
    labels = np.array([[1.0], [1], [0], [1], [0]])
    [found] = choose_thresholds(chances, labels)
    assert found == pytest.approx(0.3)
    [found] = choose_thresholds(chances, labels, "precision:0.9")
    assert found == pytest.approx(0.85)
    [found] = choose_thresholds(chances, labels, "precision:0.6")
    assert found == pytest.approx(0.1)  # Of 3 in 5.
    labels[0] = np.nan
    [found] = choose_thresholds(chances, labels, "precision:.9")
    assert found == pytest.approx(0.3)  # The most precise one, 2 of 3.


@pytest.mark.parametrize("goal", ["f2", "precision:0", "precision:1.5", ""])
def test_other_goals_are_refused(goal):
    with pytest.raises(ValueError, match=f"`threshold_goal` must be.*{goal!r}"):
        choose_thresholds(np.ones((1, 1)), np.ones((1, 1)), goal)
