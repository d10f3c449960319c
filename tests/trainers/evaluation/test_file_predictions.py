import csv
import dataclasses
import importlib.util
import io
import json
import os
import shutil
import threading

import keras
import numpy as np
import pytest
from PIL import Image

import keras_vit
from keras_vit.convert import convert
from tests import commands
from tests.golden import FOLDER as GOLDEN
from trainers.data.labels import LabelSet
from trainers.data.readers.csv_table import list_csv
from trainers.evaluation import file_predictions
from trainers.evaluation.file_predictions import (
    OUTPUT_FORMS,
    FilePrediction,
    Label,
    expand_folders,
    predict_each,
)
from trainers.evaluation.predictions import make_load_image
from trainers.predict import name_classes
from trainers.training.run_folder import NamedModel, RunFolder

ROWS = [
    FilePrediction("broken.png", [], "Not an image"),
    FilePrediction("a, b.png", [("cat, tabby", 0.75), ("犬", 0.25)]),
]


@pytest.fixture
def folder(tmp_path):
    """Return a folder with three digits, and one file that is not an image."""
    draws = np.random.default_rng(0)
    for name in ("a", "inside/b", "inside/c"):
        path = tmp_path / "images" / f"{name}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = draws.integers(0, 256, (8, 8), "uint8")
        Image.fromarray(pixels).save(path)
    (tmp_path / "images/broken.png").write_text("no image")
    return tmp_path / "images"


def test_folders_stand_for_their_images(folder):
    found = expand_folders(["x.png", str(folder)])
    names = ["a.png", "broken.png", "inside/b.png", "inside/c.png"]
    assert found == ["x.png", *(str(folder / name) for name in names)]
    (folder / "empty").mkdir()
    with pytest.raises(ValueError, match="must contain image files.*empty"):
        expand_folders([str(folder / "empty")])


def test_patterns_and_a_tilde_stand_for_files(folder, monkeypatch):
    """Some shells pass them on."""
    monkeypatch.setenv("HOME", str(folder))
    assert expand_folders(["~/a.png"]) == [str(folder / "a.png")]
    names = ["inside/b.png", "inside/c.png"]
    found = expand_folders([str(folder / "insid[e]")])
    assert found == [str(folder / name) for name in names]
    with pytest.raises(ValueError, match=r"pattern must match.*'\*\.bmp'"):
        expand_folders(["*.bmp"])
    (folder / "[1].png").touch()
    assert expand_folders([f"{folder}/[1].png"]) == [f"{folder}/[1].png"]


def test_names_that_are_not_utf8_are_written_with_escapes(run, folder):
    for name in ("a.png", "broken.png"):
        path = os.fsencode(folder / name)
        os.rename(
            path, path.replace(b"/a.", b"/\xe4.").replace(b"n.", b"\xf1.")
        )
    rows = list(predict_each(run, expand_folders([str(folder)]), top=1))
    for write in OUTPUT_FORMS.values():
        file = io.TextIOWrapper(io.BytesIO(), "utf-8")
        write(rows, file)
        file.flush()
        assert "xe4.png" in file.buffer.getvalue().decode()
    assert [bool(row.fault) for row in rows].count(True) == 1


@pytest.mark.parametrize("batch_size", [1, 3])
def test_a_broken_file_does_not_stop_the_others(
    run, folder, monkeypatch, batch_size
):
    monkeypatch.setattr(file_predictions, "BATCH_SIZE", batch_size)
    paths = expand_folders([str(folder)])
    rows = list(predict_each(run, [*paths, "absent.png"], top=3))
    assert [row.path for row in rows] == [*paths, "absent.png"]
    assert [bool(row.fault) for row in rows] == [0, 1, 0, 0, 1]
    assert "broken.png" in rows[1].fault and "absent.png" in rows[4].fault
    model, names = run.load_model(), run.load_class_names()
    for row in rows:
        if not row.fault:
            image = make_load_image((8, 8, 1), run.preprocess)(row.path)
            [logits] = model.predict(image[None], verbose=0)
            chances = np.exp(logits) / np.exp(logits).sum()
            best = np.argsort(-chances)[:3]
            assert [n for n, _ in row.classes] == [names[i] for i in best]
            found = [p for _, p in row.classes]
            np.testing.assert_allclose(found, chances[best], rtol=1e-5)


def test_the_next_batch_is_read_while_one_is_used():
    loaded = {name: threading.Event() for name in "abc"}

    def load(name):
        loaded[name].set()
        return name.upper()

    batches = file_predictions.read_ahead(load, [["a", "b"], ["c"]])
    assert next(batches) == [("a", "A"), ("b", "B")]
    assert loaded["c"].wait(20)
    assert list(batches) == [[("c", "C")]]


def test_a_heic_file_needs_a_package(run, tmp_path, monkeypatch):
    path = tmp_path / "photo.HEIC"
    path.write_text("no image")
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name: name != "pi_heif" and find(name),
    )
    [row] = predict_each(run, [str(path)])
    assert row.fault.endswith(". A HEIC file needs the package pi-heif")


def test_a_folder_for_another_library_has_class_names(folder, tmp_path, run):
    target = str(tmp_path / "huggingface")
    convert(str(run), target, "huggingface")
    path = tmp_path / "huggingface/config.json"
    content = json.loads(path.read_text())
    names = [f"digit {index}" for index in range(10)]
    content["id2label"] = {str(i): name for i, name in enumerate(names)}
    path.write_text(json.dumps(content))
    source = NamedModel(target, is_grey=True)
    [row] = predict_each(source, [str(folder / "a.png")], top=10)
    assert sorted(name for name, _ in row.classes) == names


@pytest.mark.parametrize(
    "num_classes, name", [(3, "1"), (1000, "goldfish, Carassius auratus")]
)
def test_a_model_without_class_names(folder, tmp_path, num_classes, name):
    model = keras.Sequential([keras.Input((8, 8, 1)), keras.layers.Flatten()])
    model.add(keras.layers.Dense(num_classes))
    bias = np.eye(num_classes, dtype="float32")[1] * 100
    model.layers[-1].bias.assign(bias)
    model.save(tmp_path / "model.keras")
    source = NamedModel(str(tmp_path / "model.keras"))
    [row] = predict_each(source, [str(folder / "a.png")], 1, "resize")
    assert row.classes == [(name, pytest.approx(1.0))]


@pytest.mark.parametrize(
    "activation, is_vit", [("softmax", True), ("sigmoid", False)]
)
def test_probabilities_are_those_of_the_model(
    run, folder, tmp_path, activation, is_vit
):
    """The activation at its end is applied once."""
    if is_vit:
        model = run.load_model().with_classifier_activation(activation)
    else:
        model = keras.Sequential(
            [
                keras.Input((8, 8, 1)),
                keras.layers.Flatten(),
                keras.layers.Dense(10, activation),
            ]
        )
    model.save(tmp_path / "model.keras")
    path = str(folder / "a.png")
    source = NamedModel(str(tmp_path / "model.keras"))
    [row] = predict_each(source, [path], 10, "resize")
    image = make_load_image((8, 8, 1), "resize")(path)
    [expected] = model.predict_on_batch(image[None])
    found = dict(row.classes)
    np.testing.assert_allclose(
        [found[str(label)] for label in range(10)], expected, atol=1e-6
    )
    assert source.activation == activation


@pytest.mark.parametrize("name", ["", "model.keras"])
def test_the_model_of_a_run_has_its_classes_and_preprocessing(
    run, folder, tmp_path, name
):
    """The run is given names and a preprocessing of its own."""
    content = json.loads(run.recipe_path.read_text())
    content["class_names"] = list("abcdefghij")
    content["recipe"]["eval_preprocess"] = "central_crop(4)|resize(8)"
    (tmp_path / "recipe.json").write_text(json.dumps(content))
    shutil.copy(run.model_path, tmp_path)
    paths = [str(folder / "a.png")]
    named = NamedModel(os.path.join(tmp_path, name))
    [row] = predict_each(named, paths)
    assert [row] == list(predict_each(RunFolder(tmp_path), paths))
    assert {name for name, _ in row.classes} < set("abcdefghij")
    assert named.folder is None


def written(kind):
    """Return the lines of a form, written while the rest is computed."""
    file = io.StringIO()

    def rows():
        yield from ROWS
        assert ROWS[-1].path in file.getvalue()

    OUTPUT_FORMS[kind](rows(), file)
    return file.getvalue()


def test_each_form_is_read_back():
    assert written("text") == "a, b.png: cat, tabby 75.0%, 犬 25.0%\n"
    first, second = csv.DictReader(io.StringIO(written("csv")))
    assert (first["path"], first["fault"]) == ("broken.png", "Not an image")
    assert first["class_2"] == first["probability_2"] == ""
    assert [*second.values()] == [
        "a, b.png",
        "",
        "cat, tabby",
        "0.75",
        "犬",
        "0.25",
    ]
    names = ["path", "fault", "class_1", "probability_1"]
    assert [*second] == [*names, "class_2", "probability_2"]
    for line, row in zip(written("jsonl").splitlines(), ROWS, strict=True):
        content = json.loads(line)
        assert (content["path"], content["fault"]) == (row.path, row.fault)
        found = [(c["name"], c["probability"]) for c in content["classes"]]
        assert found == row.classes


def label_rows(*paths):
    """Return predictions of several labels with odd names; the last has none.

    The second label is given at exactly its threshold.
    """
    odd = [("Bär, groß", 0.4), ('"K"|2', 0.25), ("=犬; x", 0.9)]
    chances = [[0.8, 0.25, 0.875], [0.1, 0.5, 0.75], [0.375, 0.125, 0.5]]
    for path, row in zip(paths, chances):
        labels = [Label(n, p, t) for (n, t), p in zip(odd, row)]
        best = sorted(labels, key=lambda label: -label.probability)
        yield FilePrediction(path, [x[:2] for x in best[:2]], "", labels)


def write_labels(kind, *rows):
    file = io.StringIO(newline="")
    OUTPUT_FORMS[kind](rows, file)
    return file.getvalue()


def test_several_labels_in_each_form():
    rows = [ROWS[0], *label_rows("a", "b", "c")]
    assert write_labels("text", *rows) == (
        'a: Bär, groß 80.0%, "K"|2 25.0%\n'
        'b: "K"|2 50.0%\n'
        "c: no label; most probable: =犬; x 50.0%, Bär, groß 37.5%\n"
    )
    table = csv.DictReader(io.StringIO(write_labels("csv", *rows)))
    broken, first, _, last = table
    assert table.fieldnames[:4] == ["path", "fault", "labels", "class_1"]
    assert (broken["labels"], broken["fault"]) == ("", "Not an image")
    assert first["labels"] == 'Bär, groß|"K"|2'
    assert (last["labels"], last["class_1"]) == ("", "=犬; x")
    lines = write_labels("jsonl", *rows).splitlines()
    assert "labels" not in json.loads(lines[0])
    content = json.loads(lines[1])
    assert content["labels"][2] == {
        "name": "=犬; x",
        "probability": 0.875,
        "threshold": 0.9,
        "is_present": False,
    }
    assert [x["is_present"] for x in content["labels"]] == [True, True, False]
    assert content["classes"][0]["name"] == "=犬; x"


def test_a_wide_table_is_read_back_as_labels(tmp_path):
    paths = ["a, b.png", 'Ä "x".png', "c.png"]
    for path in paths:
        Image.new("L", (8, 8), len(path)).save(tmp_path / path)
    text = write_labels("table", ROWS[0], *label_rows(*paths))
    assert text.startswith('\ufeffpath,"Bär, groß","""K""|2",=犬; x\n')
    (tmp_path / "labels.csv").write_text(text, "utf-8", newline="")
    found = list_csv(str(tmp_path / "labels.csv"))
    labels = dict(row for rows in found.values() for row in rows)
    names = ("Bär, groß", '"K"|2', "=犬; x")
    assert labels == {
        str(tmp_path / path): LabelSet(
            present, tuple(name for name in names if name not in present)
        )
        for path, present in zip(paths, [names[:2], names[1:2], ()])
    }


def test_a_table_of_one_label_is_read_back_as_classes(tmp_path):
    rows = []
    for index, label in enumerate(2 * ["cat, tabby", "犬", '"x"']):
        Image.new("L", (8, 8), index).save(tmp_path / f"{index}.png")
        rows.append(FilePrediction(f"{index}.png", [(label, 0.5), ("a", 0.5)]))
    text = write_labels("table", *rows)
    assert text.startswith("\ufeffpath,label\n")
    (tmp_path / "labels.csv").write_text(text, "utf-8", newline="")
    found = list_csv(str(tmp_path / "labels.csv"))
    assert dict(row for rows in found.values() for row in rows) == {
        str(tmp_path / row.path): row.classes[0][0] for row in rows
    }


@pytest.mark.parametrize("name", ["path", "Class", "tags", "split"])
def test_a_class_called_as_another_column_is_refused(name):
    row = FilePrediction("a.png", [(name, 0.5)], "", [Label(name, 0.5, 0.5)])
    with pytest.raises(ValueError, match=f"`format` must be .*{name!r}"):
        write_labels("table", row)
    write_labels("table", row._replace(labels=[]))


@pytest.mark.parametrize("thresholds", [None, [0.6, *[0.1] * 9]])
def test_a_run_of_several_labels_has_its_thresholds(
    run, folder, tmp_path, thresholds
):
    content = json.loads(run.recipe_path.read_text())
    content["recipe"] |= {"labels": "several", "loss": "sigmoid"}
    content["thresholds"] = thresholds
    (tmp_path / "recipe.json").write_text(json.dumps(content))
    shutil.copy(run.model_path, tmp_path)
    path = str(folder / "a.png")
    image = make_load_image((8, 8, 1), run.preprocess)(path)
    [logits] = run.load_model().predict(image[None], verbose=0)
    for source in (RunFolder(tmp_path), NamedModel(str(tmp_path))):
        [row] = predict_each(source, [path], top=2)
        assert len(row.classes) == 2
        assert [x.name for x in row.labels] == run.load_class_names()
        found = [x.threshold for x in row.labels]
        assert found == (thresholds or [0.5] * 10)
        np.testing.assert_allclose(
            [x.probability for x in row.labels],
            1 / (1 + np.exp(-logits)),
            rtol=1e-5,
        )
    [row] = predict_each(run, [path])
    assert row.labels == []


@pytest.mark.parametrize("name", ["clip", "siglip"])
@pytest.mark.filterwarnings("ignore:.*preprocess_input:UserWarning")
def test_classes_by_name(name, folder, tmp_path):
    """Those of a saved model are its own."""
    path, classes = str(GOLDEN / "towers" / name), ["cat", "dog", "bird"]
    source = NamedModel(path, classes=classes, templates=["two {}s", "{}"])
    image = str(folder / "a.png")
    [row] = predict_each(source, [image])
    model = keras_vit.zero_shot(path, classes, ["two {}s", "{}"])
    assert source.activation == model.config.classifier_activation
    pixels = make_load_image((16, 16, 3), source.preprocess)(image)
    [expected] = model.predict_on_batch(pixels[None])
    found = dict(row.classes)
    np.testing.assert_allclose(
        [found[name] for name in classes], expected, rtol=1e-5
    )
    model.save(tmp_path / "zero_shot.keras")
    saved = NamedModel(str(tmp_path / "zero_shot.keras"))
    assert saved.load_class_names() == classes
    [again] = predict_each(saved, [image])
    assert dict(again.classes) == pytest.approx(found, rel=1e-6)
    with pytest.raises(ValueError, match="`classes`"):
        dataclasses.replace(saved, classes=classes).load_model()


def test_names_and_templates_of_the_command(tmp_path):
    file = tmp_path / "names.txt"
    file.write_text("cat\n\n big dog \n", encoding="utf-8-sig")
    names = {"classes": ["cat", "big dog"]}
    assert name_classes("cat, big dog", None) == names
    assert name_classes(str(file), None) == names
    text = "a {}, a kind of pet"
    assert name_classes("cat,big dog", text) == names | {"templates": [text]}
    assert name_classes(None, None) == {}
    file.write_text("\n")
    for arguments in [(None, text), (str(file), None), ("cat", str(file))]:
        with pytest.raises(ValueError, match="--(classes|templates)"):
            name_classes(*arguments)


def test_the_command_goes_on_and_says_what_failed(
    run, folder, subprocess_environment
):
    words = ["-m", "trainers.predict", f"--run_dir={run.folder}"]
    result = commands.run(
        [*words, "--format=jsonl", "--top=1", str(folder)],
        subprocess_environment,
    )
    assert result.returncode == 1
    assert len(result.stdout.splitlines()) == 4
    assert "Error: Not an image that can be read" in result.stderr
    assert "Traceback" not in result.stderr


def test_a_table_of_maps_has_a_column_for_each_share():
    """Maps have different numbers of classes, and the last file may fail."""
    file = io.StringIO()
    rows = [
        FilePrediction("a.png", [("sky", 1.0)], map="m/a.png"),
        FilePrediction("b.png", [("sky", 0.5), ("sea", 0.5)], map="m/b.png"),
        FilePrediction("c.png", [], "no image"),
    ]
    OUTPUT_FORMS["csv"](rows, file)
    assert file.getvalue().splitlines() == [
        "path,fault,map,class_1,share_1,class_2,share_2",
        "a.png,,m/a.png,sky,1,,",
        "b.png,,m/b.png,sky,0.5,sea,0.5",
        "c.png,no image,,,,,",
    ]


def test_an_output_that_is_no_number_is_a_fault(run, folder, monkeypatch):
    """Not the first class."""
    make = file_predictions.make_predict

    def make_broken(*arguments):
        predict = make(*arguments)

        def broken(images):
            rows, scores = predict(images)
            rows = rows.copy()
            rows[0] = np.nan
            return rows, scores

        return broken

    monkeypatch.setattr(file_predictions, "make_predict", make_broken)
    rows = [x for x in predict_each(run, expand_folders([str(folder)]))]
    faults = [row.fault for row in rows if row.fault]
    assert sum("NaN" in fault for fault in faults) == 1
    assert all(row.classes for row in rows if not row.fault)


def test_a_photo_that_is_too_small_is_a_fault(tmp_path):
    Image.new("RGB", (9, 9)).save(tmp_path / "small.png")
    load = make_load_image((16, 16, 3), "central_crop")
    with pytest.raises(ValueError, match="small.png: .*16"):
        load(str(tmp_path / "small.png"))
