"""Models that come from no run, other splits, several right classes."""

import csv
import dataclasses
import errno
import json
import re

import keras
import numpy as np
import pytest

import trainers.data.batches
from keras_vit import VisionTransformer, save_checkpoint
from keras_vit.model_files import write_class_names
from tests.tiny import randomize, tiny_config
from tests.trainers.data.reading import counted
from tests.trainers.made import (
    MadeDataset,
    made_batches,
    made_split,
    save_identity,
    write_photos,
)
from trainers.commands import open_source
from trainers.evaluation import image_predictions as examples
from trainers.evaluation.evaluation import (
    choose_folder,
    evaluate,
    name_chosen,
    was_trained_on,
)
from trainers.evaluation.image_predictions import (
    PREDICTIONS_NAME,
    ImagePrediction,
    OtherModel,
)
from trainers.evaluation.predictions import predict_dataset
from trainers.training.model_card import describe_choice
from trainers.training.run_folder import NamedModel, RunFolder

NAMES = ["ant", "bee", "cat", "dog", "elk", "fox", "gnu"]


@pytest.fixture
def several(monkeypatch):
    """Return a data set of logits, some images with several classes or none."""
    monkeypatch.setattr(trainers.data.batches, "eval_batches", made_batches)
    rng = np.random.default_rng(3)
    labels = rng.random((50, 7)) < 0.25
    labels[:, 6] = False  # A class without images.
    weights = labels.any(-1)
    assert 0 < np.sum(~weights) < 20 and (labels.sum(-1) > 1).any()
    split = made_split(rng.normal(0, 2, (50, 7)), labels, weights)
    return MadeDataset({"test": split}, NAMES)


@pytest.fixture
def identity(tmp_path):
    return NamedModel(save_identity(tmp_path / "identity.keras", 7))


def evaluate_identity(model, dataset, **choices):
    """Evaluate a model that does not say what images it reads."""
    return evaluate(model, dataset, **{"preprocess": "", **choices})


def test_several_right_classes_as_a_loop(
    several, identity, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    report = evaluate_identity(identity, several, batch_size=16)
    assert sorted(tmp_path.rglob("*")) == before  # Without a folder, no file.
    images, labels, weights = several.splits["test"]
    rows = [
        (image.ravel(), {c for c in range(7) if label[c]})
        for image, label, weight in zip(images, labels, weights)
        if weight
    ]
    hits = [int(logits.argmax()) in right for logits, right in rows]
    assert report["accuracy"] == pytest.approx(np.mean(hits))
    assert report["top5_accuracy"] == pytest.approx(
        np.mean([bool(set(logits.argsort()[2:]) & r) for logits, r in rows])
    )
    for c, name in enumerate(NAMES[:6]):
        of_class = [hit for hit, (_, right) in zip(hits, rows) if c in right]
        assert report[f"accuracy/{name}"] == pytest.approx(np.mean(of_class))
    assert "accuracy/gnu" not in report
    assert report["num_examples"] == len(rows)
    assert report["num_left_out"] == 50 - len(rows)


def test_pictures_show_the_nearest_right_class_and_mistakes_first(
    several, identity, tmp_path, monkeypatch
):
    drawn = {}

    def record(images, truths, predictions, scores, normalization, path):
        drawn.update(images=images, truths=truths, predictions=predictions)
        drawn["normalization"] = normalization

    monkeypatch.setattr(examples, "plot_predictions", record)
    evaluate(
        identity,
        several,
        batch_size=8,
        preprocess="value_range(0, 1)",
        report_dir=tmp_path,
    )
    assert drawn["normalization"] == ((0,), (1,))
    images, labels, _ = several.splits["test"]
    wrong = [t != g for t, g in zip(drawn["truths"], drawn["predictions"])]
    assert wrong == sorted(wrong, reverse=True) and len(wrong) == 32
    for image, truth, prediction in zip(
        drawn["images"], drawn["truths"], drawn["predictions"]
    ):
        [index] = np.flatnonzero((images == image).all((1, 2, 3)))
        logits = dict(zip(NAMES, image.ravel()))
        right = [n for n, label in zip(NAMES, labels[index]) if label]
        assert truth == max(right, key=logits.get)
        assert prediction == max(NAMES, key=logits.get)
        assert (truth == prediction) == (prediction in right)


def test_classes_of_equal_probabilities_are_told_by_the_logits(
    several, tmp_path, monkeypatch
):
    """From a logit of 18, the sigmoid is 1 in float32."""
    drawn = []
    monkeypatch.setattr(
        examples, "plot_predictions", lambda *rows: drawn.append(rows[1:3])
    )

    class Separate(NamedModel):
        activation = "sigmoid"

    source = Separate(save_identity(tmp_path / "identity.keras", 7))
    logits = np.full((1, 7), -20.0)
    logits[0, [1, 2, 4, 5]] = 20, 30, 40, 50
    several.splits["test"] = made_split(logits, logits % 20 == 10)
    report = evaluate_identity(source, several, report_dir=tmp_path)
    assert report["accuracy"] == 1
    assert drawn == [(["fox"], ["fox"])]
    with open(tmp_path / PREDICTIONS_NAME, newline="") as file:
        [row] = csv.DictReader(file)
    assert (row["true class"], row["prediction"]) == ("fox", "fox")


def test_another_evaluation_of_other_images_costs_no_figures(
    several, identity, tmp_path
):
    row = ImagePrediction(0, 0, 0.5, "elsewhere.png")
    images = np.flatnonzero(several.splits["test"][2])
    other = OtherModel({}, {int(position): row for position in images})
    for folder in (None, tmp_path / "report"):
        shown = []
        with pytest.raises(ValueError, match="`compare`.*'elsewhere.png'"):
            evaluate_identity(
                identity,
                several,
                report_dir=folder,
                other=other,
                show=shown.append,
            )
        assert shown[0]["num_examples"] == len(images)
    assert not (tmp_path / "report").exists()


def test_report_says_what_was_evaluated_and_goes_where_it_should(
    run, digits, tmp_path
):
    before = {path: path.stat().st_mtime for path in run.folder.iterdir()}
    folder = tmp_path / "new" / "report"
    report = evaluate(run, digits, report_dir=folder)
    assert json.loads((folder / "evaluation.json").read_text()) == report
    assert (folder / "predictions.png").read_bytes()[:4] == b"\x89PNG"
    after = {path: path.stat().st_mtime for path in run.folder.iterdir()}
    assert before == after
    assert report["model"] == str(run.folder)
    assert (report["dataset"], report["split"]) == ("digits", "test")
    assert report["preprocess"] == "" and report["num_left_out"] == 0


@pytest.mark.parametrize(
    "name, choices, folder",
    [
        ("digits", {}, ""),
        ("digits", {"preprocess": ""}, ""),
        ("digits", {"patch_size": 8}, "patch_size_8"),
        ("digits", {"merged_tokens": 0}, "merged_tokens_0"),
        ("mnist", {}, "dataset_mnist"),
        ("mnist", {"patch_size": 8}, "dataset_mnist/patch_size_8"),
        ("folder:/a/b c", {}, "dataset_folder_a_b_c_[0-9a-f]{8}"),
        (
            "folder:" + 300 * "猫",
            {"preprocess": "value_range(0, 1)"},
            "dataset_folder_猫+_[0-9a-f]{8}/"
            "preprocess_value_range_0_1_[0-9a-f]{8}",
        ),
    ],
)
def test_the_report_of_a_run_is_as_it_was_trained(
    run, digits, name, choices, folder
):
    dataset = dataclasses.replace(digits, name=name)
    choices = {"preprocess": None, "patch_size": None} | choices
    found = choose_folder(run, dataset, None, **choices)
    place = found.relative_to(run.folder)
    assert re.fullmatch(folder or r"\.", str(place))
    assert all(len(part.encode()) <= 255 for part in place.parts)
    assert choose_folder(run, dataset, run.folder, **choices) == run.folder


def test_folders_of_reports_of_different_data_differ(run, digits):
    names = ["folder:a/b", "folder:a_b", "folder_a_b", f"folder:{99 * 'a'}"]
    names.append(names[-1] + "a")
    folders = {
        choose_folder(
            run, dataclasses.replace(digits, name=name), None, None, None
        )
        for name in names
    }
    assert len(folders) == len(names)


def test_a_folder_that_cannot_be_written_is_refused_before_the_work(
    several, tmp_path
):
    (tmp_path / "file").write_text("a file")
    absent = NamedModel(str(tmp_path / "absent.keras"))
    with pytest.raises(OSError, match="`report_dir` must be a folder that can"):
        evaluate(absent, several, report_dir=tmp_path / "file/new")


def test_a_disk_that_is_full_at_the_last_file_leaves_the_former_report(
    several, identity, tmp_path, monkeypatch
):
    monkeypatch.setattr(
        examples, "plot_predictions", lambda *rows: rows[-1].touch()
    )
    folder = tmp_path / "report"
    evaluate_identity(identity, several, report_dir=folder)
    before = {path: path.read_bytes() for path in folder.iterdir()}
    assert len(before) == 5
    name = "trainers.evaluation.evaluation.write_evaluation_page"

    def fail(path, *arguments):
        path.write_text("half a page")
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    monkeypatch.setattr(name, fail)
    other = dataclasses.replace(several, class_names=NAMES[::-1])
    with pytest.raises(OSError, match="report_dir=.*No space left on device"):
        evaluate_identity(identity, other, report_dir=folder)
    assert before == {path: path.read_bytes() for path in folder.iterdir()}
    with pytest.raises(OSError, match="No space left on device"):
        evaluate_identity(identity, other, report_dir=tmp_path / "new")
    assert not list((tmp_path / "new").iterdir())


def test_a_test_set_of_some_classes_counts_their_logits_alone(
    several, identity, tmp_path, monkeypatch
):
    """As ImageNet-A: the model knows seven classes, the images are of three."""
    monkeypatch.setattr(examples, "plot_predictions", lambda *_: None)
    rng = np.random.default_rng(5)
    logits, columns = rng.normal(0, 2, (40, 7)), (1, 3, 6)
    labels = np.eye(3)[rng.integers(0, 3, 40)]
    some = MadeDataset(
        {"test": made_split(logits, labels)},
        [NAMES[column] for column in columns],
        all_class_names=tuple(NAMES),
    )
    report = evaluate_identity(identity, some, report_dir=tmp_path / "report")
    kept = logits[:, [1, 3, 6]]
    hits = kept.argmax(-1) == labels.argmax(-1)
    assert report["accuracy"] == pytest.approx(hits.mean())
    assert hits.mean() > (logits.argmax(-1) == labels @ columns).mean()
    chances = np.exp(kept) / np.exp(kept).sum(-1, keepdims=True)
    loss = -np.log((chances * labels).sum(-1)).mean()
    assert report["loss"] == pytest.approx(loss, rel=1e-5)
    assert "top5_accuracy" not in report  # Of three.
    table = (tmp_path / "report/confusion.csv").read_text().splitlines()
    assert table[0] == "true class,bee,dog,gnu" and len(table) == 4


def test_the_model_of_a_run_by_its_file_answers_as_the_run(run, digits):
    of_run = evaluate(run, digits)
    source, dataset = open_source(model=str(run.model_path), dataset="digits")
    of_file = evaluate(source, dataset, batch_size=50)
    assert of_file.pop("model") == str(run.model_path)
    assert of_run.pop("model") == str(run.folder)
    assert of_file.keys() == of_run.keys()
    for name, value in of_run.items():
        if isinstance(value, float):
            value = pytest.approx(value, rel=1e-5)
        assert of_file[name] == value, name


@pytest.fixture
def stating(tmp_path):
    """Return a checkpoint whose config.json states the digits, 9 to 0."""
    config = tiny_config(image_size=8, patch_size=2, channels=1, num_classes=10)
    model = randomize(VisionTransformer(config), 0)
    folder = str(tmp_path / "stating")
    save_checkpoint(model, folder, layout="huggingface")
    write_class_names(folder, "huggingface", [*"9876543210"])
    return NamedModel(folder)


def test_the_classes_that_a_config_states_have_its_order(
    stating, digits, tmp_path, monkeypatch
):
    fault = "another order: '0' where the model has '9'"
    with pytest.raises(ValueError, match=fault):
        evaluate(stating, digits)
    write_photos(tmp_path / "photos", [f"test/{n}" for n in range(10)])
    photos = f"folder:{tmp_path / 'photos'}"
    _, dataset = open_source(model=str(stating), dataset=photos)
    assert dataset.class_names == [*"9876543210"]
    others = property(lambda self: [*"abcdefghij"])
    monkeypatch.setattr(type(digits), "class_names", others)
    evaluate(stating, digits)


def test_another_split(run, digits):
    source, dataset = open_source(str(run.folder), eval_split="train[:90]")
    assert source == RunFolder(run.folder)
    report = evaluate(source, dataset)
    assert (report["split"], report["num_examples"]) == ("train[:90]", 90)
    assert report["was_trained_on"]
    assert "has learned from images of this split" in describe_choice(report)
    assert not was_trained_on(run, digits)
    pairs = list(digits.examples("train").take(90).as_numpy_iterator())
    images = np.stack([image for image, _ in pairs]) / 127.5 - 1
    labels = np.array([label for _, label in pairs])
    logits = run.load_model().predict(images.astype("float32"), verbose=0)
    hits = logits.argmax(-1) == labels
    assert report["accuracy"] == pytest.approx(hits.mean())
    for digit in range(10):
        assert report[f"accuracy/{digit}"] == pytest.approx(
            hits[labels == digit].mean()
        )


@pytest.mark.parametrize(
    "own, split, is_shared",
    [
        (None, "test", True),
        (None, "train[90:]", False),
        ("train[80:120]", "train[90:]", True),
        ("train[:90]", "train[90:]", False),
    ],
)
def test_images_by_which_the_model_was_chosen_are_named(
    run, digits, monkeypatch, own, split, is_shared
):
    recipe = dataclasses.replace(run.load_recipe(), eval_split=own)
    dataset = dataclasses.replace(digits, eval_split=split)
    monkeypatch.setattr(RunFolder, "load_recipe", lambda self: recipe)
    named = NamedModel(str(run.model_path))
    assert name_chosen(run, dataset) == {}  # The last model is kept.
    recipe = dataclasses.replace(recipe, keep_best=True)
    for source in (run, named):
        found = name_chosen(source, dataset)
        assert found == ({"chosen_on_split": "model"} if is_shared else {})
        others = dataclasses.replace(dataset, name="mnist")
        assert name_chosen(source, others) == {}
    if is_shared and own is None:
        assert evaluate(named, dataset)["chosen_on_split"] == "model"


def test_splits_that_are_left_out_are_those_of_the_run(run, tmp_path):
    splits = {"train_split": "train[:90]", "eval_split": "train[90:]"}
    recipe = dataclasses.replace(run.load_recipe(), **splits)
    RunFolder(tmp_path).save_recipe(recipe, run.load_class_names())
    assert open_source(str(tmp_path))[1].eval_split == "train[90:]"
    _, dataset = open_source(str(tmp_path), train_split=None, eval_split="test")
    assert (dataset.train_split, dataset.eval_split) == ("train[:90]", "test")
    assert dataset.needs_labels


def test_the_separator_of_labels_is_that_of_the_table_of_a_run(run, tmp_path):
    write_photos(tmp_path, ["x", "y"])
    own, other = tmp_path / "own.csv", tmp_path / "other.csv"
    own.write_text("image,labels\nx/0.png,a|b\ny/1.png,a\n")
    other.write_text("image,a,b\nx/0.png,1,1\ny/1.png,1,0\n")
    changes = {"dataset": f"csv:{own}", "label_separator": "|"}
    changes |= {"labels": "several", "loss": "sigmoid", "eval_split": "all"}
    recipe = dataclasses.replace(run.load_recipe(), **changes)
    folder = tmp_path / "run"
    RunFolder(folder).save_recipe(recipe, ["a", "b"])
    for path in (None, f"csv:{other}"):
        _, dataset = open_source(str(folder), dataset=path, eval_split="all")
        assert dataset.class_names == ["a", "b"]


def test_a_run_without_labels_reads_images_without_them(run, tmp_path):
    recipe = dataclasses.replace(run.load_recipe(), objective="autoencoder")
    RunFolder(tmp_path).save_recipe(recipe, [])
    _, dataset = open_source(str(tmp_path))
    assert not dataset.needs_labels


def test_an_evaluation_needs_no_training_images(run, tmp_path):
    """Where a model is measured, there may be the test images alone."""
    recipe = dataclasses.replace(run.load_recipe(), train_split="validation")
    RunFolder(tmp_path).save_recipe(recipe, run.load_class_names())
    assert open_source(str(tmp_path))[1].eval_split == "test"
    with pytest.raises(ValueError, match="train_split"):
        open_source(str(tmp_path), train_split=None)


@pytest.mark.parametrize(
    "size, head, message",
    [
        (8, [], "one logit for each of the 7 classes of 'made'.*(None, 8)"),
        (7, [keras.layers.Softmax()], "logits, not probabilities"),
        (
            7,
            [keras.layers.Dense(7, activation="sigmoid", name="last")],
            "logits, not probabilities.*sigmoid.*'last'",
        ),
    ],
)
def test_a_model_that_answers_something_else_is_refused(
    several, tmp_path, size, head, message
):
    path = save_identity(tmp_path / "model.keras", size, head)
    with pytest.raises(
        ValueError, match=re.escape(message).replace(r"\.\*", ".*")
    ):
        evaluate_identity(NamedModel(path), several)


def test_a_data_set_is_read_once_for_images_and_names(run, digits, tmp_path):
    dataset = counted(digits)
    evaluate(run, dataset, report_dir=tmp_path, batch_size=100)
    names = dataset.reader.read_names
    with open(tmp_path / "image_predictions.csv", newline="") as file:
        found = [row["image"] for row in csv.DictReader(file)]
    assert found == names and len(names) == digits.num_examples("test")


def collect(model, dataset, **choices):
    return [
        found for _, found, *_ in predict_dataset(model, dataset, **choices)
    ]


def test_answers_that_are_not_finite_are_an_error(several, identity):
    several.splits["test"][0][20, 0, 3] = np.nan
    assert several.splits["test"][2][20]
    with pytest.raises(ValueError, match="finite outputs.*batch 3 of 'made'"):
        evaluate_identity(identity, several, batch_size=10)


def test_images_without_a_label_only_are_an_error(several, identity):
    several.splits["test"][2][:] = 0
    with pytest.raises(ValueError, match="images with a label.*'made'.*'test'"):
        evaluate_identity(identity, several)


def test_images_that_the_model_does_not_take_are_refused(several, tmp_path):
    colour = keras.Sequential([keras.Input((1, 7, 3)), keras.layers.Flatten()])
    with pytest.raises(ValueError, match="3 channels; those of 'made' have 1"):
        collect(colour, several)
    for layer, size in (
        (keras.layers.GlobalMaxPooling2D(), (None, None)),
        (keras.layers.Identity(), (1, 7)),
    ):
        model = keras.Sequential([keras.Input((*size, 1)), layer])
        with pytest.raises(ValueError, match="fixed size and give a vector"):
            collect(model, several)


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({}, "either --run_dir or --model.*run_dir=None, model=None"),
        ({"model": "b"}, "`dataset` must be given with `model`"),
        ({"run_dir": "absent"}, "recipe.json in it.*absent"),
        (
            {"model": "b", "dataset": "digits", "eval_split": "tst"},
            "`eval_split` must .*'tst'",
        ),
    ],
)
def test_what_is_not_there_is_an_error(arguments, message):
    with pytest.raises(ValueError, match=message):
        open_source(**arguments)


def test_a_folder_that_moved_is_told_with_the_recipe_that_names_it(
    run, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)  # The checkout may have a folder of photos.
    recipe = dataclasses.replace(run.load_recipe(), dataset="folder:photos")
    RunFolder(tmp_path).save_recipe(recipe, [])
    with pytest.raises(ValueError, match="no such folder.*where the run was"):
        open_source(str(tmp_path))
    with pytest.raises(ValueError, match="no such folder$"):
        open_source(str(tmp_path), dataset="folder:other")


def test_a_model_that_is_not_there_is_an_error():
    with pytest.raises(ValueError, match="existing .keras file.*absent"):
        NamedModel("absent.keras").load_model()
