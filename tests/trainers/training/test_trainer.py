"""A run: its batches, its pictures, its devices, and its files."""

import contextlib
import csv
import dataclasses
import json
import shutil
import time

import numpy as np
import pytest

from tests import commands
from tests.trainers.made import write_photos
from trainers.data import batches
from trainers.data.decoding import BadExampleError
from trainers.engine.engine import Share
from trainers.training.loop import Interrupted, Loop, NonFiniteLossError
from trainers.training.pictures import attention_pictures
from trainers.training.trainer import prepare


def test_a_finished_run_has_its_files_and_is_not_trained_again(run):
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
    content = json.loads(run.recipe_path.read_text())
    assert content["recipe"]["model"] == "mu/16"
    assert content["class_names"] == [str(digit) for digit in range(10)]
    with open(run.metrics_path, newline="") as file:
        [row] = csv.DictReader(file)
    assert float(row["step"]) == run.load_recipe().total_steps == 4
    before = run.load_model().get_weights()
    # What was calibrated since stays.
    digest, notes = run.digest, run.card_path.read_text() + "More."
    run.card_path.write_text(notes)
    trainer = prepare(run.load_recipe(), str(run.folder))
    logs = trainer.train(finish=None)
    assert logs["val_accuracy"] == pytest.approx(float(row["val_accuracy"]))
    assert run.digest == digest and run.card_path.read_text() == notes
    # Without its model, or with more updates, the run is not finished.
    assert trainer.is_finished
    run.save_finished_step(3)
    assert not trainer.is_finished
    run.save_finished_step(4)
    assert not dataclasses.replace(trainer, total_steps=5).is_finished
    run.model_path.unlink()
    assert not trainer.is_finished
    trainer.train()
    equal(before, run.load_model().get_weights())
    assert trainer.is_finished
    # Without its checkpoints it begins again, and is not finished meanwhile.
    shutil.rmtree(run.checkpoints_path)
    prepare(run.load_recipe(), str(run.folder)).prepare_folder()
    assert run.model_path.exists() and run.finished_step is None


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
    )
    trainer = prepare(recipe, str(tmp_path))
    monkeypatch.setattr(type(trainer.loop), "step", first_step)
    for name in ("train_batches", "eval_batches"):
        monkeypatch.setattr(batches, name, lambda _, **choices: choices)
    context = Share(6, 1, 3)
    both = {
        "image_size": (8, 8),
        "batch_size": 32,
        "bad_examples": trainer.bad_examples,
        "num_replicas": 6,
        "worker": 1,
        "num_workers": 3,
    }
    assert trainer.bad_examples.limit == 3
    assert trainer.train_batches(context) == {
        **both,
        "augment": "flip_lr",
        "seed": 7,
        "first_step": first_step,
        "num_streams": 4,
        "data_service": None,
    }
    preprocess = recipe.eval_preprocess
    assert trainer.eval_batches(context) == {**both, "preprocess": preprocess}
    # Of 1,442 images and 64.
    assert (trainer.steps_per_epoch, trainer.eval_steps) == (45, 2)


def test_weights_spoiled_by_the_last_update_are_not_saved(recipe, tmp_path):
    recipe = dataclasses.replace(
        recipe, total_steps=1, learning_rate=1e38, clip_norm=0.0
    )
    with pytest.raises(NonFiniteLossError, match="update 1 .*none"):
        prepare(recipe, str(tmp_path)).train()
    assert not list(tmp_path.glob("checkpoints/*"))
    assert not (tmp_path / "model.keras").exists()


@pytest.fixture
def folder_with_a_bad_image(tmp_path):
    """Return PATH of train and test folders of noise, one file being text."""
    places = 6 * ["train/cat", "train/dog"] + 2 * ["test/cat", "test/dog"]
    write_photos(tmp_path / "images", places, size=(8, 8))
    (tmp_path / "images/train/dog/3.png").write_text("no image")
    return tmp_path / "images"


@pytest.mark.parametrize("limit", [0, 1])
def test_an_unreadable_image_stops_the_training_or_is_left_out(
    recipe, folder_with_a_bad_image, tmp_path, limit
):
    recipe = dataclasses.replace(
        recipe,
        dataset=f"folder:{folder_with_a_bad_image}",
        eval_split=None,
        batch_size=4,
        total_steps=9,
        max_bad_examples=limit,
    )
    trainer = prepare(recipe, str(tmp_path / "run"))
    if limit == 0:
        with pytest.raises(
            BadExampleError,
            match="dog/3.png` cannot be read.*max_bad_examples=0",
        ):
            trainer.train()
    else:
        assert np.isfinite(trainer.train()["loss"])
    [name] = trainer.bad_examples.names
    assert name.endswith("train/dog/3.png")


CLAIM = """
import pathlib, sys, time
from trainers.training.run_folder import RunFolder
with RunFolder(pathlib.Path(sys.argv[1])).claimed():
    print("claimed", flush=True)
    time.sleep(600)
"""


def test_two_trainings_do_not_share_a_folder(
    recipe, tmp_path, tmp_path_factory, subprocess_environment
):
    """And the second does not change the files of the first."""
    trainer = prepare(recipe, str(tmp_path))
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
        with pytest.raises(OSError, match="another process works there"):
            trainer.train()
    finally:
        other.kill()
        other.join()
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoints"]
    assert draft.exists()
    with trainer.run.claimed():  # A kill gives it back.
        pass
    trainer.loop.checkpoints.remove_drafts()
    assert not draft.exists()


def test_what_another_process_has_trained_is_not_trained_again(
    recipe, tmp_path
):
    late = prepare(recipe, str(tmp_path))
    prepare(recipe, str(tmp_path)).train()
    files = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    with pytest.raises(OSError, match="another process.*with update"):
        late.train()
    assert files == {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*")}


def test_attention_is_drawn_and_changes_nothing_of_the_training(
    recipe, tmp_path, digits
):
    recipe = dataclasses.replace(
        recipe,
        dropout_rate=0.1,
        average_decay=0.5,
        total_steps=2,
        loss="sigmoid",
        augment="value_range(0, 1)",
        eval_preprocess="value_range(0, 1)",
    )
    watched = dataclasses.replace(recipe, log_attention=3)
    trainers = [
        prepare(recipe, str(tmp_path / "alone")),
        prepare(watched, str(tmp_path / "watched")),
    ]
    for trainer in trainers:
        trainer.train()
    equal(*(trainer.loop.model.get_weights() for trainer in trainers))
    folders = [
        trainer.run.folder / "tensorboard/attention" for trainer in trainers
    ]
    assert not folders[0].exists() and list(folders[1].iterdir())
    callback = attention_pictures(trainers[1])
    images = [image.numpy() for image, _ in digits.examples("test").take(3)]
    np.testing.assert_allclose(callback.images, np.stack(images) / 255.0)
    assert callback.known == {
        "class_names": digits.class_names,
        "activation": "sigmoid",
        "normalization": recipe.normalization,
    }


def test_the_best_model_is_kept_and_training_stops_early(
    recipe, tmp_path, monkeypatch
):
    """Also if it is stopped in between; of equals, that of the lower loss."""
    recipe = dataclasses.replace(
        recipe,
        total_steps=9,
        average_decay=0.5,
        epochs_per_eval=1e-3,  # After each update.
        num_checkpoints=9,
        keep_best=True,
        patience=2,
    )
    scores = (
        (0.5, 1.0),
        (0.7, 2.0),
        (0.7, 1.5),
        (0.7, 1.5),
        (0.6, 1.0),
        (0.9, 1.0),
    )

    def judge(loop, batches, count):
        accuracy, loss = scores[loop.step - 1]
        return {"val_accuracy": accuracy, "val_loss": loss}

    monkeypatch.setattr(Loop, "_validate", judge)

    def start(name, stop_after=None, **changes):
        trainer = prepare(
            dataclasses.replace(recipe, **changes), str(tmp_path / name)
        )
        trainer.loop.must_stop = lambda: trainer.loop.step == stop_after
        with contextlib.suppress(Interrupted):
            trainer.train()
        return trainer

    whole = start("whole")
    start("stopped", stop_after=4)
    stopped = start("stopped")
    plain = start("plain", stop_after=5, keep_best=False, patience=None)
    assert whole.loop.checkpoints.steps() == [1, 2, 3, 4, 5]
    assert stopped.loop.step == 5
    equal(weights_after(plain, 5), weights_after(whole, 5))
    weights_after(whole, 3)
    averages = [tensor.numpy() for tensor in whole.loop.optimizer.averages]
    for trainer in (whole, stopped):
        equal(trainer.run.load_model().get_weights(), averages)
    # By other images, it would have to be found again.
    for split, is_known in ((recipe.eval_split, True), ("train", False)):
        changed = dataclasses.replace(recipe, eval_split=split)
        again = prepare(changed, str(tmp_path / "whole"), force=True)
        assert (again.loop.best.numbers[0] == 0.7) == is_known
    # That is saved before the recipe: a start after a crash remembers it.
    monkeypatch.setattr(type(again), "prepare_folder", None)
    with pytest.raises(TypeError):
        again.train()
    again = prepare(recipe, str(tmp_path / "whole"), force=True)
    assert again.loop.best.numbers[0] == -1


def weights_after(trainer, step):
    checkpoints = trainer.loop.checkpoints
    checkpoints.state.read(f"{checkpoints.path(step)}/state")
    return trainer.loop.model.get_weights()


def equal(left, right):
    for a, b in zip(left, right, strict=True):
        np.testing.assert_array_equal(a, b)
