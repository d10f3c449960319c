import json
import sqlite3

import pytest

from trainers.training import trackers
from trainers.training.report import read_metrics
from trainers.training.trackers import TRACKERS, check_trackers, tracking
from trainers.training.trainer import prepare


def train(recipe, folder, names, steps):
    import dataclasses

    recipe = dataclasses.replace(
        recipe,
        trackers=names,
        batch_size=721,
        total_steps=steps,
        epochs_per_eval=1,
    )
    trainer = prepare(recipe, str(folder), force=True)
    trainer.train()
    return trainer.run


@pytest.mark.usefixtures("pictures")
def test_mlflow_has_the_run_also_when_it_goes_on(recipe, tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    place = (tmp_path / "mlruns").as_uri()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", place)
    for steps in (2, 4):
        run = train(recipe, tmp_path / "run", "mlflow", steps)
    client = mlflow.MlflowClient(place)
    experiment = client.get_experiment_by_name("keras_vit")
    [found] = client.search_runs([experiment.experiment_id])
    assert found.info.status == "FINISHED"
    assert found.info.run_name == "run"
    assert found.data.params["batch_size"] == "721"
    assert "teacher" not in found.data.params
    rows = read_metrics(run.metrics_path)
    history = client.get_metric_history(found.info.run_id, "val_loss")
    assert [(x.step, x.value) for x in history] == [
        (row["step"], row["val_loss"]) for row in rows
    ]
    files = {x.path for x in client.list_artifacts(found.info.run_id)}
    wanted = {"README.md", "recipe.json", "metrics.csv", "learning_curve.png"}
    assert wanted <= files and "model.keras" not in files
    assert not (run.folder / "tensorboard").exists()


def test_trackio_has_the_run(recipe, tmp_path, monkeypatch):
    pytest.importorskip("trackio")
    place = tmp_path / "trackio"
    monkeypatch.setattr("trackio.utils.TRACKIO_DIR", place)
    monkeypatch.setattr("trackio.sqlite_storage.TRACKIO_DIR", place)
    monkeypatch.setattr("trackio.utils.MEDIA_DIR", place / "media")
    run = train(recipe, tmp_path / "run", "trackio", 2)
    with sqlite3.connect(place / "keras_vit.db") as base:
        [(step, text)] = base.execute("select step, metrics from metrics")
    [row] = read_metrics(run.metrics_path)
    found = json.loads(text)
    assert (step, found["val_loss"]) == (row["step"], row["val_loss"])


class Recorder:
    calls = []

    def start(self, name, settings, identity):
        self.calls.append(("start", name, settings, identity))
        return "number 1"

    def log(self, figures, step):
        self.calls.append(("log", figures, step))
        if step > 1:
            raise ConnectionError("no\nnetwork")

    def add(self, path):
        self.calls.append(("add", path))

    def finish(self, is_complete):
        self.calls.append(("finish", is_complete))


@pytest.fixture
def calls(monkeypatch):
    monkeypatch.setattr(Recorder, "calls", [])
    monkeypatch.setitem(TRACKERS, "mlflow", Recorder)
    return Recorder.calls


def test_a_tracker_that_fails_does_not_end_the_training(
    calls, tmp_path, capsys
):
    with tracking(["mlflow"], tmp_path, "run", {"seed": 3}) as callback:
        callback.on_epoch_end(0, {"loss": 2, "step": 1})
        callback.on_epoch_end(1, {"loss": 1, "step": 2})
        callback.on_epoch_end(2, {"loss": 1, "step": 3})
    assert calls == [
        ("start", "run", {"seed": 3}, None),
        ("log", {"loss": 2.0, "step": 1.0}, 1),
        ("log", {"loss": 1.0, "step": 2.0}, 2),
    ]
    assert "--trackers=mlflow is left out" in capsys.readouterr().err


def test_a_run_that_ends_early_is_told_and_found_again(calls, tmp_path):
    (tmp_path / "page.html").write_text("x")
    (tmp_path / "model.keras").write_text("x")
    with pytest.raises(KeyboardInterrupt):
        with tracking(["mlflow"], tmp_path, "run", {}):
            raise KeyboardInterrupt
    assert calls[1:] == [("finish", False)]
    with tracking(["tensorboard", "mlflow"], tmp_path, "run", {}):
        pass
    assert calls[2:] == [
        ("start", "run", {}, "number 1"),
        ("add", str(tmp_path / "page.html")),
        ("finish", True),
    ]


def test_what_a_tracker_lacks_is_named(monkeypatch, tmp_path):
    monkeypatch.setattr(trackers.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match="`trackers`.*pip install mlflow"):
        check_trackers(["mlflow"])

    class Broken(Recorder):
        def start(self, *arguments):
            raise RuntimeError("no such place")

    monkeypatch.setitem(TRACKERS, "wandb", Broken)
    with pytest.raises(OSError, match="`trackers` 'wandb'.*no such place"):
        with tracking(["wandb"], tmp_path, "run", {}):
            pass


def test_a_damaged_file_of_identities_is_named(calls, tmp_path):
    (tmp_path / "trackers.json").write_text('{"mlflow": "numb')
    with pytest.raises(ValueError, match="trackers.json is not what was wri"):
        with tracking(["mlflow"], tmp_path, "run", {}):
            pass
    assert not calls
