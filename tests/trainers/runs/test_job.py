"""A job: its batches, its pictures, its devices, and its files."""

import contextlib
import csv
import dataclasses
import json
import time
import types

import keras
import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from tests import commands
from trainers.data.decoding import BadExampleError
from trainers.loop.errors import Interrupted, NonFiniteLossError
from trainers.loop.loop import Loop
from trainers.runs import job as jobs
from trainers.runs.job import Job
from trainers.runs.pictures import attention_pictures
from trainers.runs.run import Run
from trainers.train import prepare, train


def test_leaves_everything_in_the_folder(run):
    names = {path.name for path in run.folder.iterdir()}
    assert names == {
        "recipe.json",
        "checkpoints",
        "model.keras",
        "metrics.csv",
        "learning_curve.png",
        "first_batch.png",
        "tensorboard",
        "README.md",
    }
    assert run.load_recipe().total_steps == 4
    assert run.load_class_names() == [str(d) for d in range(10)]
    assert (run.folder / "learning_curve.png").read_bytes()[:4] == b"\x89PNG"


def test_metrics_have_a_row_for_each_evaluation(run):
    with open(run.metrics_path, newline="") as file:
        [row] = csv.DictReader(file)
    assert float(row["step"]) == 4
    assert 0 <= float(row["val_accuracy"]) <= 1


def test_same_command_again_changes_nothing(run):
    before = run.load_model().get_weights()
    logs = train(prepare(run.load_recipe(), str(run.folder)))
    with open(run.metrics_path, newline="") as file:
        [row] = csv.DictReader(file)
    assert logs["val_accuracy"] == pytest.approx(float(row["val_accuracy"]))
    for a, b in zip(before, run.load_model().get_weights()):
        np.testing.assert_array_equal(a, b)


def test_recipe_is_readable_json(run):
    content = json.loads(run.recipe_path.read_text())
    assert content["recipe"]["model"] == "mu/16"
    assert content["class_names"][3] == "3"


@pytest.mark.parametrize("first_step", [0, 2])
def test_the_data_are_those_of_the_recipe_from_the_step_reached(
    recipe, tmp_path, monkeypatch, first_step
):
    recipe = dataclasses.replace(
        recipe,
        seed=7,
        augment="flip_lr",
        eval_preprocess="resize_small(9)|central_crop",
        num_streams=4,
        max_bad_examples=3,
        epochs_per_eval=2,
        steps_per_checkpoint=5,
    )
    job = prepare(recipe, str(tmp_path))
    monkeypatch.setattr(type(job.loop), "step", first_step)
    calls = {}

    def record(name):
        def record_batches(dataset, **choices):
            calls[name] = choices

        return record_batches

    def record_train(batches, eval_batches, **choices):
        context = tf.distribute.InputContext(3, 1, 6)
        batches(context)
        eval_batches(context)
        calls["loop"] = choices
        raise InterruptedError

    for name in ("train_batches", "eval_batches"):
        monkeypatch.setattr(jobs, name, record(name))
    monkeypatch.setattr(Job, "draw_first_batch", lambda _: None)
    monkeypatch.setattr(job.loop, "train", record_train)
    with pytest.raises(InterruptedError):
        train(job)
    del calls["loop"]["callbacks"]
    both = {
        "image_size": (8, 8),
        "batch_size": 32,
        "bad_examples": job.bad_examples,
        "num_replicas": 6,
        "worker": 1,
        "num_workers": 3,
    }
    assert job.bad_examples.limit == 3
    assert calls == {
        "train_batches": {
            **both,
            "augment": "flip_lr",
            "seed": 7,
            "first_step": first_step,
            "num_streams": 4,
            "data_service": None,
        },
        "eval_batches": {**both, "preprocess": recipe.eval_preprocess},
        "loop": {
            "total_steps": 3,
            "steps_per_epoch": 2 * 45,  # 1442 / 32 images, two epochs.
            "eval_steps": 12,
            "steps_per_loop": 2,
            "steps_per_checkpoint": 5,
        },
    }


def test_weights_spoiled_by_the_last_update_are_not_saved(recipe, tmp_path):
    recipe = dataclasses.replace(
        recipe, total_steps=1, learning_rate=1e38, clip_norm=0.0
    )
    with pytest.raises(NonFiniteLossError, match="update 1 .*none"):
        train(prepare(recipe, str(tmp_path)))
    assert not list(tmp_path.glob("checkpoints/*"))
    assert not (tmp_path / "model.keras").exists()


@pytest.fixture
def folder_with_a_bad_image(tmp_path):
    """Return PATH of train and test folders of noise, one file being text."""
    draws = np.random.default_rng(0)
    for split, count in (("train", 6), ("test", 2)):
        for name in ("cat", "dog"):
            folder = tmp_path / "images" / split / name
            folder.mkdir(parents=True)
            for index in range(count):
                pixels = draws.integers(0, 255, (8, 8, 3), "uint8")
                Image.fromarray(pixels).save(folder / f"{index}.png")
    (tmp_path / "images/train/dog/3.png").write_text("no image")
    return tmp_path / "images"


@pytest.mark.parametrize("limit", [0, 1])
def test_an_unreadable_image_stops_the_training_or_is_left_out(
    recipe, folder_with_a_bad_image, tmp_path, limit
):
    recipe = dataclasses.replace(
        recipe,
        dataset=f"folder:{folder_with_a_bad_image}",
        batch_size=4,
        total_steps=9,
        max_bad_examples=limit,
    )
    job = prepare(recipe, str(tmp_path / "run"))
    if limit == 0:
        with pytest.raises(
            BadExampleError,
            match="dog/3.png` cannot be read.*max_bad_examples=0",
        ):
            train(job)
    else:
        assert np.isfinite(train(job)["loss"])
    [name] = job.bad_examples.names
    assert name.endswith("train/dog/3.png")


CLAIM = """
import pathlib, sys, time
from trainers.runs.run import Run
with Run(pathlib.Path(sys.argv[1])).claimed():
    print("claimed", flush=True)
    time.sleep(600)
"""


def test_two_trainings_do_not_share_a_folder(
    recipe, tmp_path, tmp_path_factory, subprocess_environment
):
    """And the second does not change the files of the first."""
    job = prepare(recipe, str(tmp_path))
    draft = tmp_path / "checkpoints/.draft-00000001"
    draft.mkdir(parents=True)
    output = tmp_path_factory.mktemp("other") / "output"
    words = ["-c", CLAIM, tmp_path]
    other = commands.start(words, subprocess_environment, output)
    try:
        while not (output.exists() and "claimed" in output.read_text()):
            assert other.is_alive(), output.read_text()
            time.sleep(0.01)
        prepare(recipe, str(tmp_path))
        with pytest.raises(OSError, match="another process trains there"):
            train(job)
    finally:
        other.kill()
        other.join()
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoints"]
    assert draft.exists()
    with job.run.claimed():  # A kill gives it back.
        pass
    job.loop.checkpoints.remove_drafts()
    assert not draft.exists()


@pytest.mark.slow(25)
def test_attention_is_drawn_and_changes_nothing_of_the_training(
    recipe, tmp_path
):
    """The weights are bit-identical; a stopped run can continue."""
    recipe = dataclasses.replace(
        recipe,
        dropout_rate=0.1,
        average_decay=0.5,
        epochs_per_eval=1 / 45,
        total_steps=2,
    )
    watched = dataclasses.replace(recipe, log_attention=3)
    weights = {}
    for name, choice in (("alone", recipe), ("watched", watched)):
        run = prepare(choice, str(tmp_path / name))
        train(run)
        weights[name] = run.loop.model.get_weights()
    for a, b in zip(*weights.values()):
        np.testing.assert_array_equal(a, b)
    assert not (tmp_path / "alone/tensorboard/attention").exists()
    folder = Run(tmp_path / "watched")
    assert list((tmp_path / "watched/tensorboard/attention").iterdir())
    # Without it the run goes on, and with it again.
    prepare(recipe, str(folder))
    train(prepare(dataclasses.replace(watched, log_attention=5), str(folder)))


def test_attention_is_that_to_the_first_test_images(recipe, tmp_path, digits):
    recipe = dataclasses.replace(
        recipe,
        log_attention=4,
        loss="sigmoid",
        augment="value_range(0, 1)",
        eval_preprocess="value_range(0, 1)",
        average_decay=0.9,
    )
    job = prepare(recipe, str(tmp_path))
    callback = attention_pictures(job)
    images = [
        image
        for image, _ in digits.examples("test").take(4).as_numpy_iterator()
    ]
    np.testing.assert_allclose(callback.images, np.stack(images) / 255.0)
    np.testing.assert_allclose(callback.pixels, images, atol=1)
    assert callback.class_names == digits.class_names
    assert callback.activate is keras.ops.sigmoid
    assert callback.first_step == 0
    assert len(callback.averages()) == len(job.loop.model.trainable_variables)
    job = prepare(dataclasses.replace(recipe, log_attention=999), str(tmp_path))
    assert len(attention_pictures(job).images) == 355  # All there are.


@pytest.mark.parametrize(
    "peak_tflops, precision, one",
    [(2.0, "float32", 2e12), (None, "float32", 3e9), (None, "float16", 5e9)],
)
def test_the_peak_is_that_of_all_processors(
    monkeypatch, peak_tflops, precision, one
):
    measured = {("float32", "/TPU:0"): 3e9, ("bfloat16", "/TPU:0"): 5e9}
    monkeypatch.setattr(
        jobs,
        "measure_peak_flops",
        lambda *choice: measured[choice],
    )
    strategy = types.SimpleNamespace(
        num_replicas_in_sync=4,
        extended=types.SimpleNamespace(worker_devices=("/TPU:0", "/TPU:1")),
    )
    fake = types.SimpleNamespace(
        loop=types.SimpleNamespace(strategy=strategy),
        recipe=types.SimpleNamespace(
            peak_tflops=peak_tflops, precision=precision
        ),
    )
    assert Job.peak_flops.fget(fake) == 4 * one


def test_the_best_model_is_kept_and_training_stops_early(
    recipe, tmp_path, monkeypatch
):
    """Whether or not it is stopped in between, and with averaged weights."""
    recipe = dataclasses.replace(
        recipe,
        total_steps=9,
        average_decay=0.5,
        epochs_per_eval=1e-3,  # After each update.
        num_checkpoints=9,
        keep_best=True,
        patience=2,
    )
    scores = (0.5, 0.7, 0.6, 0.7, 0.9)

    def judge(loop, batches, count):
        return {"val_accuracy": scores[loop.step - 1], "val_loss": 1.0}

    monkeypatch.setattr(Loop, "_validate", judge)

    def start(name, stop_after=None, **changes):
        job = prepare(
            dataclasses.replace(recipe, **changes), str(tmp_path / name)
        )
        job.loop.must_stop = lambda: job.loop.step == stop_after
        with contextlib.suppress(Interrupted):
            train(job)
        return job

    whole = start("whole")
    start("stopped", stop_after=3)
    stopped = start("stopped")
    plain = start("plain", stop_after=4, keep_best=False, patience=None)
    assert whole.loop.checkpoints.steps() == [1, 2, 3, 4]
    assert stopped.loop.step == 4
    equal(weights_after(plain, 4), weights_after(whole, 4))
    weights_after(whole, 2)
    averages = [tensor.numpy() for tensor in whole.loop.optimizer.averages]
    for job in (whole, stopped):
        equal(job.run.load_model().get_weights(), averages)


def weights_after(job, step):
    job.loop.checkpoints._read(step)
    return job.loop.model.get_weights()


def equal(left, right):
    for a, b in zip(left, right, strict=True):
        np.testing.assert_array_equal(a, b)
