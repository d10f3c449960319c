"""Loading into models that differ from the source: plan, check, assign."""

import contextlib
import dataclasses
import json
import re
import warnings

import keras
import numpy as np
import pytest

from keras_vit import (
    VisionTransformer,
    from_checkpoint,
    load_checkpoint,
    save_checkpoint,
)
from keras_vit.layers.resize import resize_patch_kernel, resize_positions
from keras_vit.weights import read
from keras_vit.weights.containers import open_file
from tests.tiny import (
    LATER_KINDS,
    make,
    noise,
    randomize,
    tiny_config,
    to_numpy,
)
from tests.weights.cases import (
    TIMM,
    TOKEN,
    answer_of,
    assert_answers,
    expected_of,
    model_of,
    path_of,
    stored_in,
)

PRE_LOGITS = "official_pre_logits.npz"
SINCOS = "big_vision_sincos_rep.npz"
MAP = {"pooling": "map", "use_class_token": False}


def fresh(name, **changes):
    """Return a model like that of a case, with changes and other weights."""
    config = dataclasses.replace(model_of(name).config, **changes)
    return randomize(VisionTransformer(config))


def weights_of(model):
    return {weight.path: to_numpy(weight) for weight in model.weights}


@contextlib.contextmanager
def untouched(model):
    """Assert that the weights of `model` stay as they are."""
    before = weights_of(model)
    yield
    assert_equal_but(model, before)


def assert_equal_but(model, source, *but):
    ours = weights_of(model)
    theirs = source if isinstance(source, dict) else weights_of(source)
    for path in ours.keys() - set(but):
        np.testing.assert_array_equal(ours[path], theirs[path], path)


# -------------------------------------------------------------------- the head


HEAD = ("predictions/kernel", "predictions/bias")


@pytest.mark.parametrize(
    ("name", "choices", "changes", "reset"),
    [
        (TOKEN, {}, {"num_classes": 5, "head_bias": -10.0}, HEAD),
        (TOKEN, {"head": "reset"}, {"head_bias": -10.0}, HEAD),
        (TOKEN, {}, {"num_classes": 0}, ()),
        # The layer before a new head stays.
        (PRE_LOGITS, {}, {"num_classes": 5, "head_bias": -10.0}, HEAD),
    ],
    ids=str,
)
def test_a_head_that_does_not_fit_starts_anew(name, choices, changes, reset):
    model = fresh(name, **changes)
    report = load_checkpoint(model, path_of(name), **choices)
    assert report.reset == reset
    assert set(report.ignored) == {"head/kernel", "head/bias"}
    assert_equal_but(model, model_of(name), *reset)
    if reset:
        assert not weights_of(model)["predictions/kernel"].any()
        assert (weights_of(model)["predictions/bias"] == -10).all()


@pytest.mark.parametrize(
    ("classes", "head"), [(5, "auto"), (10, "reset")], ids=str
)
def test_both_heads_of_a_distilled_model_start_anew(tmp_path, classes, head):
    source = make(**LATER_KINDS["deit"], activation="exact")
    path = tmp_path / "deit.safetensors"
    save_checkpoint(source, path, layout="timm")
    new = from_checkpoint(path, classes=classes, head=head)
    heads = {
        f"predictions/{part}_head/{weight}"
        for part in ("class", "teacher")
        for weight in ("kernel", "bias")
    }
    assert {*new.load_report.reset} == heads
    assert not any(weights_of(new)[path].any() for path in heads)
    assert_equal_but(new, source, *heads)
    model = randomize(VisionTransformer(new.config), 2)
    assert {*load_checkpoint(model, path, head=head).reset} == heads
    assert_equal_but(model, new)


@pytest.mark.parametrize("classes", [5, 0])
def test_strict_wants_the_very_head(classes):
    model = fresh(TOKEN, num_classes=classes)
    with untouched(model), pytest.raises(ValueError, match="head='strict'"):
        load_checkpoint(model, path_of(TOKEN), head="strict")


def test_a_head_without_the_pre_logits_it_was_trained_on_starts_anew(tmp_path):
    """Even where its shape would fit: R = D in the published files."""
    arrays = stored_in(TOKEN)
    arrays["pre_logits/kernel"] = noise(24, 24)
    arrays["pre_logits/bias"] = noise(24)
    path = tmp_path / "square.npz"
    np.savez(path, **arrays)
    model = fresh(TOKEN)
    report = load_checkpoint(model, path)
    assert report.reset == ("predictions/kernel", "predictions/bias")
    assert "pre_logits/kernel" in report.ignored
    assert not weights_of(model)["predictions/kernel"].any()


def test_pre_logits_that_the_file_has_not_start_anew():
    model = fresh(TOKEN, representation_size=16)
    report = load_checkpoint(model, path_of(TOKEN))
    assert report.reset == (
        "pre_logits/kernel",
        "pre_logits/bias",
        "predictions/kernel",
        "predictions/bias",
    )
    assert not weights_of(model)["pre_logits/bias"].any()


def test_fresh_weights_come_from_the_initializer_and_the_seed_of_keras():
    """Two processes of one seed start from the same weights."""
    model = fresh(TOKEN, representation_size=16)
    loads = (
        lambda: from_checkpoint(path_of(TOKEN), representation_size=16),
        lambda: load_checkpoint(model, path_of(TOKEN)) and model,
    )
    for load in loads:
        draws = []
        for seed in (1, None, 1, 2):
            if seed:
                keras.utils.set_random_seed(seed)
            draws.append(weights_of(load())["pre_logits/kernel"])
        np.testing.assert_array_equal(draws[0], draws[2])
        for other in (draws[1], draws[3]):
            assert np.abs(draws[0] - other).max() > 0.1
        # LeCun normal is cut off at two deviations, and scaled for the loss.
        limit = 2 / np.sqrt(24) / 0.87962566
        assert 0.8 * limit < np.abs(draws).max() <= limit


def test_lora_updates_are_gone_after_a_load():
    """The model answers as the checkpoint, and the adapters still train."""
    model = fresh(TOKEN)
    dense = model.get_layer("block_00").attention.qkv
    dense.enable_lora(2)
    randomize(model)
    report = load_checkpoint(model, path_of(TOKEN))
    assert report.reset == ("block_00/attention/qkv/lora_kernel_b",)
    assert to_numpy(dense.lora_kernel_a).any()
    assert_answers(model, TOKEN)


def test_a_zero_head_is_warned_of(tmp_path):
    path, arrays = tmp_path / "zero.npz", stored_in(TOKEN)

    def write(classes, kernel=0):
        arrays["head/kernel"] = np.zeros((24, classes), "float32")
        arrays["head/bias"] = np.zeros(classes, "float32")
        arrays["head/kernel"][0, -1] = kernel
        np.savez(path, **arrays)

    # Issues speak of the heads of 2020.
    for classes, issues in ((21_843, True), (7, False)):
        write(classes)
        with pytest.warns(UserWarning, match="all zeros") as caught:
            from_checkpoint(path)
        assert ("issues 10, 32 and 252" in str(caught[0].message)) == issues
        with pytest.warns(UserWarning, match="all zeros") as caught:
            load_checkpoint(fresh(TOKEN, num_classes=classes), path)
        # The line that can mend it.
        assert caught[0].filename == __file__
    # Warnings are errors.
    from_checkpoint(path, classes=5)
    from_checkpoint(path, classes=0)
    write(21_843, kernel=1e-9)
    from_checkpoint(path)


@pytest.mark.parametrize("value", [0, 1])
def test_two_zero_heads_are_warned_of_once(tmp_path, value):
    """Unless the other head has scores."""
    source = make(**LATER_KINDS["deit"], activation="exact")
    heads = source.get_layer("predictions")
    heads.class_head.kernel.assign(keras.ops.zeros((24, 7)))
    heads.teacher_head.kernel.assign(keras.ops.full((24, 7), value))
    path = tmp_path / "deit.safetensors"
    save_checkpoint(source, path, layout="timm")
    model = make(**LATER_KINDS["deit"], activation="exact")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        notes = load_checkpoint(model, path).notes
    assert len(notes) == len(caught) == 1 - value


# ---------------------------------------------------------- sizes and channels


@pytest.mark.parametrize(
    ("size", "method"), [((32, 48), "official"), ((16, 8), "bicubic")]
)
def test_positions_are_resized_to_the_grid(size, method):
    model = fresh(TOKEN, image_size=size)
    report = load_checkpoint(model, path_of(TOKEN), position_resize=method)
    path = "position_embedding/embedding"
    grid = (size[0] // 8, size[1] // 8)
    table = weights_of(model_of(TOKEN))[path]
    expected = resize_positions(table, (4, 4), grid, method)
    np.testing.assert_array_equal(weights_of(model)[path], expected)
    assert report.resized == (
        f"{path}: 4x4 patches to {grid[0]}x{grid[1]} ({method})",
    )
    assert_equal_but(model, model_of(TOKEN), path)


def test_resizing_while_loading_is_resizing_afterwards():
    loaded = from_checkpoint(path_of(TOKEN), image_size=(40, 24))
    later = model_of(TOKEN).with_image_size((40, 24))
    for path, value in weights_of(later).items():
        np.testing.assert_allclose(weights_of(loaded)[path], value, atol=2e-6)


def test_grey_images_give_what_their_copies_gave():
    grey = noise(2, 32, 32, 1)
    model = from_checkpoint(path_of(TOKEN), channels=1)
    expected = model_of(TOKEN)(np.repeat(grey, 3, axis=-1))
    np.testing.assert_allclose(
        to_numpy(model(grey)), to_numpy(expected), rtol=0, atol=1e-5
    )
    assert model.load_report.resized == (
        "patch_encoder/kernel: 3 input channels to 1",
    )


def test_more_channels_of_a_hybrid_go_into_its_stem():
    name = "official_hybrid_root_only.npz"
    model = from_checkpoint(path_of(name), channels=6)
    assert model.load_report.resized == (
        "stem/root_conv/kernel: 3 input channels to 6",
    )
    x = expected_of(name)["x"]
    twice = np.concatenate([x, x], axis=-1)
    np.testing.assert_allclose(
        to_numpy(model(twice)), answer_of(name), rtol=0, atol=1e-3
    )


def test_patches_are_resized_on_request_only():
    model = fresh(TOKEN, patch_size=16, image_size=64)
    with (
        untouched(model),
        pytest.raises(ValueError, match="patches of 8x8.*16x16.*patch_resize="),
    ):
        load_checkpoint(model, path_of(TOKEN))
    report = load_checkpoint(model, path_of(TOKEN), patch_resize="bilinear")
    assert report.resized == (
        "patch_encoder/kernel: 8x8 pixels to 16x16 (bilinear)",
    )
    kernel = weights_of(model_of(TOKEN))["patch_encoder/kernel"]
    expected = resize_patch_kernel(kernel, 16, "bilinear")
    np.testing.assert_array_equal(
        weights_of(model)["patch_encoder/kernel"], expected
    )


# ------------------------------------------------------------ what does not fit


def test_all_that_does_not_fit_is_named_and_nothing_is_touched():
    model = fresh(TOKEN, mlp_dim=32, num_heads=4)
    with untouched(model), pytest.raises(ValueError) as error:
        load_checkpoint(model, path_of(TOKEN))
    for words in (
        str(path_of(TOKEN)),
        "encoderblock_0/MlpBlock_3/Dense_0/kernel is (24, 48)",
        "encoderblock_1/MlpBlock_3/Dense_1/kernel is (48, 24)",
        "it has 3 heads and the model 4",
        "mlp_dim=48, num_heads=3",
    ):
        assert words in str(error.value)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"depth": 3}, "block_02/attention_norm/gamma is missing in the file"),
        ({"depth": 1}, "encoderblock_1/LayerNorm_0/scale has no place"),
        ({"width": 48}, "embedding/kernel is (8, 8, 3, 24)"),
        (
            {"use_class_token": False, "pooling": "avg"},
            "cls has no place in the model",
        ),
        (
            {"position_embedding": "sincos_2d"},
            "pos_embedding has no place in the model",
        ),
        ({"pooling": "map"}, "pooling/probe is missing in the file"),
        ({"use_pooling_norm": True}, "encoder_norm/scale has no place"),
    ],
    ids=str,
)
def test_another_model_is_refused(changes, words):
    with pytest.raises(ValueError) as error:
        load_checkpoint(fresh(TOKEN, **changes), path_of(TOKEN))
    assert words in str(error.value)
    for field, value in changes.items():
        theirs = getattr(model_of(TOKEN).config, field)
        assert f"{field}={theirs!r}" in str(error.value), value


def test_another_number_of_registers_is_refused(tmp_path):
    """Also where the positions of the tokens are added to them."""
    source = make(num_registers=4, use_prefix_positions=True)
    path = tmp_path / "source.npz"
    save_checkpoint(source, path, layout="timm")
    with open_file(path) as file:
        arrays = {name: file.read(name) for name in file.arrays}
    # That of the class token alone, as in the code of DINOv2.
    table = arrays["pos_embed"]
    arrays["pos_embed"] = np.delete(table, slice(1, 5), axis=1)
    np.savez(path, **arrays)
    model = make(num_registers=8, use_prefix_positions=False)
    with untouched(model), pytest.raises(ValueError, match="num_registers=4"):
        load_checkpoint(model, path)


@pytest.mark.parametrize(
    ("name", "field", "ours", "theirs"),
    [
        (TIMM, "activation", "tanh", "exact"),
        (TIMM, "layer_norm_epsilon", 1e-3, 1e-6),
        (TIMM, "pooling", "avg", "token"),
        (SINCOS, "position_embedding", "sincos_1d", "sincos_2d"),
        (SINCOS, "position_embedding", "none", "sincos_2d"),
    ],
)
def test_what_answers_otherwise_is_warned_of(name, field, ours, theirs):
    model = fresh(name, **{field: ours})
    with pytest.warns(UserWarning, match=re.escape(f"`{field}={theirs!r}`")):
        report = load_checkpoint(model, path_of(name))
    assert len(report.notes) == 1
    # Chosen by name it is no surprise.
    chosen = from_checkpoint(path_of(name), **{field: ours})
    assert chosen.load_report.notes == report.notes
    mended = fresh(name)
    assert not load_checkpoint(mended, path_of(name)).notes


def test_other_tokens_that_are_joined_are_warned_of(tmp_path):
    """RADIO, whose file states them."""
    parts = {"num_registers": 2, "num_classes": 0, "activation": "exact"}
    save_checkpoint(make(**parts), tmp_path / "m.npz", layout="timm")
    with open_file(tmp_path / "m.npz") as file:
        arrays = {f"radio_model.model.{n}": file.read(n) for n in file.arrays}
    for name in ("patch_embed.proj.bias", "norm.weight", "norm.bias"):
        del arrays[f"radio_model.model.{name}"]
    parts |= {"use_patch_bias": False, "use_final_norm": False}
    arrays["radio_model.summary_idxs"] = np.array([0, 2])
    np.savez(tmp_path / "radio.npz", **arrays)
    description = {"model_type": "radio", "num_attention_heads": 3}
    (tmp_path / "radio.json").write_text(json.dumps(description))
    for indices in ((0, 2), (0, 1)):
        model = make(**parts, pooling="prefix", pooling_indices=indices)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            load_checkpoint(model, tmp_path / "radio.npz")
        shown = [str(warning.message) for warning in caught]
        assert len(shown) == (indices != (0, 2))
        assert all("`pooling_indices=(0, 2)`" in text for text in shown)


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        # The weights replace the initial value.
        ({"layer_scale_init": 1e-5}, {"layer_scale_init": 0.1}),
        # Their defaults in numbers.
        (MAP, {**MAP, "pooling_heads": 3, "pooling_mlp_dim": 48}),
        # Of attention pooling alone.
        ({}, {"pooling_heads": 2}),
    ],
    ids=str,
)
def test_what_answers_the_same_is_not_warned_of(tmp_path, theirs, ours):
    path = tmp_path / "m.safetensors"
    source = make(activation="exact", **theirs)
    save_checkpoint(source, path, layout="timm")
    model = make(activation="exact", **ours)
    assert not load_checkpoint(model, path).notes
    images = noise(1, 32, 32, 3)
    np.testing.assert_array_equal(
        to_numpy(model(images)), to_numpy(source(images))
    )


def test_a_quantized_or_another_model_is_refused():
    model = fresh(TOKEN)
    model.quantize("int8")
    for wrong in (model, keras.Sequential()):
        with pytest.raises(ValueError, match="`model`"):
            load_checkpoint(wrong, path_of(TOKEN))


@pytest.mark.parametrize(
    "choices",
    [
        {"head": "new"},
        {"position_resize": "nearest"},
        {"patch_resize": "nearest"},
        {"classes": -1},
        {"num_classes": 5},
        {"input_shape": None},
        {"image_size": "48"},
        {"image_size": (32, 48.5)},
        {"patch_size": 8, "image_size": 30},
        {"dropout": 0.1},
    ],
    ids=str,
)
def test_a_wrong_choice_is_named_before_a_model_is_built(choices, monkeypatch):
    monkeypatch.setattr(read, "VisionTransformer", None)
    with pytest.raises(ValueError, match=f"`{[*choices][0]}`"):
        from_checkpoint(path_of(TOKEN), **choices)


# ------------------------------------------------------------ from_checkpoint


def test_choices_of_the_caller():
    model = from_checkpoint(
        path_of(TOKEN),
        image_size=48,
        classes=3,
        classifier_activation="softmax",
        dtype="mixed_bfloat16",
        dropout_rate=0.1,
        name="mine",
    )
    assert model.name == "mine"
    assert model.dtype_policy.name == "mixed_bfloat16"
    assert model.config == dataclasses.replace(
        model_of(TOKEN).config,
        image_size=48,
        num_classes=3,
        classifier_activation="softmax",
        dropout_rate=0.1,
    )
    answer = to_numpy(model(noise(2, 48, 48, 3)))
    np.testing.assert_allclose(answer, 1 / 3, atol=1e-6)  # A zero head.


def test_a_model_that_was_trained_on_can_be_loaded_again(tmp_path):
    """Weights go into the variables that are there: an optimizer keeps them."""
    model = make()
    variables = [id(weight) for weight in model.weights]
    save_checkpoint(
        randomize(VisionTransformer(tiny_config()), 2), tmp_path / "a.npz"
    )
    load_checkpoint(model, tmp_path / "a.npz")
    assert [id(weight) for weight in model.weights] == variables


def test_numbers_of_numpy_are_numbers():
    model = from_checkpoint(
        path_of("timm_rect.safetensors"),
        image_size=np.array([24, 40]),
        classes=np.int64(5),
        num_heads=np.int32(3),
    )
    assert model.config.image_size == (24, 40)
    assert type(model.config.num_classes) is int
    assert model.get_config()["config"]["num_classes"] == 5


def test_another_stem_is_noted(tmp_path):
    model = make(stem_stages=(), patch_size=4, stem_epsilons="timm")
    path = tmp_path / "m.safetensors"
    save_checkpoint(model, path, layout="timm")
    other = make(
        stem_stages=(), patch_size=4, activation=model.config.activation
    )
    with pytest.warns(UserWarning, match="`stem_epsilons='timm'` to match"):
        report = load_checkpoint(other, path)
    assert len(report.notes) == 1
