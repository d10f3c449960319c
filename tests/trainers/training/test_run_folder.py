"""The folder of a run, and models that have none."""

import csv
import errno
import os
import resource

import keras
import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from keras_vit import VisionTransformer
from tests.tiny import tiny_config
from trainers.data.datasets import open_dataset
from trainers.evaluation.evaluation import evaluate
from trainers.evaluation.file_predictions import predict_each
from trainers.export_model import export_source
from trainers.paths import as_path
from trainers.training.objectives import find_normalization
from trainers.training.run_folder import (
    NamedModel,
    RunFolder,
    check_outside,
    check_place,
)
from trainers.training.trainer import prepare


@pytest.mark.parametrize("name", ["README.md", "model.keras"])
def test_files_of_no_run_are_not_overwritten(tmp_path, name):
    (tmp_path / name).write_text("mine")
    run = RunFolder(tmp_path)
    with pytest.raises(ValueError, match=f"no recipe.json, but {name}"):
        check_place(run, "digits")
    (tmp_path / "recipe.json").write_text("{}")
    check_place(run, "digits")


def test_other_files_are_nobody_s_business(tmp_path):
    (tmp_path / "data.html").write_text("of a run that did not begin")
    check_place(RunFolder(tmp_path), "digits")
    check_place(RunFolder(tmp_path / "new"), "digits")
    check_place(RunFolder(as_path("gs://bucket/run")), "folder:/")


@pytest.mark.parametrize(
    "kind, place", [("folder", ""), ("images", "cat"), ("folder", "cat/run")]
)
def test_a_run_among_its_images(tmp_path, kind, place):
    photos = tmp_path / "photos"
    run = RunFolder(photos / place)
    with pytest.raises(ValueError, match="outside the folder of the images"):
        check_place(run, f"{kind}:{photos}")
    check_place(run, f"csv:{photos}/table.csv")
    check_place(RunFolder(tmp_path / "photos_run"), f"{kind}:{photos}")
    with pytest.raises(ValueError, match="`report_dir` must be outside"):
        check_outside(photos / "seen", f"{kind}:{photos}", "report_dir")


@pytest.fixture
def limit_files():
    """Return a function that limits the size of files this process writes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)

    def limit(num_bytes):
        resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, before[1]))

    yield limit
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_room_is_tried_and_given_back(tmp_path, limit_files):
    limit_files(1_000_000)
    RunFolder(tmp_path).check_space(1_000_000)
    with pytest.raises(OSError, match="room for 1.00 MB of .*File too large"):
        RunFolder(tmp_path).check_space(1_000_001)
    assert not list(tmp_path.iterdir())


def test_a_full_disk_is_seen(tmp_path, monkeypatch):
    def refuse(descriptor, offset, length):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    with pytest.raises(OSError, match="`run_dir` must have .*No space left"):
        RunFolder(tmp_path).check_space(1)


def test_a_file_system_that_cannot_allocate_is_not_judged(
    tmp_path, monkeypatch
):
    def refuse(descriptor, offset, length):
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    RunFolder(tmp_path).check_space(1)
    monkeypatch.delattr(os, "posix_fallocate")
    RunFolder(tmp_path).check_space(1)
    RunFolder(as_path("gs://bucket/run")).check_space(1)
    assert not list(tmp_path.iterdir())


def test_a_training_asks_for_room_before_it_computes(
    recipe, tmp_path, limit_files, monkeypatch
):
    """For three states, two that are kept and a new one, and the model."""
    trainer = prepare(recipe, str(tmp_path))
    parameters = trainer.loop.model.count_params()
    asked, check = [], RunFolder.check_space

    def note(folder, size):
        asked.append(size)
        check(folder, size)

    monkeypatch.setattr(RunFolder, "check_space", note)
    limit_files(1_000)
    with pytest.raises(OSError, match="must have room"):
        trainer.train()
    # A state: weights, two moments.
    [size] = asked
    assert size == pytest.approx((3 * 3 + 1) * 4 * parameters, rel=0.01)
    assert not list(tmp_path.iterdir())


RESCALING = keras.layers.Rescaling


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """Return a folder of noise of two classes."""
    folder = tmp_path_factory.mktemp("photos")
    random = np.random.default_rng(0)
    for name, low in (("dark", 0), ("light", 120)):
        (folder / "test" / name).mkdir(parents=True)
        for index in range(4):
            pixels = random.integers(low, low + 130, (32, 32, 3), "uint8")
            photo = Image.fromarray(pixels)
            photo.save(folder / "test" / name / f"{index}.png")
    return folder


def save(path, *before, size=32):
    x = image = keras.Input((size, size, 3))
    for layer in before:
        x = layer(x)
    x = VisionTransformer(tiny_config(num_classes=0))(x)
    model = keras.Model(image, keras.layers.Dense(2)(x))
    model.save(path)
    return model


@pytest.mark.usefixtures("graphs")
@pytest.mark.parametrize("top", [255.0, 1.0])
def test_all_commands_give_it_what_it_reads(photos, tmp_path, top):
    """Pixels up to 255, or fractions of them."""
    path = str(tmp_path / "full.keras")
    model = save(path, RESCALING(2 / top, -1))
    files = sorted(map(str, photos.glob("test/*/*.png")))
    pixels = np.stack([np.asarray(Image.open(file)) for file in files])
    logits = model.predict(pixels.astype("float32") * (top / 255), verbose=0)
    expected = np.asarray(tf.nn.softmax(logits))
    assert np.ptp(expected[:, 0]) > 0.05
    dataset = open_dataset(f"folder:{photos}", eval_split="test")
    source = NamedModel(path)
    for row, want in zip(predict_each(source, files), expected):
        found = dict(row.classes)
        np.testing.assert_allclose([found["0"], found["1"]], want, atol=1e-4)
    pair, _ = find_normalization(model, ((0.1,), (0.1,)))
    assert pair == ((0.0,), (1 / top,))
    if top == 1.0:
        return  # The other commands ask the same source.
    evaluate(source, dataset, report_dir=tmp_path / "report")
    table = (tmp_path / "report/image_predictions.csv").read_text()
    highest = {
        row["image"]: float(row["probability"])
        for row in csv.DictReader(table.splitlines())
    }
    for file, want in zip(files, expected):
        assert highest[file] == pytest.approx(want.max(), abs=1e-4)
    export_source(
        source, dataset, tmp_path / "export", ["saved_model"], threads=()
    )
    [folder] = (tmp_path / "export/saved_model").glob("*/1")
    serve = tf.saved_model.load(str(folder)).signatures["serve_bytes"]
    contents = [tf.io.read_file(file) for file in files]
    served = serve(image_bytes=tf.stack(contents))["probabilities"]
    np.testing.assert_allclose(served[:, 0], expected.max(-1), atol=1e-4)


def test_what_does_not_tell_names_the_flag(photos, tmp_path):
    path = str(tmp_path / "full.keras")
    save(path, keras.layers.Activation("tanh"))
    dataset = open_dataset(f"folder:{photos}", eval_split="test")
    file = next(iter(photos.glob("test/*/*.png")))
    for run in (
        lambda **choice: list(
            predict_each(NamedModel(path), [str(file)], **choice)
        ),
        lambda **choice: evaluate(NamedModel(path), dataset, **choice),
    ):
        with pytest.raises(ValueError, match="--preprocess"):
            run()
        assert run(preprocess="value_range(0, 1)")
    choice = {"preprocess": "value_range(0, 1)"}
    [row] = predict_each(NamedModel(path), [str(file)], **choice)
    assert not row.fault and row.classes
    with pytest.raises(ValueError, match="preprocess"):
        find_normalization(NamedModel(path).load_model(), ((0.5,), (0.5,)))


def test_a_model_for_any_size_is_refused(photos, tmp_path):
    path = str(tmp_path / "full.keras")
    save(path, keras.layers.Resizing(32, 32), RESCALING(1 / 255), size=None)
    dataset = open_dataset(f"folder:{photos}", eval_split="test")
    file = next(iter(photos.glob("test/*/*.png")))
    with pytest.raises(ValueError, match="fixed size"):
        list(predict_each(NamedModel(path), [str(file)]))
    with pytest.raises(ValueError, match="fixed size"):
        evaluate(NamedModel(path), dataset)
