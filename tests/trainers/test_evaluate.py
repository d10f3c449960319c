import dataclasses
import hashlib
import json
import os
import signal
import types

import keras
import pytest

from tests.trainers.made import write_photos
from trainers import evaluate, predict, probe
from trainers.commands import open_source
from trainers.data.datasets import open_dataset
from trainers.evaluate import describe_rest, list_files, read_other
from trainers.evaluation import evaluation
from trainers.evaluation.image_predictions import (
    ImagePrediction,
    write_image_predictions,
)
from trainers.evaluation.predictions import predict_dataset


@pytest.fixture
def folder(tmp_path, digits):
    """Return the folder of an evaluation of the test images of the digits."""
    report = {"model": "other", "dataset": "digits", "split": digits.eval_split}
    (tmp_path / "evaluation.json").write_text(json.dumps(report))
    return tmp_path


def test_an_evaluation_of_the_same_images_is_read(folder, digits):
    with pytest.raises(ValueError, match="`compare`.*image_predictions.csv"):
        read_other(str(folder), digits)
    predictions = {
        0: ImagePrediction(3, 3, 0.5, "a.png"),
        1: ImagePrediction(3, 8, 0.25, "b.png"),
    }
    write_image_predictions(
        folder / "image_predictions.csv", predictions, digits.class_names
    )
    other = read_other(str(folder), digits)
    assert other.report["model"] == "other"
    assert other.predictions == predictions


def test_an_evaluation_of_other_images_is_refused(folder, digits):
    path = folder / "evaluation.json"
    report = json.loads(path.read_text())
    for change in ({"dataset": "cifar10"}, {"split": "train"}):
        path.write_text(json.dumps({**report, **change}))
        with pytest.raises(ValueError, match="`compare` must be an eval"):
            read_other(str(folder), digits)
    path.write_text(json.dumps(report))
    photos = dataclasses.replace(digits, name="folder:my photos")
    with pytest.raises(ValueError, match="with '--dataset=folder:my photos' "):
        read_other(str(folder), photos)


def test_an_evaluation_of_an_earlier_model_is_refused(folder, digits):
    path, model = folder / "evaluation.json", folder / "model.keras"
    model.write_bytes(b"model")
    report = json.loads(path.read_text())
    digest = hashlib.sha256(b"model").hexdigest()
    path.write_text(json.dumps({**report, "model_digest": digest}))
    table = folder / "image_predictions.csv"
    write_image_predictions(table, {}, digits.class_names)
    assert read_other(str(folder), digits).report["model"] == "other"
    model.write_bytes(b"trained since")
    with pytest.raises(ValueError, match="was trained since; evaluate that"):
        read_other(str(folder), digits)


@pytest.mark.parametrize("ending", ["", "/model.keras"])
def test_a_report_outside_of_its_run_may_be_of_an_earlier_model(
    folder, digits, tmp_path, ending
):
    run = tmp_path / "run"
    run.mkdir()
    (run / "recipe.json").write_text("{}")
    model = run / "model.keras"
    model.write_bytes(b"model")
    path = folder / "evaluation.json"
    digest = hashlib.sha256(b"model").hexdigest()
    changes = {"model": f"{run}{ending}", "model_digest": digest}
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    table = folder / "image_predictions.csv"
    write_image_predictions(table, {}, digits.class_names)
    read_other(str(folder), digits)
    model.write_bytes(b"trained since")
    with pytest.raises(ValueError, match=f"in {run}.*was trained since"):
        read_other(str(folder), digits)
    model.unlink()
    read_other(str(folder), digits)


@pytest.mark.parametrize("content", [b"3", b"\xff"])
def test_a_damaged_evaluation_is_named(folder, digits, content):
    path = folder / "evaluation.json"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=f"{path} is not .*; evaluate that"):
        read_other(str(folder), digits)


def test_only_files_that_are_written_are_named():
    assert "confusion.csv" in list_files(2000)
    assert list_files(2001) == [
        name for name in list_files(2000) if name != "confusion.csv"
    ]


@pytest.mark.parametrize(
    "command, step",
    [
        (evaluate, "refuse_arguments"),
        (probe, "refuse_arguments"),
        (predict, "expand_folders"),
    ],
)
def test_a_signal_ends_a_command_in_a_word(command, step, monkeypatch, capsys):
    def interrupt(*_):
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(command, step, interrupt)
    choices = types.SimpleNamespace(
        run_dir="a run", model=None, classes=None, out=None
    )
    monkeypatch.setattr(command, "FLAGS", choices)
    with pytest.raises(SystemExit) as stop:
        command.main(["command", "a.png"])
    assert stop.value.code == 75
    assert capsys.readouterr().err == "Stopped.\n"


def test_numbered_classes_of_a_table_are_in_their_order(tmp_path):
    """Without names, `predict` numbers the outputs; 10 is not before 2."""
    write_photos(tmp_path, [str(n) for n in range(12)])
    lines = [f"{n}/{n}.png,{n},test" for n in range(12)]
    table = tmp_path / "t.csv"
    table.write_text("\n".join(["path,label,split", *lines]))
    model = keras.Sequential([keras.Input((9, 9, 3)), keras.layers.Flatten()])
    model.add(keras.layers.Dense(12))
    model.save(tmp_path / "model.keras")
    _, data = open_source(
        model=str(tmp_path / "model.keras"), dataset=f"csv:{table}"
    )
    assert data.class_names == [str(n) for n in range(12)]
    found = {os.path.basename(path): n for path, n in data.reader.files["test"]}
    assert found == {f"{n}.png": n for n in range(12)}


def test_files_are_grey_for_a_model_of_grey_images(run, tmp_path):
    write_photos(tmp_path, [f"test/{digit}" for digit in range(10)])
    source, data = open_source(str(run), dataset=f"folder:{tmp_path}")
    assert data.channels == 1
    assert len(list(predict_dataset(source.load_model(), data))) == 1


def test_a_folder_may_have_some_of_the_classes(run, tmp_path):
    """All logits count, as when the model is used; the others have no image."""
    write_photos(tmp_path, [f"test/{digit}" for digit in (7, 2, 7, 5)])
    name = f"folder:{tmp_path}"
    source, part = open_source(str(run), dataset=name, may_be_part=True)
    assert part.class_names == source.load_class_names()
    assert sorted(part.labels("test")) == [2, 5, 7, 7]
    folder = tmp_path / "report"  # Its pictures would become a class.
    with pytest.raises(ValueError, match="`report_dir` must be outside"):
        evaluation.evaluate(source, part, report_dir=folder)
    assert not folder.exists()
    folder = tmp_path.parent / f"{tmp_path.name}_report"
    report = evaluation.evaluate(source, part, report_dir=folder)
    table = (folder / "confusion.csv").read_text()
    rows = [row.split(",") for row in table.splitlines()[1:]]
    assert [sum(map(int, row[1:])) for row in rows] == [
        [2, 5, 7, 7].count(digit) for digit in range(10)
    ]
    hits = sum(int(row[1 + place]) for place, row in enumerate(rows))
    assert report["accuracy"] == pytest.approx(hits / 4)
    assert report["num_examples"] == 4
    # A new model would only have these classes, and so has a probe.
    _, alone = open_source(str(run), dataset=name)
    assert alone.class_names == ["2", "5", "7"]
    write_photos(tmp_path, ["test/seven"])
    _, other = open_source(str(run), dataset=name, may_be_part=True)
    with pytest.raises(ValueError, match="has 'seven' and lacks '0', '1'"):
        evaluation.evaluate(source, other)


@pytest.mark.parametrize("names", ["7", "27"])
@pytest.mark.parametrize("kind", ["folder", "csv"])
def test_all_images_may_be_one_of_a_class(kind, names, run, tmp_path):
    """Of which none can be set apart, as a training would."""
    name = f"folder:{write_photos(tmp_path, names)}"
    if kind == "csv":
        rows = [f"{digit}/{i}.png,{digit}" for i, digit in enumerate(names)]
        name = f"csv:{tmp_path}/t.csv"
        (tmp_path / "t.csv").write_text("\n".join(["path,label", *rows]))
    choices = {"dataset": name, "may_be_part": True}
    with pytest.raises(ValueError, match="`dataset` must have two"):
        open_source(str(run), **choices)
    _, found = open_source(str(run), eval_split="all", **choices)
    assert sorted(found.labels("all")) == [*map(int, names)]


def test_images_that_are_not_evaluated_are_counted(tmp_path):
    folder = write_photos(
        tmp_path, [f"{name}/{n}" for name in ("a", "b") for n in range(8)]
    )
    dataset = open_dataset(f"folder:{folder}")
    count = dataset.num_examples("test")
    assert 0 < count < 16
    note = describe_rest(dataset)
    assert f"{count} of the 16 images" in note and "--eval_split=all" in note
    assert not describe_rest(dataclasses.replace(dataset, eval_split="all"))
