"""Predictions of a model for image files."""

import dataclasses
import zipfile

import numpy as np
import pytest
from PIL import Image

from keras_vit.export import CLASSIFIER_ACTIVATIONS
from trainers.evaluation.file_predictions import predict_each
from trainers.evaluation.predictions import make_load_image
from trainers.inspect import open_run
from trainers.training.run_folder import NamedModel, RunFolder


@pytest.mark.parametrize(
    "operations, low, window",
    [
        ("", -1, slice(None)),
        ("central_crop(4)|value_range(0, 1)", 0, slice(2, 6)),
    ],
)
def test_images_are_made_ready_as_for_the_evaluation(
    tmp_path, operations, low, window
):
    """Upright, grey, cut, in the size and range; stored upside down."""
    pixels = np.zeros((8, 8, 3), "uint8")
    pixels[:4, 5:] = 255
    exif = Image.Exif()
    exif[274] = 3
    Image.fromarray(pixels).save(tmp_path / "phone.png", exif=exif)
    want = pixels[::-1, ::-1, :1][window, window] / 255 * (1 - low) + low
    found = make_load_image(want.shape, operations)(str(tmp_path / "phone.png"))
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, want, atol=1e-6)


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
    other = RunFolder(folder)
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
    for load in (
        NamedModel(str(path)).load_model,
        RunFolder(tmp_path).load_model,
    ):
        with pytest.raises(ValueError, match=f"{path} cannot be read: "):
            load()
