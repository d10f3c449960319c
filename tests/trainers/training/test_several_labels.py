"""A training on images that may have several labels."""

import dataclasses
import pathlib
import shutil

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_digits

from tests import commands
from trainers import train
from trainers.calibrate import describe_thresholds
from trainers.data.datasets import open_dataset
from trainers.data.inspection import judge_unknown
from trainers.data.labels import LabelSet
from trainers.evaluation.calibration import calibrate, check_images
from trainers.evaluation.evaluation import evaluate, name_chosen
from trainers.evaluation.label_scores import (
    choose_thresholds,
    mean_average_precision,
)
from trainers.optim.losses import LOSSES
from trainers.recipes.flags import ChosenRecipe
from trainers.recipes.recipe import Recipe
from trainers.sweeps.sweeping import open_sweep
from trainers.training.objectives import MeanAveragePrecision, balance_labels
from trainers.training.report import read_metrics
from trainers.training.run_folder import NamedModel, RunFolder, is_outdated
from trainers.training.trainer import prepare

LABELS = {
    "even": (0, 2, 4, 6, 8),
    "large": (5, 6, 7, 8, 9),
    "round": (0, 6, 8, 9),
}


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """Return a table of 90 digits with their properties; one is unknown."""
    folder = tmp_path_factory.mktemp("digits")
    digits, lines = load_digits(), [",".join(["path", *LABELS, "split"])]
    for index in range(90):
        pixels = (digits.images[index] * 15).astype("uint8")
        Image.fromarray(pixels).save(folder / f"{index}.png")
        marks = [int(digits.target[index] in x) for x in LABELS.values()]
        split = "test" if index % 3 == 0 else "train"
        lines.append(",".join(map(str, [f"{index}.png", *marks, split])))
    lines[1] = "0.png,1,,1,test"
    (folder / "labels.csv").write_text("\n".join(lines))
    return f"csv:{folder}/labels.csv"


def make_recipe(table):
    return Recipe(
        dataset=table,
        model="Pico/2",
        image_size=8,
        depth=1,
        batch_size=12,
        total_steps=8,
        steps_per_loop=2,
        epochs_per_eval=0.8,
        augment="mixup(0.2)",
        keep_best=True,
        learning_rate=3e-3,
        peak_tflops=1.0,
        threshold_goal="precision:0.8",
    )


@pytest.fixture
def recipe(table):
    return make_recipe(table)


@pytest.fixture(scope="module")
def trainer(table, tmp_path_factory):
    """Return a trainer that has finished, with thresholds of its test split."""
    folder = tmp_path_factory.mktemp("finished") / "run"
    trainer = prepare(make_recipe(table), str(folder))
    trainer.train(train.choose_thresholds)
    return trainer


@pytest.fixture
def finished(trainer):
    """Return its run, to look at."""
    return trainer.run


@pytest.fixture
def run(finished, tmp_path):
    """Return a copy of that run."""
    return RunFolder(shutil.copytree(finished.folder, tmp_path / "run"))


def judge(run, dataset):
    """Return the labels of the test images, and the logits of Keras."""
    images = [image for image, _ in dataset.examples("test")]
    pixels = np.stack(images).astype("float32")
    logits = run.load_model().predict(pixels / 127.5 - 1, verbose=0)
    return dataset.labels("test"), logits


def test_the_data_decide_and_the_best_ranking_is_kept(trainer):
    recipe, run = trainer.recipe, trainer.run
    assert (recipe.labels, recipe.loss) == ("several", "sigmoid")
    assert run.has_several_labels and run.activation == "sigmoid"
    assert NamedModel(str(run.model_path)).has_several_labels
    rows = read_metrics(run.metrics_path)
    scores = [row["val_mean_average_precision"] for row in rows]
    assert len(scores) == 2 and min(scores) > 0
    # The figures are those of the model that is kept.
    labels, logits = judge(run, trainer.dataset)
    best = rows[int(np.argmax(scores))]
    losses = LOSSES["sigmoid"].function(labels, logits)
    assert np.mean(losses) == pytest.approx(best["val_loss"], rel=1e-4)
    known = ~np.isnan(labels)
    right = ((logits >= 0) == (labels == 1)) | ~known
    assert right.all(-1).mean() == pytest.approx(best["val_accuracy"])
    assert known.sum() == 3 * 30 - 1


def test_thresholds_of_the_kept_model_are_saved_and_stay(
    run, table, tmp_path, subprocess_environment
):
    labels, logits = judge(run, open_dataset(table))
    probabilities = 1 / (1 + np.exp(-logits.astype("float64")))
    want = choose_thresholds(probabilities, labels, "precision:0.8")
    np.testing.assert_allclose(run.thresholds, want, rtol=1e-5)
    assert NamedModel(str(run.model_path)).thresholds == run.thresholds
    before = run.thresholds
    run.save_recipe(run.load_recipe(), run.load_class_names())
    assert run.thresholds == before
    # Another goal later.
    words = ["-m", "trainers.calibrate", f"--run_dir={run}"]
    words.append("--threshold_goal=f1")
    result = commands.run(words, subprocess_environment, tmp_path)
    assert not result.returncode, result.stderr
    want = choose_thresholds(probabilities, labels, "f1")
    np.testing.assert_allclose(run.thresholds, want, rtol=1e-5)
    given, truths = probabilities[:, 1] >= want[1], labels[:, 1] == 1
    precision = truths[given].mean()
    recall = given[truths].mean()
    figures = f"{want[1]:.4f}     {precision:.4f}     {recall:.4f}"
    assert f"{'large':24s} {figures}" in result.stdout
    assert f"{min(want):.4g} to {max(want):.4g}" in run.card_path.read_text()
    words[-1] = "--score=energy"
    result = commands.run(words, subprocess_environment, tmp_path)
    assert result.returncode and "`score` is for a run of" in result.stderr
    run.save_thresholds([0.5, 2.0, 0.5])
    with pytest.raises(ValueError, match="recipe.json.*`thresholds`"):
        _ = run.thresholds


def test_thresholds_come_with_how_they_were_chosen(run, table):
    own = {"dataset": table, "split": "test", "goal": "precision:0.8"}
    assert run.thresholds_chosen == own
    run.save_recipe(run.load_recipe(), run.load_class_names())
    assert run.thresholds_chosen == own
    dataset = open_dataset(table)
    report = evaluate(run, dataset)
    assert report["chosen_on_split"] == "model and thresholds"
    assert not is_outdated(report, run)
    # Of other images, without one of the labels, whose threshold stays.
    before = run.thresholds
    folder = pathlib.Path(table.removeprefix("csv:")).parent
    path = folder / "others.csv"
    lines = (folder / "labels.csv").read_text().splitlines()
    rows = [line.split(",") for line in lines]
    path.write_text(
        "\n".join(",".join(r[:3]) for r in rows if "test" not in r[4])
    )
    others = open_dataset(f"csv:{path}", eval_split="train+test")
    others = others.with_forms_of(run.load_class_names())
    found = calibrate(run, others, "precision:0.99")
    assert found.is_measured.tolist() == [True, True, False]
    assert run.thresholds[2] == before[2] and run.thresholds != before
    assert run.thresholds_chosen["dataset"] == others.name
    assert name_chosen(run, dataset) == {"chosen_on_split": "model"}
    assert name_chosen(run, others) == {"chosen_on_split": "thresholds"}
    assert is_outdated(report, run)
    text = describe_thresholds(run, found, "precision:1.0")
    lines = text.splitlines()[2:]
    assert ["not reached" in x for x in lines[:2]] == [
        x < 1 for x in found.precisions[:2].tolist()
    ]
    assert lines[2].endswith("as before: no images with and without it")


def test_thresholds_of_another_model_are_removed(run, capsys):
    run.save_model(run.load_model())
    assert run.thresholds is None and run.thresholds_chosen == {}
    assert "the thresholds in" in capsys.readouterr().err
    run.save_model(run.load_model())
    assert not capsys.readouterr().err


@pytest.mark.parametrize(
    "split, fault",
    [("train", "must have none of the images"), ("test[:9]", "10 images")],
)
def test_thresholds_need_images_that_were_not_learned(
    finished, table, split, fault
):
    with pytest.raises(ValueError, match=f"`eval_split` .*{fault}"):
        check_images(finished, open_dataset(table, eval_split=split))


def test_labels_that_all_images_have_do_not_count(finished, table):
    """Neither in the mean average precision of a training nor in another."""
    dataset = open_dataset(table)
    labels, logits = judge(finished, dataset)
    always = np.column_stack([labels, np.ones(len(labels))])
    scores = np.column_stack([logits, logits[:, 0]])
    plain = mean_average_precision(logits, labels)
    assert mean_average_precision(scores, always) == plain
    figures = []
    for a, b in ((labels, logits), (always, scores)):
        measure = MeanAveragePrecision(a.shape[1])
        a, b = a.astype("float32"), b.astype("float32")
        sums = measure.measure(a, b, np.ones(len(a), "float32"))
        figures.append(measure.report(np.array(sums)))
    assert figures[1] == pytest.approx(figures[0], abs=1e-6)
    # The inspection names them, and what nobody knows.
    rows = [row for rows in dataset.reader.files.values() for row in rows]
    files = {
        split: [(path, LabelSet((0,), (1,))) for path, _ in rows]
        for split in ("train", "test")
    }
    reader = dataclasses.replace(dataset.reader, files=files)
    found = judge_unknown(dataclasses.replace(dataset, reader=reader))
    texts = [finding.text for finding in found]
    assert "has no image without 'even'" in texts[0]
    assert "the label 'round' of 90" in texts[1]
    files["test"] = [(path, LabelSet((), ())) for path, _ in files["test"]]
    reader = dataclasses.replace(dataset.reader, files=files)
    found = judge_unknown(dataclasses.replace(dataset, reader=reader))
    errors = [finding.text for finding in found if finding.level == "error"]
    assert len(errors) == 1 and "'test' has no image with a known" in errors[0]


def stop_and_go_on(table, folder, whole):
    """Train in two goes; compare the model with that of a run in one."""
    recipe = make_recipe(table)
    first = prepare(recipe, f"{folder}/run")
    first.loop.must_stop = lambda: first.loop.step >= 5
    with pytest.raises(RuntimeError, match="saved after update"):
        first.train()
    again = prepare(recipe, f"{folder}/run")
    assert 0 < again.loop.step < 8
    again.train()
    models = [run.load_model().get_weights() for run in (whole, again.run)]
    for a, b in zip(*models, strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_model_that_was_moved_has_probabilities_of_a_sigmoid(
    finished, tmp_path
):
    path = str(shutil.copy(finished.model_path, tmp_path / "moved.keras"))
    moved = NamedModel(path)
    assert moved.activation == finished.activation == "sigmoid"
    assert moved.load_class_names() == finished.load_class_names()


def test_a_stopped_run_goes_on_to_the_bit(table, tmp_path, finished):
    stop_and_go_on(table, tmp_path, finished)


def test_a_stopped_run_goes_on_to_the_bit_on_jax(
    table, tmp_path, subprocess_environment
):
    code = f"""
import keras
from tests.trainers.training.test_several_labels import *
assert keras.backend.backend() == "jax"
trainer = prepare(make_recipe({table!r}), "{tmp_path}/whole")
trainer.train()
stop_and_go_on({table!r}, {str(tmp_path)!r}, trainer.run)
"""
    environment = {**subprocess_environment, "KERAS_BACKEND": "jax"}
    result = commands.run(["-c", code], environment)
    assert not result.returncode, result.stderr


@pytest.mark.parametrize("loss", ["focal", "asymmetric"])
def test_other_losses_and_balanced_positives_learn(recipe, tmp_path, loss):
    changes = {"loss": loss, "class_weights": "balanced", "total_steps": 2}
    recipe = dataclasses.replace(recipe, **changes)
    trainer = prepare(recipe, str(tmp_path / "run"))
    assert trainer.recipe.loss == loss
    logs = trainer.train()
    assert np.isfinite(logs["val_loss"])


def test_positives_are_weighted_by_their_number(table):
    labels = open_dataset(table).labels("train")
    weights = balance_labels(open_dataset(table))
    positives, negatives = (labels == 1).sum(0), (labels == 0).sum(0)
    np.testing.assert_allclose(weights * positives, negatives, rtol=1e-6)


def test_a_label_without_positives_has_a_weight_of_one(table):
    dataset = open_dataset(table)
    names = [*dataset.class_names, "absent"]
    weights = balance_labels(dataset.with_forms_of(names))
    np.testing.assert_array_equal(weights[:-1], balance_labels(dataset))
    assert weights[-1] == 1


def test_photos_are_not_cut_as_small_and_sweeps_refuse_them(table, tmp_path):
    """A small part may lack a label."""
    given = {"dataset": table, "image_size": 8, "model": "Pico/2"}
    chosen = ChosenRecipe("photos", given)
    trainer = prepare(chosen.recipe, str(tmp_path / "run"), chosen=chosen)
    assert "inception_crop(smallest=0.7)" in trainer.recipe.augment
    assert "smallest=0.25" in chosen.fit(60, None).augment
    with pytest.raises(ValueError, match="`dataset` must have one class"):
        open_sweep(trainer.recipe, str(tmp_path / "sweep"))


@pytest.mark.parametrize(
    "changes, fault",
    [
        ({"labels": "one"}, "`labels` must be several"),
        ({"loss": "focal", "dataset": "digits"}, "`loss` 'focal'"),
        ({"teacher": "x"}, "`distillation_target` must be soft"),
    ],
)
def test_what_is_for_the_other_kind_is_refused(
    recipe, tmp_path, changes, fault
):
    with pytest.raises(ValueError, match=fault):
        prepare(dataclasses.replace(recipe, **changes), str(tmp_path / "run"))
    assert not (tmp_path / "run").exists()


def test_a_softmax_that_was_asked_for_is_refused(table, tmp_path):
    given = {"dataset": table, "image_size": 8, "loss": "softmax"}
    chosen = ChosenRecipe("photos", given | {"model": "Pico/2"})
    with pytest.raises(ValueError, match="`loss` must be sigmoid, focal"):
        prepare(chosen.recipe, str(tmp_path / "run"), chosen=chosen)
