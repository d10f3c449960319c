"""The normalisation that a checkpoint needs, and the warning about it."""

import json
import pathlib
import shutil
import warnings

import pytest

from keras_vit import from_checkpoint, load_checkpoint
from keras_vit.weights.containers import open_checkpoint
from keras_vit.weights.normalization import find_normalization

GOLDEN = pathlib.Path(__file__).parents[1] / "golden"
IMAGENET = {"mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}
SATELLITE = {"mean": [0.43, 0.411, 0.296], "std": [0.213, 0.156, 0.143]}
OF_SATELLITE = ((0.43, 0.411, 0.296), (0.213, 0.156, 0.143))


def found(folder, config=None, preprocessor=None, name="model"):
    """Return the mode of a timm file with another JSON beside it."""
    path = folder / f"{name}.safetensors"
    shutil.copyfile(GOLDEN / "timm_token.safetensors", path)
    if config is not None:
        (folder / "config.json").write_text(json.dumps(config))
    if preprocessor is not None:
        text = json.dumps(preprocessor)
        (folder / "preprocessor_config.json").write_text(text)
    with open_checkpoint(path) as checkpoint:
        return find_normalization(checkpoint)


@pytest.mark.parametrize(
    ("config", "mode"),
    [
        ({}, None),
        ({"pretrained_cfg": IMAGENET}, "imagenet"),
        ({"mean": [0.5] * 3, "std": [0.5] * 3}, "vit"),
        ({"pretrained_cfg": {"mean": [0, 0, 0], "std": [1, 1, 1]}}, "zero_one"),
        ({"preprocess_cfg": SATELLITE}, OF_SATELLITE),
        ({"mean": [0.481, 0.458, 0.408], "std": [0.269, 0.261, 0.276]}, "clip"),
        # The numbers go before the name.
        (
            {
                "architecture": "vit_base_patch16_224_miil",
                "pretrained_cfg": IMAGENET,
            },
            "imagenet",
        ),
        ({"architecture": "deit_tiny_patch16_224"}, "imagenet"),
        ({"architecture": "vit_base_patch16_224.mae"}, "imagenet"),
        ({"architecture": "vit_huge_patch14_gap_224.in1k_ijepa"}, "imagenet"),
        ({"architecture": "vit_base_patch16_224", "tag": "dino"}, "imagenet"),
        ({"architecture": "eva_large_patch14_196.in22k_ft_in1k"}, "clip"),
        ({"architecture": "vit_base_patch16_224.bamboo"}, "clip"),
        ({"architecture": "vit_base_patch16_224_miil.in21k"}, "zero_one"),
        ({"architecture": "vit_base_patch16_siglip_224.webli"}, None),
        ({"architecture": "vit_base_patch16_224.augreg_in21k"}, None),
    ],
)
def test_what_a_configuration_says(tmp_path, config, mode):
    assert found(tmp_path, config) == mode


@pytest.mark.parametrize(
    "mean", [5, "x", None, [], ["a"], [float("inf")] * 3, [True] * 3, [0.5] * 9]
)
def test_senseless_numbers_are_passed_over(tmp_path, mean):
    assert found(tmp_path, {"mean": mean, "std": [0.5] * 3}) is None
    assert found(tmp_path, {"mean": [0.5] * 3, "std": mean}) is None
    assert found(tmp_path, {"mean": [0.5] * 3, "std": [0.0] * 3}) is None


@pytest.mark.parametrize(
    ("preprocessor", "mode"),
    [
        ({"image_mean": [0.5] * 3, "image_std": [0.5] * 3}, "vit"),
        (
            {"image_mean": IMAGENET["mean"], "image_std": IMAGENET["std"]},
            "imagenet",
        ),
        ({"do_normalize": False, "image_mean": [0.5] * 3}, "zero_one"),
        ({"size": 224}, None),
    ],
)
def test_what_a_preprocessor_of_hugging_face_says(tmp_path, preprocessor, mode):
    assert found(tmp_path, None, preprocessor) == mode


def test_a_damaged_preprocessor_is_named(tmp_path):
    (tmp_path / "preprocessor_config.json").write_text("{")
    with pytest.raises(ValueError, match="preprocessor_config.json cannot be"):
        found(tmp_path)


def test_the_name_of_a_file_shows_it(tmp_path):
    assert found(tmp_path, name="deit_small_patch16_224") == "imagenet"
    assert found(tmp_path, name="vit_base_patch16_siglip_224") is None


@pytest.mark.parametrize("load", ["build", "load"])
def test_the_user_is_told_the_call_to_make(tmp_path, load):
    assert found(tmp_path, {"pretrained_cfg": IMAGENET}) == "imagenet"
    path = tmp_path / "model.safetensors"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = from_checkpoint(path, num_heads=3)
    with pytest.warns(UserWarning) as caught:
        if load == "build":
            model = from_checkpoint(path, num_heads=3)
        else:
            load_checkpoint(model, path)
    call = "`keras_vit.preprocess_input(images, mode='imagenet')`"
    assert sum(call in str(warning.message) for warning in caught) == 1
    assert all(warning.filename == __file__ for warning in caught)
    report = model.load_report
    assert report.normalization == "imagenet"
    assert call in str(report)


def test_the_default_normalization_gives_no_note(tmp_path):
    mode = found(tmp_path, {"mean": [0.5] * 3, "std": [0.5] * 3})
    assert mode == "vit"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = from_checkpoint(tmp_path / "model.safetensors", num_heads=3)
    assert model.load_report.normalization == "vit"
    assert model.load_report.notes == ()
