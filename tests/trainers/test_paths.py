"""Runs in a folder and in a bucket, simulated by TensorFlow's ram://."""

import dataclasses
import gc
import json
import pathlib

import numpy as np
import pytest
import tensorflow as tf

from tests.trainers.made import assert_same_weights
from trainers.data.datasets import open_dataset
from trainers.engine.checkpoints import CheckpointError, Checkpoints
from trainers.engine.strategies import make_engine
from trainers.engine.tensorflow import TensorFlowState
from trainers.evaluation.evaluation import evaluate
from trainers.export_model import export_source
from trainers.models.initial_model import find_model_file
from trainers.paths import RemotePath, as_path, draft_of, write_atomically
from trainers.training.report import read_metrics
from trainers.training.run_folder import NamedModel, RunFolder
from trainers.training.trainer import prepare

gfile = tf.io.gfile


@pytest.fixture
def bucket(request, monkeypatch):
    """Return an address that no other test uses."""
    # A file of ram:// that is written again grows; one of a bucket does not.
    copy = gfile.copy

    def replace(source, target, overwrite):
        if overwrite and gfile.exists(target):
            gfile.remove(target)
        copy(source, target)

    monkeypatch.setattr(gfile, "copy", replace)
    address = f"ram://{request.node.name.partition('[')[0]}"
    yield address
    for folder, _, names in gfile.walk(address, topdown=False):
        for name in names:
            gfile.remove(f"{folder.rstrip('/')}/{name}")


def test_a_path_with_a_scheme_is_one_of_a_bucket(tmp_path):
    assert as_path(tmp_path) == tmp_path
    assert as_path("a/b") == pathlib.Path("a/b")
    path = as_path("gs://bucket/run/") / "model.keras"
    assert isinstance(path, RemotePath) and as_path(path) == path
    assert str(path) == "gs://bucket/run/model.keras"
    assert path.name == "model.keras"


def test_a_path_may_begin_with_the_home_of_the_user(run, monkeypatch):
    monkeypatch.setenv("HOME", str(run.folder.parent))
    assert as_path("~") == run.folder.parent
    for name in (run.folder.name, f"{run.folder.name}/model.keras"):
        assert find_model_file(f"~/{name}") == str(run.model_path)
    assert find_model_file("hf://owner/model") == "hf://owner/model"


def test_the_name_of_a_run_is_that_of_its_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert RunFolder(as_path(".")).name == tmp_path.name
    assert RunFolder(as_path("runs/a/")).name == "a"
    assert RunFolder(as_path("gs://bucket/runs/a")).name == "a"
    with pytest.raises(ValueError, match="file://, gs://, ram://.*'s4://a/b'"):
        as_path("s4://a/b")


def test_files_of_a_bucket(bucket):
    path = as_path(f"{bucket}/run/a.txt")
    assert not path.exists() and not path.is_file()
    write_atomically(path, "é")
    write_atomically(path, "ü")
    assert path.exists() and path.is_file() and path.read_text() == "ü"
    assert not as_path(f"{bucket}/run").is_file()
    with pytest.raises(OSError, match="b.txt: "):
        as_path(f"{bucket}/run/b.txt").read_bytes()


@pytest.mark.parametrize("kind", ["folder", "bucket"])
def test_a_file_that_cannot_be_made_leaves_the_old_one(bucket, tmp_path, kind):
    folder = as_path({"folder": tmp_path, "bucket": bucket}[kind])
    write_atomically(folder / "a.txt", "old")
    with pytest.raises(OSError, match="full"), draft_of(folder / "a.txt") as f:
        f.write_text("ne")
        raise OSError("disk full")
    assert (folder / "a.txt").read_text() == "old"
    assert gfile.listdir(str(folder)) == ["a.txt"]


@pytest.mark.slow
@pytest.mark.usefixtures("pictures")
def test_a_run_in_a_bucket_is_stopped_continued_and_evaluated(
    recipe, digits, bucket
):
    folder = f"{bucket}/runs/first"
    recipe = dataclasses.replace(recipe, steps_per_checkpoint=1)
    trainer = prepare(recipe, folder)

    def stop():
        return trainer.loop.step == 2

    trainer.loop.must_stop = stop
    with pytest.raises(RuntimeError, match="saved after update 2"):
        trainer.train()
    again = prepare(recipe, folder)
    assert again.loop.step == 2
    again.train()
    run = RunFolder(as_path(folder))
    [row] = read_metrics(run.metrics_path)
    dataset = dataclasses.replace(digits, eval_split=recipe.eval_split)
    found = evaluate(run, dataset)["accuracy"]
    assert found == pytest.approx(row["val_accuracy"])
    names = {name.rstrip("/") for name in gfile.listdir(folder)}
    assert names > {"README.md", "checkpoints", "confusion.csv", "recipe.json"}
    assert names > {"first_batch.png", "learning_curve.png", "tensorboard"}
    report = json.loads((run.folder / "evaluation.json").read_text())
    assert report["model"] == folder
    with pytest.raises(ValueError, match="another recipe.*seed: 0 there"):
        prepare(dataclasses.replace(recipe, seed=1), folder)


def make_state(numbers, weights=()):
    """Return the state of a model with these weights, without slots."""
    model, optimizer = tf.Module(), tf.Module()
    for name, value in weights:
        setattr(model, name, tf.Variable(value))
    optimizer.parameters = []
    optimizer.iterations = tf.Variable(0)
    return TensorFlowState(model, optimizer, None, numbers)


def checkpoints(folder):
    state = make_state({"number": np.int64(0)})
    return Checkpoints(folder, state, make_engine("one_device"))


def test_a_state_of_a_bucket_counts_when_it_is_whole(bucket, monkeypatch):
    """Killed before the index was written: the rest is not a checkpoint."""
    states = checkpoints(f"{bucket}/checkpoints")
    states.state.numbers["number"] = np.int64(1)
    states.save(1)

    def write_half(prefix):
        with gfile.GFile(f"{prefix}.data-00000-of-00001", "w") as file:
            file.write("half")
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(type(states.state), "write", lambda _, p: write_half(p))
        with pytest.raises(KeyboardInterrupt):
            states.save(2)
    assert gfile.exists(states.path(2))
    assert states.steps() == [1]
    assert checkpoints(states.folder).restore() == 1
    states.remove_drafts()
    assert not gfile.exists(states.path(2)) and states.steps() == [1]
    for step in (2, 3):
        states.state.numbers["number"] = np.int64(step)
        states.save(step)
    assert states.steps() == [2, 3]
    fresh = checkpoints(states.folder)
    assert fresh.restore() == 3 and fresh.state.numbers["number"] == 3


def test_a_bucket_that_does_not_answer_is_an_error_of_files(monkeypatch):
    def refuse(path):
        raise tf.errors.PermissionDeniedError(None, None, "no access\nmore")

    monkeypatch.setattr(gfile, "exists", refuse)
    with pytest.raises(OSError, match="recipe.json: no access$"):
        RunFolder(as_path("gs://bucket/run")).load_recipe()


def test_exports_to_a_bucket_are_refused(run):
    with pytest.raises(ValueError, match="a folder of this machine.*gs"):
        export_source(
            run, open_dataset("digits"), as_path("gs://bucket/export")
        )


def test_a_model_of_a_bucket_is_loaded(run, bucket):
    gfile.makedirs(bucket)
    gfile.copy(str(run.model_path), f"{bucket}/model.keras", overwrite=True)
    model = NamedModel(f"{bucket}/model.keras").load_model()
    assert_same_weights(model, run.load_model())


def test_a_state_of_another_model_is_refused_in_one_message(tmp_path, caplog):
    def states(size, names):
        weights = [(name, tf.zeros(size)) for name in names]
        state = make_state({}, weights)
        return Checkpoints(str(tmp_path), state, make_engine("one_device"))

    states(2, "abc").save(1)
    with pytest.raises(CheckpointError, match="of other shapes are model"):
        states(3, "a").restore()
    gc.collect()  # TensorFlow speaks when the reader is gone.
    assert not caplog.records
