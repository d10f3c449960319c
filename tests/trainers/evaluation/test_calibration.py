"""Temperatures, scores of known images and prediction sets."""

import dataclasses
import itertools
import json
import shutil
import warnings

import keras
import numpy as np
import pytest
from scipy.special import expit, logsumexp, softmax
from scipy.stats import beta
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

from keras_vit.known import SCORES, KnownScore, with_features
from tests.trainers.made import write_photos
from trainers.data.datasets import open_dataset
from trainers.evaluation import calibration
from trainers.evaluation.calibration import (
    auroc,
    calibrate_classes,
    choose_score,
    choose_temperature,
    cut_below,
    false_positive_rate,
    fit_temperature,
    judge_left_out,
    scale_head,
    set_limit,
)
from trainers.evaluation.evaluation import evaluate, name_chosen
from trainers.evaluation.predictions import make_predict, predict_dataset
from trainers.export_model import find_known
from trainers.paths import ContentError
from trainers.training.model_card import describe_run
from trainers.training.run_folder import Calibration, NamedModel, RunFolder

# ---------------------------------------------------------------- temperature


def drawn_labels(temperature, activation="softmax", count=20_000):
    """Return logits, and classes drawn from their probabilities."""
    random = np.random.default_rng(0)
    logits = random.normal(0, 3, (count, 4)).astype("float32")
    if activation == "sigmoid":
        chances = expit(logits / temperature)
        return logits, random.random(chances.shape) < chances
    chances = softmax(logits / temperature, -1).cumsum(-1)
    classes = (random.random((count, 1)) > chances).sum(-1).clip(max=3)
    return logits, np.eye(4, dtype=bool)[classes]


@pytest.mark.parametrize("temperature", [0.4, 1.7])
@pytest.mark.parametrize("activation", ["softmax", "sigmoid"])
def test_the_temperature_that_labels_were_drawn_with(temperature, activation):
    logits, truths = drawn_labels(temperature, activation)
    found = fit_temperature(logits, truths, activation)
    assert found == pytest.approx(temperature, rel=0.03)


def test_a_temperature_is_judged_on_other_images():
    logits, truths = drawn_labels(2.5)
    found, (before, after) = choose_temperature(logits, truths)
    assert found == fit_temperature(logits, truths)
    assert before > 0.1 > 0.02 > after


def test_honest_probabilities_keep_their_temperature():
    """A little training noise fits, but does not help other images."""
    draws = [drawn_labels(1.0, count=count) for count in range(40, 60)]
    for logits, truths in draws:
        found, (before, after) = choose_temperature(logits, truths)
        assert (found == 1.0) == (after >= before)
    assert any(choose_temperature(*draw)[0] == 1.0 for draw in draws)


@pytest.mark.parametrize("count", [1, 17, 400])
def test_few_images_that_are_right_do_not_claim_certainty(count):
    """Of N right images and one wrong one, N / (N + 1) are right."""
    truths = np.eye(3, dtype=bool)[np.arange(count) % 3]
    found = fit_temperature(4.0 * truths, truths)
    share = softmax([4 / found, 0, 0])[0]
    assert share == pytest.approx(max(count / (count + 1), 0.5), abs=1e-3)


def make_model(*layers):
    keras.utils.set_random_seed(0)
    inputs = [keras.Input((4, 3, 1)), keras.layers.Flatten()]
    return keras.Sequential([*inputs, keras.layers.Dense(5), *layers])


def test_logits_are_divided_in_the_head():
    model = make_model(keras.layers.Dense(3, name="predictions"))
    model.layers[-1].bias.assign([1.0, -2.0, 3.0])
    images = np.random.default_rng(1).normal(size=(6, 4, 3, 1))
    before, first = model.predict(images, verbose=0), model.layers[1].kernel
    unchanged = keras.ops.convert_to_numpy(first)
    scale_head(model, 2.5)
    after = model.predict(images, verbose=0)
    np.testing.assert_allclose(after, before / 2.5, rtol=1e-5)
    np.testing.assert_array_equal(first, unchanged)


def test_a_head_that_is_not_linear_has_no_temperature():
    model = make_model(keras.layers.Dense(3, "tanh", name="last"))
    with pytest.raises(ValueError, match="`model` must end in a linear.*last"):
        scale_head(model, 2.5)


# -------------------------------------------------------------- known images


def test_figures_of_two_kinds_of_images_count_pairs():
    random = np.random.default_rng(0)
    known = random.integers(0, 9, 41).astype("float32")  # With ties.
    unknown = random.integers(-3, 7, 23).astype("float32")
    pairs = [
        (a > b) + (a == b) / 2 for a, b in itertools.product(known, unknown)
    ]
    assert auroc(known, unknown) == pytest.approx(np.mean(pairs))
    # 95 % of 41 images are 39: two of the lowest may fail.
    cut = np.sort(known)[2]
    share = np.mean(unknown >= cut)
    assert false_positive_rate(known, unknown) == share


@pytest.mark.parametrize("refuse", [0.0, 0.05, 0.3])
def test_few_images_like_these_are_unknown(refuse):
    """Over random splits, no more than the share that was named."""
    random, shares = np.random.default_rng(0), []
    for _ in range(200):
        scores = random.normal(size=(1099,)).astype("float32")
        cut = cut_below(scores[:99], refuse)
        assert np.mean(scores[:99] < cut) <= refuse + 1e-9
        shares.append(np.mean(scores[99:] < cut))
    # Of 99 images, k with 1/100 each: the least that is not above `refuse`.
    expected = np.floor(refuse * 100 + 1e-9) / 100
    error = np.std(shares) / np.sqrt(200)
    assert abs(np.mean(shares) - max(expected, 0.01 / 2)) < 0.01 / 2 + 4 * error
    assert np.mean(shares) < max(refuse, 0.011) + 4 * error


def test_no_threshold_is_at_a_score():
    scores = np.float32([3, 1, 2, 1])
    assert cut_below(scores, 0.0) < 1
    assert cut_below(scores, 0.45) < 1  # Rather none than both.
    assert 1 < cut_below(scores, 0.65) < 2
    assert cut_below(scores[:1], 0.5) == 3


def clusters(centers, count, seed):
    random = np.random.default_rng(seed)
    classes = np.arange(count) % len(centers)
    features = centers[classes] + random.normal(size=(count, len(centers[0])))
    return features.astype("float32"), classes


def test_classes_that_are_left_out_are_told_by_their_features():
    centers = 9 * np.eye(7)[:6] + 5
    train = clusters(centers, 300, 1)
    features, classes = clusters(centers, 120, 2)
    found = judge_left_out(train, (features, np.eye(6, dtype=bool)[classes]))
    assert set(found) == set(SCORES)
    assert found["class_means"] > 0.999 and found["neighbors"] > 0.98
    assert all(0.4 < x <= 1 for x in found.values())


def test_left_out_classes_are_judged_without_their_discriminant():
    """One more than two classes: the other two share what is left out."""
    centers = np.array([[9, 0], [0, 9], [9, 9]]) * 1.0
    train = clusters(centers, 300, 1)
    features, classes = clusters(centers, 120, 2)
    truths = np.eye(3, dtype=bool)[classes]
    found = judge_left_out(train, (features, truths))
    expected = []
    for left in np.array_split(np.random.default_rng(0).permutation(3), 3):
        kept = ~np.isin(train[1], left)
        model = LinearDiscriminantAnalysis(priors=[0.5, 0.5])
        model.fit(train[0][kept], train[1][kept])
        known = model.predict_proba(features).max(-1)
        is_known = ~np.isin(classes, left)
        expected.append(auroc(known[is_known], known[~is_known]))
    assert found["max_probability"] == pytest.approx(
        np.mean(expected), abs=0.01
    )


def test_of_two_classes_none_can_be_left_out():
    train = clusters(np.eye(2), 20, 1)
    features, classes = clusters(np.eye(2), 20, 2)
    found = judge_left_out(train, (features, np.eye(2, dtype=bool)[classes]))
    assert np.isnan([*found.values()]).all()
    assert choose_score(found) in SCORES


def test_the_best_score_or_the_last_of_about_equal_ones():
    scores = dict(zip(SCORES, [0.9, 0.995, 0.99, 0.98]))
    assert choose_score(scores) == "neighbors"
    assert choose_score({**scores, "energy": 1.0}) == "neighbors"
    assert choose_score({**scores, "energy": 1.1}) == "energy"


# ------------------------------------------------------------ prediction sets


@pytest.mark.parametrize("count, coverage", [(50, 0.9), (99, 0.8), (20, 0.95)])
def test_sets_cover_what_was_promised(count, coverage):
    """In 200 random splits, within the interval of the Beta distribution."""
    random, rates = np.random.default_rng(count), []
    for _ in range(200):
        truths = random.random(count + 500).astype("float32") ** 3
        limit = set_limit(truths[:count], coverage)
        rates.append(np.mean(truths[count:] >= limit))
    rank = int(np.ceil(round((count + 1) * coverage, 9)))
    law = beta(rank, count + 1 - rank)
    variance = law.var() + law.mean() * (1 - law.mean()) / 500
    assert abs(np.mean(rates) - law.mean()) < 4 * np.sqrt(variance / 200)
    assert law.mean() >= coverage
    # Single splits, too: 99 % of them within these limits.
    low, high = law.ppf([0.002, 0.998])
    assert np.mean((low - 0.06 < rates) & (rates < high + 0.06)) > 0.98


def test_too_few_images_promise_nothing_but_all_classes():
    assert set_limit(np.float32([0.9, 0.8]), 0.9) == 0.0
    assert set_limit(np.float32([0.9] * 9), 0.9) == np.float32(0.9)
    # 0.55 * 100 is a little more than 55 in a computer.
    assert set_limit(np.arange(99, dtype="float32"), 0.55) == 44


@pytest.mark.parametrize("coverage", [0, 1, 1.5, np.nan])
def test_a_coverage_is_a_share(coverage):
    with pytest.raises(ValueError, match="`coverage` must be a share"):
        set_limit(np.ones(3), coverage)


# ------------------------------------------------------------ a run calibrated


@pytest.fixture(scope="module")
def sure(run, tmp_path_factory):
    """Return a run whose probabilities are far too high."""
    folder = tmp_path_factory.mktemp("sure") / "run"
    run = RunFolder(shutil.copytree(run.folder, folder))
    model = run.load_model()
    scale_head(model, 1 / 50)
    run.save_model(model)
    return run


@pytest.fixture(scope="module")
def before(sure):
    return sure.load_model()


@pytest.fixture(scope="module")
def noise():
    random = np.random.default_rng(0)
    return random.uniform(-1, 1, (30, 8, 8, 1)).astype("float32")


@pytest.fixture(scope="module")
def found(sure, before, noise, digits):
    return calibrate_classes(
        sure, digits, score="energy", refuse=0.1, unknown=noise
    )


def outputs(model, dataset, run):
    rows = predict_dataset(
        model, dataset, batch_size=128, preprocess=run.preprocess
    )
    _, logits, truths, *_ = zip(*rows)
    return np.concatenate(logits), np.concatenate(truths) > 0


def test_the_kept_model_has_the_temperature(sure, before, found, digits):
    figures = found.figures
    error, scaled = (
        figures[f"calibration_error{ending}"] for ending in ("", "_scaled")
    )
    assert figures["temperature"] > 5 and scaled < error
    logits, truths = outputs(before, digits, sure)
    after, _ = outputs(sure.load_model(), digits, sure)
    np.testing.assert_allclose(
        after, logits / figures["temperature"], rtol=1e-3, atol=1e-4
    )
    # The probabilities of the right classes, for prediction sets.
    chances = softmax(after.astype("float64"), -1)[truths]
    np.testing.assert_allclose(found.truths, chances, rtol=1e-3)
    assert figures["num_examples"] == len(truths) < figures["num_train"]


def test_a_calibration_is_read_as_it_was_written(sure, found):
    read = RunFolder(sure.folder).calibration
    assert read.known.kind == found.known.kind == found.figures["score"]
    assert read.known.threshold == found.known.threshold
    assert read.known.vectors.keys() == found.known.vectors.keys()
    for name, vectors in found.known.vectors.items():
        np.testing.assert_array_equal(read.known.vectors[name], vectors)
    np.testing.assert_array_equal(read.truths, found.truths)
    assert json.loads(json.dumps(read.figures)) == read.figures


def test_an_evaluation_refuses_the_share_that_was_asked_for(
    sure, found, digits, tmp_path
):
    report = evaluate(sure, digits, report_dir=tmp_path)
    assert 1 - report["known"] == pytest.approx(found.figures["refused"])
    assert 0.08 < found.figures["refused"] <= 0.1
    assert 0 <= report["accuracy_of_known"] <= 1
    page = (tmp_path / "evaluation.html").read_text()
    assert "Answers and accuracy" in page and "<h2>Unknown" in page


def test_patches_of_another_size_are_not_calibrated(
    sure, found, digits, tmp_path
):
    report = evaluate(sure, digits, report_dir=tmp_path, patch_size=4)
    assert "known" not in report and "accuracy_of_known" not in report


def test_predictions_score_images_as_the_calibration_did(sure, found, digits):
    model = sure.load_model()
    predict = make_predict(model, "softmax", sure.calibration.known)
    random = np.random.default_rng(0)
    images = random.uniform(-1, 1, (4, *model.input_shape[1:]))
    probabilities, scores = predict([*images])
    both = with_features(model).predict(images, verbose=0)
    expected = found.known(both[:, :-10], both[:, -10:])
    np.testing.assert_allclose(scores, expected, rtol=1e-4)
    chances = softmax(both[:, -10:], -1)
    np.testing.assert_allclose(probabilities, chances, rtol=1e-5)


def test_the_card_says_what_is_unknown(sure, found):
    text = describe_run(sure, sure.load_model())
    assert text in sure.card_path.read_text()
    assert f"its score (`{found.known.kind}`) is below" in text
    assert f"{found.figures['refused']:.1%} of the" in text


def test_scores_are_judged_with_the_temperature(sure, found, digits, noise):
    model = sure.load_model()
    known, _ = outputs(model, digits, sure)
    unknown = model.predict(noise, verbose=0)
    scores = [logsumexp(x.astype("float64"), -1) for x in (known, unknown)]
    row = found.figures["scores"]["energy"]
    assert row["auroc"] == pytest.approx(auroc(*scores), abs=1e-3)


def test_unknown_images_choose_the_score(run, digits, noise, tmp_path):
    sure = RunFolder(shutil.copytree(run.folder, tmp_path / "run"))
    figures = calibrate_classes(sure, digits, unknown=noise).figures
    rows = figures["scores"]
    best = max(row["auroc"] for row in rows.values())
    assert rows[figures["score"]]["auroc"] > best - calibration.EQUAL
    assert figures["num_unknown"] == 30
    chosen = calibrate_classes(sure, digits, score="energy")
    assert chosen.known.kind == "energy"
    assert "auroc" not in chosen.figures["scores"]["energy"]


def test_classes_may_have_a_sigmoid_and_a_preprocessing(run, digits, tmp_path):
    run = RunFolder(shutil.copytree(run.folder, tmp_path / "run"))
    scale = {"augment": "value_range(0, 1)"}
    scale["eval_preprocess"] = scale["augment"]
    recipe = run.load_recipe()
    recipe = dataclasses.replace(recipe, loss="sigmoid", **scale)
    run.save_recipe(recipe, run.load_class_names())
    found = calibrate_classes(run, digits, score="max_probability")
    assert run.calibration.known.activation == "sigmoid"
    logits, truths = outputs(run.load_model(), digits, run)
    chances = expit(logits.astype("float64"))
    np.testing.assert_allclose(found.truths, chances[truths], rtol=1e-3)
    known = chances.max(-1) >= found.known.threshold
    assert 1 - known.mean() == pytest.approx(found.figures["refused"])


def test_images_of_several_labels_are_never_unknown(run, digits, tmp_path):
    run = RunFolder(shutil.copytree(run.folder, tmp_path / "run"))
    recipe = run.load_recipe()
    recipe = dataclasses.replace(recipe, labels="several", loss="sigmoid")
    run.save_recipe(recipe, run.load_class_names())
    with pytest.raises(ValueError, match="`run_dir` must hold a model of two"):
        calibrate_classes(run, digits)


def test_exports_know_what_the_run_knows(sure, found):
    named = NamedModel(str(sure.model_path))
    for source in (sure, named):
        known = find_known(source, None, None)
        assert known.threshold == found.known.threshold
        assert find_known(source, "features", None) is None
        with pytest.raises(ValueError, match="`activation` must be softmax"):
            find_known(source, None, "sigmoid")


def test_without_a_temperature_the_model_stays(run, digits, tmp_path):
    run = RunFolder(shutil.copytree(run.folder, tmp_path / "run"))
    digest = run.digest
    found = calibrate_classes(run, digits, fits_temperature=False)
    assert run.digest == digest and found.figures["temperature"] == 1.0


def test_a_second_calibration_starts_from_the_trained_model(
    sure, before, found, digits, tmp_path
):
    run = RunFolder(shutil.copytree(sure.folder, tmp_path / "run"))
    again = calibrate_classes(run, digits, score="energy", refuse=0.1)
    for name in ("temperature", "calibration_error", "threshold", "refuse"):
        assert again.figures[name] == pytest.approx(
            found.figures[name], rel=1e-3
        )
    # Without one, the logits are those of the training again.
    calibrate_classes(run, digits, fits_temperature=False)
    for a, b in zip(run.load_model().get_weights(), before.get_weights()):
        np.testing.assert_allclose(a, b, rtol=1e-5)


def test_classes_that_a_score_cannot_compare_with_are_named(
    run, digits, tmp_path
):
    run = RunFolder(shutil.copytree(run.folder, tmp_path / "run"))
    assert set(digits.labels("train[:26]")) == set(range(9))
    dataset = dataclasses.replace(digits, train_split="train[:26]")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        calibrate_classes(run, dataset)
    [text] = [str(x.message) for x in caught if "no image" in str(x.message)]
    assert "'train[:26]' has no image of '9'" in text


@pytest.fixture
def calibrated(run, tmp_path):
    """Return a run with a calibration that was made up."""
    run = RunFolder(shutil.copytree(run.folder, tmp_path / "run"))
    truths = np.linspace(0, 1, 9, dtype="float32")
    run.save_calibration(Calibration(KnownScore("energy", 1.5), truths, {}))
    return run


def test_another_model_is_not_calibrated(calibrated, capsys):
    assert calibrated.calibration.known.threshold == 1.5
    model = calibrated.load_model()
    calibrated.save_model(model)
    assert calibrated.calibration is None  # A training that went on.
    assert "calibration.npz is removed" in capsys.readouterr().err
    calibrated.save_calibration(
        Calibration(KnownScore("energy"), np.ones(3), {})
    )
    scale_head(model, 2.0)
    model.save(calibrated.model_path)  # By other means.
    with pytest.raises(ContentError, match="calibration.npz must be what"):
        _ = calibrated.calibration


@pytest.mark.parametrize("damage", ["cut", "empty", "flipped", "text"])
def test_a_damaged_calibration_is_named(calibrated, damage):
    path = calibrated.calibration_path
    content = path.read_bytes()
    middle = len(content) // 3
    path.write_bytes(
        {
            "cut": content[:middle],
            "empty": b"",
            "flipped": content[:middle]
            + bytes([content[middle] ^ 255])
            + content[middle + 1 :],
            "text": b"nothing",
        }[damage]
    )
    with pytest.raises(ContentError, match="delete it, or run that command"):
        _ = calibrated.calibration


@pytest.mark.parametrize(
    "choices, match",
    [
        ({"score": "entropy"}, "`score` .*'entropy'"),
        ({"refuse": 1.0}, "`refuse` must be a share .*refuse=1.0"),
        ({"refuse": -0.1}, "`refuse` must be a share .*refuse=-0.1"),
        ({"refuse": np.nan}, "`refuse` must be a share .*refuse=nan"),
    ],
    ids=str,
)
def test_arguments_are_checked(run, digits, choices, match):
    with pytest.raises(ValueError, match=match):
        calibrate_classes(run, digits, **choices)


def test_data_without_a_train_split_are_refused(run, digits):
    dataset = dataclasses.replace(digits, train_split=None)
    with pytest.raises(ValueError, match="train"):
        calibrate_classes(run, dataset)


@pytest.mark.parametrize(
    "splits, match",
    [
        (("train", "train[90%:]"), r"`eval_split` must have none .*90%.*train"),
        (("train[:5%]", "train[50%:]"), r"`eval_split` must have none "),
        (("train", "test[:9]"), r"`eval_split` must have 10 .*test\[:9\]"),
    ],
    ids=str,
)
def test_splits_that_cannot_be_measured_on(run, digits, splits, match):
    train, test = splits
    dataset = dataclasses.replace(digits, train_split=train, eval_split=test)
    with pytest.raises(ValueError, match=match):
        calibrate_classes(run, dataset)


def test_ten_images_can_be_measured_on(run, digits, tmp_path):
    run = RunFolder(shutil.copytree(run.folder, tmp_path / "run"))
    dataset = dataclasses.replace(digits, eval_split="test[:10]")
    assert calibrate_classes(run, dataset).figures["num_examples"] == 10


@pytest.mark.parametrize("kind", ["folder", "csv"])
def test_photos_that_were_learned_are_found_under_any_name(run, tmp_path, kind):
    """Also copies of them, in another folder."""
    write_photos(tmp_path / "photos", [*"abcdefghij"] * 10)
    own = open_dataset(f"folder:{tmp_path}/photos")
    run = RunFolder(shutil.copytree(run.folder, tmp_path / "run"))
    recipe = dataclasses.replace(run.load_recipe(), dataset=own.name)
    run.save_recipe(recipe, own.class_names)
    if kind == "csv":
        name = f"csv:{tmp_path}/photos.csv"
        rows = [
            f"{path},{own.class_names[label]},{split}"
            for split, files in own.reader.files.items()
            for path, label in files
        ]
        text = "\n".join(["path,label,split", *rows])
        (tmp_path / "photos.csv").write_text(text)
    else:
        shutil.copytree(tmp_path / "photos", tmp_path / "copies")
        name = f"folder:{tmp_path}/./copies"
    dataset = open_dataset(name, train_split="test", eval_split="train")
    with pytest.raises(
        ValueError, match="`eval_split` must have none .*photos"
    ):
        calibrate_classes(run, dataset)
    recipe = dataclasses.replace(recipe, keep_best=True)
    run.save_recipe(recipe, own.class_names)
    assert name_chosen(run, dataset) == {}
    dataset = dataclasses.replace(dataset, eval_split="test")
    assert name_chosen(run, dataset) == {"chosen_on_split": "model"}


def test_a_report_names_the_calibration_by_its_images(sure, found, digits):
    for split, says in (("test", True), ("test[3:9]", True), ("train", False)):
        dataset = dataclasses.replace(digits, eval_split=split)
        entry = name_chosen(sure, dataset).get("chosen_on_split", "")
        assert entry.endswith("calibration") == says
    others = dataclasses.replace(digits, name="mnist")
    assert name_chosen(sure, others) == {}
