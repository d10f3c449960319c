import csv
import dataclasses
import json
import pathlib
import re

import numpy as np
import pytest

import trainers.train
from tests import commands
from trainers.evaluation import image_predictions as examples
from trainers.evaluation.evaluation import evaluate
from trainers.recipes.flags import ChosenRecipe
from trainers.runs.run import Run, write_atomically
from trainers.train import prepare


def test_saved_model_has_the_accuracy_that_was_logged(run, digits):
    report = evaluate(run, digits)
    with open(run.metrics_path, newline="") as file:
        [row] = csv.DictReader(file)
    assert report["accuracy"] == pytest.approx(float(row["val_accuracy"]))
    assert report["num_examples"] == 355
    by_class = [report[f"accuracy/{d}"] for d in range(10)]
    assert np.mean(by_class) == pytest.approx(report["accuracy"], abs=0.02)
    assert (run.folder / "predictions.png").read_bytes()[:4] == b"\x89PNG"


def test_classes_of_another_data_set_are_refused(run, digits, monkeypatch):
    names = property(lambda self: ["a", "b"])
    monkeypatch.setattr(type(digits), "class_names", names)
    fault = "classes that the model was trained on.* has 'a', 'b' and lacks '0'"
    with pytest.raises(ValueError, match=fault):
        evaluate(run, digits)


def test_folder_that_is_not_a_run_is_an_error(tmp_path):
    with pytest.raises(ValueError, match="recipe.json in it.*nowhere"):
        Run(tmp_path / "nowhere").load_recipe()
    with pytest.raises(ValueError, match="model.keras in it"):
        Run(tmp_path).load_model()


def test_a_model_that_cannot_be_written_leaves_the_old_one(run, monkeypatch):
    """The disk is full half-way."""
    model = run.load_model()
    before = run.model_path.read_bytes()

    def fail(path):
        pathlib.Path(path).write_bytes(b"half a mod")
        raise OSError("No space left on device")

    monkeypatch.setattr(model, "save", fail)
    with pytest.raises(OSError):
        run.save_model(model)
    assert run.model_path.read_bytes() == before
    assert not list(run.folder.glob(".draft*"))


def test_text_that_cannot_be_written_leaves_the_old_one(tmp_path, monkeypatch):
    path = tmp_path / "recipe.json"
    write_atomically(path, "old")
    monkeypatch.setattr(pathlib.Path, "write_text", fail_to_write)
    with pytest.raises(OSError):
        write_atomically(path, "new")
    assert path.read_bytes() == b"old"


def fail_to_write(path, text, **options):
    path.write_bytes(text[:1].encode())
    raise OSError("No space left on device")


def test_pictures_and_classes_of_the_report(run, digits, monkeypatch):
    """By hand, from the answers of the model."""
    drawn = {}

    def record(images, truths, predictions, scores, normalization, path):
        drawn.update(truths=truths, predictions=predictions, scores=scores)

    monkeypatch.setattr(examples, "plot_predictions", record)
    report = evaluate(run, digits)
    pairs = list(digits.examples("test").as_numpy_iterator())
    images = np.stack([image for image, _ in pairs]) / 127.5 - 1
    labels = np.array([label for _, label in pairs])
    logits = run.load_model().predict(images.astype("float32"), verbose=0)
    hits = logits.argmax(-1) == labels
    for digit in range(10):
        assert report[f"accuracy/{digit}"] == pytest.approx(
            hits[labels == digit].mean()
        )
    wrong = [t != g for t, g in zip(drawn["truths"], drawn["predictions"])]
    assert wrong == [True] * 32 and np.sum(~hits) > 32


@pytest.mark.usefixtures("pictures")
def test_a_dry_run_draws_the_first_batch_into_a_new_folder(
    recipe, tmp_path, capsys
):
    folder = tmp_path / "new" / "run"
    job = prepare(recipe, str(folder))
    trainers.train.dry_run(job)
    assert [path.name for path in folder.iterdir() if path.is_file()] == [
        "first_batch.png"
    ]
    output = capsys.readouterr().out
    assert "activations" in output and "first_batch.png" in output
    assert re.search(r"available +[\d.]+ [GM]B\n", output)
    assert re.search(r"Time: \d:\d\d:\d\d for 3 updates", output)
    assert job.loop.step == 0


def test_a_dry_run_leaves_a_run_that_has_begun_as_it_is(run, capsys):
    def content():
        files = [path for path in run.folder.rglob("*") if path.is_file()]
        return {path: path.stat().st_mtime_ns for path in files}

    before = content()
    trainers.train.dry_run(prepare(run.load_recipe(), str(run.folder)))
    assert content() == before
    assert "activations" in capsys.readouterr().out


def test_a_run_that_is_finished_says_so(recipe, tmp_path, capsys):
    patient = dataclasses.replace(recipe, keep_best=True, patience=2)
    job = prepare(patient, str(tmp_path))
    chosen = ChosenRecipe("digits", {})
    said = "This run is finished."
    trainers.train.print_start(job, chosen)
    assert said not in capsys.readouterr().out
    for _ in range(3):
        job.loop.best.judge({"val_loss": 1.0})
    trainers.train.print_start(job, chosen)
    assert said in capsys.readouterr().out
    assert trainers.train.stopped_early(job)
    # In the last update, nothing is left to stop.
    finished = dataclasses.replace(job, total_steps=job.loop.step)
    assert not trainers.train.stopped_early(finished)


def test_a_model_no_better_than_guessing_is_named(run, capsys, monkeypatch):
    job = prepare(run.load_recipe(), str(run.folder))
    for accuracy, is_named in ((0.1, True), (0.11, False)):
        rows = [
            {"step": 1, "val_accuracy": 0.05},
            {"step": 2, "val_accuracy": accuracy},
            {"step": 3, "loss": 1.0},
        ]
        monkeypatch.setattr(
            trainers.train, "read_metrics", lambda path, rows=rows: rows
        )
        trainers.train.print_results(job, 1.0)
        said = "no better than guessing one of 10 classes"
        assert (said in capsys.readouterr().out) == is_named


FRAMES = """
import inspect, json, pathlib, runpy, sys
import keras_vit
from keras_vit.layers import attention
root = pathlib.Path(keras_vit.__file__).parents[1]
attend = attention.attend

def look(*args, **kwargs):
    frames = [(f.filename, f.function) for f in inspect.stack()[1:]]
    if not any(name.endswith("loop/step.py") for name, _ in frames):
        return attend(*args, **kwargs)  # The model is built.
    own = [str(root / name) for name in ("keras_vit", "trainers")]
    print(json.dumps([f for f in frames if f[0].startswith(tuple(own))]))
    sys.exit()

attention.attend = look
runpy.run_module("trainers.train", run_name="__main__")
"""


@pytest.mark.slow
def test_ten_functions_of_ours_lead_from_the_command_to_attention(
    tmp_path, subprocess_environment
):
    words = ["-c", FRAMES, "--recipe=digits", "--model=mu/16", "--patch_size=2"]
    words += ["--total_steps=1", "--warmup_steps=0", "--peak_tflops=1"]
    result = commands.run(words, subprocess_environment, tmp_path)
    stack = json.loads(result.stdout.splitlines()[-1])
    assert stack[-1][0].endswith("trainers/train.py")
    # And `attend` itself, in whose place it was looked.
    print(f"frames from the command to attend: {len(stack) + 1}")
    assert len(stack) + 1 <= 10, "\n".join(map(str, stack))
