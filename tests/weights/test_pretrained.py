"""The tables of published checkpoints, and `weights=` of the builders."""

import math
import shutil
import urllib.parse

import keras
import numpy as np
import pytest
from safetensors.numpy import load_file

from keras_vit import HUB_MODELS, PRETRAINED, VARIANTS, ViT_Ti16
from keras_vit.applications import find_weights
from keras_vit.layers.resize import resize_positions
from keras_vit.weights import from_checkpoint
from keras_vit.weights.families.family import shapes_of
from keras_vit.weights.hub import find_pretrained
from tests.tiny import noise, to_numpy
from tests.weights.cases import TIMM, answer_of, expected_of, path_of

# --------------------------------------------------------- what was published

# File and MiB, as the README and the notebooks of
# google-research/vision_transformer list them, "-" where they list no size.
# The last digit is a unit. SAM's S/16 is listed with an optimizer, thrice its
# size. big_vision's files are of its own README.
PUBLISHED = """
imagenet21k/ViT-B_8 393.72
imagenet21k/ViT-B_16 393.69
imagenet21k/ViT-B_32 400.01
imagenet21k/ViT-L_16 1.22G
imagenet21k/ViT-L_32 1.23G
imagenet21k/ViT-H_14 2.46G
imagenet21k/R50+ViT-B_16 439.85
imagenet21k/R26+ViT-B_32 450.23
imagenet21k/R50+ViT-L_32 1.31G
imagenet21k+imagenet2012/ViT-B_8 334.78
imagenet21k+imagenet2012/ViT-B_16 331.4
imagenet21k+imagenet2012/ViT-B_16-224 330.29
imagenet21k+imagenet2012/ViT-B_32 336.89
imagenet21k+imagenet2012/ViT-L_16 -
imagenet21k+imagenet2012/ViT-L_16-224 -
imagenet21k+imagenet2012/ViT-L_32 -
imagenet21k+imagenet2012/R50+ViT-B_16 377.57
sam/ViT-S_16 84.19
sam/ViT-B_16 330.3
sam/ViT-B_32 336.61
sam/ViT-L_16 -
sam/ViT-L_32 -
"""
# The table "available ViT models" of the same README: variant, model in the
# name of the file, pre-training, fine-tuning on ImageNet, MiB of the first.
RECOMMENDED = """
L/16 L_16 strong1-wd_0.1-do_0.0-sd_0.0 lr_0.01-res_384 1243
B/16 B_16 medium1-wd_0.1-do_0.0-sd_0.0 lr_0.03-res_384 391
S/16 S_16 light1-wd_0.03-do_0.0-sd_0.0 lr_0.03-res_384 115
R50+L/32 R50_L_32 medium1-wd_0.1-do_0.1-sd_0.1 lr_0.01-res_384 1337
R26+S/32 R26_S_32 light1-wd_0.1-do_0.0-sd_0.0 lr_0.01-res_384 170
Ti/16 Ti_16 none-wd_0.03-do_0.0-sd_0.0 lr_0.03-res_384 37
B/32 B_32 light1-wd_0.1-do_0.0-sd_0.0 lr_0.01-res_384 398
S/32 S_32 none-wd_0.1-do_0.0-sd_0.0 lr_0.01-res_384 118
R+Ti/16 R_Ti_16 none-wd_0.03-do_0.0-sd_0.0 lr_0.03-res_384 40
B/8 B_8 medium2-wd_0.1-do_0.0-sd_0.0 lr_0.03-res_224 -
"""
FILES = {
    f"vit_models/{file}.npz": size
    for file, size in map(str.split, PUBLISHED.strip().splitlines())
}
FILES |= {f"big_vision/vit_s16_i1k_{n}ep.npz": "-" for n in (90, 150, 300)}
NAMES_OF_AUGREG = {}
for row in RECOMMENDED.strip().splitlines():
    variant, stem, before, after, mebibytes = row.split()
    before = f"{stem}-i21k-300ep-lr_0.001-aug_{before}"
    after = f"{before}--imagenet2012-steps_20k-{after}"
    NAMES_OF_AUGREG |= {f"{variant}-augreg": before}
    NAMES_OF_AUGREG |= {f"{variant}-augreg-i1k": after}
    FILES[f"vit_models/augreg/{before}.npz"] = mebibytes
    FILES[f"vit_models/augreg/{after}.npz"] = "-"


def num_parameters(config):
    return sum(map(math.prod, shapes_of(config).values()))


@pytest.fixture(autouse=True)
def without_a_mirror(monkeypatch):
    monkeypatch.delenv("KERAS_VIT_MIRROR", raising=False)


def test_the_table_is_what_was_published():
    paths = []
    for row in PRETRAINED.values():
        url = urllib.parse.urlparse(row.url)
        assert (url.scheme, url.netloc) == ("https", "storage.googleapis.com")
        # A plus in a path is itself: only in a query it would be a blank.
        paths.append(url.path.lstrip("/"))
    assert len(paths) == 45 and set(paths) == set(FILES)


@pytest.mark.parametrize(
    "name", [n for n, row in PRETRAINED.items() if FILES[row.file] != "-"]
)
def test_a_configuration_has_the_published_size(name):
    row = PRETRAINED[name]
    listed = FILES[row.file]
    scale = 1024 if listed.endswith("G") else 1
    unit = scale * 10.0 ** -len(listed.rstrip("G").partition(".")[2])
    size = scale * float(listed.rstrip("G"))
    # An .npz has up to 0.11 MiB of names beside the numbers.
    found = 4 * num_parameters(row.config) / 2**20
    assert size - unit / 2 - 0.11 <= found <= size + unit / 2


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("B/16-i21k", 103_186_515),
        ("H/14-i21k", 660_385_363),
        # VARIANTS is checked against the numbers of the official tests.
        ("B/16-i21k+i1k-224", 86_567_656),
        ("L/16-i21k+i1k-224", 304_326_632),
        ("L/32-sam", 306_535_400),
        # S/16-gap, less 196 positions, and a layer of 384 x 384.
        ("S/16-i1k-90ep", 22_049_896 - 196 * 384 + 384 * 385),
    ],
)
def test_a_configuration_has_the_published_number_of_parameters(name, count):
    assert num_parameters(PRETRAINED[name].config) == count


@pytest.mark.parametrize("name", PRETRAINED)
def test_a_name_tells_the_variant_and_the_training(name):
    config = PRETRAINED[name].config
    variant, tag = name.split("-", 1)
    assert find_weights(tag, variant) == name
    assert find_pretrained(name) is PRETRAINED[name]
    on_21k = tag in ("i21k", "augreg")
    assert config.num_classes == (21_843 if on_21k else 1000)
    large = tag in ("i21k+i1k", "augreg-i1k") and name != "B/8-augreg-i1k"
    assert config.image_size == ((384, 384) if large else (224, 224))
    # Only the ImageNet-21k models of 2020 and big_vision's have a layer
    # before the head.
    has_layer = tag == "i21k" or tag.endswith("ep")
    assert config.representation_size == (config.width if has_layer else None)
    assert config.activation == "tanh"


@pytest.mark.parametrize("nickname", NAMES_OF_AUGREG)
def test_the_recommended_models_of_augreg(nickname):
    name = NAMES_OF_AUGREG[nickname]
    assert PRETRAINED[nickname] == find_pretrained(name)
    assert PRETRAINED[nickname].file == f"vit_models/augreg/{name}.npz"


AUGREG = "Ti_16-i21k-300ep-lr_0.001-aug_none-wd_0.03-do_0.0-sd_0.0"


@pytest.mark.parametrize(
    ("name", "variant", "classes", "size"),
    [
        (AUGREG, "Ti/16", 21_843, 224),
        (AUGREG.replace("i21k", "i1k"), "Ti/16", 1000, 224),
        (
            "R50_L_32-i1k-300ep-lr_0.001-aug_light0-wd_0.03-do_0.1-sd_0.1"
            "--cifar100-steps_2k-lr_0.003-res_224",
            "R50+L/32",
            100,
            224,
        ),
        (
            "B_8-i21k-30ep-lr_1e-05-aug_strong2-wd_0.0-do_0.0-sd_0.0"
            "--kitti-steps_0k-lr_0.01-res_384",
            "B/8",
            4,
            384,
        ),
    ],
)
def test_a_name_of_augreg(name, variant, classes, size):
    row = find_pretrained(name)
    assert row.file == f"vit_models/augreg/{name}.npz"
    assert row.config.stem_stages == VARIANTS[variant].config.stem_stages
    assert row.config.width == VARIANTS[variant].config.width
    assert row.config.num_classes == classes
    assert row.config.image_size == (size, size)


@pytest.mark.parametrize(
    "name",
    [
        "b/16-i21k",
        f"{AUGREG}.npz",
        f"{AUGREG}\n",
        AUGREG.replace("Ti_16", "H_14"),
        AUGREG.replace("none", "light2"),
        f"{AUGREG}--imagenet2012-steps_20k-lr_0.03",
    ],
)
def test_another_name_is_not_known(name):
    assert find_pretrained(name) is None


# ------------------------------------------------------- `weights=` of builders

# The sizes of the golden files; they have the 3 heads of Ti/16.
TINY = {"width": 24, "depth": 2, "mlp_dim": 48, "patch_size": 8}


@pytest.fixture
def timm(tmp_path):
    """Return a timm file with 7 classes, without the JSON beside it."""
    return shutil.copyfile(path_of(TIMM), tmp_path / "model.safetensors")


def tiny(weights, **arguments):
    return ViT_Ti16(
        weights=weights,
        **{"classes": 7, "classifier_activation": None, **TINY, **arguments},
    )


def assert_answers(model, expected, x=None, atol=1e-5):
    answers = to_numpy(model(expected_of(TIMM)["x"] if x is None else x))
    assert answers.shape == expected.shape
    np.testing.assert_allclose(answers, expected, rtol=0, atol=atol)


@pytest.mark.parametrize(
    ("weights", "variant", "name"),
    [
        ("dinov3", "B/16", "B/16-dinov3"),
        ("B/16-dinov3", "B/16", "B/16-dinov3"),
        ("hf://owner/model", "B/16", "hf://owner/model"),
        ("timm/model", "B/16", "timm/model"),
        ("gs://bucket/model.npz", "B/16", "gs://bucket/model.npz"),
        (AUGREG, "Ti/16", AUGREG),
    ],
)
def test_what_weights_may_name(weights, variant, name):
    assert find_weights(weights, variant) == name


def test_a_model_of_another_variant_is_an_error_before_it_is_fetched():
    assert "B/16-dinov3" in HUB_MODELS
    with pytest.raises(ValueError, match="pretrained B/32: .*'clip-openai'"):
        find_weights("B/16-dinov3", "B/32")
    with pytest.raises(ValueError, match="B/16-sam is not a B/32: .*patch_s"):
        find_weights("B/16-sam", "B/32")


@pytest.mark.parametrize("name", ["augreg", "S/16-augreg"])
def test_a_folder_without_weights_is_no_checkpoint(name, tmp_path, monkeypatch):
    """A folder of logs may be called like a pretrained model."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / name / "logs").mkdir(parents=True)
    (tmp_path / name / "notes.txt").write_text("x")
    assert find_weights(name, "S/16") == "S/16-augreg"
    (tmp_path / name / "model.safetensors").touch()
    assert find_weights(name, "S/16") == name


def test_what_is_not_chosen_is_that_of_the_checkpoint(timm):
    for path in (timm, str(timm)):
        model = tiny(path)
        assert model.name == "vit_ti16"
        assert model.config.activation == "exact"
        assert model.config.image_size == (32, 32)
        assert model.load_report.layout == "timm"
        assert model.load_report.reset == model.load_report.ignored == ()
        assert_answers(model, answer_of(TIMM))


@pytest.mark.parametrize(
    "name",
    [
        "official_pre_logits.npz",
        "timm_avg.safetensors",
        "timm_rect.safetensors",
    ],
)
def test_layers_and_sizes_are_those_of_the_checkpoint(name, tmp_path):
    """Also the rectangle, which the input tells where the file does not."""
    path, x = path_of(name), expected_of(name)["x"]
    shape = None
    if "rect" in name:
        path = shutil.copyfile(path, tmp_path / "model.safetensors")
        shape = x.shape[1:]
    model = tiny(path, input_shape=shape)
    assert model.load_report.resized == ()
    assert_answers(model, answer_of(name), x)


def test_activation_and_type_are_those_of_the_builder(timm):
    scores = np.exp(answer_of(TIMM))
    scores /= scores.sum(axis=1, keepdims=True)
    assert_answers(ViT_Ti16(weights=timm, classes=7, **TINY), scores)
    model = tiny(timm, dtype="mixed_bfloat16")
    assert model.get_layer("block_00").compute_dtype == "bfloat16"
    assert_answers(model, answer_of(TIMM), atol=0.1)


def test_a_default_of_1000_classes_is_warned_of_in_the_callers_line(timm):
    with pytest.warns(
        UserWarning, match="ViT_Ti16 is new.*`classes`"
    ) as caught:
        model = ViT_Ti16(weights=timm, **TINY)
    (warning,) = caught
    assert str(timm) in str(warning.message)
    assert warning.filename == __file__
    assert model.output_shape == (None, 1000)
    kernel, bias = model.get_layer("predictions").get_weights()
    assert not kernel.any() and not bias.any()


def test_other_classes_are_a_choice(timm):
    model = tiny(timm, classes=10)
    assert model.load_report.reset == ("predictions/kernel", "predictions/bias")
    assert_answers(model, np.zeros((2, 10), "float32"))
    encoder = keras.Model(model.input, model.get_layer("encoder_norm").output)
    assert_answers(encoder, expected_of(TIMM)["tokens"])


@pytest.mark.parametrize(
    ("pooling", "pool"),
    [
        (None, lambda tokens: tokens),
        ("token", lambda tokens: tokens[:, 0]),
        ("avg", lambda tokens: tokens[:, 1:].mean(axis=1)),
    ],
)
def test_features_of_a_checkpoint_with_a_head(timm, pooling, pool):
    # 1000 classes, the default, is no choice without a classifier.
    model = ViT_Ti16(include_top=False, pooling=pooling, weights=timm, **TINY)
    assert_answers(model, pool(expected_of(TIMM)["tokens"]))
    assert set(model.load_report.ignored) == {"head.weight", "head.bias"}


def test_what_is_chosen_is_noted_without_a_warning(timm):
    model = tiny(timm, pooling="avg", activation="tanh", num_heads=6)
    assert model.config.num_heads == 6  # timm does not store it.
    first, second = model.load_report.notes
    assert "activation='exact', the model with activation='tanh'" in first
    assert "pooling='token', the model with pooling='avg'" in second


def test_positions_are_resized_to_the_input(timm):
    model = tiny(timm, input_shape=(48, 32, 3))
    assert model.config.image_size == (48, 32)
    table = load_file(timm)["pos_embed"][0]
    expected = resize_positions(table, (4, 4), (6, 4), "bicubic_antialias")
    (table,) = model.get_layer("position_embedding").get_weights()
    np.testing.assert_allclose(table, expected, atol=1e-6)
    (line,) = model.load_report.resized
    assert "4x4 patches to 6x4 (bicubic_antialias)" in line


def test_an_open_input_accepts_the_size_of_the_file_and_others(timm):
    model = tiny(timm, input_shape=(None, None, 3))
    assert model.input_shape == (None, None, None, 3)
    assert_answers(model, answer_of(TIMM))
    # The model resizes the positions in each call, by the rule of timm.
    fixed = from_checkpoint(timm, image_size=(48, 32), num_heads=3)
    x = noise(1, 48, 32, 3)
    assert_answers(model, to_numpy(fixed(x)), x)


def test_an_input_tensor_takes_the_weights(timm):
    x = keras.layers.Conv2D(3, 1, name="before")(keras.Input((32, 32, 3)))
    model = tiny(timm, input_tensor=x)
    model.get_layer("before").set_weights(
        [np.eye(3, dtype="float32")[None, None], np.zeros(3, "float32")]
    )
    assert_answers(model, answer_of(TIMM))
    assert model.load_report.layout == "timm"


def test_another_variant_is_an_error_that_names_the_differences(timm):
    with pytest.raises(ValueError) as error:
        ViT_Ti16(weights=timm, classes=7)
    for words in (
        f"`weights`: {timm} is not a ViT_Ti16: it has width=24 and not 192",
        "depth=2 and not 12, mlp_dim=48 and not 768, patch_size=8 and not 16",
    ):
        assert words in str(error.value)
    # All that is said of Ti/16 and its hybrid is the same but for the stem.
    with pytest.raises(ValueError, match=r"stem_stages=\(\) and not None"):
        tiny(path_of("official_hybrid_root_only.npz"))
    with pytest.raises(ValueError, match="num_heads=3 and not 4"):
        tiny(path_of("official_token.npz"), num_heads=4)
