"""Exports of a finished run."""

import dataclasses
import json
import pathlib
import shutil
import sys
import types

import keras
import numpy as np
import pytest
import tensorflow as tf
from ai_edge_litert.interpreter import Interpreter

from keras_vit.export import DisagreementError
from tests import commands
from tests.trainers.made import write_photos
from trainers.data.datasets import open_dataset
from trainers.evaluation.evaluation import evaluate
from trainers.evaluation.file_predictions import predict_each
from trainers.evaluation.predictions import take_images
from trainers.export_model import export_source, find_class_names
from trainers.training.run_folder import NamedModel, RunFolder

QUIET = {"threads": (), "verbose": False}


@pytest.fixture(scope="module")
def dataset(run):
    return open_dataset(run.load_recipe().dataset)


@pytest.fixture(scope="module")
def exported(run, dataset, tmp_path_factory):
    """Return a folder with the exports of a run, and their report."""
    folder = tmp_path_factory.mktemp("exports")
    report = export_source(
        run, dataset, folder, num_images=30, name="digits", top=3, **QUIET
    )
    return folder, report


def test_the_answers_are_compared_on_the_test_split(exported):
    folder, report = exported
    assert [a.kind for a in report.agreements] == [
        "saved_model",
        "tflite dynamic_int8",
    ]
    assert {a.num_images for a in report.agreements} == {30}
    path = folder / "report" / "digits" / "1" / "report.json"
    assert json.loads(path.read_text())["name"] == "digits"


def test_files_and_signatures_are_on_their_page(exported):
    folder, _ = exported
    page = pathlib.Path(__file__).parents[2] / "saved_models" / "README.md"
    page = page.read_text().split("\n## Exports\n")[1]
    for path in folder.glob("*/digits/1"):
        assert f"`export/{path.parts[-3]}/<name>/<version>/" in page
    assert "`export/saved_model/models.config`" in page
    loaded = tf.saved_model.load(str(folder / "saved_model/digits/1"))
    for name in loaded.signatures:
        assert f"| `{name}` |" in page


def test_images_are_those_of_the_split_in_its_order(run, dataset):
    images = take_images(dataset, "", run.load_model(), 100)
    examples = dataset.examples("test").take(100)
    pixels = np.stack([image for image, _ in examples.as_numpy_iterator()])
    np.testing.assert_allclose(images, pixels / 127.5 - 1, atol=1e-6)
    some = dataclasses.replace(dataset, eval_split="train[:7]")
    others = take_images(some, "", run.load_model(), 100)
    assert len(others) == 7 and np.any(others != images[:7])


def test_a_server_says_of_a_file_what_predict_says(run, exported, tmp_path):
    """The names of the run, and the images made ready in its way."""
    pixels = np.random.default_rng(0).integers(0, 256, (30, 20, 1), "uint8")
    content = tf.io.encode_png(pixels).numpy()
    (tmp_path / "image.png").write_bytes(content)
    [expected] = predict_each(run, [str(tmp_path / "image.png")], top=3)
    loaded = tf.saved_model.load(str(exported[0] / "saved_model/digits/1"))
    serve = loaded.signatures["serve_bytes"]
    answers = serve(image_bytes=tf.constant([content]))
    names, scores = zip(*expected.classes)
    assert [x.decode() for x in answers["labels"][0].numpy()] == [*names]
    np.testing.assert_allclose(answers["probabilities"][0], scores, atol=1e-5)


def test_the_card_of_a_run_has_the_newest_export(run, dataset, tmp_path):
    choices = {"name": "digits", "num_images": 4, **QUIET}
    export_source(run, dataset, tmp_path, ["tflite"], **choices)
    report = export_source(run, dataset, tmp_path, ["tflite"], **choices)
    text = (tmp_path / "README.md").read_text()
    assert text.count("## Export") == 1
    assert f"\n## Export\n\n{report}\n" in text and "version 2: " in text


@pytest.mark.parametrize(
    "names, fault, is_named",
    [
        ([*"abcdefghijk"], "list of 10 strings.* a list of 11: ", False),
        ([["x"], *range(9)], "list of 10 strings.* a list of 10: ", True),
        ("abcdefghij", "list of 10 strings.* 'abcdefghij'", False),
        ([], "must not be empty for a classifier", True),
    ],
    ids=str,
)
def test_class_names_that_do_not_fit_the_model_are_refused(
    run, dataset, tmp_path, names, fault, is_named
):
    """By all commands, and not replaced by those of the data set."""
    shutil.copytree(run.folder, tmp_path / "run")
    other = RunFolder(tmp_path / "run")
    content = json.loads(run.recipe_path.read_text())
    content["class_names"] = names
    other.recipe_path.write_text(json.dumps(content))
    source = NamedModel(str(other)) if is_named else other
    choices = {"formats": ["tflite"], **QUIET}
    for use in (
        lambda: export_source(source, dataset, tmp_path / "new", **choices),
        lambda: next(predict_each(source, ["absent.png"])),
        lambda: evaluate(source, dataset),
    ):
        with pytest.raises(ValueError, match=f"recipe.json .*{fault}"):
            use()
    assert not (tmp_path / "new").exists()


@pytest.fixture
def calls(monkeypatch):
    """Return (images, choices) of each `export_model`; nothing is written."""
    calls = []

    def note(model, folder, images, *formats, **choices):
        calls.append((images, choices))

    monkeypatch.setattr("trainers.export_model.export_model", note)
    # The model card needs the report.
    name = "trainers.export_model.describe_source"
    monkeypatch.setattr(name, lambda *arguments: None)
    return calls


def test_calibration_images_come_from_their_split(
    run, dataset, tmp_path, calls
):
    export_source(run, dataset, tmp_path, calibration_split="train[:9]")
    [(_, choices)] = calls
    assert choices["calibration_images"].shape == (9, 8, 8, 1)
    assert choices["name"] == run.folder.name
    assert list(choices["serving"].class_names) == run.load_class_names()


def test_the_activation_is_that_of_the_source(
    run, dataset, tmp_path, monkeypatch, calls
):
    """Of a run by its loss, of a named model by its last layer."""
    path = tmp_path / "sigmoid.keras"
    run.load_model().with_classifier_activation("sigmoid").save(path)
    recipe = dataclasses.replace(run.load_recipe(), loss="sigmoid")
    export_source(run, dataset, tmp_path)
    monkeypatch.setattr(type(run), "load_recipe", lambda self: recipe)
    for source in (run, NamedModel(str(path))):
        export_source(source, dataset, tmp_path, name="digits")
    found = [choices["serving"].activation for _, choices in calls]
    assert found == ["softmax", "sigmoid", "sigmoid"]


def test_several_labels_have_the_thresholds_of_the_run(
    run, dataset, tmp_path, monkeypatch, calls
):
    shutil.copytree(run.folder, tmp_path / "tags")
    recipe = dataclasses.replace(
        run.load_recipe(), loss="sigmoid", labels="several"
    )
    source = RunFolder(tmp_path / "tags")
    source.save_recipe(recipe, run.load_class_names())
    export_source(source, dataset, tmp_path)
    thresholds = [index / 10 for index in range(10)]
    source.save_thresholds(thresholds)
    export_source(source, dataset, tmp_path)
    export_source(NamedModel(str(source.model_path)), dataset, tmp_path)
    export_source(run, dataset, tmp_path)
    found = [choices["serving"].thresholds for _, choices in calls]
    assert found == [[0.5] * 10, thresholds, thresholds, None]
    assert calls[1][1]["serving"].top is None  # All of them.


@pytest.mark.parametrize(
    "folder, example", [("lauf größe 1", "lauf_grosse_1"), ("数字", "my_model")]
)
def test_a_folder_whose_name_is_not_allowed(
    run, dataset, tmp_path, calls, folder, example
):
    """Its name is written in other letters; one that is given is refused."""
    shutil.copytree(run.folder, tmp_path / folder)
    run = dataclasses.replace(run, folder=tmp_path / folder)
    with pytest.raises(
        ValueError, match=f"--name={example}. Received.*{folder}"
    ):
        export_source(run, dataset, tmp_path, name=folder)
    export_source(run, dataset, tmp_path)
    [(_, choices)] = calls
    assert choices["name"] == example


@pytest.mark.parametrize(
    "choices, error, match",
    [
        ({"formats": ["onx"]}, ValueError, "`formats` .*'onnx'"),
        ({"num_images": 0}, ValueError, "`num_images` must be 1 or more"),
        (
            {"calibration_split": "nothing"},
            ValueError,
            "`calibration_split` must name .*: calibration_split='nothing'",
        ),
        (
            {"tflite_quantizations": ["int8"]},
            ValueError,
            "--calibration_split.* must be given for .*='int8'",
        ),
        ({"output": "features"}, ValueError, "`output` must not be 'feat"),
        ({"name": "a/b"}, ValueError, "`name` .*or.* --name=a_b"),
        ({"version": 7}, ValueError, "version=7, and 'digits' in .* 7"),
        (
            {"formats": ["openvino"]},
            ModuleNotFoundError,
            "pip install openvino$",
        ),
        ({"export_dir": "file/new"}, OSError, "`export_dir` must be .*file"),
    ],
    ids=str,
)
def test_mistakes_are_told_before_anything_is_loaded(
    run, dataset, tmp_path, monkeypatch, choices, error, match
):
    def refuse(*args, **choices):
        raise AssertionError("loaded")

    monkeypatch.setattr(type(run), "load_model", refuse)
    monkeypatch.setattr("trainers.export_model.take_images", refuse)
    # Importing it fails.
    monkeypatch.setitem(sys.modules, "openvino", None)
    (tmp_path / "file").touch()
    (tmp_path / "tflite" / "digits" / "7").mkdir(parents=True)
    before = sorted(tmp_path.rglob("*"))
    choices = {"name": "digits", **choices}
    export_dir = tmp_path / choices.pop("export_dir", ".")
    with pytest.raises(error, match=match):
        export_source(run, dataset, export_dir, **QUIET, **choices)
    assert sorted(tmp_path.rglob("*")) == before
    with pytest.raises(AssertionError, match="loaded"):
        export_source(run, dataset, tmp_path, name="digits", **QUIET)


@pytest.mark.parametrize(
    "line, words",
    [
        ("centre_crop(8)", "central_crop"),
        ("flip_lr", "`preprocess` must do the same with each image"),
    ],
)
def test_a_bad_preprocessing_leaves_nothing(
    run, dataset, tmp_path, line, words
):
    choices = {"preprocess": line, **QUIET}
    with pytest.raises(ValueError, match=words):
        export_source(run, dataset, tmp_path / "new", **choices)
    assert not list(tmp_path.iterdir())


@pytest.fixture
def command(subprocess_environment, tmp_path):
    """Return a function that runs the command in an empty folder."""

    def execute(*flags):
        words = ["-m", "trainers.export_model", *flags]
        return commands.run(words, subprocess_environment, tmp_path)

    return execute


@pytest.mark.slow(20)
def test_flags_reach_what_is_written(run, command, tmp_path):
    """All at once, each away from its default."""
    result = command(
        f"--run_dir={run.folder}",
        "--dataset=digits",
        "--eval_split=train[:40]",
        "--preprocess=central_crop(8)|value_range(0, 1)",
        "--formats=saved_model,tflite",
        "--export_dir=exports/here",
        "--name=zoo",
        "--version=12",
        "--tflite_quantizations=float32,int8",
        "--tflite_batch_size=3",
        "--calibration_split=train[:9]",
        "--num_images=30",
        "--top=2",
        "--activation=sigmoid",
        "--output=logits",
        "--use_attention",
        "--nomeasure_latency",
        "--force",
    )
    assert result.returncode == 0, result.stderr
    folder = tmp_path / "exports" / "here"
    written = ["saved_model", "tflite/float32.tflite", "tflite/int8.tflite"]
    paths = [
        folder.joinpath(format, "zoo", "12", *file)
        for format, *file in (name.split("/") for name in written)
    ]
    # They are the last lines, to be copied from.
    lines = result.stdout.splitlines()
    assert lines[-3:] == [str(path.relative_to(tmp_path)) for path in paths]
    assert lines[0].startswith("zoo, version 12: ")
    report = json.loads((folder / "report/zoo/12/report.json").read_text())
    assert {a["num_images"] for a in report["agreements"]} == {30}
    assert report["latencies"] == []
    model = run.load_model()
    files = np.random.default_rng(0).integers(0, 256, (3, 16, 12, 1), "uint8")
    pixels = files[:, 4:12, 2:10]
    logits = model.predict_on_batch(pixels / np.float32(255))
    signatures = tf.saved_model.load(str(paths[0])).signatures
    assert "attention" in signatures
    answers = signatures["serve_bytes"](
        image_bytes=tf.constant([tf.io.encode_png(x).numpy() for x in files])
    )
    np.testing.assert_allclose(
        answers["probabilities"],
        np.sort(tf.sigmoid(logits))[:, :-3:-1],
        atol=1e-5,
    )
    answers = signatures["serve_uint8"](images=tf.constant(pixels))
    np.testing.assert_allclose(answers["logits"], logits, atol=1e-5)
    serve = Interpreter(str(paths[1])).get_signature_runner()
    answers = serve(images=pixels / np.float32(255))
    np.testing.assert_allclose(answers["logits"], logits, atol=1e-5)
    # Its range is that of the images it was calibrated on.
    details = Interpreter(str(paths[2])).get_input_details()
    scale, zero_point = details[0]["quantization"]
    assert scale == pytest.approx(1 / 255, rel=0.05) and zero_point == -128


def test_a_mistake_ends_in_a_line(run, command, tmp_path):
    (tmp_path / "file").touch()
    result = command(f"--run_dir={run.folder}", "--export_dir=file")
    assert result.returncode == 1
    assert "`export_dir` must be a folder that can be" in result.stderr
    assert "Traceback" not in result.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert not (run.folder / "export").exists()


def test_files_of_the_data_set_are_read_as_keras_reads_them(tmp_path):
    """By the signature with the operations, by Pillow for the model."""
    places = ("train/a", "train/b", "test/a", "test/b")
    write_photos(tmp_path / "photos", places, size=(20, 31))
    pixels = keras.Input((8, 8, 3))
    x = keras.layers.Rescaling(1 / 127.5, -1)(pixels)
    x = keras.layers.Conv2D(6, 3, activation="relu")(x)
    x = keras.layers.GlobalAveragePooling2D()(x)
    keras.Model(pixels, keras.layers.Dense(2)(x)).save(tmp_path / "m.keras")
    source = NamedModel(str(tmp_path / "m.keras"))
    photos = open_dataset(f"folder:{tmp_path / 'photos'}")
    choices = {"formats": ["saved_model"], **QUIET}
    report = export_source(source, photos, tmp_path / "1", **choices)
    assert not report.faults and not report.warnings
    choices["preprocess"] = "resize(8)|value_range(-1, 1)"
    with pytest.raises(DisagreementError, match="serve_bytes: "):
        export_source(source, photos, tmp_path / "2", **choices)


def test_unreadable_images_are_left_out_or_named(
    run, monkeypatch, tmp_path, calls
):
    places = 3 * ["train/cat", "train/dog", "test/cat", "test/dog"]
    folder = write_photos(tmp_path / "photos", places, size=(8, 8))
    for name in ("train/dog/5.png", "test/dog/7.png"):
        (folder / name).write_bytes((folder / name).read_bytes()[:60])
    pixels = keras.Input((8, 8, 3))
    average = keras.layers.GlobalAveragePooling2D()(pixels)
    model = keras.Model(pixels, keras.layers.Dense(2)(average))
    monkeypatch.setattr(type(run), "load_model", lambda self: model)
    photos = open_dataset(f"folder:{folder}")
    choices = {"calibration_split": "train", **QUIET}
    for limit, name in ((0, "dog/7.png` cannot be read"), (1, "train/dog/5")):
        choices["max_bad_examples"] = limit
        with pytest.raises(ValueError, match=f"{name}.*={limit}$"):
            export_source(run, photos, tmp_path, **choices)
    export_source(run, photos, tmp_path, **choices | {"max_bad_examples": 2})
    [(images, choices)] = calls
    assert len(images) == len(choices["calibration_images"]) == 5


def test_the_names_that_a_checkpoint_states_go_before_those_of_the_data(
    dataset,
):
    stated = [str(9 - n) for n in range(10)]
    source = types.SimpleNamespace(
        load_class_names=lambda: None, stated_class_names=lambda: stated
    )
    model = types.SimpleNamespace(output_shape=(None, 10))
    assert find_class_names(source, dataset, model) == stated
