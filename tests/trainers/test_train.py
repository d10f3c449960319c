import csv
import dataclasses
import re
import weakref

import pytest

import trainers.train
from trainers.commands import release_frames
from trainers.evaluation.evaluation import evaluate
from trainers.recipes.flags import ChosenRecipe
from trainers.training.trainer import prepare


def test_saved_model_has_the_accuracy_that_was_logged(run, digits):
    report = evaluate(run, digits)
    with open(run.metrics_path, newline="") as file:
        [row] = csv.DictReader(file)
    assert report["accuracy"] == pytest.approx(float(row["val_accuracy"]))
    assert report["num_examples"] == 355
    assert (run.folder / "predictions.png").read_bytes()[:4] == b"\x89PNG"


def test_classes_of_another_data_set_are_refused(run, digits, monkeypatch):
    names = property(lambda self: ["a", "b"])
    monkeypatch.setattr(type(digits), "class_names", names)
    fault = "classes that the model was trained on.* has 'a', 'b' and lacks '0'"
    with pytest.raises(ValueError, match=fault):
        evaluate(run, digits)


@pytest.mark.usefixtures("pictures")
def test_a_dry_run_draws_the_first_batch_into_a_new_folder(
    recipe, tmp_path, capsys
):
    folder = tmp_path / "new" / "run"
    trainer = prepare(recipe, str(folder))
    trainers.train.dry_run(trainer)
    assert [path.name for path in folder.iterdir() if path.is_file()] == [
        "first_batch.png"
    ]
    output = capsys.readouterr().out
    assert "activations" in output and "first_batch.png" in output
    assert re.search(r"available +[\d.]+ [GM]B\n", output)
    assert re.search(r"Time: \d:\d\d:\d\d for 3 updates", output)
    assert trainer.loop.step == 0


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
    trainer = prepare(patient, str(tmp_path))
    chosen = ChosenRecipe("digits", {})
    said = "This run is finished."
    trainers.train.print_start(trainer, chosen)
    assert said not in capsys.readouterr().out
    for _ in range(3):
        trainer.loop.best.judge({"val_loss": 1.0})
    trainers.train.print_start(trainer, chosen)
    assert said in capsys.readouterr().out
    assert trainer.stopped_early
    # In the last update, nothing is left to stop.
    finished = dataclasses.replace(trainer, total_steps=trainer.loop.step)
    assert not finished.stopped_early


def test_a_model_no_better_than_guessing_is_named(run, capsys, monkeypatch):
    trainer = prepare(run.load_recipe(), str(run.folder))
    for accuracy, is_named in ((0.1, True), (0.11, False)):
        rows = [
            {"step": 1, "val_accuracy": 0.05},
            {"step": 2, "val_accuracy": accuracy},
            {"step": 3, "loss": 1.0},
        ]
        monkeypatch.setattr(
            trainers.train, "read_metrics", lambda path, rows=rows: rows
        )
        trainers.train.print_results(trainer, 1.0)
        said = "no better than guessing one of 10 classes"
        assert (said in capsys.readouterr().out) == is_named


def test_an_error_frees_what_the_functions_it_ended_hold():
    """Also those that libraries leave out of the traceback, as TensorFlow."""

    class Iterator:
        """Stands for one whose threads Python waits for."""

    kept = []

    def outer():
        iterator = Iterator()
        kept.append(weakref.ref(iterator))
        left_out(iterator)

    def left_out(*arguments):
        inner()

    def inner():
        raise ValueError("wrong")

    with pytest.raises(KeyError) as raised:
        try:
            outer()
        except ValueError as error:
            first = error.__traceback__
            of_outer, of_inner = first.tb_next, first.tb_next.tb_next.tb_next
            of_outer.tb_next = of_inner
            cause = OSError("another")
            raise KeyError("name") from cause
    assert kept[0]() is not None
    release_frames(raised.value)
    assert kept[0]() is None
