"""Writing checkpoints: whole, as asked for, and refused with a reason."""

import dataclasses
import itertools
import json
import logging
import os
import pathlib

import keras
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from keras_vit import VisionTransformer, from_checkpoint, save_checkpoint
from keras_vit.files import atomic_write
from keras_vit.preprocessing.description import Preprocessing
from keras_vit.weights import write
from keras_vit.weights.containers import open_file
from tests.tiny import (
    LATER_KINDS,
    make,
    noise,
    randomize,
    tiny_config,
    to_numpy,
)
from tests.weights.cases import TOKEN, path_of

ENDINGS = {
    "official": ".npz",
    "big_vision": ".npz",
    "timm": ".safetensors",
    "huggingface": "",
}


@pytest.fixture(scope="module")
def model():
    """Return a plain model, which must not be changed."""
    return make()


def names_in(path):
    with open_file(path) as checkpoint:
        return set(checkpoint.arrays)


def assert_same_answers(model, other, size=(32, 32), atol=1e-6):
    x = noise(2, *size, 3)
    answers = (to_numpy(each(x)) for each in (model, other))
    np.testing.assert_allclose(*answers, rtol=0, atol=atol)


@pytest.mark.parametrize("layout", ENDINGS)
def test_files_are_whole_and_equal_for_equal_models(layout, model, tmp_path):
    """And other libraries read them without a pickle."""
    one, two = (tmp_path / f"{name}{ENDINGS[layout]}" for name in "ab")
    save_checkpoint(model, one, layout=layout)
    save_checkpoint(make(), two, layout=layout)
    files = [[one], [two]] if one.is_file() else [one.iterdir(), two.iterdir()]
    for first, second in zip(*map(sorted, files), strict=True):
        assert first.read_bytes() == second.read_bytes()
    if one.suffix == ".npz":
        with np.load(one, allow_pickle=False) as file:
            sizes = [file[name].size for name in file.files]
    else:
        file = one / "model.safetensors" if one.is_dir() else one
        sizes = [array.size for array in load_file(file).values()]
    folded = model.config.width if layout == "big_vision" else 0
    assert sum(sizes) == model.count_params() - folded


@pytest.mark.parametrize("layout", ENDINGS)
def test_a_failure_leaves_what_was_there(layout, model, tmp_path, monkeypatch):
    path = tmp_path / f"model{ENDINGS[layout]}"
    save_checkpoint(model, path, layout=layout)
    files = [path] if path.is_file() else sorted(path.iterdir())
    before = [file.read_bytes() for file in files]

    compute, count = write._make, itertools.count()

    def break_off(*arguments):
        places = tmp_path.rglob("*")
        if any(".draft-" in str(p) and p.is_file() for p in places):
            if next(count) == 5:
                raise OSError("no space left on device")
        return compute(*arguments)

    monkeypatch.setattr(write, "_make", break_off)
    with pytest.raises(OSError, match="no space"):
        save_checkpoint(make(depth=1), path, layout=layout)
    assert [file.read_bytes() for file in files] == before
    assert list(tmp_path.iterdir()) == [path]


def test_a_new_file_can_be_read_by_others(tmp_path):
    old = os.umask(0o022)
    try:
        with atomic_write(tmp_path / "folder" / "new") as draft:
            draft.write_text("done")
    finally:
        os.umask(old)
    path = tmp_path / "folder" / "new"
    assert path.read_text() == "done"
    assert path.stat().st_mode & 0o777 == 0o644


AXIAL = {"rotary_positions": "axial", "activation": "exact"}
BEIT = {**LATER_KINDS["beit"], "activation": "exact"}
CLIP = LATER_KINDS["clip"]
GATED = {"use_gated_mlp": True, "activation": "silu"}
MAP = {"pooling": "map", "use_class_token": False, "activation": "silu"}


@pytest.mark.parametrize(
    ("choices", "layout", "reason"),
    [
        ({"pooling": "avg"}, "official", "excludes a class token"),
        ({"pooling": "max"}, "official", "pooling='max'"),
        ({"use_pooling_norm": True}, "official", "pooling_norm"),
        ({"pooling": "map"}, "big_vision", "'map' excludes a class token"),
        ({"stem_stages": (1,), "patch_size": 1}, "big_vision", "stem"),
        ({"representation_size": 8}, "timm", "representation_size"),
        ({"pooling": "probe"}, "timm", "pooling='probe'"),
        ({"pooling": "none"}, "huggingface", "pooling='none'"),
        ({"pooling": "avg"}, "huggingface", "pooling"),
        ({"representation_size": 8}, "huggingface", "as the pooler"),
        ({"num_registers": 4}, "official", "registers"),
        ({"activation": "quick"}, "official", "has no activation='quick'"),
        ({"activation": "elu"}, "huggingface", "activation='elu'"),
        ({"qk_norm": "width"}, "timm", "qk_norm='width'"),
        ({**AXIAL, "activation": "relu"}, "timm", "activation"),
        ({**BEIT, "activation": "tanh"}, "timm", "activation"),
        ({**BEIT, "pooling": "map"}, "timm", "pooling='map'"),
        ({**BEIT, "use_class_token": False}, "timm", "class token"),
        ({**BEIT, "qkv_bias": "all"}, "timm", "qkv_bias='all'"),
        ({**AXIAL, "use_block_bias": False}, "timm", "use_block_bias=False"),
        ({"norm": "rms", **MAP}, "timm", "pooling='map'"),
        ({**GATED, **MAP}, "timm", "pooling='map'"),
        ({**AXIAL, **GATED, "pooling": "map"}, "timm", "pooling has GELU"),
        (
            {"representation_size": 8, "pooling": "none", "num_classes": 0},
            "huggingface",
            "pooling",
        ),
        (
            {**LATER_KINDS["dinov2"], "use_prefix_positions": True},
            "huggingface",
            "use_prefix_positions=True",
        ),
        (
            {**CLIP, "pooling": "none", "num_classes": 0},
            "huggingface",
            "pools by the class token",
        ),
        (
            {"rotary_positions": "axial", "norm_placement": "after"},
            "big_vision",
            "rotary_positions='axial'.*norm_placement='after'",
        ),
    ],
    ids=str,
)
def test_what_a_family_cannot_express(choices, layout, reason, tmp_path):
    path = tmp_path / f"model{ENDINGS[layout]}"
    with pytest.raises(ValueError, match=f"cannot express.*{reason}.*{layout}"):
        save_checkpoint(make(**choices), path, layout=layout)
    assert not any(tmp_path.iterdir())


def test_models_without_a_head(tmp_path):
    model = make(num_classes=0, representation_size=16)
    save_checkpoint(model, tmp_path / "hf", layout="huggingface")
    config = json.loads((tmp_path / "hf/config.json").read_text())
    assert config["architectures"] == ["ViTModel"]
    assert config["pooler_output_size"] == 16
    assert "pooler.dense.weight" in names_in(tmp_path / "hf")
    assert "id2label" not in config
    assert_same_answers(from_checkpoint(tmp_path / "hf"), model)


def test_a_class_without_a_bias_of_the_head_needs_no_head(tmp_path):
    """Its weight may be missing from the model as well."""
    model = make(**{**LATER_KINDS["clip"], "num_classes": 0})
    save_checkpoint(model, tmp_path / "clip", layout="huggingface")
    copy = from_checkpoint(tmp_path / "clip")
    for a, b in zip(model.weights, copy.weights, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(
    ("kind", "layout"),
    [
        *itertools.product(("none", "sincos_2d"), ENDINGS),
        ("learned_2d", "official"),
        ("sincos_1d", "big_vision"),
    ],
)
def test_other_positions_are_written_as_a_table(kind, layout, tmp_path):
    model = make(position_embedding=kind, image_size=(32, 48))
    path = tmp_path / f"model{ENDINGS[layout]}"
    save_checkpoint(model, path, layout=layout)
    again = from_checkpoint(path)
    native = layout == "big_vision" and kind == "sincos_2d"
    expected = "sincos_2d" if native else "learned"
    assert again.config.position_embedding == expected
    assert_same_answers(again, model, (32, 48), atol=2e-6)


def test_the_row_of_the_class_token_goes_into_it_for_big_vision(
    model, tmp_path
):
    save_checkpoint(model, tmp_path / "model.npz", layout="big_vision")
    with np.load(tmp_path / "model.npz") as file:
        table, token = file["params/pos_embedding"], file["params/cls"]
    weights = {w.path: to_numpy(w) for w in model.weights}
    positions = weights["position_embedding/embedding"]
    np.testing.assert_array_equal(table[0], positions[1:])
    np.testing.assert_array_equal(
        token[0, 0], weights["class_token/token"][0, 0] + positions[0]
    )


def test_dialects(model, tmp_path):
    path = tmp_path / "model.npz"
    save_checkpoint(model, path)
    released = "Transformer/encoderblock_1/MlpBlock_3/Dense_0/kernel"
    linen = "Transformer/encoderblock_1/MlpBlock_0/Dense_0/kernel"
    assert released in names_in(path)
    save_checkpoint(model, path, dialect="linen")
    assert linen in names_in(path)
    # A model that was read from a file is written as it was.
    loaded = from_checkpoint(path)
    save_checkpoint(loaded, path)
    assert linen in names_in(path)
    save_checkpoint(loaded, path, dialect="")
    assert released in names_in(path)
    save_checkpoint(loaded, path, layout="big_vision", dialect="scan")
    stacked = "params/Transformer/encoderblock/MlpBlock_0/Dense_0/kernel"
    with np.load(path) as file:
        assert file[stacked].shape == (2, 24, 48)
    with pytest.raises(ValueError, match="`dialect` .*'', 'linen'"):
        save_checkpoint(model, path, dialect="scan")
    with pytest.raises(ValueError, match="`dialect` must be left out"):
        save_checkpoint(model, tmp_path / "x", layout="timm", dialect="root")


def test_a_reduced_type_is_written_as_float32(tmp_path):
    model = make(dtype="bfloat16")
    save_checkpoint(model, tmp_path / "model.npz")
    with np.load(tmp_path / "model.npz") as file:
        assert {file[name].dtype for name in file.files} == {np.dtype("f4")}
    again = from_checkpoint(tmp_path / "model.npz", dtype="bfloat16")
    for ours, theirs in zip(again.weights, model.weights):
        np.testing.assert_array_equal(to_numpy(ours), to_numpy(theirs))


def test_what_the_file_cannot_say_is_returned_and_logged(
    model, tmp_path, caplog
):
    other = make(activation="exact", layer_norm_epsilon=1e-12)
    with caplog.at_level(logging.WARNING):
        notes = save_checkpoint(other, tmp_path / "model.npz")
    assert len(notes) == 2
    assert "activation='exact'" in notes[0] and "'tanh'" in notes[0]
    assert "layer_norm_epsilon=1e-12" in notes[1]
    assert all(note in caplog.text for note in notes)
    tanh = save_checkpoint(model, tmp_path / "m.safetensors", layout="timm")
    assert "act_layer='gelu_tanh'" in tanh[0]
    # Its config.json says it.
    assert not save_checkpoint(model, tmp_path / "timm", layout="timm")
    with pytest.raises(ValueError, match=r"with_layer_norm_epsilon\(1e-06\)"):
        save_checkpoint(other, tmp_path / "small", layout="timm")
    assert not save_checkpoint(other, tmp_path / "hf", layout="huggingface")
    soft = other.with_classifier_activation("softmax")
    notes = save_checkpoint(soft, tmp_path / "hf", layout="huggingface")
    assert "ends in softmax" in notes[0] and "logits" in notes[0]
    stem = make(stem_stages=(), patch_size=4, stem_epsilons="timm")
    notes = save_checkpoint(stem, tmp_path / "stem.npz")
    assert "stem_epsilons='timm'" in notes[0]
    stem_file = tmp_path / "stem.safetensors"
    notes = save_checkpoint(stem, stem_file, layout="timm")
    assert not [note for note in notes if "epsilons" in note]
    assert from_checkpoint(stem_file).config == dataclasses.replace(
        stem.config, position_resize="bicubic_antialias"
    )
    # Without a stem or a head, those of one do not matter.
    plain = make(
        stem_epsilons="timm", num_classes=0, classifier_activation="softmax"
    )
    assert not save_checkpoint(plain, tmp_path / "model.npz")


@pytest.mark.parametrize("ending", [".safetensors", ".npz"])
@pytest.mark.parametrize(
    "choices",
    [
        {"norm_placement": "after", "activation": "exact"},
        {"use_gated_mlp": True},
    ],
    ids=lambda choices: [*choices][0],
)
def test_a_file_of_timm_says_what_its_folder_would(choices, ending, tmp_path):
    """Its arrays look like those of another model."""
    model = make(**choices)
    save_checkpoint(model, tmp_path / f"m{ending}", layout="timm")
    assert from_checkpoint(tmp_path / f"m{ending}").config == (
        dataclasses.replace(model.config, position_resize="bicubic_antialias")
    )


def test_the_folder_of_timm(tmp_path):
    model = make(
        image_size=(32, 48),
        activation="exact",
        position_resize="bicubic_antialias",
    )
    save_checkpoint(model, tmp_path / "timm", layout="timm")
    config = json.loads((tmp_path / "timm/config.json").read_text())
    arguments = config["model_args"]
    assert arguments["img_size"] == [32, 48]
    assert arguments["num_heads"] == 3
    assert arguments["mlp_ratio"] == 2.0
    assert from_checkpoint(tmp_path / "timm").config == model.config
    stem = make(stem_stages=(), patch_size=4)
    with pytest.raises(ValueError, match="no configuration file for hybrids"):
        save_checkpoint(stem, tmp_path / "stem", layout="timm")
    assert [path.name for path in tmp_path.iterdir()] == ["timm"]


@pytest.mark.parametrize(
    ("layout", "channels"), [("timm", 4), ("huggingface", 1)]
)
def test_one_mean_for_all_channels_is_read_back(layout, channels, tmp_path):
    settings = Preprocessing(((0.1,), (0.2,)))
    model = make(channels=channels, activation="exact", preprocessing=settings)
    save_checkpoint(model, tmp_path / layout, layout=layout)
    with pytest.warns(UserWarning, match="normalised in another way"):
        found = from_checkpoint(tmp_path / layout).config.preprocessing
    assert found.mean == (0.1,) * channels
    assert found.deviation == (0.2,) * channels


@pytest.mark.parametrize(
    "old", ["preprocessor_config.json", "model.weights.h5"]
)
def test_files_of_another_format_would_be_read_before_the_new_ones(
    old, model, tmp_path
):
    folder = tmp_path / "model"
    save_checkpoint(model, folder, layout="timm")
    save_checkpoint(model, folder, layout="timm")  # Its own are replaced.
    (folder / old).write_text("{}")
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    with pytest.raises(ValueError, match=f"{old} there would be read in"):
        save_checkpoint(model, folder, layout="timm")
    after = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert after == before


def test_a_model_around_a_vit_is_told_how_to_get_it(model):
    outer = keras.Sequential([model, keras.layers.Softmax()])
    with pytest.raises(ValueError, match=f"get_layer.'{model.name}'"):
        save_checkpoint(outer, "m.npz")


LICENSE = pathlib.Path(__file__).parents[2] / "LICENSE"


@pytest.mark.parametrize(
    ("path", "layout", "named"),
    [
        ("m.npz", "flax", "layout"),
        ("m.safetensors", "official", "path"),
        ("folder.npz", "official", "path"),  # There is a folder.
        ("m.pth", "timm", "path"),
        ("m.bin", "huggingface", "path"),
        (LICENSE, "huggingface", "path"),
    ],
)
def test_a_wrong_argument_is_named(path, layout, named, model, tmp_path):
    (tmp_path / "folder.npz").mkdir()
    with pytest.raises(ValueError, match=f"`{named}` must be"):
        save_checkpoint(model, tmp_path / path, layout=layout)
    assert [path.name for path in tmp_path.iterdir()] == ["folder.npz"]


def lora_layers(model):
    """Return every layer of a model to which Keras can add LoRA."""
    return [
        layer
        for layer in model._flatten_layers(include_self=False)
        if hasattr(layer, "enable_lora") and layer.weights
    ]


@pytest.mark.parametrize("layout", ["official", "huggingface"])
def test_lora_updates_are_merged(layout, tmp_path):
    """In float32, in every kind of layer, and the model is not changed."""
    stem = {"stem_stages": (1,), "patch_size": 2, "depth": 1}
    config = tiny_config(**stem if layout == "official" else {})
    path = tmp_path / f"model{ENDINGS[layout]}"
    models = []
    for dtype in ("float32", "mixed_bfloat16"):
        model = VisionTransformer(config, dtype=dtype)
        layers = lora_layers(model)
        assert len(layers) == (10 if config.stem_stages else 9)
        for layer in layers:
            layer.enable_lora(2, lora_alpha=3)
        models.append(randomize(model))
    before = [to_numpy(weight) for weight in model.weights]
    save_checkpoint(model, path, layout=layout)
    for old, weight in zip(before, model.weights, strict=True):
        np.testing.assert_array_equal(old, to_numpy(weight))
    again = from_checkpoint(path, activation=config.activation)
    assert_same_answers(again, models[0], atol=1e-5)


def test_a_quantized_model_is_refused(tmp_path):
    model = make()
    model.quantize("int8")
    with pytest.raises(ValueError, match="`model` is quantised.*float32"):
        save_checkpoint(model, tmp_path / "model.npz")
    assert not any(tmp_path.iterdir())


def test_a_fine_tuned_official_file_goes_back_to_flax(tmp_path):
    """Other resolution, classes and weights; same names as before."""
    model = from_checkpoint(path_of(TOKEN), image_size=(48, 32), classes=5)
    randomize(model)
    save_checkpoint(model, tmp_path / "tuned.npz")
    assert names_in(tmp_path / "tuned.npz") == names_in(path_of(TOKEN))
    again = from_checkpoint(tmp_path / "tuned.npz")
    assert again.config.image_size == (48, 32)
    assert_same_answers(again, model, (48, 32), atol=0)


@pytest.mark.parametrize("layout", ["huggingface", "timm"])
def test_a_folder_may_have_a_dot_in_its_name(layout, model, tmp_path):
    for name in ("vit-b16-1.5", "v1.0"):
        save_checkpoint(model, tmp_path / name, layout=layout)
        assert (tmp_path / name / "config.json").is_file()
        assert from_checkpoint(tmp_path / name).load_report.layout == layout


def test_a_path_in_the_home_folder(model, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    save_checkpoint(model, "~/MODEL.NPZ")
    assert from_checkpoint(tmp_path / "MODEL.NPZ").config == tiny_config()


def test_the_header_is_as_others_want_it(tmp_path):
    """Whole words, and the "format" without which transformers refuses it."""
    path = tmp_path / "m.safetensors"
    for classes in (1, 2):
        save_checkpoint(make(num_classes=classes), path, layout="timm")
        data = path.read_bytes()
        length = int.from_bytes(data[:8], "little")
        assert length % 8 == 0
        header = json.loads(data[8 : 8 + length])
        assert header["__metadata__"]["format"] == "pt"


def test_rectangles_that_a_class_of_transformers_cannot_run(tmp_path):
    clip = make(**{**LATER_KINDS["clip"], "image_size": (32, 48)})
    with pytest.raises(ValueError, match="square images alone"):
        save_checkpoint(clip, tmp_path / "clip", layout="huggingface")
    vit = make(image_size=(32, 48))
    assert not save_checkpoint(vit, tmp_path / "vit", layout="huggingface")


def test_a_model_without_the_pooler_of_its_class_is_told(tmp_path):
    model = make(num_classes=0)
    [note] = save_checkpoint(model, tmp_path / "vit", layout="huggingface")
    assert "ViTModel has a pooler" in note
    assert "add_pooling_layer=False" in note


def test_tables_of_rectangles_in_transformers_are_refused(tmp_path):
    model = make(**LATER_KINDS["beit"])
    save_checkpoint(model, tmp_path / "beit", layout="huggingface")
    file = tmp_path / "beit/config.json"
    config = json.loads(file.read_text())
    file.write_text(json.dumps({**config, "image_size": [16, 64]}))
    path = tmp_path / "beit/model.safetensors"
    save_file(load_file(path), path)  # Without what this package adds.
    with pytest.raises(ValueError, match="height and width exchanged"):
        from_checkpoint(tmp_path / "beit")


def test_the_pooler_of_a_model_without_a_class_token_is_refused(tmp_path):
    """That of I-JEPA reads the first patch."""
    model = make(num_classes=0, use_class_token=False, pooling="avg")
    save_checkpoint(model, tmp_path / "ijepa", layout="huggingface")
    path = tmp_path / "ijepa/model.safetensors"
    arrays = load_file(path)
    width = model.config.width
    arrays["pooler.dense.weight"] = np.eye(width, dtype="float32")
    arrays["pooler.dense.bias"] = np.zeros(width, "float32")
    save_file(arrays, path, metadata={"format": "pt"})
    with pytest.raises(ValueError, match="reads the first patch"):
        from_checkpoint(tmp_path / "ijepa")
