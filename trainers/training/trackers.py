"""Experiment trackers: where the figures of a training go beside metrics.csv.

Each row of TRACKERS is a class with `start`, `log`, `add` and `finish`, written
with the package that it is for, which is only imported when it is named.
TensorBoard is a callback of Keras and needs none.
"""

import contextlib
import importlib.util
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

import keras

from trainers.paths import (
    Path,
    RemotePath,
    parse_object,
    read_written,
    write_atomically,
)
from trainers.recipes.recipe import TRACKERS as PACKAGES

PROJECT = "keras_vit"  # Unless a variable of the tracker names another.


class Tracker(Protocol):
    """What is done with a run.

    `start` takes its name, its settings and the identity of the run in the
    tracker, if it goes on with one, and returns the identity. The others are
    called after it.
    """

    def start(self, name: str, settings: Mapping, identity: str | None) -> str:
        """Begin a run, or go on with one."""

    def log(self, figures: Mapping[str, float], step: int):
        """Record the figures of an evaluation."""

    def add(self, path: str):
        """Keep a file: a picture, a page, the recipe, the card."""

    def finish(self, is_complete: bool):
        """End the run, which may be stopped before its end."""


class MLflow:
    """MLflow; MLFLOW_TRACKING_URI and MLFLOW_EXPERIMENT_NAME say where."""

    def start(self, name, settings, identity):
        import mlflow

        self.client = mlflow.MlflowClient()
        if identity is None:
            title = os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT)
            experiment = self.client.get_experiment_by_name(title)
            place = (
                experiment.experiment_id
                if experiment
                else self.client.create_experiment(title)
            )
            run = self.client.create_run(place, run_name=name)
            identity = run.info.run_id
            for key, value in settings.items():
                self.client.log_param(identity, key, value)
        self.client.update_run(identity, status="RUNNING")
        self.run_id = identity
        return identity

    def log(self, figures, step):
        for key, value in figures.items():
            self.client.log_metric(self.run_id, key, value, step=step)

    def add(self, path):
        self.client.log_artifact(self.run_id, path)

    def finish(self, is_complete):
        status = "FINISHED" if is_complete else "KILLED"
        self.client.set_terminated(self.run_id, status)


class WandB:
    """Weights and Biases; WANDB_PROJECT and WANDB_MODE say where."""

    package = "wandb"

    def start(self, name, settings, identity):
        self.module = importlib.import_module(self.package)
        self.run = self.init(name, dict(settings), identity)
        return self.run.id

    def init(self, name, settings, identity):
        return self.module.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            name=name,
            config=settings,
            id=identity,
            resume="allow" if identity else "never",
        )

    def log(self, figures, step):
        self.run.log(dict(figures), step=step)

    def add(self, path):
        self.run.save(path, base_path=os.path.dirname(path), policy="now")

    def finish(self, is_complete):
        self.run.finish(exit_code=0 if is_complete else 1)


class Trackio(WandB):
    """trackio; TRACKIO_PROJECT names the project, TRACKIO_DIR its folder."""

    package = "trackio"

    def init(self, name, settings, identity):
        return self.module.init(
            project=os.environ.get("TRACKIO_PROJECT", PROJECT),
            name=identity or name,
            config=settings,
            resume="allow" if identity else "never",
            embed=False,
        )

    def start(self, name, settings, identity):
        super().start(name, settings, identity)
        return self.run.name

    def add(self, path):
        self.module.save(path, project=self.run.project)

    def finish(self, is_complete):
        self.run.finish()


TRACKERS = {"mlflow": MLflow, "wandb": WandB, "trackio": Trackio}


def check_trackers(names: Sequence[str]):
    """Raise a ValueError if the package of a tracker is not installed."""
    for name in names:
        package, needed = PACKAGES[name]
        if importlib.util.find_spec(package) is None:
            raise ValueError(
                f"`trackers` {name!r} needs a package: pip install {needed}. "
                f"Received: trackers={','.join(names)!r}"
            )


class Tracking(keras.callbacks.Callback):
    """Passes the logs of each evaluation, and files, on to trackers.

    A tracker that fails is left out with a warning: nothing is lost, because
    metrics.csv and the folder of the run have it all.
    """

    def __init__(self, trackers: Mapping[str, Tracker]):
        super().__init__()
        self.trackers = dict(trackers)

    def on_epoch_end(self, epoch, logs=None):
        figures = {name: float(value) for name, value in logs.items()}
        self.call("log", figures, int(figures["step"]))

    def call(self, method: str, *arguments: Any):
        """Call a method of all trackers."""
        for name, tracker in list(self.trackers.items()):
            try:
                getattr(tracker, method)(*arguments)
            except Exception as error:  # Whatever their packages raise.
                print(
                    f"Warning: --trackers={name} is left out from here on: "
                    f"{' '.join(str(error).split())}",
                    file=sys.stderr,
                )
                del self.trackers[name]


@contextlib.contextmanager
def tracking(
    names: Sequence[str], folder: Path, name: str, settings: Mapping
) -> Iterator[Tracking]:
    """Start the trackers of a run; yield the callback for the training.

    `trackers.json` in the folder keeps the identities by which a run that goes
    on is found again.

    Args:
        names: Some of PACKAGES.
        folder: The folder of the run.
        name: The name of the run.
        settings: The settings of the run, in values of JSON.

    Raises:
        OSError: If a tracker cannot start.
        ContentError: If `trackers.json` is damaged.
    """
    path = folder / "trackers.json"
    known = {}
    if path.exists():
        remedy = "correct it, or remove it to begin new runs in the trackers"
        known = read_written(path, parse_object, remedy)
    callback = Tracking({})
    for each in [each for each in names if each in TRACKERS]:
        tracker = TRACKERS[each]()
        try:
            known[each] = tracker.start(name, settings, known.get(each))
        except Exception as error:  # Whatever their packages raise.
            text = " ".join(str(error).split())
            raise OSError(f"`trackers` {each!r} cannot start: {text}") from None
        callback.trackers[each] = tracker
    if callback.trackers:
        write_atomically(path, json.dumps(known, indent=2))
    try:
        yield callback
    except BaseException:
        callback.call("finish", False)
        raise
    if not isinstance(folder, RemotePath):
        for file in sorted(folder.iterdir()):
            if file.suffix in KEPT and file != path:
                callback.call("add", str(file))
    callback.call("finish", True)


# Pictures, pages, the recipe, the metrics and the card of a run.
KEPT = (".png", ".html", ".json", ".csv", ".md")
