"""Runs that learn an answer for each pixel, to their evaluation and use."""

import csv
import dataclasses
import io
import json
import pathlib
import shutil

import keras
import numpy as np
import pytest
from PIL import Image

from keras_vit import ViTConfig, save_checkpoint
from keras_vit.models import DenseConfig, DensePredictor
from tests.trainers.made import assert_same_weights, write_pairs
from trainers.commands import open_source
from trainers.data.datasets import open_dataset
from trainers.data.inspection import (
    find,
    find_unread,
    inspect_images,
    write_data_page,
)
from trainers.evaluate import read_other
from trainers.evaluation.calibration import calibrate_classes
from trainers.evaluation.evaluation import evaluate
from trainers.evaluation.file_predictions import (
    OUTPUT_FORMS,
    expand_folders,
    predict_each,
)
from trainers.evaluation.probing import probe
from trainers.inspect import inspect_run
from trainers.recipes.recipe import Recipe
from trainers.sweeps.sweeping import open_sweep
from trainers.training.report import read_metrics
from trainers.training.run_folder import NamedModel, RunFolder
from trainers.training.trainer import prepare

KINDS = ("segment", "depth")
NAMES = ["floor", "red", "green"]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Return folders of images with maps, by kind."""
    found = {}
    for kind in KINDS:
        folder = tmp_path_factory.mktemp(kind)
        for split, count in (("train", 16), ("test", 6)):
            write_pairs(folder / split, kind, count, seed=count)
        found[kind] = folder
    (found["segment"] / "classes.txt").write_text("\n".join(NAMES))
    return found


def make_recipe(folders, kind, **changes):
    return Recipe(
        **{
            "dataset": f"pairs:{folders[kind]}",
            "objective": kind,
            "model": "Pico/2",
            "image_size": 8,
            "depth": 1,
            "batch_size": 8,
            "total_steps": 8,
            "steps_per_loop": 2,
            "epochs_per_eval": 2,
            "augment": "flip_lr",
            "learning_rate": 1e-2,
            "peak_tflops": 1.0,
            **({"max_depth": 5.0} if kind == "depth" else {}),
            **changes,
        }
    )


@pytest.fixture(scope="module")
def runs(folders, tmp_path_factory):
    """Return the folders of two runs that are finished, by kind."""
    found = {}
    for kind in KINDS:
        folder = str(tmp_path_factory.mktemp(f"run_{kind}"))
        prepare(make_recipe(folders, kind), folder).train()
        found[kind] = RunFolder(pathlib.Path(folder))
    return found


@pytest.fixture(params=KINDS)
def kind(request):
    return request.param


def open_kind(folders, kind):
    recipe = make_recipe(folders, kind)
    return open_dataset(recipe.dataset, labels=recipe.label_options)


def test_the_model_knows_its_task(runs, kind):
    model = runs[kind].load_model()
    assert isinstance(model, DensePredictor) and model.task == kind
    expected = tuple(NAMES) if kind == "segment" else None
    assert model.head.class_names == expected
    rows = read_metrics(runs[kind].metrics_path)
    assert rows[-1]["loss"] < rows[0]["loss"]


def test_the_file_of_a_model_reads_the_maps_of_its_kind(runs, folders, kind):
    path = f"pairs:{folders[kind]}"
    source, dataset = open_source(
        model=str(runs[kind].model_path), dataset=path
    )
    assert dataset.maps.kind == kind
    found = evaluate(source, dataset, batch_size=4)
    expected = evaluate(runs[kind], open_kind(folders, kind), batch_size=4)
    score = {"segment": "mean_iou", "depth": "abs_rel"}[kind]
    assert found[score] == expected[score]


def test_the_evaluation_has_the_figures_of_the_training(runs, folders, kind):
    report = evaluate(runs[kind], open_kind(folders, kind), batch_size=4)
    last = read_metrics(runs[kind].metrics_path)[-1]
    names = {"segment": ["mean_iou"], "depth": ["abs_rel", "delta1"]}[kind]
    for name in names:
        assert report[name] == pytest.approx(last[f"val_{name}"], rel=1e-4)
    folder = runs[kind].folder
    page = (folder / "evaluation.html").read_text()
    assert page.count("data:image/png") == 2 * 4 * 6
    assert page.count('alt="attention"') == 2 * 6
    assert json.loads((folder / "evaluation.json").read_text()) == report
    with (folder / "image_predictions.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 6
    assert {row["image"].rpartition("/")[2] for row in rows} == {
        f"{n}.png" for n in range(6)
    }
    assert (
        f"| {names[0]} | {report[names[0]]:.4f} |"
        in (folder / "README.md").read_text()
    )
    if kind == "segment":
        with (folder / "confusion.csv").open() as file:
            counts = [row[1:] for row in csv.reader(file)]
        assert counts[0] == NAMES
        total = np.array(counts[1:], int)
        share = np.trace(total) / total.sum()
        assert share == pytest.approx(report["pixel_accuracy"])
        # 6 images of 8 x 8 pixels, of which a corner is unknown.
        assert 0 < total.sum() < 6 * 64


def test_two_models_are_compared(runs, folders, kind, tmp_path):
    dataset = open_kind(folders, kind)
    first = str(tmp_path / "first")
    report = evaluate(runs[kind], dataset, report_dir=tmp_path / "first")
    other = read_other(first, dataset)
    evaluate(runs[kind], dataset, report_dir=tmp_path / "both", other=other)
    page = (tmp_path / "both/evaluation.html").read_text()
    name = {"segment": "mean_iou", "depth": "abs_rel"}[kind]
    assert page.count(f"<td>{report[name]:.4f}</td>") >= 2
    table = tmp_path / "first/image_predictions.csv"
    lines = table.read_text().splitlines(keepends=True)
    for kept in (lines[:-1], [*lines[:-1], lines[-1].replace(".png", ".x")]):
        table.write_text("".join(kept))
        other = read_other(first, dataset)
        with pytest.raises(ValueError, match="`compare` must .* same images"):
            evaluate(
                runs[kind], dataset, report_dir=tmp_path / "b", other=other
            )
    (tmp_path / "first/evaluation.json").write_text(
        json.dumps(
            {n: report[n] for n in ("dataset", "split", "model")}
            | {"accuracy": 1.0}
        )
    )
    with pytest.raises(ValueError, match="`compare` must be an evaluation of"):
        read_other(first, dataset)


def test_another_task_is_refused(runs, folders):
    dataset = open_kind(folders, "depth")
    model = NamedModel(str(runs["segment"].model_path))
    with pytest.raises(ValueError, match="`model` must return 1 number for"):
        evaluate(model, dataset)


def test_a_run_that_was_stopped_goes_on_to_the_bit(
    runs, folders, kind, tmp_path
):
    recipe = make_recipe(folders, kind)
    trainer = prepare(recipe, str(tmp_path))
    trainer.loop.must_stop = lambda: trainer.loop.step >= 4
    with pytest.raises(RuntimeError, match="Stopped and saved"):
        trainer.train()
    prepare(recipe, str(tmp_path)).train()
    assert_same_weights(
        runs[kind].load_model(), RunFolder(tmp_path).load_model()
    )


@pytest.mark.parametrize(
    "changes",
    [
        {"train_only": "head"},
        {"lora_rank": 2},
        {"dense_head": "dpt", "init_head": "reset"},
    ],
)
def test_runs_begin_with_the_encoder_of_another_task(
    runs, folders, changes, tmp_path
):
    source = runs["segment"].load_model()
    changes = {"total_steps": 2, "epochs_per_eval": 1, **changes}
    recipe = make_recipe(
        folders, "depth", init_from=str(runs["segment"].folder), **changes
    )
    trainer = prepare(recipe, str(tmp_path))
    trainer.train()
    model = RunFolder(tmp_path).load_model()
    assert model.task == "depth"
    names = {w.path: w for w in source.weights}
    shared = [w for w in model.weights if w.path in names]
    shared = [w for w in shared if not w.path.startswith("predictions")]
    assert shared
    is_same = [np.array_equal(w, names[w.path]) for w in shared]
    if "train_only" in changes:
        assert all(is_same)
        # Another run trains all of it again.
        assert all(w.trainable for w in model.weights)
    else:
        assert not all(is_same)


def test_a_head_of_the_same_classes_is_kept(runs, folders, tmp_path):
    recipe = make_recipe(
        folders, "segment", init_from=str(runs["segment"].folder)
    )
    model = prepare(recipe, str(tmp_path / "a")).loop.model
    assert_same_weights(model, runs["segment"].load_model())
    named = ",".join(map(str, model.head.blocks))
    changed = dataclasses.replace(recipe, dense_blocks=named)
    same = prepare(changed, str(tmp_path / "c")).loop.model
    assert_same_weights(same, model)
    changed = dataclasses.replace(recipe, init_head="reset")
    other = prepare(changed, str(tmp_path / "b")).loop.model
    kernels = [m.get_layer("predictions").kernel for m in (model, other)]
    assert not np.allclose(*map(keras.ops.convert_to_numpy, kernels))


@pytest.fixture(scope="module")
def depth_anything(tmp_path_factory):
    """Return a folder as transformers writes a small Depth Anything."""
    folder = tmp_path_factory.mktemp("published") / "depth"
    config = ViTConfig(
        image_size=28,
        patch_size=14,
        width=32,
        depth=4,
        mlp_dim=128,
        num_heads=2,
        num_classes=0,
        pooling="token",
        activation="exact",
        layer_norm_epsilon=1e-6,
        layer_scale_init=0.1,
        preprocessing="imagenet",
    )
    head = DenseConfig(
        1,
        head="dpt",
        blocks=(0, 1, 2, 3),
        activation="relu",
        stage_widths=(8, 8, 16, 16),
        width=8,
        output_width=32,
    )
    model = DensePredictor(config, head)
    save_checkpoint(model, folder, layout="huggingface")
    return str(folder), model


@pytest.mark.filterwarnings("ignore:.*preprocess_input:UserWarning")
def test_published_models_are_evaluated_used_and_trained(
    depth_anything, folders, tmp_path
):
    path, model = depth_anything
    source, dataset = open_source(
        model=path, dataset=f"pairs:{folders['depth']}"
    )
    assert dataset.maps.kind == "depth"
    report = evaluate(source, dataset, report_dir=tmp_path / "report")
    assert 0 < report["delta1"] <= 1  # Fitted: it is of no scale.
    photo = str(folders["depth"] / "test/images/0.png")
    [row] = predict_each(source, [photo], out=str(tmp_path / "maps"))
    assert row.summary == "nearness, up to scale and shift"
    recipe = make_recipe(
        folders,
        "depth",
        depth_loss="relative",
        dense_head="dpt",
        init_from=path,
        image_size=28,
        learning_rate=1e-4,
    )
    trained = prepare(recipe, str(tmp_path / "run")).loop.model
    assert_same_weights(trained, model)  # With the head.
    other = dataclasses.replace(recipe, depth_loss="metric")
    other = prepare(other, str(tmp_path / "other")).loop.model
    assert other.head.output_scale == 5.0
    first, second = (x.get_layer("patch_encoder") for x in (other, model))
    assert_same_weights(first, second)


def test_a_model_file_tells_what_it_answers(runs, folders, kind, tmp_path):
    file = shutil.copy(runs[kind].model_path, tmp_path / "mine.keras")
    source, dataset = open_source(
        model=str(file), dataset=f"pairs:{folders[kind]}"
    )
    report = evaluate(source, dataset, report_dir=tmp_path / "report")
    name = {"segment": "mean_iou", "depth": "abs_rel"}[kind]
    expected = evaluate(
        runs[kind], open_kind(folders, kind), report_dir=tmp_path / "other"
    )
    assert report[name] == pytest.approx(expected[name])


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"class_weights": "balanced"}, "class_weights"),
        ({"pooling": "avg"}, "pooling"),
        ({"teacher": "x"}, "teacher"),
        ({"max_depth": 3.0}, "max_depth"),
        ({"dense_head": "dpt", "dense_blocks": "1,2"}, "dense_blocks"),
        ({"dense_blocks": "last"}, "dense_blocks"),
        ({"model": "R50x1"}, "objective"),
    ],
)
def test_what_has_no_effect_is_refused(folders, changes, name):
    with pytest.raises(ValueError, match=f"`{name}`"):
        make_recipe(folders, "segment", **changes)
    with pytest.raises(ValueError, match="`dice_weight` needs"):
        make_recipe(folders, "depth", dice_weight=0.5)
    with pytest.raises(ValueError, match="`dense_head` needs"):
        Recipe(dense_head="dpt")


def test_mixing_of_images_is_refused(folders, tmp_path):
    recipe = make_recipe(folders, "segment", augment="mixup(0.2)")
    with pytest.raises(ValueError, match="`augment`: .* mixup mixes images"):
        prepare(recipe, str(tmp_path))


def test_a_sweep_is_refused(folders, tmp_path):
    recipe = make_recipe(folders, "segment")
    with pytest.raises(ValueError, match="`objective` must be classify"):
        open_sweep(recipe, str(tmp_path))


def test_maps_of_photos_are_written(runs, folders, kind, tmp_path):
    photos = tmp_path / "photos"
    (photos / "b").mkdir(parents=True)
    draws = np.random.default_rng(0)
    sizes = {"a.png": (24, 40), "b/a.png": (8, 8)}
    for name, size in sizes.items():
        pixels = draws.integers(0, 256, (*size, 3), "uint8")
        Image.fromarray(pixels).save(photos / name)
    (photos / "no.png").write_bytes(b"nothing")
    out = tmp_path / "out"
    rows = list(
        predict_each(runs[kind], expand_folders([str(photos)]), out=str(out))
    )
    assert [bool(row.fault) for row in rows] == [False, False, True]
    model = runs[kind].load_model()
    for name, size in sizes.items():
        with Image.open(out / name) as image:
            found = np.asarray(image)
            mode = image.mode
        with Image.open(out / "overlays" / name) as image:
            assert image.size == size[::-1]
        assert found.shape == size
        assert mode == ("P" if kind == "segment" else "I;16")
    # One of the size of the model is what the model answers.
    pixels = np.asarray(Image.open(photos / "b/a.png"))
    answer = model.predict_on_batch(pixels[None] / np.float32(127.5) - 1)[0]
    if kind == "segment":
        np.testing.assert_array_equal(found, answer.argmax(-1))
        shares = dict(rows[1].classes)
        assert set(shares) <= set(NAMES)
        assert sum(shares.values()) == pytest.approx(1)
        for label, share in shares.items():
            assert share == (found == NAMES.index(label)).mean()
    else:
        np.testing.assert_allclose(found, answer[..., 0] * 1000, atol=0.51)
        assert not rows[1].classes
    again = predict_each(runs[kind], [str(photos / "a.png")], 1, out=str(out))
    assert next(again).classes == rows[0].classes[:1]
    text = io.StringIO()
    OUTPUT_FORMS["jsonl"](rows, text)
    first, _, last = map(json.loads, text.getvalue().splitlines())
    assert first["map"] == str(out / "a.png") and last["fault"]
    text = io.StringIO()
    OUTPUT_FORMS["text"](rows, text)
    assert text.getvalue().count(str(out)) == 2


def test_the_file_of_a_model_names_its_classes(runs, tmp_path):
    """Alone, without the folder of its run."""
    path = shutil.copy(runs["segment"].model_path, tmp_path)
    photo = str(tmp_path / "photo.png")
    Image.new("RGB", (8, 8), (200, 0, 0)).save(photo)
    sources = runs["segment"], NamedModel(path)
    rows = [
        next(predict_each(source, [photo], out=str(tmp_path / "out")))
        for source in sources
    ]
    assert rows[0] == rows[1]
    assert {name for name, _ in rows[1].classes} <= set(NAMES)


def test_the_encoder_is_inspected(runs, kind, tmp_path, capsys):
    out = tmp_path / "out"
    inspect_run(str(runs[kind].folder), out_dir=str(out), num_images=2)
    assert "its encoder is shown" in capsys.readouterr().out
    names = {path.name for path in out.iterdir()}
    assert {"report.html", "distances.png", "norms.png"} <= names


def test_large_photos_are_read_in_windows(runs, tmp_path):
    """Each quarter of a photo of four is that of the quarter alone."""
    pixels = np.random.default_rng(0).integers(0, 256, (8, 24, 3), "uint8")
    Image.fromarray(pixels).save(tmp_path / "wide.png")
    [row] = predict_each(
        runs["depth"],
        [str(tmp_path / "wide.png")],
        out=str(tmp_path / "out"),
        use_windows=True,
    )
    with Image.open(row.map) as image:
        found = np.asarray(image) / 1000
    model = runs["depth"].load_model()
    images = pixels / np.float32(127.5) - 1
    ends = model.predict_on_batch(np.stack([images[:, :8], images[:, -8:]]))
    # Only one window covers the first and the last columns.
    np.testing.assert_allclose(found[:, :3], ends[0, :, :3, 0], atol=1e-3)
    np.testing.assert_allclose(found[:, -3:], ends[1, :, -3:, 0], atol=1e-3)


def test_runs_of_maps_are_not_probed_or_calibrated(runs, folders, kind):
    dataset = open_kind(folders, kind)
    with pytest.raises(ValueError, match="classes of images, not of pixels"):
        probe(runs[kind], dataset)
    with pytest.raises(ValueError, match="`run_dir`.*gives an image one"):
        calibrate_classes(runs[kind], dataset)


def test_maps_need_a_folder_and_classes_do_not(runs, digits_run, tmp_path):
    out = str(tmp_path)
    with pytest.raises(ValueError, match="`out` must be a folder for the maps"):
        list(predict_each(runs["segment"], ["a.png"]))
    with pytest.raises(ValueError, match="`coverage` needs a model of classes"):
        list(predict_each(runs["segment"], ["a.png"], coverage=0.9, out=out))
    with pytest.raises(
        ValueError, match="need a model with an answer for each"
    ):
        list(predict_each(digits_run, ["a.png"], out=out))


@pytest.fixture
def digits_run(tmp_path):
    recipe = Recipe(
        model="Pico/2", image_size=8, depth=1, total_steps=1, batch_size=8
    )
    prepare(recipe, str(tmp_path / "digits")).train()
    return RunFolder(tmp_path / "digits")


def test_bad_pairs_are_findings(folders, tmp_path):
    folder = write_pairs(tmp_path / "data", count=8)
    (folder / "classes.txt").write_text("floor\nred\n")
    Image.new("L", (16, 12), 255).save(folder / "masks/0.png")
    (folder / "masks/1.png").unlink()
    Image.new("L", (5, 5), 1).save(folder / "masks/2.png")
    recipe = Recipe(dataset=f"pairs:{folder}", objective="segment")
    dataset = open_dataset(recipe.dataset, labels=recipe.label_options)
    images = inspect_images(dataset)
    faults = {
        image.name.rpartition("/")[2]: image.fault
        for image in images
        if image.fault
    }
    # The second half of the squares is of a class that is not named.
    assert set(faults) == {f"{n}.png" for n in (0, 1, 2, 3, 5, 7)}
    assert faults["0.png"].startswith("nothing is known of any pixel")
    assert faults["1.png"] == "the map is not there"
    assert "the map has 5 x 5 pixels, the image 12 x 16" in faults["2.png"]
    assert "the class 2, but the 2 classes" in faults["3.png"]
    good = [image for image in images if not image.fault]
    assert {image.labels for image in good} == {("floor", "red")}
    found = find(images, dataset.class_names, find_unread(dataset))
    errors = [str(x) for x in found if x.level == "error"]
    assert len(errors) == 4  # One of three images.
    page = tmp_path / "page.html"
    write_data_page(page, dataset.name, images, dataset.class_names, found)
    assert "is not there" in page.read_text()
