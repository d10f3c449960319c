"""Runs that learn without labels, and figures from sums over images."""

import dataclasses
import functools
import json

import numpy as np
import pytest
import sklearn.metrics
import tensorflow as tf
from keras import ops
from PIL import Image

from keras_vit import VisionTransformer
from keras_vit.pretraining import MaskedAutoencoder, MaskedPatchPrediction
from tests.tiny import noise
from tests.trainers.made import assert_same_weights
from trainers.evaluation.evaluation import evaluate
from trainers.evaluation.file_predictions import predict_each
from trainers.models.factory import build_model
from trainers.recipes.recipe import MASK_RATIOS
from trainers.training.loop import Interrupted
from trainers.training.memory import estimate_training_memory
from trainers.training.objectives import (
    LEAST_BINS,
    LIMIT,
    MOST_BINS,
    BalancedAccuracy,
    MeanAveragePrecision,
    MeanOverImages,
)
from trainers.training.report import read_metrics
from trainers.training.run_folder import RunFolder
from trainers.training.trainer import prepare

SMALL = {"decoder_width": 8, "decoder_depth": 1, "decoder_heads": 2}
objective = pytest.mark.parametrize("objective", MASK_RATIOS)


@pytest.fixture(scope="module")
def without_labels(recipe):
    """Return a function from an objective to a short recipe."""
    short = {"total_steps": 4, "warmup_steps": 0, "epochs_per_eval": 0.05}
    short["steps_per_loop"] = 1

    def choose(objective, **changes):
        return dataclasses.replace(
            recipe, objective=objective, **{**SMALL, **short, **changes}
        )

    return choose


@pytest.fixture(scope="module")
def finished(without_labels, tmp_path_factory):
    """Return a function from an objective to a trainer that is finished."""

    @functools.cache
    def make(objective):
        folder = tmp_path_factory.mktemp(objective) / "run"
        trainer = prepare(without_labels(objective), str(folder))
        trainer.train()
        return trainer

    return make


def test_the_model_is_the_one_of_the_objective(without_labels, digits):
    model = build_model(without_labels("autoencoder", mask_ratio=0.5), digits)
    assert isinstance(model, MaskedAutoencoder)
    grid = model.config.grid_size
    assert model(noise(1, *model.input_shape[1:]))["targets"].shape[1] == (
        grid[0] * grid[1] // 2
    )
    # The positions of both are fixed.
    for name in ("position_embedding", "decoder_positions"):
        assert not model.get_layer(name).trainable
    assert model.config.num_classes == 0
    model = build_model(
        without_labels("masked_patches", patch_target="pixels"), digits
    )
    assert isinstance(model, MaskedPatchPrediction)
    assert model.target == "pixels"
    assert model.encoder.get_layer("position_embedding").trainable


@objective
def test_a_run_saves_the_encoder_that_others_begin_from(
    finished, recipe, digits, objective
):
    trainer = finished(objective)
    run = trainer.run
    assert estimate_training_memory(trainer).total > 0
    assert "no labels" not in str(trainer)
    rows = read_metrics(run.metrics_path)
    assert all(row["val_loss"] > 0 and row["loss"] > 0 for row in rows)
    for name in ("accuracy", "val_accuracy"):
        assert (name in rows[-1]) == (objective == "masked_patches")
    encoder = run.load_model()
    assert isinstance(encoder, VisionTransformer)
    assert len(encoder.trainable_variables) == len(encoder.variables)
    for variable in encoder.variables:
        trained = next(
            other
            for other in trainer.loop.model.encoder.variables
            if other.path == variable.path
        )
        np.testing.assert_array_equal(variable.numpy(), trained.numpy())
    fine_tuned = dataclasses.replace(
        recipe, init_from=str(run.model_path), total_steps=2, warmup_steps=0
    )
    classifier = build_model(fine_tuned, digits)
    assert classifier.config.num_classes == 10
    assert_same_weights(
        classifier.get_layer("patch_encoder"),
        encoder.get_layer("patch_encoder"),
    )


@objective
def test_a_run_draws_what_it_reconstructs(finished, objective):
    folder = finished(objective).run.folder
    with Image.open(folder / "reconstructions.png") as picture:
        assert picture.width > 8 * 100
    files = (folder / "tensorboard/reconstructions").iterdir()
    events = [
        event
        for file in files
        for event in tf.compat.v1.train.summary_iterator(str(file))
    ]
    steps = [event.step for event in events if event.summary.value]
    assert steps == sorted(set(steps))
    assert steps[-1] == 4


def test_an_interrupted_run_goes_on_to_the_same_bits(
    without_labels, finished, tmp_path
):
    """Both objectives draw the hidden patches by the same layer."""
    whole = finished("autoencoder").run
    recipe = without_labels("autoencoder")
    trainer = prepare(recipe, str(tmp_path))
    steps = iter([False, True])
    trainer.loop.must_stop = lambda: next(steps, False)
    with pytest.raises(Interrupted):
        trainer.train()
    prepare(recipe, str(tmp_path)).train()
    run = RunFolder(tmp_path)
    assert_same_weights(whole.load_model(), run.load_model())
    one, other = (read_metrics(r.metrics_path)[0] for r in (whole, run))
    for name in ("epoch", "step", "loss", "val_loss"):
        assert one[name] == other[name]


def test_the_loss_of_an_evaluation_is_the_same_on_two_devices(
    without_labels, tmp_path
):
    """The patches that are hidden depend on the image alone."""
    losses = []
    for strategy in ("one_device", "mirrored"):
        recipe = without_labels("autoencoder", strategy=strategy)
        trainer = prepare(recipe, str(tmp_path / strategy))
        report = trainer.loop.measure(
            trainer.loop.engine.batches(trainer.eval_batches),
            trainer.eval_steps,
        )
        losses.append(report["loss"])
        assert report.keys() == {"loss"}
    np.testing.assert_allclose(*losses, rtol=1e-6)


@pytest.mark.usefixtures("graphs")
@pytest.mark.parametrize(
    "objective, changes",
    [
        ("autoencoder", {"accumulation_steps": 2, "use_remat": True}),
        ("masked_patches", {"use_xla": True, "precision": "bfloat16"}),
    ],
)
def test_it_trains_with(without_labels, tmp_path, objective, changes):
    changes |= {"average_decay": 0.9, "keep_best": True, "total_steps": 2}
    trainer = prepare(without_labels(objective, **changes), str(tmp_path))
    assert np.isfinite(trainer.train()["loss"])
    assert RunFolder(tmp_path).load_model().config.num_classes == 0


def test_an_encoder_is_not_evaluated_as_a_classifier(finished, digits):
    run = finished("autoencoder").run
    message = "`run_dir` holds an encoder that was trained without labels"
    with pytest.raises(ValueError, match=message):
        evaluate(run, digits)
    with pytest.raises(ValueError, match=message):
        next(predict_each(run, ["image.png"]))
    card = (run.folder / "README.md").read_text()
    assert "An encoder of" in card
    assert "image-feature-extraction" in card
    assert "classes" not in card.partition("## Training")[0]
    content = json.loads((run.folder / "recipe.json").read_text())
    assert content["class_names"] == []


@pytest.fixture
def batches():
    """Return five batches of logits, weights and 4 classes of any frequency."""
    random = np.random.default_rng(0)
    logits = random.normal(0, 5, (5, 32, 4)).astype("float32")
    weights = (random.random((5, 32)) < 0.9).astype("float32")
    classes = np.minimum(random.integers(0, 40, (5, 32)), 2)
    return logits, weights, classes


def total(figure, labels, logits, weights):
    rows = zip(labels, logits, weights)
    sums = [np.asarray(figure.measure(*row)) for row in rows]
    assert all(row.shape == (figure.size,) for row in sums)
    return figure.report(np.sum(sums, axis=0))


def test_balanced_accuracy(batches):
    """A class without images does not count."""
    logits, weights, classes = batches
    labels = np.eye(4, dtype="float32")[classes]
    found = total(BalancedAccuracy(4), labels, logits, weights)
    want = sklearn.metrics.balanced_accuracy_score(
        classes[weights > 0], logits[..., :3].argmax(-1)[weights > 0]
    )
    counted = logits.argmax(-1)
    recalls = [
        np.mean(counted[(classes == c) & (weights > 0)] == c) for c in range(3)
    ]
    assert found == pytest.approx(np.mean(recalls), abs=1e-6)
    logits[..., 3] = -99
    found = total(BalancedAccuracy(4), labels, logits, weights)
    assert found == pytest.approx(want, abs=1e-6)


def test_mean_average_precision(batches):
    """Of rounded logits; unknown labels and missing images do not count."""
    logits, weights, classes = batches
    random = np.random.default_rng(1)
    labels = (logits + random.normal(0, 5, logits.shape) > 4).astype("float32")
    labels[..., 3] = 0  # A class without positives.
    labels[random.random(labels.shape) < 0.2] = np.nan
    logits[0, 0] = [1e6, -1e6, 100, -100]
    figure = MeanAveragePrecision(4)
    found = total(figure, labels, logits, weights)
    step = 2 * LIMIT / figure.bins
    rounded = np.floor(np.clip(logits, -LIMIT, LIMIT - step) / step)
    values = []
    for c in range(3):
        counts = (weights > 0) & ~np.isnan(labels[..., c])
        values.append(
            sklearn.metrics.average_precision_score(
                labels[..., c][counts], rounded[..., c][counts]
            )
        )
    assert found == pytest.approx(np.mean(values), abs=1e-6)


def test_many_classes_have_fewer_bins():
    sizes = [MeanAveragePrecision(n).bins for n in (1, 512, 2048, 10**5)]
    assert sizes == [MOST_BINS, MOST_BINS, 1024, LEAST_BINS]


def test_without_positives_it_is_zero():
    labels = np.zeros((4, 2), "float32")
    figure = MeanAveragePrecision(2)
    assert total(figure, labels[None], labels[None], np.ones((1, 4))) == 0


def test_missing_images_do_not_spoil_a_metric():
    """Of an image without labels, a plug-in may return an infinite number."""
    metric = MeanOverImages("log", lambda labels, logits: ops.log(labels[:, 0]))
    labels, weights = np.float32([[1], [0.5], [0]]), np.float32([1, 1, 0])
    sums = metric.measure(labels, labels, weights)
    assert metric.report(np.asarray(sums)) == pytest.approx(np.log(0.5) / 2)
