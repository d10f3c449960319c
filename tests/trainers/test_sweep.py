"""Whole sweeps of a small model, and the command."""

import csv
import dataclasses
import functools
import json
import re
import shutil

import keras
import numpy as np
import pytest
from absl import flags

import trainers.sweep
from tests.trainers.made import assert_same_weights
from trainers.command_line import define_sweep_flags
from trainers.commands import worker_config_from_flags
from trainers.data.readers.tfds import TfdsReader
from trainers.evaluation.evaluation import evaluate
from trainers.recipes import flags as recipe_flags
from trainers.recipes.recipes import RECIPES
from trainers.sweeps import sweeping
from trainers.sweeps.sweeping import open_sweep, run_sweep, save_report
from trainers.training.loop import Interrupted
from trainers.training.report import read_metrics
from trainers.training.run_folder import RunFolder

pytestmark = pytest.mark.slow(20)

CHANGES = {
    "model": "mu/16",
    "patch_size": 2,
    "total_steps": 3,
    "warmup_steps": 0,
    "batch_size": 300,
    "steps_per_loop": 2,
    "peak_tflops": 1.0,  # Not measured.
    "augment": "",
}
CHOICES = {"learning_rates": (0.001, 0.02), "num_seeds": 2, "held_out": "200"}
CHOICE_RUNS = ["choice_0.001_seed0", "choice_0.02_seed0"]


def open_small(folder):
    recipe = dataclasses.replace(RECIPES["digits"], **CHANGES)
    return open_sweep(recipe, str(folder), **CHOICES)


@dataclasses.dataclass
class Swept:
    """A finished sweep: its folder, its trials, and the read examples."""

    folder: str
    trials: list
    reads: list  # (purpose of the run, ranges of examples)


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    """Return a sweep that was not interrupted."""
    folder = tmp_path_factory.mktemp("swept") / "sweep"
    purposes, reads = ["opening"], []
    prepare_case, read = sweeping.prepare_case, TfdsReader.read

    def note_case(sweep, case):
        purposes.append(case.purpose)
        return prepare_case(sweep, case)

    def note_ranges(self, ranges):
        reads.append((purposes[-1], tuple(ranges)))
        return read(self, ranges)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sweeping, "prepare_case", note_case)
        patch.setattr(TfdsReader, "read", note_ranges)
        trials = run_sweep(open_small(folder))
    assert purposes == ["opening", "choice", "choice", "report", "report"]
    return Swept(folder, trials, reads)


@pytest.fixture
def command(monkeypatch):
    """Return a function that runs the command with a line of flags."""
    values = flags.FlagValues()
    for kind in ("_string", "_integer", "_float", "_bool", "_list", ""):
        define = getattr(flags, f"DEFINE{kind}")
        monkeypatch.setattr(
            flags,
            f"DEFINE{kind}",
            functools.partial(define, flag_values=values),
        )
    define_sweep_flags()
    for module, name, function in (
        (recipe_flags, "recipe_from_flags", recipe_flags.recipe_from_flags),
        (trainers.sweep, "worker_config_from_flags", worker_config_from_flags),
    ):
        bound = functools.partial(function, values)
        monkeypatch.setattr(module, name, bound)
    monkeypatch.setattr(trainers.sweep, "FLAGS", values)

    class NoSignals:
        def were_received(self):
            return False

    monkeypatch.setattr("trainers.commands.StopSignals", NoSignals)

    def run_line(*words):
        values(["sweep", *words])
        trainers.sweep.main(["sweep"])

    return run_line


def test_the_test_split_is_not_read_before_the_report(swept):
    """And the images that choose the rate are not trained on."""
    kept, held_out = ("train", 0, 1242), ("train", 1242, 1442)
    ranges = {
        purpose: {
            each for p, row in swept.reads if p == purpose for each in row
        }
        for purpose in ("opening", "choice", "report")
    }
    assert ranges["opening"] == {held_out}  # Its classes.
    assert ranges["choice"] == {kept, held_out}
    assert ranges["report"] == {("train", 0, 1442), ("test", 0, 355)}


def test_the_rate_of_the_report_is_the_best_on_the_held_out_images(swept):
    """By the metrics that the runs have written."""
    rows = [
        read_metrics(RunFolder(swept.folder / name).metrics_path)[-1]
        for name in CHOICE_RUNS
    ]
    found = [(row["val_accuracy"], -row["val_loss"]) for row in rows]
    assert found[0] != found[1]
    best = CHOICES["learning_rates"][found.index(max(found))]
    report = [t for t in swept.trials if t.purpose == "report"]
    assert [(t.learning_rate, t.seed) for t in report] == [(best, 0), (best, 1)]
    assert report[0].loss != report[1].loss


def test_the_report_has_the_mean_of_the_test_split(swept, digits):
    """Each run is one that other commands take."""
    report = json.loads((swept.folder / "sweep.json").read_text())
    runs = sorted(swept.folder.glob("report_*"))
    found = [evaluate(RunFolder(run), digits)["accuracy"] for run in runs]
    assert report["test"]["accuracies"] == pytest.approx(found)
    assert report["test"]["mean"] == pytest.approx(np.mean(found))
    deviation = np.std(found, ddof=1)
    assert report["test"]["deviation"] == pytest.approx(deviation)
    assert report["held_out"] == "train[1242:1442]"
    with open(swept.folder / "sweep.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    names = [run.name for run in runs]
    assert [row["run"] for row in rows] == [*CHOICE_RUNS, *names]
    assert [float(row["accuracy"]) for row in rows] == [
        trial.accuracy for trial in swept.trials
    ]


def test_an_interrupted_sweep_ends_as_one_that_was_not(swept, tmp_path):
    """To the bit, after a stop within a run of the choice and of the report."""
    folder = tmp_path / "sweep"
    report_run, last_run = (
        path.name for path in sorted(swept.folder.glob("report_*"))
    )
    # The first run is finished, and the last one has its files.
    for name in (CHOICE_RUNS[0], last_run):
        shutil.copytree(swept.folder / name, folder / name)
    save_report(open_small(folder), swept.trials[:1])
    for name in (CHOICE_RUNS[1], report_run):
        run = RunFolder(folder / name)
        with pytest.raises(Interrupted, match="after update 2. Run the same"):
            run_sweep(open_small(folder), run.recipe_path.exists)
        assert not run.model_path.exists()
    finished = folder / CHOICE_RUNS[0] / "metrics.csv"
    before = finished.stat().st_mtime_ns
    assert run_sweep(open_small(folder)) == swept.trials
    assert finished.stat().st_mtime_ns == before  # Not trained again.
    for name in ("sweep.json", "sweep.csv", "recipe.json"):
        texts = [(each / name).read_text() for each in (folder, swept.folder)]
        assert texts[0] == texts[1], name
    for path in swept.folder.glob("*/model.keras"):
        whole, other = (
            keras.saving.load_model(each, compile=False)
            for each in (path, folder / path.relative_to(swept.folder))
        )
        assert_same_weights(whole, other)


def test_the_command_prints_what_a_finished_sweep_found(
    swept, command, capsys, monkeypatch
):
    monkeypatch.setattr(sweeping.Trainer, "train", None)  # Nothing is trained.
    command(
        "--recipe=digits",
        *(f"--{name}={value}" for name, value in CHANGES.items()),
        "--learning_rates=1e-3,2e-2",
        "--held_out=200",
        "--num_seeds=2",
        f"--sweep_dir={swept.folder}",
    )
    printed = capsys.readouterr().out
    assert "Sweep of 4 runs" in printed
    assert "1,242 images), chosen on train[1242:1442] (200)" in printed
    found = [100 * t.accuracy for t in swept.trials]
    for rate, accuracy in zip(("0.001", "0.02"), found):
        assert f"| {rate} | {accuracy:.2f} % |" in printed
    assert printed.count("| chosen |") == 1
    mean, deviation = np.mean(found[2:]), np.std(found[2:], ddof=1)
    assert f"Test accuracy: {mean:.2f} +- {deviation:.2f} % (2 " in printed


@pytest.mark.parametrize(
    "words, message",
    [
        (["--learning_rates=1e-3,x"], "numbers, separated by commas.*1e-3,x"),
        (["--held_out=half"], "a share such as 2%.*half"),
        (["--strategy=multi_worker", "--workers=x"], "workers"),
        (["--accumulation_steps=3"], "`batch_size` must be a mult"),
    ],
)
def test_mistakes_of_the_user_end_in_a_line(command, tmp_path, words, message):
    with pytest.raises(SystemExit) as end:
        command("--recipe=digits", f"--sweep_dir={tmp_path / 'new'}", *words)
    assert re.match(f"Error: .*{message}", str(end.value.code))


def test_a_dry_run_is_that_of_the_first_run(command, tmp_path, monkeypatch):
    jobs = []
    monkeypatch.setattr(trainers.sweep, "dry_run", jobs.append)
    changes = [f"--{name}={value}" for name, value in CHANGES.items()]
    command("--recipe=digits", *changes, "--dry_run", f"--sweep_dir={tmp_path}")
    [trainer] = jobs
    assert trainer.run.folder.name == "choice_0.001_seed0"
    assert trainer.dataset.eval_split == "train[1298:1442]"
    assert not (tmp_path / "sweep.json").exists()
