"""Family and configuration, from names and shapes of every form."""

import json
import shutil

import numpy as np
import pytest

from keras_vit import VisionTransformer, from_checkpoint, load_checkpoint
from keras_vit.weights.containers import Checkpoint, Entry, open_checkpoint
from keras_vit.weights.families import LAYOUTS
from keras_vit.weights.hints import find_hints
from keras_vit.weights.source import identify
from tests.tiny import to_numpy
from tests.weights import forms
from tests.weights.cases import answer_of, expected_of, model_of, path_of

TO_LINEN = (
    ("LayerNorm_2", "LayerNorm_1"),
    ("MlpBlock_3", "MlpBlock_0"),
    ("MultiHeadDotProductAttention_1", "MultiHeadDotProductAttention_0"),
)
TO_RELEASED = (
    ("(block_.)/LayerNorm_1", r"\1/LayerNorm_2"),
    ("(block_.)/MlpBlock_0", r"\1/MlpBlock_3"),
    (
        "(block_.)/MultiHeadDotProductAttention_0",
        r"\1/MultiHeadDotProductAttention_1",
    ),
)
MAP_AT_TOP = (("MAPHead_0/", ""),)
OLD_POSITIONS = (("params/pos_", "params/Transformer/pos_"),)
VERY_OLD_POSITIONS = (
    ("params/pos_", "params/Transformer/posembed_input/pos_"),
)

# Name of a golden case, and what is done to its arrays. The answer stays.
FORMS = {
    "opt_target": ("official_token.npz", forms.with_training_state),
    "params": (
        "official_token.npz",
        lambda arrays: forms.wrapped(arrays, "params/"),
    ),
    "linen": (
        "official_token.npz",
        lambda arrays: forms.renamed(arrays, *TO_LINEN),
    ),
    "old_group_norms": ("official_hybrid.npz", forms.with_old_group_norms),
    "no_wrapper": ("big_vision_tok.npz", forms.unwrapped),
    "big_vision_opt_target": (
        "big_vision_gap.npz",
        lambda arrays: forms.with_training_state(forms.unwrapped(arrays)),
    ),
    "scan_no_wrapper": ("big_vision_gap_scan.npz", forms.unwrapped),
    "two_towers": (
        "big_vision_map.npz",
        lambda arrays: forms.two_towers(forms.unwrapped(arrays)),
    ),
    "spring_of_2022": (
        "big_vision_gap.npz",
        lambda arrays: forms.renamed(arrays, *TO_RELEASED),
    ),
    "old_positions": (
        "big_vision_gap.npz",
        lambda arrays: forms.renamed(arrays, *OLD_POSITIONS),
    ),
    "very_old_positions": (
        "big_vision_gap.npz",
        lambda arrays: forms.renamed(arrays, *VERY_OLD_POSITIONS),
    ),
    "map_at_top": (
        "big_vision_map.npz",
        lambda arrays: forms.renamed(arrays, *MAP_AT_TOP),
    ),
    "unused_class_slot": (
        "big_vision_gap.npz",
        lambda arrays: forms.with_class_slot(arrays, np.ones(24, "float32")),
    ),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_gives_the_same_answer(form, tmp_path):
    name, change = FORMS[form]
    np.savez(tmp_path / "form.npz", **change(forms.arrays_of(name)))
    model = from_checkpoint(tmp_path / "form.npz")
    tolerance = 5e-5 if "hybrid" in name else 1e-5
    np.testing.assert_allclose(
        to_numpy(model(expected_of(name)["x"])),
        answer_of(name),
        rtol=0,
        atol=tolerance,
    )


def test_a_row_that_is_dropped_is_reported(tmp_path):
    name, change = FORMS["unused_class_slot"]
    np.savez(tmp_path / "old.npz", **change(forms.arrays_of(name)))
    report = from_checkpoint(tmp_path / "old.npz").load_report
    assert report.ignored == ("params/pos_embedding, row 0",)


def test_the_slot_of_old_files_is_added_to_the_class_token(tmp_path):
    arrays = forms.arrays_of("big_vision_tok.npz")
    slot = np.linspace(-1, 1, 24, dtype="float32")
    arrays["params/cls"] = arrays["params/cls"] - slot
    np.savez(tmp_path / "old.npz", **forms.with_class_slot(arrays, slot))
    model = from_checkpoint(tmp_path / "old.npz")
    np.testing.assert_allclose(
        to_numpy(model(expected_of("big_vision_tok.npz")["x"])),
        answer_of("big_vision_tok.npz"),
        rtol=0,
        atol=1e-5,
    )


def test_what_belongs_to_the_training_is_ignored(tmp_path):
    arrays = forms.with_training_state(forms.arrays_of("official_token.npz"))
    np.savez(tmp_path / "sam.npz", **arrays)
    report = from_checkpoint(tmp_path / "sam.npz").load_report
    assert all(name.startswith("opt/target/") for name in report.used)
    assert all(name.startswith("opt/state/") for name in report.ignored)
    assert len(report.used) + len(report.ignored) == len(arrays)


def test_bfloat16_stored_as_two_bytes_of_no_type(tmp_path):
    arrays = forms.arrays_of("official_token.npz")
    np.savez(tmp_path / "short.npz", **forms.as_bfloat16(arrays))
    np.savez(tmp_path / "long.npz", **forms.rounded_to_bfloat16(arrays))
    short = from_checkpoint(tmp_path / "short.npz")
    long = from_checkpoint(tmp_path / "long.npz")
    for ours, theirs in zip(short.weights, long.weights):
        np.testing.assert_array_equal(to_numpy(ours), to_numpy(theirs))
    x = expected_of("official_token.npz")["x"]
    difference = to_numpy(short(x)) - answer_of("official_token.npz")
    assert 1e-5 < np.abs(difference).max() < 0.1


@pytest.mark.parametrize("stack", [False, True])
def test_blocks_beyond_the_tenth_keep_their_order(stack, tmp_path):
    """Sorted as text, block 10 would come before block 2."""
    name = "big_vision_gap.npz"
    arrays = forms.deeper(forms.arrays_of(name), 12)
    key = "params/Transformer/encoderblock_{}/MlpBlock_0/Dense_0/kernel"
    expected = [arrays[key.format(i)] for i in range(12)]
    if stack:
        prefix = "params/Transformer/encoderblock"
        leaves = [k.removeprefix(prefix + "_0") for k in arrays]
        leaves = [k for k in leaves if k.startswith("/")]
        stacks = {
            prefix + leaf: np.stack(
                [arrays.pop(f"{prefix}_{i}{leaf}") for i in range(12)]
            )
            for leaf in leaves
        }
        arrays.update(stacks)
    np.savez(tmp_path / "deep.npz", **arrays)
    model = from_checkpoint(tmp_path / "deep.npz")
    assert model.config.depth == 12
    for index, kernel in enumerate(expected):
        layer = model.get_layer(f"block_{index:02d}").mlp.hidden
        np.testing.assert_array_equal(to_numpy(layer.kernel), kernel)


def test_timm_names_in_an_npz(tmp_path):
    with open_checkpoint(path_of("timm_token.safetensors")) as checkpoint:
        arrays = {n: checkpoint.read(n) for n in checkpoint.entries}
    np.savez(tmp_path / "timm.npz", **forms.wrapped(arrays, "module."))
    model = from_checkpoint(tmp_path / "timm.npz", num_heads=3)
    np.testing.assert_allclose(
        to_numpy(model(expected_of("timm_token.safetensors")["x"])),
        answer_of("timm_token.safetensors"),
        rtol=0,
        atol=1e-5,
    )


NEW_NAMES = (
    (r"^vit\.encoder\.layer\.", "vit.layers."),
    (r"attention\.attention\.query", "attention.q_proj"),
    (r"attention\.attention\.key", "attention.k_proj"),
    (r"attention\.attention\.value", "attention.v_proj"),
    (r"attention\.output\.dense", "attention.o_proj"),
    (r"intermediate\.dense", "mlp.fc1"),
    (r"(\d)\.output\.dense", r"\1.mlp.fc2"),
)


@pytest.mark.parametrize("prefix", [True, False])
def test_the_new_names_of_hugging_face(prefix, tmp_path):
    with open_checkpoint(path_of("hf_vit")) as checkpoint:
        arrays = {n: checkpoint.read(n) for n in checkpoint.entries}
    changes = NEW_NAMES if prefix else (*NEW_NAMES, (r"^vit\.", ""))
    new = forms.renamed(arrays, *changes)
    assert "vit.layers.1.mlp.fc2.bias" in {*new, *map("vit.{}".format, new)}
    assert not any("encoder" in name or "dense" in name for name in new)
    np.savez(tmp_path / "model.npz", **new)
    shutil.copy(path_of("hf_vit") / "config.json", tmp_path / "model.json")
    model = from_checkpoint(tmp_path / "model.npz")
    for ours, theirs in zip(model.weights, model_of("hf_vit").weights):
        np.testing.assert_array_equal(to_numpy(ours), to_numpy(theirs))


def test_the_pooler_of_hugging_face_is_the_pre_logits(tmp_path):
    """And is left where a classifier does not read it."""
    rng = np.random.default_rng(5)
    with open_checkpoint(path_of("hf_vit")) as checkpoint:
        arrays = {n: checkpoint.read(n) for n in checkpoint.entries}
    weight = rng.normal(0, 0.2, (24, 24)).astype("float32")
    arrays["vit.pooler.dense.weight"] = weight
    arrays["vit.pooler.dense.bias"] = weight[0]
    shutil.copy(path_of("hf_vit") / "config.json", tmp_path / "model.json")
    np.savez(tmp_path / "model.npz", **arrays)
    both = from_checkpoint(tmp_path / "model.npz")
    assert both.load_report.ignored == (
        "vit.pooler.dense.weight",
        "vit.pooler.dense.bias",
    )
    x = expected_of("hf_vit")["x"]
    logits = to_numpy(both(x))
    np.testing.assert_allclose(logits, answer_of("hf_vit"), rtol=0, atol=1e-5)
    headless = {k: v for k, v in arrays.items() if "classifier" not in k}
    np.savez(tmp_path / "model.npz", **headless)
    pooled = to_numpy(from_checkpoint(tmp_path / "model.npz")(x))
    tokens = from_checkpoint(path_of("hf_vit"), classes=0)(x)
    expected = np.tanh(to_numpy(tokens) @ weight.T + weight[0])
    np.testing.assert_allclose(pooled, expected, rtol=0, atol=1e-5)


def test_a_missing_bias_of_queries_is_zero(tmp_path):
    """qkv_bias=False in timm and Hugging Face."""
    with open_checkpoint(path_of("timm_token.safetensors")) as checkpoint:
        arrays = {n: checkpoint.read(n) for n in checkpoint.entries}
    zero = {n: v * 0 if "qkv.bias" in n else v for n, v in arrays.items()}
    without = {n: v for n, v in arrays.items() if "qkv.bias" not in n}
    np.savez(tmp_path / "zero.npz", **zero)
    np.savez(tmp_path / "without.npz", **without)
    x = expected_of("timm_token.safetensors")["x"]
    answers = [
        to_numpy(from_checkpoint(tmp_path / name, num_heads=3)(x))
        for name in ("zero.npz", "without.npz")
    ]
    np.testing.assert_array_equal(*answers)


# ------------------------------------------------------- what names leave open


@pytest.fixture
def alone(tmp_path):
    """Return a function that copies a golden file away from its JSON."""

    def copy(name):
        path = tmp_path / name
        shutil.copy(path_of(name), path)
        return path

    return copy


def test_heads_come_from_the_argument(alone):
    path = alone("timm_token.safetensors")
    with pytest.raises(ValueError, match="does not store the number of heads"):
        from_checkpoint(path)
    assert from_checkpoint(path, num_heads=3).config.num_heads == 3
    with pytest.raises(ValueError, match="`num_heads` must divide"):
        from_checkpoint(path, num_heads=5)


def test_heads_that_the_file_shows_are_not_overruled():
    with pytest.raises(ValueError, match=r"has 3 heads. .*num_heads=4"):
        from_checkpoint(path_of("official_token.npz"), num_heads=4)
    with pytest.raises(ValueError, match=r"has 3 heads. .*num_heads=4"):
        from_checkpoint(path_of("timm_token.safetensors"), num_heads=4)


def test_the_published_number_of_heads_is_suggested_and_not_assumed():
    source = sized("timm", num_heads=12, variant="B/16")
    with pytest.raises(ValueError, match="published model of this size has 12"):
        identify(source)
    # A configuration of timm that names one of its own models is enough.
    source.config = {"architecture": "vit_base_patch16_224"}
    assert identify(source).config.num_heads == 12


def test_rectangles_come_from_the_argument(alone):
    path = alone("timm_rect.safetensors")
    with pytest.raises(ValueError, match="16 positions are no square grid"):
        from_checkpoint(path, num_heads=3)
    with pytest.raises(ValueError, match=r"Received: \(32, 64\)"):
        from_checkpoint(path, num_heads=3, image_size=(32, 64))
    model = from_checkpoint(path, num_heads=3, image_size=(24, 40))
    np.testing.assert_allclose(
        to_numpy(model(expected_of("timm_rect.safetensors")["x"])),
        answer_of("timm_rect.safetensors"),
        rtol=0,
        atol=1e-5,
    )


def test_the_image_size_of_sine_positions_comes_from_the_argument(alone):
    path = alone("big_vision_sincos_rep.npz")
    with pytest.raises(ValueError, match="no position table"):
        from_checkpoint(path)
    model = from_checkpoint(path, image_size=32)
    assert model.config.position_embedding == "sincos_2d"
    np.testing.assert_allclose(
        to_numpy(model(expected_of("big_vision_sincos_rep.npz")["x"])),
        answer_of("big_vision_sincos_rep.npz"),
        rtol=0,
        atol=1e-5,
    )


HINTS = {
    "hugging_face": (
        {"num_attention_heads": 12, "image_size": 224, "hidden_act": "gelu"},
        {"num_heads": 12, "image_sizes": [(224, 224)], "gelu": "exact"},
    ),
    "hugging_face_tanh": (
        {"hidden_act": "gelu_pytorch_tanh", "layer_norm_eps": 1e-12},
        {"gelu": "tanh", "layer_norm_epsilon": 1e-12},
    ),
    "timm": (
        {
            "global_pool": "avg",
            "pretrained_cfg": {"input_size": [3, 224, 160], "classifier": "x"},
            "model_args": {"num_heads": 6, "img_size": [32, 48]},
        },
        {
            "pooling": "avg",
            "num_heads": 6,
            "image_sizes": [(224, 160), (32, 48)],
        },
    ),
    "keras_hub": (
        {"config": {"image_shape": [32, 48, 3], "num_heads": 3}},
        {"image_sizes": [(32, 48)], "num_heads": 3},
    ),
    "keras": (
        {"layers": [{"config": {"batch_shape": [None, 32, 48, 3]}}]},
        {"image_sizes": [(32, 48)]},
    ),
    "outer_first": ({"a": {"num_heads": 3}, "num_heads": 4}, {"num_heads": 4}),
    "nonsense": (
        {
            "num_heads": True,
            "image_size": "224",
            "hidden_act": ["gelu"],
            "layer_norm_eps": "1e-6",
            "pool": 3,
            "img_size": [1, 2, 3, 4, 5],
            "image": [-1, 4],
        },
        {},
    ),
}


@pytest.mark.parametrize("name", HINTS)
def test_what_configurations_of_others_say(name):
    config, expected = HINTS[name]
    assert find_hints(config) == expected


@pytest.mark.parametrize(
    "config",
    [
        {"hidden_act": "relu"},
        {"model_args": {"act_layer": "quick_gelu"}},
        {"global_pool": "avgmax"},
        {"model_args": {"pool_include_prefix": True}},
    ],
    ids=str,
)
def test_a_configuration_of_another_model_is_refused(config, alone):
    path = alone("timm_token.safetensors")
    path.with_suffix(".json").write_text(json.dumps(config))
    with pytest.raises(ValueError) as error:
        from_checkpoint(path, num_heads=3)
    assert str(path) in str(error.value)
    assert "its configuration has" in str(error.value)


def test_an_architecture_with_the_names_of_another_is_refused(alone):
    path = alone("timm_token.safetensors")
    config = {"architecture": "vit_base_patch16_rpn_224", "num_heads": 3}
    path.with_suffix(".json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match="normalises after the attention"):
        from_checkpoint(path)


def test_a_pooler_of_another_activation_is_refused(tmp_path):
    with open_checkpoint(path_of("hf_vit")) as checkpoint:
        arrays = {n: checkpoint.read(n) for n in checkpoint.entries}
    arrays = {n: a for n, a in arrays.items() if "classifier" not in n}
    arrays["vit.pooler.dense.weight"] = np.ones((24, 24), "float32")
    arrays["vit.pooler.dense.bias"] = np.ones(24, "float32")
    np.savez(tmp_path / "model.npz", **arrays)
    config = json.loads((path_of("hf_vit") / "config.json").read_text())
    (tmp_path / "model.json").write_text(
        json.dumps({**config, "pooler_act": "gelu"})
    )
    with pytest.raises(ValueError, match="its pooler ends in 'gelu'"):
        from_checkpoint(tmp_path / "model.npz")


def test_a_square_that_may_be_a_rectangle_is_not_guessed(alone):
    """17 rows: 4x4 patches behind a class token, or 2x8."""
    path = alone("timm_token.safetensors")
    wanted = {"num_heads": 3, "image_size": (16, 64)}
    with pytest.raises(ValueError, match="32x32 or 16x64.*source_image_size="):
        from_checkpoint(path, **wanted)
    with pytest.raises(ValueError, match="32x32 or 8x136"):  # No class row.
        from_checkpoint(path, num_heads=3, image_size=(8, 136))
    tables = []
    for size in ((32, 32), (16, 64)):
        model = from_checkpoint(path, **wanted, source_image_size=size)
        assert model.config.image_size == (16, 64)
        assert bool(model.load_report.resized) == (size == (32, 32))
        again = model.with_num_classes(0)
        load_checkpoint(again, path, source_image_size=size)
        for layer in (model, again):
            layer = layer.get_layer("position_embedding")
            tables.append(to_numpy(layer.embedding))
    np.testing.assert_array_equal(tables[0], tables[1])
    np.testing.assert_array_equal(tables[2], tables[3])
    assert np.abs(tables[0] - tables[2]).max() > 0.1
    with pytest.raises(ValueError, match=r"Received: \(24, 32\)"):
        from_checkpoint(path, num_heads=3, source_image_size=(24, 32))
    path.with_suffix(".json").write_text('{"image_size": [16, 64]}')
    told = from_checkpoint(path, num_heads=3)
    assert told.config.image_size == (16, 64)
    # The official code resizes squares only, but trains on anything.
    official = alone("official_token.npz")
    with pytest.raises(ValueError, match="32x32 or 16x64"):
        from_checkpoint(official, image_size=(16, 64))


def test_of_several_sizes_the_one_that_fits_is_taken(alone):
    """A rectangle that was tuned from a square, as timm's folders say it."""
    path = alone("timm_rect.safetensors")
    config = {
        "pretrained_cfg": {"input_size": [3, 224, 224]},
        "model_args": {"img_size": [24, 40], "num_heads": 3},
    }
    path.with_suffix(".json").write_text(json.dumps(config))
    assert from_checkpoint(path).config.image_size == (24, 40)


@pytest.mark.parametrize(
    "name",
    ["big_vision_map.npz", "big_vision_tok.npz", "big_vision_gap_scan.npz"],
)
def test_the_oldest_files_of_big_vision_are_not_taken_for_official(
    name, tmp_path
):
    """Their positions have the official name, and no row for the token."""
    arrays = forms.renamed(forms.arrays_of(name), *VERY_OLD_POSITIONS)
    np.savez(tmp_path / "old.npz", **arrays)
    model = from_checkpoint(tmp_path / "old.npz")
    np.testing.assert_allclose(
        to_numpy(model(expected_of(name)["x"])),
        answer_of(name),
        rtol=0,
        atol=1e-5,
    )


# ---------------------------------------------------------------------- errors


def stored_in(name):
    with open_checkpoint(path_of(name)) as checkpoint:
        return {n: checkpoint.read(n) for n in checkpoint.entries}


POSITIONS = "Transformer/posembed_input/pos_embedding"
LOST = {
    "cls": ("official_token.npz", ["cls"], ["17 positions"]),
    "cls_of_a_hybrid": ("official_hybrid.npz", ["cls"], ["65 positions"]),
    "positions": ("official_token.npz", [POSITIONS], [POSITIONS]),
    "positions_of_a_hybrid": ("official_hybrid.npz", [POSITIONS], [POSITIONS]),
    "positions_of_timm": (
        "timm_token.safetensors",
        ["pos_embed"],
        ["pos_embed"],
    ),
    "positions_of_hugging_face": (
        "hf_vit",
        ["vit.embeddings.position_embeddings"],
        ["vit.embeddings.position_embeddings"],
    ),
    "one_bias": (
        "timm_token.safetensors",
        ["blocks.1.attn.qkv.bias"],
        ["missing: blocks.1.attn.qkv.bias."],
    ),
    "one_bias_of_hugging_face": (
        "hf_vit",
        ["vit.encoder.layer.0.attention.attention.key.bias"],
        ["missing: vit.encoder.layer.0.attention.attention.key.bias."],
    ),
    "head_kernel": ("official_token.npz", ["head/kernel"], ["head/kernel"]),
    "classifier": ("hf_vit", ["classifier.weight"], ["classifier.weight"]),
    "pre_logits": (
        "official_pre_logits.npz",
        ["pre_logits/kernel"],
        ["missing: pre_logits/kernel."],
    ),
    "norm_of_the_last_block": (
        "official_token.npz",
        ["Transformer/encoderblock_1/LayerNorm_0/scale"],
        ["missing: Transformer/encoderblock_1/LayerNorm_0/scale."],
    ),
    "query": (
        "official_token.npz",
        [
            f"Transformer/encoderblock_0/MultiHeadDotProductAttention_1/query/{x}"
            for x in ("kernel", "bias")
        ],
        ["encoderblock_0/MultiHeadDotProductAttention_1/query/kernel, Tr"],
    ),
    "last_norm": (
        "big_vision_gap.npz",
        ["params/Transformer/encoder_norm/scale"],
        ["missing: Transformer/encoder_norm/scale."],
    ),
    "hidden": (
        "official_token.npz",
        ["Transformer/encoderblock_0/MlpBlock_3/Dense_0/kernel", "head/bias"],
        ["MlpBlock_3/Dense_0/kernel, head/bias."],
    ),
}


@pytest.mark.parametrize("case", LOST)
def test_what_is_lost_is_named_and_no_other_model_is_made_of_the_rest(
    case, tmp_path
):
    name, lost, words = LOST[case]
    arrays = stored_in(name)
    for key in lost:
        del arrays[key]
    np.savez(tmp_path / "lost.npz", **arrays)
    with pytest.raises(ValueError) as error:
        from_checkpoint(tmp_path / "lost.npz", num_heads=3, image_size=32)
    assert "missing: " in str(error.value) or case.startswith(("cls", "pos"))
    for word in words:
        assert word in str(error.value)


@pytest.mark.parametrize(
    ("name", "key", "config", "words"),
    [
        ("big_vision_tok.npz", "params/cls", {"pool": "tok"}, "lacks cls"),
        (
            "big_vision_gap.npz",
            "params/pos_embedding",
            {"posemb": "learn", "image": 32},
            "lacks pos_embedding",
        ),
        (
            "timm_rect.safetensors",
            "cls_token",
            {"global_pool": "token", "num_heads": 3},
            "lacks cls_token",
        ),
    ],
)
def test_what_the_configuration_speaks_of_must_be_there(
    name, key, config, words, tmp_path
):
    arrays = stored_in(name)
    del arrays[key]
    np.savez(tmp_path / "lost.npz", **arrays)
    (tmp_path / "lost.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match=words):
        from_checkpoint(tmp_path / "lost.npz")


def test_a_damaged_array_is_outvoted_and_named(tmp_path):
    def edit(arrays):
        wide = np.zeros((8, 8, 3, 25), "float32")
        arrays["embedding/kernel"] = wide
        arrays["head/kernel"] = np.zeros((24, 8), "float32")

    path = change(tmp_path, "official_token.npz", edit)
    with pytest.raises(ValueError) as error:
        from_checkpoint(path)
    for words in (
        "embedding/kernel (8, 8, 3, 25), expected (8, 8, 3, 24)",
        "head/kernel (24, 8), expected (24, 7)",
    ):
        assert words in str(error.value)


def sized(family, num_heads, variant):
    """Return a checkpoint of names and shapes alone, of a published size."""
    from keras_vit import VARIANTS
    from keras_vit.weights.layouts import parts_of

    parts = parts_of(LAYOUTS[family], VARIANTS[variant].config)
    shapes = {
        part.name: part.shape_in_file(num_heads)
        for row in parts.values()
        for part in row
    }
    table = LAYOUTS[family].names["position_embedding"]
    entries = {
        name: Entry(name, shape, "<f4", None) for name, shape in shapes.items()
    }
    assert table in entries
    return Checkpoint("there.npz", entries)


def change(tmp_path, name, edit):
    arrays = forms.arrays_of(name)
    edit(arrays)
    path = tmp_path / "changed.npz"
    np.savez(path, **arrays)
    return path


BLOCK = "Transformer/encoderblock_1/"


def test_all_that_is_wrong_is_named_at_once(tmp_path):
    def edit(arrays):
        del arrays[BLOCK + "LayerNorm_2/scale"], arrays["head/bias"]
        arrays["surplus/one"] = arrays["surplus/two"] = np.zeros(3)
        kernel = arrays[BLOCK + "MlpBlock_3/Dense_0/kernel"]
        arrays[BLOCK + "MlpBlock_3/Dense_0/kernel"] = kernel.T
        arrays["cls"] = np.zeros((1, 1, 24), "int32")

    path = change(tmp_path, "official_token.npz", edit)
    with pytest.raises(ValueError) as error:
        from_checkpoint(path)
    message = str(error.value)
    for words in (
        str(path),
        f"missing: {BLOCK}LayerNorm_2/scale, head/bias.",
        "left over: surplus/one, surplus/two.",
        f"{BLOCK}MlpBlock_3/Dense_0/kernel (48, 24), expected (24, 48)",
        "cls of type <i4",
    ):
        assert words in message


FAULTS = {
    "transposed": (
        lambda a: a.update({"head/kernel": a["head/kernel"].T}),
        "head",
    ),
    "a_block_is_missing": (
        lambda a: [a.pop(k) for k in list(a) if "block_0/" in k],
        "encoderblock_0/",
    ),
    "no_blocks": (
        lambda a: [a.pop(k) for k in list(a) if "block_" in k],
        "it has no block",
    ),
    "no_patches": (
        lambda a: a.pop("embedding/kernel"),
        "it lacks embedding/kernel",
    ),
    "rectangular_patches": (
        lambda a: a.update({"embedding/kernel": np.zeros((8, 4, 3, 24))}),
        "its patches are not square but 8x4",
    ),
    "patches_of_another_rank": (
        lambda a: a.update({"embedding/kernel": np.zeros((192, 24))}),
        "embedding/kernel has the shape (192, 24)",
    ),
    "positions_of_another_width": (
        lambda a: a.update(
            {"Transformer/posembed_input/pos_embedding": np.zeros((1, 17, 23))}
        ),
        "pos_embedding has the shape (1, 17, 23)",
    ),
    "both_spellings": (
        lambda a: a.update(
            {BLOCK + "LayerNorm_1/scale": a[BLOCK + "LayerNorm_2/scale"]}
        ),
        "twice",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_named(fault, tmp_path):
    edit, words = FAULTS[fault]
    path = change(tmp_path, "official_token.npz", edit)
    with pytest.raises(ValueError) as error:
        from_checkpoint(path)
    assert words in str(error.value) and str(path) in str(error.value)


FOREIGN = {
    "dist_token": "a distillation token",
    "reg_token": "register tokens",
    "blocks.0.ls1.gamma": "LayerScale",
    "blocks.0.attn.q_norm.weight": "a norm of queries and keys",
    "norm_pre.weight": "a norm before the first block",
    "blocks.0.attn.rel_pos.table": "relative positions",
    "rope.freqs": "rotary positions",
}


@pytest.mark.parametrize("name", FOREIGN)
def test_what_is_no_plain_vit_is_refused_by_name(name, tmp_path):
    with open_checkpoint(path_of("timm_token.safetensors")) as checkpoint:
        arrays = {n: checkpoint.read(n) for n in checkpoint.entries}
    arrays[name] = np.zeros(24, "float32")
    np.savez(tmp_path / "foreign.npz", **arrays)
    with pytest.raises(ValueError) as error:
        from_checkpoint(tmp_path / "foreign.npz", num_heads=3)
    assert f"left over: {name}" in str(error.value)
    assert FOREIGN[name] in str(error.value)


def test_another_network_is_refused_and_shown(tmp_path):
    np.savez(tmp_path / "other.npz", **{"conv1/kernel": np.zeros(3)})
    with pytest.raises(ValueError, match="no ViT of a known family.*conv1"):
        from_checkpoint(tmp_path / "other.npz")


def test_an_average_over_the_class_token_is_refused(tmp_path):
    shutil.copytree(path_of("keras_hub"), tmp_path / "gap")
    task = json.loads((tmp_path / "gap/task.json").read_text())
    task["config"]["pooling"] = "gap"
    (tmp_path / "gap/task.json").write_text(json.dumps(task))
    with pytest.raises(ValueError, match="averages the class token"):
        from_checkpoint(tmp_path / "gap")


def test_understanding_reads_no_array_and_builds_no_model(monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("it was read or built")

    monkeypatch.setattr(Entry, "read", refuse)
    monkeypatch.setattr(VisionTransformer, "__init__", refuse)
    with open_checkpoint(path_of("big_vision_map.npz")) as checkpoint:
        source = identify(checkpoint)
    assert source.config.pooling == "map"
    sizes = [a.size for a in forms.arrays_of("big_vision_map.npz").values()]
    assert source.num_parameters == sum(sizes)
