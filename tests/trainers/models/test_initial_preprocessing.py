"""A run and its model have the preprocessing of the initial model."""

import dataclasses
import json
import pathlib
import shutil

import keras
import numpy as np
import pytest

from keras_vit import (
    Preprocessing,
    from_checkpoint,
    preprocess_input,
    read_image,
)
from tests.tiny import to_numpy
from tests.trainers.made import assert_same_weights, write_photos
from trainers.engine.engine import Share
from trainers.evaluation.evaluation import evaluate
from trainers.evaluation.predictions import load_image
from trainers.models.initial_model import initial_preprocessing
from trainers.training.run_folder import NamedModel, RunFolder
from trainers.training.trainer import prepare

GOLDEN = pathlib.Path(__file__).parents[2] / "golden"
CLASSES = ("dark", "light")
IMAGENET = {"mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}
# It is said at the load how to call preprocess_input, which nobody calls here.
pytestmark = pytest.mark.filterwarnings("ignore:.*preprocess_input:UserWarning")


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """Return the path of a small model of timm for images of ImageNet."""
    folder = tmp_path_factory.mktemp("timm")
    path = folder / "model.safetensors"
    shutil.copyfile(GOLDEN / "timm_token.safetensors", path)
    described = {**IMAGENET, "interpolation": "bicubic", "crop_pct": 0.8}
    config = {"pretrained_cfg": described, "num_heads": 3}
    (folder / "config.json").write_text(json.dumps(config))
    return path


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """Return a folder of photos in two classes."""
    places = [f"{s}/{name}" for s in ("train", "test") for name in CLASSES]
    return write_photos(tmp_path_factory.mktemp("photos"), 4 * places, (48, 60))


@pytest.fixture
def of_photos(recipe, checkpoint, photos):
    return dataclasses.replace(
        recipe,
        dataset=f"folder:{photos}",
        init_from=str(checkpoint),
        patch_size=None,
        image_size=32,
        batch_size=4,
        total_steps=2,
        augment="flip_lr|mixup(0.2)",
        eval_preprocess="resize(method=antialias)",
        num_heads=3,
        label_smoothing=0.0,
        train_split="train",
        eval_split="test",
    )


def test_from_the_checkpoint_to_the_evaluation(
    of_photos, photos, checkpoint, tmp_path
):
    trainer = prepare(of_photos, str(tmp_path))
    assert trainer.recipe.augment == "flip_lr|normalize(imagenet)|mixup(0.2)"
    # Its weights are those of the file.
    source = from_checkpoint(checkpoint, num_heads=3)
    assert_same_weights(
        source.get_layer("patch_encoder"),
        trainer.loop.model.get_layer("patch_encoder"),
    )
    logs = trainer.train()
    run = RunFolder(tmp_path)
    line = "resize(method=antialias)|normalize(imagenet)"
    assert run.load_recipe().eval_preprocess == line
    model = run.load_model()
    assert model.config.preprocessing == Preprocessing("imagenet")
    # The images of the evaluation, of a prediction, and by hand.
    batches = trainer.eval_batches(Share())
    images = np.concatenate([batch[0] for batch in batches])
    path = photos / "test" / "dark" / "2.png"
    pixels = read_image(path, model=model)
    by_hand = preprocess_input(pixels, "channels_last", model=model)
    level = 1 / 255 / 0.22
    predicted = load_image(str(path), (32, 32, 3), run.preprocess)
    np.testing.assert_allclose(predicted, by_hand, atol=1.2 * level)
    assert np.abs(images - predicted).max((1, 2, 3)).min() < 1e-5
    # The file alone is evaluated as the run is.
    whole = evaluate(run, trainer.dataset, report_dir=None)
    assert NamedModel(str(run.model_path)).preprocess == run.preprocess
    other_path = shutil.copy(run.model_path, checkpoint.parent / "alone.keras")
    alone = NamedModel(str(other_path))
    assert alone.preprocess == "resize(None, antialias)|normalize(imagenet)"
    report = evaluate(alone, trainer.dataset, report_dir=None)
    assert report["loss"] == pytest.approx(whole["loss"], rel=1e-5)
    assert report["loss"] == pytest.approx(logs["val_loss"], rel=1e-5)
    # The same command continues the run.
    assert prepare(of_photos, str(tmp_path)).loop.step == 2


def test_a_recipe_that_normalises_by_itself_adapts_the_model(
    of_photos, photos, checkpoint
):
    line = "resize(method=antialias)|value_range(0, 1)"
    recipe = dataclasses.replace(
        of_photos, augment="value_range(0, 1)", eval_preprocess=line
    )
    trainer = prepare(recipe, str(photos.parent / "another_run"))
    assert trainer.recipe.eval_preprocess == line
    model = trainer.loop.model
    assert model.config.preprocessing == Preprocessing("zero_one")
    source = from_checkpoint(checkpoint, num_heads=3)
    pixels = read_image(photos / "test" / "dark" / "6.png", model=model)[None]
    features = [
        to_numpy(
            keras.Model(m.input, m.get_layer("encoder_norm").output)(
                preprocess_input(pixels, "channels_last", model=m)
            )
        )
        for m in (source, model)
    ]
    np.testing.assert_allclose(*features, atol=2e-5)


@pytest.mark.parametrize("kind", ["checkpoint", "file", "run"])
def test_without_reading_weights(
    recipe, checkpoint, tmp_path, monkeypatch, kind
):
    path = checkpoint
    if kind != "checkpoint":
        path = tmp_path / "model.keras"
        from_checkpoint(checkpoint, num_heads=3).save(path)
    path = tmp_path if kind == "run" else path
    monkeypatch.setattr(keras.saving, "load_model", None)
    recipe = dataclasses.replace(recipe, init_from=str(path), num_heads=3)
    found = initial_preprocessing(recipe, 3)
    assert found == Preprocessing("imagenet", "shortest", "bicubic", 0.8)
    # The first layer is adapted to grey images.
    assert initial_preprocessing(recipe, 1).normalization == "vit"


def test_files_that_do_not_state_it(recipe, tmp_path):
    (tmp_path / "wrong.keras").write_bytes(b"no archive")
    for path in (None, str(tmp_path / "wrong.keras"), "none.keras"):
        recipe = dataclasses.replace(recipe, init_from=path)
        assert initial_preprocessing(recipe, 3) == Preprocessing()


def test_a_checkpoint_by_name_is_prepared_as_it_states(checkpoint):
    source = NamedModel(str(checkpoint.parent))
    line = source.preprocess
    steps = ["resize_to_cover(40, bicubic)", "central_crop"]
    assert line.split("|") == [*steps, "normalize(imagenet)"]
