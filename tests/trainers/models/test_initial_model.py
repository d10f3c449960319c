"""Models that a run begins from: head, notes and preprocessing."""

import dataclasses
import json
import pathlib
import shutil

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit import (
    Preprocessing,
    VisionTransformer,
    from_checkpoint,
    preprocess_input,
    read_image,
)
from tests.tiny import make, tiny_config, to_numpy
from tests.trainers.made import assert_same_weights, write_photos
from trainers.engine.engine import Share
from trainers.evaluation.evaluation import evaluate
from trainers.evaluation.predictions import make_load_image
from trainers.models.factory import build_model
from trainers.models.initial_model import (
    explain_ignored_flags,
    explain_other_classes,
    explain_other_size,
    initial_preprocessing,
    load_initial_model,
)
from trainers.recipes.recipes import RECIPES
from trainers.training.run_folder import NamedModel, RunFolder
from trainers.training.trainer import prepare


def test_fine_tuning_on_other_classes_gets_a_new_head(run):
    model = load_initial_model(str(run.model_path), 8, 3, 1)
    assert model.output_shape == (None, 3)
    kernel, bias = model.get_layer("predictions").get_weights()
    assert not kernel.any() and not bias.any()
    assert run.load_model().get_layer("predictions").get_weights()[0].any()


@pytest.mark.parametrize("size", [None, 5])
def test_a_head_that_is_reset_does_not_keep_the_old_tanh_layer(tmp_path, size):
    path = str(tmp_path / "pre_trained.keras")
    options = {"representation_size": 7, "head_bias": -10.0}
    model = keras_vit.ViT_Ti16(
        input_shape=(32, 32, 1), classes=10, depth=1, width=24, mlp_dim=24
    )
    config = dataclasses.replace(model.config, **options)
    model = keras_vit.VisionTransformer(config)
    model.trainable = False
    model.save(path)
    reset = load_initial_model(
        path, 32, 10, 1, "reset", representation_size=size, head_bias=0.5
    )
    assert reset.config.representation_size == size
    head = reset.get_layer("predictions")
    kernel, bias = head.get_weights()
    assert kernel.shape == (size or 24, 10)
    assert not kernel.any() and (bias == 0.5).all()
    layers = [head, reset.get_layer("pre_logits")] if size else [head]
    weights = [w.path for layer in layers for w in layer.weights]
    assert [w.path for w in reset.trainable_weights] == sorted(
        weights, key=[w.path for w in reset.weights].index
    )
    for name in ("block_00", "encoder_norm"):
        assert_same_weights(model.get_layer(name), reset.get_layer(name))


@pytest.mark.parametrize(
    "path, channels, message",
    [
        ("absent.keras", 1, "existing .keras file.*absent.keras"),
        (None, 3, "1 channels; those of the data set have 3"),
        ("dense.keras", 1, "VisionTransformer.*Sequential"),
    ],
)
def test_bad_start_is_refused(run, tmp_path, path, channels, message):
    if path == "dense.keras":
        path = f"{tmp_path}/{path}"
        layers = [keras.Input((3,)), keras.layers.Dense(2)]
        keras.Sequential(layers).save(path)
    with pytest.raises(ValueError, match=message):
        load_initial_model(path or str(run.model_path), 8, 10, channels)


def test_a_head_for_other_classes_is_replaced(run, digits):
    """Also if they are as many; those of a run lie in its folder."""
    recipe = dataclasses.replace(
        run.load_recipe(), init_from=str(run.model_path)
    )
    names = digits.class_names
    assert explain_other_classes(recipe, names) is None
    file = run.folder / "recipe.json"
    content = json.loads(file.read_text())
    theirs = {**content, "class_names": [*names[1:], names[0]]}
    file.write_text(json.dumps(theirs))
    folder = dataclasses.replace(recipe, init_from=str(run.folder))
    assert explain_other_classes(folder, names)
    reason = explain_other_classes(recipe, names)
    assert "other classes (1, 2, 3, 4, 5, ...): a new one" in reason
    head = build_model(recipe, digits).get_layer("predictions")
    assert not any(weight.any() for weight in head.get_weights())
    # Nothing is said where there is nothing to say.
    reset = dataclasses.replace(recipe, init_head="reset")
    assert explain_other_classes(reset, names) is None
    assert explain_other_classes(recipe, names[:3]) is None
    for wrong in ([["x"], *names], names[:3]):
        file.write_text(json.dumps({**content, "class_names": wrong}))
        with pytest.raises(ValueError, match=f"{file}: `class_names` must be"):
            build_model(recipe, digits)
    # Any other file in the folder is not the model of the run.
    other = shutil.copy(run.model_path, run.folder / "other.keras")
    build_model(dataclasses.replace(recipe, init_from=str(other)), digits)
    file.write_text(json.dumps(content))


def test_a_model_that_was_moved_knows_its_classes(run, digits, tmp_path):
    path = str(shutil.copy(run.model_path, tmp_path / "moved.keras"))
    names = digits.class_names
    assert NamedModel(path).load_class_names() == names
    recipe = dataclasses.replace(run.load_recipe(), init_from=path)
    assert explain_other_classes(recipe, names) is None
    assert explain_other_classes(recipe, [*names[1:], names[0]])


@pytest.mark.parametrize("names", [("cat", "dog"), ("dog", "cat"), "abc"])
def test_a_zero_shot_head_stays_for_its_classes_alone(names, tmp_path):
    """A new head reads the features, not vectors of length 1."""
    model = make(
        depth=1,
        representation="unit",
        representation_size=10,
        num_classes=2,
        class_names=("cat", "dog"),
        classifier_activation="softmax",
    )
    path = str(tmp_path / "zero_shot.keras")
    model.save(path)
    recipe = dataclasses.replace(RECIPES["photos"], init_from=path)
    is_other = explain_other_classes(recipe, names) is not None
    assert is_other == (names == ("dog", "cat"))
    head = "reset" if is_other else "auto"
    loaded = load_initial_model(path, 32, len(names), 3, head)
    assert loaded.config.classifier_activation is None
    if names == ("cat", "dog"):
        assert loaded.config.class_names == names
        assert_same_weights(model, loaded)
        return
    assert loaded.config.class_names is None
    assert loaded.config.representation == "tanh"
    kernel, _ = loaded.get_layer("predictions").get_weights()
    assert kernel.shape == (24, len(names)) and not kernel.any()


def test_images_of_another_size_than_before_are_noted(run, tmp_path):
    recipe = dataclasses.replace(
        run.load_recipe(), init_from=str(run.model_path)
    )
    assert explain_other_size(recipe) is None
    larger = dataclasses.replace(recipe, image_size=16)
    assert "--image_size=8" in explain_other_size(larger)
    shutil.copy(run.model_path, tmp_path / "model.keras")
    for beside in (None, "no JSON", "[1]", '{"recipe": 1}'):
        if beside:
            (tmp_path / "recipe.json").write_text(beside)
        alone = dataclasses.replace(larger, init_from=f"{tmp_path}/model.keras")
        assert explain_other_size(alone) is None
    assert explain_other_size(dataclasses.replace(larger, init_from="")) is None


@pytest.mark.parametrize(
    "given, named",
    [
        ({"depth": 3, "patch_size": 8}, "--depth=3 (it is 2)"),
        ({"model": "B/16"}, "--model=B/16 (its sizes are others)"),
        ({"model": "R50x1", "num_heads": 3, "pooling": "avg"}, None),
        # All sizes of the variant are replaced by other flags.
        (
            {
                **{"model": "mu/16", "width": 24, "depth": 2, "mlp_dim": 48},
                **{"num_heads": 3, "patch_size": 8},
            },
            None,
        ),
    ],
)
def test_flags_that_do_not_change_the_initial_model_are_named(given, named):
    model = VisionTransformer(tiny_config())
    found = explain_ignored_flags(given, "a.npz", model)
    assert named in found if named else found is None
    assert explain_ignored_flags(given, "", model) is None


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
    predicted = make_load_image((32, 32, 3), run.preprocess)(str(path))
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
