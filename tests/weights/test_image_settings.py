"""The preprocessing that a checkpoint states, and its effect."""

import csv
import dataclasses
import io
import json
import pathlib
import shutil
import warnings

import keras
import numpy as np
import pytest
from safetensors.numpy import save_file

from keras_vit import (
    Preprocessing,
    VisionTransformer,
    from_checkpoint,
    load_checkpoint,
    preprocess_input,
    save_checkpoint,
)
from keras_vit.preprocessing import NORMALIZATIONS
from keras_vit.weights.containers import WEIGHTS, open_file
from keras_vit.weights.families import LAYOUTS
from keras_vit.weights.families.inference import Known
from keras_vit.weights.find import find
from keras_vit.weights.images import add_conditioner, guess_normalization
from keras_vit.weights.read import read_preprocessing
from tests.tiny import randomize, tiny_config, to_numpy

GOLDEN = pathlib.Path(__file__).parents[1] / "golden"
IMAGENET = {"mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}
HALVES = {"mean": [0.5] * 3, "std": [0.5] * 3}
HF_IMAGENET = {f"image_{key}": row for key, row in IMAGENET.items()}
HF_HALVES = {f"image_{key}": row for key, row in HALVES.items()}
SATELLITE = {"mean": [0.43, 0.411, 0.296], "std": [0.213, 0.156, 0.143]}
NEW = {"mean": [0.1, 0.2, 0.3], "std": [0.3, 0.2, 0.1]}
OF_NEW = ((0.1, 0.2, 0.3), (0.3, 0.2, 0.1))


def mode_of(*arguments, **choices):
    """Return the normalisation of a timm file with another JSON beside it."""
    settings = found(*arguments, **choices)
    return settings and settings.normalization


def found(
    folder, config=None, preprocessor=None, name="model", architecture=None
):
    """Return the preprocessing of such a file."""
    path = folder / f"{name}.safetensors"
    shutil.copyfile(GOLDEN / "timm_token.safetensors", path)
    if config is not None:
        (folder / "config.json").write_text(json.dumps(config))
    if preprocessor is not None:
        text = json.dumps(preprocessor)
        (folder / "preprocessor_config.json").write_text(text)
    with open_file(path) as checkpoint:
        known = Known(num_heads=3, architecture=architecture)
        return find(checkpoint, known).preprocessing


@pytest.mark.parametrize(
    ("config", "mode"),
    [
        ({}, None),
        (HALVES, "vit"),
        ({"preprocess_cfg": SATELLITE}, "satellite"),
        ({"pretrained_cfg": NEW}, OF_NEW),
        ({"mean": [0.481, 0.458, 0.408], "std": [0.269, 0.261, 0.276]}, "clip"),
        # The numbers go before the name.
        (
            {
                "architecture": "vit_base_patch16_224_miil",
                "pretrained_cfg": IMAGENET,
            },
            "imagenet",
        ),
        ({"architecture": "vit_base_patch16_224", "tag": "dino"}, "imagenet"),
        ({"architecture": "vit_base_patch16_224_miil.in21k"}, "zero_one"),
        ({"architecture": "vit_base_patch16_224.augreg_in21k"}, None),
    ],
)
def test_what_a_configuration_says(tmp_path, config, mode):
    assert mode_of(tmp_path, config) == mode


@pytest.mark.parametrize(
    ("config", "settings"),
    [
        (
            {"interpolation": "bicubic", "crop_pct": 0.9},
            Preprocessing("imagenet", "shortest", "bicubic", 0.9),
        ),
        (
            {"crop_pct": 0.95, "crop_mode": "squash"},
            Preprocessing("imagenet", "squash", "bicubic", 0.95),
        ),
        # OpenCLIP has no share: the short side is that of the model.
        (
            {"resize_mode": "squash"},
            Preprocessing("imagenet", "squash", "bicubic"),
        ),
        # What it cannot be has its default.
        (
            {"interpolation": "random", "crop_pct": 1.5},
            Preprocessing("imagenet", "shortest", "bicubic"),
        ),
    ],
)
def test_how_images_are_resized(tmp_path, config, settings):
    config = {"pretrained_cfg": {**IMAGENET, **config}}
    assert found(tmp_path, config) == settings


@pytest.mark.parametrize(
    "mean", [5, [], ["a"], [float("inf")] * 3, [True] * 3, [0.5] * 9]
)
def test_senseless_numbers_are_passed_over(tmp_path, mean):
    assert found(tmp_path, {"mean": mean, "std": [0.5] * 3}) is None
    assert found(tmp_path, {"mean": [0.5] * 3, "std": mean}) is None
    assert found(tmp_path, {"mean": [0.5] * 3, "std": [0.0] * 3}) is None


@pytest.mark.parametrize(
    ("preprocessor", "mode"),
    [
        (HF_IMAGENET, "imagenet"),
        ({"do_normalize": False, "image_mean": [0.5] * 3}, "zero_one"),
        ({"size": 224}, None),
        # The mean is one of pixels from 0 to 255, or from 0 to 2.
        (
            {"do_rescale": False, "image_mean": [127.5], "image_std": [127.5]},
            "vit",
        ),
        (
            {
                "rescale_factor": 2 / 255,
                "image_mean": [1.0] * 3,
                "image_std": [1.0] * 3,
            },
            "vit",
        ),
    ],
)
def test_what_a_preprocessor_of_hugging_face_says(tmp_path, preprocessor, mode):
    assert mode_of(tmp_path, None, preprocessor) == mode


@pytest.mark.parametrize(
    ("entries", "settings"),
    [
        (
            {"size": {"height": 32, "width": 32}, "resample": 3},
            {"interpolation": "bicubic"},
        ),
        (
            {"size": {"height": 32, "width": 32}, "resample": 4},
            {"interpolation": "area"},
        ),
        (
            {
                "size": {"shortest_edge": 37},
                "crop_size": {"height": 32, "width": 32},
                "do_center_crop": True,
            },
            {"resize_mode": "shortest", "crop_fraction": 32 / 37},
        ),
        (
            {"size": 40, "crop_size": 32, "do_center_crop": True},
            {"crop_fraction": 0.8},
        ),
        (
            {
                "size": 32,
                "crop_size": 32,
                "do_center_crop": True,
                "feature_extractor_type": "CLIPFeatureExtractor",
            },
            {"resize_mode": "shortest"},
        ),
        ({"size": 40, "crop_size": 32, "do_center_crop": False}, {}),
    ],
)
def test_how_a_preprocessor_of_hugging_face_resizes(
    tmp_path, entries, settings
):
    expected = Preprocessing("imagenet", **settings)
    stated = found(tmp_path, None, {**HF_IMAGENET, **entries})
    assert stated.crop_fraction == pytest.approx(expected.crop_fraction)
    assert stated == dataclasses.replace(
        expected, crop_fraction=stated.crop_fraction
    )


@pytest.mark.parametrize("crop, size", [(40, 53), (56, 101), (32, 37)])
def test_a_size_of_hugging_face_is_met_after_the_division(tmp_path, crop, size):
    """A quotient of sizes is rounded, and gives the same size back."""
    row = {"size": {"shortest_edge": size}, "do_center_crop": True}
    row["crop_size"] = {"height": crop, "width": crop}
    settings = found(tmp_path, None, {**HF_HALVES, **row})
    assert settings.uncropped_size((crop, crop)) == (size, size)


SENSELESS = [None, "x", -1, [1], {}, float("nan"), 10**400, True]


@pytest.mark.parametrize("value", SENSELESS, ids=repr)
def test_senseless_entries_have_their_defaults(tmp_path, value):
    row = {**HF_HALVES, "do_center_crop": True}
    for entry in ("rescale_factor", "resample", "size", "crop_size"):
        stated = found(tmp_path, None, {**row, entry: value})
        assert stated is None or stated.crop_fraction == 1
    (tmp_path / "preprocessor_config.json").unlink()
    for entry in ("interpolation", "crop_pct", "crop_mode", "resize_mode"):
        stated = found(tmp_path, {"pretrained_cfg": {**HALVES, entry: value}})
        assert stated.normalization == "vit"
        assert stated.interpolation == "bicubic"
    for entry in ("image_converter", "config", "scale"):
        content = {"scale": [1.0, 1.0], "offset": [0.0, 0.0, 0.0], entry: value}
        (tmp_path / "preprocessor.json").write_text(json.dumps(content))
        stated = found(tmp_path, {})
        assert stated is None or len(stated.mean) == 3


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"interpolation": "lanczos"}, "lanczos.*bilinear"),
        (
            {"crop_mode": "border", "interpolation": "bilinear"},
            "padded to a square",
        ),
        (
            {"resize_mode": "longest", "interpolation": "bilinear"},
            "padded to a square",
        ),
        ({"interpolation": "bilinear", "crop_pct": 1.14}, "cropped to 1.14"),
    ],
)
def test_what_cannot_be_done_is_a_warning(tmp_path, row, words):
    stated = found(tmp_path, {"pretrained_cfg": {**HALVES, **row}})
    assert stated == Preprocessing("vit", "shortest", "bilinear")
    path = tmp_path / "model.safetensors"
    with pytest.warns(UserWarning, match=words):
        assert read_preprocessing(path, num_heads=3) == stated
    with pytest.warns(UserWarning, match=words) as caught:
        [note] = from_checkpoint(path, num_heads=3).load_report.notes
    assert [str(warning.message) for warning in caught] == [note]


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"resample": 0}, "nearest.*bilinear"),
        ({"keep_aspect_ratio": True}, "ratio of their sides"),
        # As of SigLIP 2 (NaFlex).
        ({"max_num_patches": 256, "patch_size": 16}, "'max_num_patches'"),
        ({"do_resize": False}, "not resized"),
        (
            {"image_processor_type": "ConvNextImageProcessorFast"},
            "are for ConvNextImageProcessorFast",
        ),
        (
            {
                "size": {"height": 36, "width": 40},
                "do_center_crop": True,
                "crop_size": {"height": 32, "width": 32},
            },
            "another ratio of sides",
        ),
    ],
)
def test_what_of_a_processor_cannot_be_done(tmp_path, row, words):
    row = {**HF_HALVES, "resample": 2, **row}
    assert found(tmp_path, None, row).interpolation == "bilinear"
    with pytest.warns(UserWarning, match=words):
        read_preprocessing(tmp_path / "model.safetensors", num_heads=3)


def test_padding_of_keras_hub_is_a_warning(tmp_path):
    row = {"scale": 1 / 127.5, "offset": -1.0, "pad_to_aspect_ratio": True}
    row["crop_to_aspect_ratio"] = False
    (tmp_path / "preprocessor.json").write_text(json.dumps(row))
    assert found(tmp_path, {}) == Preprocessing("vit", "shortest", "bilinear")
    with pytest.warns(UserWarning, match="padded to a square"):
        read_preprocessing(tmp_path / "model.safetensors", num_heads=3)


def test_a_rectangle_and_the_short_side(tmp_path):
    """A processor of transformers has one number for the short side."""
    settings = Preprocessing("vit", "shortest", "bilinear", 0.875)
    config = tiny_config(image_size=(24, 48), preprocessing=settings)
    model = randomize(VisionTransformer(config))
    [note] = save_checkpoint(model, tmp_path / "hf", layout="huggingface")
    assert "until it covers 27x54" in note and "short side to 54" in note
    again = from_checkpoint(tmp_path / "hf").config
    assert again.preprocessing.uncropped_size(again.image_size) == (27, 54)
    square = dataclasses.replace(config, image_size=48)
    model = VisionTransformer(square)
    assert not save_checkpoint(model, tmp_path / "s", layout="huggingface")


@pytest.mark.parametrize("is_nested", [False, True])
def test_an_image_converter_of_keras_hub(tmp_path, is_nested):
    scale = [1 / 255 / s for s in IMAGENET["std"]]
    pairs = zip(IMAGENET["mean"], IMAGENET["std"])
    converter = {
        "config": {
            "scale": scale,
            "offset": [-mean / deviation for mean, deviation in pairs],
            "interpolation": "bicubic",
            "crop_to_aspect_ratio": False,
        }
    }
    row = {"config": {"image_converter": converter}} if is_nested else converter
    name = "preprocessor.json" if is_nested else "image_converter.json"
    (tmp_path / name).write_text(json.dumps(row))
    expected = Preprocessing("imagenet", "squash", "bicubic")
    assert found(tmp_path) == expected


@pytest.mark.parametrize(
    ("converter", "mode"),
    [
        ({"scale": 1 / 255}, "zero_one"),
        ({"scale": 1 / 255, "offset": None, "norm_mean": None}, "zero_one"),
        ({"scale": 1 / 127.5, "offset": -1}, "vit"),
        (
            {
                "scale": 1 / 255,
                "norm_mean": IMAGENET["mean"],
                "norm_std": IMAGENET["std"],
            },
            "imagenet",
        ),
    ],
)
def test_what_a_converter_of_keras_hub_leaves_out(tmp_path, converter, mode):
    """An offset of None is none, as its own `ImageConverter` computes."""
    text = json.dumps({"config": converter})
    (tmp_path / "image_converter.json").write_text(text)
    assert mode_of(tmp_path) == mode


@pytest.mark.parametrize(
    ("row", "settings"),
    [
        ({}, Preprocessing("clip", "shortest", "bicubic")),
        (
            {"mean": 0.5, "std": 0.5, "resize_mode": "squash"},
            Preprocessing("vit", "squash", "bicubic"),
        ),
        (
            {"mean": None, "interpolation": "bilinear"},
            Preprocessing("clip", "shortest", "bilinear"),
        ),
    ],
)
def test_what_open_clip_does_unless_its_file_says_otherwise(
    tmp_path, row, settings
):
    config = {"model_cfg": {}, "preprocess_cfg": row}
    assert found(tmp_path, config) == settings


def test_one_number_of_a_processor_is_for_all_channels(tmp_path):
    row = {"image_mean": 0.5, "image_std": 0.5}
    assert mode_of(tmp_path, None, row) == "vit"


def test_the_name_of_a_file_shows_it(tmp_path):
    assert mode_of(tmp_path, name="deit_small_patch16_224") == "imagenet"
    assert mode_of(tmp_path, name="vit_base_patch16_siglip_224") is None


@pytest.mark.parametrize(
    ("config", "mode"),
    [
        (None, "imagenet"),
        ({"architecture": "vit_base_patch16_clip_224.openai"}, "imagenet"),
        ({"pretrained_cfg": NEW}, OF_NEW),
    ],
)
def test_the_architecture_that_the_caller_names_shows_it(
    tmp_path, config, mode
):
    """In place of that in the JSON, after the numbers there."""
    name = "vit_base_patch16_224.mae"
    assert mode_of(tmp_path, config, architecture=name) == mode


@pytest.mark.parametrize(
    ("file", "layout"), [("model.npz", "official"), (WEIGHTS, "timm")]
)
def test_what_this_package_wrote_goes_before_the_json_files(
    tmp_path, file, layout
):
    """A model adapted to other images, saved into the folder of its source."""
    found(tmp_path, {"pretrained_cfg": IMAGENET}, HF_IMAGENET)
    config = tiny_config(activation="exact")
    model = randomize(VisionTransformer(config))
    save_checkpoint(model, tmp_path / file, layout)
    model = from_checkpoint(tmp_path / file)
    assert model.config.preprocessing == Preprocessing("vit")


def released():
    """Yield the rows of the released weights of timm's ViT modules."""
    table = (GOLDEN / "timm_preprocessing.tsv").read_text()
    return list(csv.DictReader(io.StringIO(table), delimiter="\t"))


def test_no_released_model_is_taken_for_another():
    """By its name alone, in the three ways in which files have it."""
    rows = released()
    assert len(rows) == 463
    for row in rows:
        name, mode = row["tag"], row["normalization"]
        for names in (
            name.split("."),
            [name, "model.safetensors"],
            [f"{name}.safetensors"],
        ):
            found = guess_normalization(names)
            assert found == mode or (found, mode) == (None, "vit"), names


@pytest.mark.parametrize("mode", NORMALIZATIONS)
def test_what_timm_states_of_released_models_is_read(tmp_path, mode):
    pairs = Preprocessing(mode).for_channels(3)
    stated = {
        tuple(row[key] for key in ("interpolation", "crop_pct", "crop_mode"))
        for row in released()
        if row["normalization"] == mode
    }
    for interpolation, crop_pct, crop_mode in sorted(stated):
        config = {
            **dict(zip(("mean", "std"), pairs)),
            "interpolation": interpolation,
            "crop_pct": float(crop_pct),
            "crop_mode": crop_mode,
        }
        settings = found(tmp_path, {"pretrained_cfg": config})
        resize_mode = {"center": "shortest"}.get(crop_mode, crop_mode)
        assert settings == Preprocessing(
            mode, resize_mode, interpolation, float(crop_pct)
        )


def load_quietly(path, **choices):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return from_checkpoint(path, num_heads=3, **choices)


def test_a_note_tells_the_call_that_other_images_need(tmp_path):
    """For a new model, and for one of other images."""
    plain = load_quietly(GOLDEN / "timm_token.safetensors")
    assert mode_of(tmp_path, {"pretrained_cfg": IMAGENET}) == "imagenet"
    path = tmp_path / "model.safetensors"
    with pytest.warns(UserWarning) as caught:
        model = from_checkpoint(path, num_heads=3)
    call = "`keras_vit.preprocess_input(images, model=model)`"
    assert sum(call in str(warning.message) for warning in caught) == 1
    assert all(warning.filename == __file__ for warning in caught)
    assert model.load_report.preprocessing.normalization == "imagenet"
    before = to_numpy(plain.get_layer("patch_encoder").kernel)
    with pytest.warns(UserWarning, match="mode='imagenet'"):
        load_checkpoint(plain, path)
    # Its weights are those of the file nevertheless.
    after = to_numpy(plain.get_layer("patch_encoder").kernel)
    np.testing.assert_array_equal(before, after)
    # The default needs none; warnings are errors.
    found(tmp_path, HALVES)
    assert from_checkpoint(path, num_heads=3).load_report.notes == ()


# Mean and deviation; see `vit_families`.
KINDS = {
    "imagenet": (IMAGENET["mean"], IMAGENET["std"]),
    "zero_one": ([0.0] * 3, [1.0] * 3),
    "another": (NEW["mean"], NEW["std"]),
}


@pytest.fixture
def photos():
    return np.random.default_rng(1).integers(0, 256, (2, 32, 32, 3), "uint8")


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_reads_what_its_source_read(tmp_path, photos, kind):
    """From the file into the model, through Keras' format, to the pixels."""
    mean, deviation = KINDS[kind]
    found(tmp_path, {"pretrained_cfg": {"mean": mean, "std": deviation}})
    model = load_quietly(tmp_path / "model.safetensors")
    model.save(tmp_path / "again.keras")
    again = keras.saving.load_model(tmp_path / "again.keras", compile=False)
    assert again.config == model.config
    expected = (photos / 255 - mean) / np.array(deviation)
    np.testing.assert_allclose(
        preprocess_input(photos, "channels_last", model=again),
        expected,
        atol=1e-5,
    )


@pytest.mark.parametrize(
    ("kind", "channels"),
    [("imagenet", 3), ("zero_one", 3), ("imagenet", 1), ("another", 1)],
)
def test_other_images_for_the_same_answer(tmp_path, photos, kind, channels):
    """The first layer is adapted where another normalisation is chosen."""
    mean, deviation = KINDS[kind]
    found(tmp_path, {"pretrained_cfg": {"mean": mean, "std": deviation}})
    path = tmp_path / "model.safetensors"
    model = load_quietly(path)
    grey = photos[..., :channels]
    photos = np.broadcast_to(grey, photos.shape)
    expected = model(preprocess_input(photos, "channels_last", model=model))
    choices = {"preprocessing": "vit"} if channels == 3 else {"channels": 1}
    adapted = from_checkpoint(path, num_heads=3, **choices)
    assert adapted.config.preprocessing.normalization == "vit"
    assert "normalisation" in str(adapted.load_report)
    answer = adapted(preprocess_input(grey, "channels_last", model=adapted))
    np.testing.assert_allclose(to_numpy(answer), to_numpy(expected), atol=2e-5)


def test_a_model_that_cannot_be_adapted_says_so(tmp_path):
    """Without a bias of the patches, nothing can add a constant."""
    config = tiny_config(
        use_patch_bias=False, use_embedding_norm=True, activation="exact"
    )
    path = tmp_path / "dino"
    model = randomize(VisionTransformer(config))
    save_checkpoint(model, path, layout="timm")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        stated = from_checkpoint(path).config.preprocessing
    # What this package wrote says more than the name of the file.
    assert stated.normalization == "vit"
    with pytest.warns(UserWarning, match="mode='vit'.*or build"):
        model = from_checkpoint(path, preprocessing="imagenet")
    assert model.config.preprocessing.normalization == "imagenet"


def test_images_of_one_channel_without_a_bias_of_the_patches(tmp_path, photos):
    """The patches get the bias that the normalisation needs."""
    config = tiny_config(
        use_patch_bias=False, use_embedding_norm=True, preprocessing="clip"
    )
    path = tmp_path / "clip"
    save_checkpoint(randomize(VisionTransformer(config)), path, layout="timm")
    with pytest.warns(UserWarning, match="preprocess_input"):
        model = from_checkpoint(path, activation="exact")
    grey = photos[..., :1]
    triple = np.repeat(grey, 3, -1)
    adapted = from_checkpoint(path, activation="exact", channels=1)
    np.testing.assert_allclose(
        to_numpy(adapted(preprocess_input(grey, model=adapted))),
        to_numpy(model(preprocess_input(triple, model=model))),
        atol=2e-5,
    )


def test_the_advice_for_a_stem_and_images_of_one_channel_can_be_followed(
    tmp_path, photos
):
    config = tiny_config(stem_stages=(1,), preprocessing="imagenet")
    path = tmp_path / "hybrid.npz"
    save_checkpoint(randomize(VisionTransformer(config)), path)
    with pytest.warns(UserWarning, match="preprocess_input.images, model=mod"):
        model = from_checkpoint(path, channels=1)
    [[mean], [deviation]] = model.config.preprocessing.mean_and_deviation
    assert mean == pytest.approx(np.mean(IMAGENET["mean"]))
    assert deviation == pytest.approx(np.mean(IMAGENET["std"]))
    preprocess_input(photos[..., :1], model=model)


def write_bands(folder, channels, cfg):
    """Write a model of some channels with timm's JSON beside it."""
    config = tiny_config(channels=channels)
    path = folder / "bands.safetensors"
    save_file(
        {
            part.name: np.ones(part.shape_in_file(3), "float32")
            for row in LAYOUTS["timm"].names(config).values()
            for part in row
        },
        path,
    )
    cfg = {"architecture": "vit_base_patch16_224", "pretrained_cfg": cfg}
    cfg["model_args"] = {"num_heads": 3, "embed_dim": 24}
    (folder / "config.json").write_text(json.dumps(cfg))
    return path


@pytest.mark.parametrize("channels", [2, 224])
def test_a_mean_and_a_deviation_of_each_band(tmp_path, channels):
    mean = list(0.1 + 0.003 * np.arange(channels))
    deviation = list(0.2 + 0.001 * np.arange(channels))
    path = write_bands(tmp_path, channels, {"mean": mean, "std": deviation})
    with pytest.warns(UserWarning, match="preprocess_input"):
        model = from_checkpoint(path)
    shape = (1, 32, 32, channels)
    pixels = np.random.default_rng(0).integers(0, 256, shape, "uint8")
    np.testing.assert_allclose(
        preprocess_input(pixels, model=model),
        (pixels / 255 - mean) / deviation,
        atol=1e-5,
    )


@pytest.mark.parametrize("channels", [1, 12])
def test_three_means_for_other_channels_are_averaged(tmp_path, channels):
    row = {**IMAGENET, "interpolation": "bicubic", "crop_pct": 0.9}
    path = write_bands(tmp_path, channels, row)
    with pytest.warns(UserWarning, match="averages|preprocess_input"):
        settings = from_checkpoint(path).config.preprocessing
    assert settings.mean == (pytest.approx(0.449),)
    assert settings.deviation == (pytest.approx(0.226),)
    assert (settings.interpolation, settings.crop_fraction) == ("bicubic", 0.9)


def test_the_name_of_an_official_file_says_nothing(tmp_path):
    path = tmp_path / "like_dino.npz"
    shutil.copyfile(GOLDEN / "official_token.npz", path)
    model = from_checkpoint(path)
    assert model.load_report.preprocessing == Preprocessing()


SETTINGS = (
    Preprocessing("clip", "squash", "bicubic"),
    Preprocessing("imagenet", "squash", "bilinear", 0.8),
    Preprocessing(OF_NEW, "shortest", "bicubic", 0.875),
    Preprocessing("imagenet", pixel_range=(0, 4095)),
    Preprocessing("imagenet", "shortest", "area", 0.875),
)


@pytest.mark.parametrize("layout", ["timm", "huggingface", "official"])
@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_settings_are_written_and_read_again(tmp_path, layout, settings):
    path = GOLDEN / "timm_token.safetensors"
    model = load_quietly(path, preprocessing=settings)
    target = tmp_path / ("a.npz" if layout == "official" else "folder")
    notes = save_checkpoint(model, target, layout=layout)
    # Others do not find it in a file of arrays alone.
    assert any("deviation" in note for note in notes) == (layout == "official")
    again = load_quietly(target).config.preprocessing
    # Hugging Face states sizes instead of their share.
    size = settings.uncropped_size((32, 32))
    assert again.uncropped_size((32, 32)) == size
    share = again.crop_fraction if layout == "huggingface" else None
    assert again == dataclasses.replace(
        settings, crop_fraction=share or settings.crop_fraction
    )


@pytest.mark.parametrize(
    "before, expected",
    [
        # Pixels from 0 to 1 are normalised once.
        (None, ([0.25, 0.5, 0.75], [0.5, 0.25, 0.125])),
        # (x - 0.5) / 0.5 - m is (x - 0.5 - 0.5 m) / 0.5.
        (
            Preprocessing("vit", "shortest"),
            ([0.625, 0.75, 0.875], [0.25, 0.125, 0.0625]),
        ),
    ],
)
def test_the_normalisation_inside_a_model_follows_that_of_images(
    before, expected
):
    mean = np.float32([0.25, 0.5, 0.75]).reshape(3, 1, 1)
    deviation = np.float32([0.5, 0.25, 0.125]).reshape(3, 1, 1)
    after = add_conditioner(before, mean, deviation)
    assert (list(after.mean), list(after.deviation)) == expected
    assert after.resize_mode == (before or after).resize_mode
    four = add_conditioner(None, np.full(4, 0.5), np.full(4, 0.5))
    assert four.mean == four.deviation == (0.5,) * 4
    assert add_conditioner(before, None, None) is before
    with pytest.raises(ValueError, match="lacks the mean or deviation"):
        add_conditioner(before, mean, None)
