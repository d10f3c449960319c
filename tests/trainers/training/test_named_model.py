"""A Keras model that scales its pixels is not normalised a second time."""

import csv

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
from trainers.training.objectives import find_normalization
from trainers.training.run_folder import NamedModel

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
