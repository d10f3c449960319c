"""Predictions of a model for image files."""

import dataclasses
import zipfile

import numpy as np
import pytest
from PIL import Image

from keras_vit.export import CLASSIFIER_ACTIVATIONS
from trainers.evaluation.file_predictions import predict_each
from trainers.evaluation.predictions import load_image
from trainers.inspect import open_run
from trainers.runs.named_model import NamedModel
from trainers.runs.run import Run


@pytest.fixture(params=["png", "jpg"])
def image_path(request, tmp_path):
    """Return a made image of 20x10 pixels, dark on the left."""
    pixels = np.zeros((20, 10, 3), "uint8")
    pixels[:, 5:] = 255
    path = tmp_path / f"image.{request.param}"
    Image.fromarray(pixels).save(path)
    return str(path)


def test_turned_pictures_of_phones_are_turned_back(tmp_path):
    """EXIF orientation 3: stored upside down."""
    pixels = np.zeros((16, 16), "uint8")
    pixels[:8] = 255
    exif = Image.Exif()
    exif[274] = 3
    Image.fromarray(pixels).save(tmp_path / "phone.jpg", exif=exif)
    image = load_image(str(tmp_path / "phone.jpg"), (16, 16, 1))
    assert image[:6].mean() < -0.9 and image[10:].mean() > 0.9


def test_image_is_read_in_the_shape_and_range_of_the_model(image_path):
    image = load_image(image_path, (8, 8, 1))
    assert image.shape == (8, 8, 1) and image.dtype == np.float32
    np.testing.assert_allclose(image[:, :3], -1, atol=0.05)
    np.testing.assert_allclose(image[:, 5:], 1, atol=0.05)


def test_predictions_are_probabilities_by_name(run, image_path):
    [row] = predict_each(run, [image_path], top=10)
    assert sorted(name for name, _ in row.classes) == run.load_class_names()
    both = list(predict_each(run, [image_path, image_path], top=1))
    assert both[0].classes == both[1].classes
    assert both[0].classes[0][0] == row.classes[0][0]
    scores = [score for _, score in row.classes]
    assert sum(scores) == pytest.approx(1, abs=1e-5)
    assert scores == sorted(scores, reverse=True)


def test_a_sigmoid_run_predicts_what_its_page_says(run, tmp_path):
    path = str(tmp_path / "image.png")
    pixels = np.random.default_rng(0).integers(0, 256, (8, 8, 1), "uint8")
    Image.fromarray(pixels[..., 0]).save(path)
    folder = tmp_path / "sigmoid"
    recipe = dataclasses.replace(
        run.load_recipe(),
        loss="sigmoid",
        augment="value_range(0, 1)",
        eval_preprocess="value_range(0, 1)",
    )
    other = Run(folder)
    other.save_recipe(recipe, run.load_class_names())
    other.save_model(run.load_model())

    [row] = predict_each(other, [path], top=10)
    scores = dict(row.classes)
    logits = run.load_model().predict(pixels[None] / 255.0, verbose=0)[0]
    by_hand = dict(zip(other.load_class_names(), 1 / (1 + np.exp(-logits))))
    assert scores == pytest.approx(by_hand, abs=1e-5)

    subject = open_run(str(folder))
    outputs = subject.model(subject.read(path)[None])
    of_page = CLASSIFIER_ACTIVATIONS[subject.activation](outputs)[0].numpy()
    assert dict(zip(subject.class_names, of_page)) == pytest.approx(scores)
    assert subject.normalization == ((0,), (1,))


@pytest.mark.parametrize("damage", ["cut off", "empty archive"])
def test_a_damaged_model_file_is_an_error(run, damage, tmp_path):
    path = tmp_path / "model.keras"
    path.write_bytes(run.model_path.read_bytes()[:-3000])
    if damage == "empty archive":
        zipfile.ZipFile(path, "w").close()
    for load in (NamedModel(str(path)).load_model, Run(tmp_path).load_model):
        with pytest.raises(ValueError, match=f"{path} cannot be read: "):
            load()


def test_file_that_is_not_an_image_is_an_error(tmp_path):
    path = tmp_path / "notes.png"
    path.write_text("no image")
    with pytest.raises(ValueError, match="Not an image.*notes.png"):
        load_image(str(path), (8, 8, 1))
    with pytest.raises(OSError, match="absent.png"):
        load_image(str(tmp_path / "absent.png"), (8, 8, 1))


def test_images_are_made_ready_as_for_the_evaluation(tmp_path):
    """The middle of the image is cut out, and the range is another."""
    pixels = np.zeros((8, 8, 3), "uint8")
    pixels[2:6, 2:6] = 255
    Image.fromarray(pixels).save(tmp_path / "image.png")
    image = load_image(
        str(tmp_path / "image.png"),
        (4, 4, 1),
        "central_crop(4)|value_range(0, 1)",
    )
    np.testing.assert_array_equal(image, np.ones((4, 4, 1)))
