"""Families and their names in every form that is found in the wild."""

import numpy as np
import pytest

from keras_vit.weights.containers import open_file
from keras_vit.weights.families import LAYOUTS
from keras_vit.weights.families.family import rename
from keras_vit.weights.families.inference import Known
from keras_vit.weights.find import find
from tests.tiny import tiny_config
from tests.weights import forms
from tests.weights.cases import TIMM, TOKEN, assert_answers, stored_in


def renaming(*changes):
    return lambda arrays: forms.renamed(arrays, *changes)


TO_LINEN = renaming(
    ("LayerNorm_2", "LayerNorm_1"),
    ("MlpBlock_3", "MlpBlock_0"),
    ("MultiHeadDotProductAttention_1", "MultiHeadDotProductAttention_0"),
)
TO_RELEASED = renaming(
    ("(block_.)/LayerNorm_1", r"\1/LayerNorm_2"),
    ("(block_.)/MlpBlock_0", r"\1/MlpBlock_3"),
    (
        "(block_.)/MultiHeadDotProductAttention_0",
        r"\1/MultiHeadDotProductAttention_1",
    ),
)
# Positions of the official name, and no row for the class token.
VERY_OLD = renaming(("params/pos_", "params/Transformer/posembed_input/pos_"))
FSDP = "_fsdp_wrapped_module._checkpoint_wrapped_module."
GAP = "big_vision_gap.npz"

# Name of a golden case, and what is done to its arrays. The answer stays.
FORMS = {
    "opt_target": (TOKEN, forms.with_training_state),
    "training_of_the_code": (TOKEN, forms.with_state_of_the_code),
    "linen": (TOKEN, TO_LINEN),
    "old_group_norms": ("official_hybrid.npz", forms.with_old_group_norms),
    "no_wrapper": ("big_vision_tok.npz", forms.unwrapped),
    "big_vision_opt_target": (
        GAP,
        lambda arrays: forms.with_training_state(forms.unwrapped(arrays)),
    ),
    "scan_no_wrapper": ("big_vision_gap_scan.npz", forms.unwrapped),
    "two_towers": (
        "big_vision_map.npz",
        lambda arrays: forms.two_towers(forms.unwrapped(arrays)),
    ),
    "spring_of_2022": (GAP, TO_RELEASED),
    "old_positions": (
        GAP,
        renaming(("params/pos_", "params/Transformer/pos_")),
    ),
    "very_old_gap": (GAP, VERY_OLD),
    "very_old_map": ("big_vision_map.npz", VERY_OLD),
    "very_old_token": ("big_vision_tok.npz", VERY_OLD),
    "very_old_scan": ("big_vision_gap_scan.npz", VERY_OLD),
    "map_at_top": ("big_vision_map.npz", renaming(("MAPHead_0/", ""))),
    "unused_class_slot": (
        GAP,
        lambda arrays: forms.with_class_slot(arrays, np.ones(24, "float32")),
    ),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_gives_the_same_answer(form, load):
    name, change = FORMS[form]
    model = load(change(stored_in(name)))
    tolerance = 5e-5 if "hybrid" in name else 1e-5
    assert_answers(model, name, tolerance)


def test_what_belongs_to_the_training_is_ignored(load):
    arrays = forms.with_training_state(stored_in(TOKEN))
    report = load(arrays).load_report
    assert all(name.startswith("opt/target/") for name in report.used)
    assert all(name.startswith("opt/state/") for name in report.ignored)
    assert len(report.used) + len(report.ignored) == len(arrays)


@pytest.mark.parametrize(
    ("name", "place", "words"),
    [
        (TOKEN, "^", "target/"),
        (TIMM, "^", "module._orig_mod.model."),
        (TIMM, "^", "model.student.module.backbone."),
        (TIMM, "^", "encoder.module."),
        (TIMM, "^", "_fsdp_wrapped_module.visual.trunk."),
        (TIMM, "^", "state_dict.net._orig_mod.body."),
        (TIMM, r"(?<=^blocks\.\d\.)", "_orig_mod."),
        (TIMM, r"(?<=^blocks\.\d\.)", FSDP),
        ("hf_vit", "^", "state_dict.model.module.backbone."),
        ("big_vision_gap.npz", "^", "params/img/"),
    ],
)
def test_what_may_stand_before_or_inside_of_names(name, place, words, load):
    arrays = forms.unwrapped(stored_in(name))
    arrays = forms.renamed(arrays, (place, words))
    options = {"num_heads": 3} if name in (TIMM, "hf_vit") else {}
    if name == "hf_vit":
        options["activation"] = "exact"
    model = load(arrays, **options)
    assert set(model.load_report.used) == set(arrays)
    assert_answers(model, name)


@pytest.mark.parametrize(
    ("read", "other", "more"),
    [
        (
            "teacher.backbone.",
            "student.module.backbone.",
            [
                "teacher.head.mlp.0.weight",
                "teacher.head.last_layer.weight_v",
                "student.module.head.mlp.0.weight",
                "student.ibot_head.mlp.0.weight",
                "dino_loss.center",
            ],
        ),
        (
            "model.teacher.backbone.",
            "model.student.backbone.",
            ["model.teacher.dino_head.mlp.0.weight", "model.ibot_loss.center"],
        ),
        (
            "module.base_encoder.",
            "module.momentum_encoder.",
            ["module.base_encoder.head.0.weight", "module.predictor.0.weight"],
        ),
        (
            "target_encoder.module.",
            "encoder.module.",
            ["predictor.module.predictor_embed.weight"],
        ),
        ("model.backbone.", None, ["model.loss.weight", "criterion.weight"]),
    ],
)
def test_one_network_of_a_training_file_is_read(read, other, more, load):
    arrays = stored_in(TIMM)
    stored = forms.wrapped(arrays, read)
    extra = dict.fromkeys(more, np.ones((3, 3), "f4"))
    if other:
        doubled = {name: 2 * value for name, value in arrays.items()}
        extra |= forms.wrapped(doubled, other)
    model = load({**stored, **extra}, num_heads=3)
    assert set(model.load_report.used) == set(stored)
    assert set(model.load_report.ignored) == set(extra)
    assert_answers(model, TIMM)


@pytest.mark.parametrize(
    ("prefix", "more"),
    [
        ("pretrained.", ["depth_head.projects.0.weight"]),
        ("model.backbone.", ["model.other.weight"]),
        ("state_dict.", ["state_dict_ema.norm.weight"]),
    ],
)
def test_a_prefix_that_stands_in_the_way_is_named(prefix, more, load):
    arrays = forms.wrapped(stored_in(TIMM), prefix)
    extra = dict.fromkeys(more, np.ones((3, 3), "f4"))
    with pytest.raises(ValueError, match=f"prefix '{prefix}'"):
        load({**arrays, **extra}, num_heads=3)


@pytest.mark.parametrize(
    "changes",
    [
        [(r"\.attn\.qkv\.", ".attn.qkv.base_layer.")],
        [(r"^blocks\.0\.attn\.qkv\.weight", "blocks.0.attn.qkv.lora_A.weight")],
        [(r"^", "base_model.model.")],
        [(r"^head\.", "head.modules_to_save.default.")],
    ],
)
def test_adapters_are_refused_with_the_way_to_merge_them(changes, load):
    arrays = forms.renamed(stored_in(TIMM), *changes)
    with pytest.raises(ValueError, match="m.npz holds adapters.*merge_and_un"):
        load(arrays, num_heads=3)


@pytest.mark.parametrize(
    ("name", "more"),
    [
        (TOKEN, ["opt_state/0/count", "step", "chrono/a", "optimizer/x"]),
        (TOKEN, ["state/x", "measurements/x"]),
        (TIMM, ["mask_token", "epoch", "optimizer"]),
        ("hf_vit", ["vit.embeddings.mask_token"]),
        ("hf_vit", ["vit.embeddings.position_ids"]),
        ("big_vision_gap.npz", ["txt/head/kernel", "t", "b"]),
        ("keras_hub", ["seed_generator/vars/0", "optimizer/vars/0"]),
        (
            "vit_keras.weights.h5",
            ["layers/dropout/seed_generator/vars/0", "optimizer/vars/0"],
        ),
        (
            "vit_keras.h5",
            ["optimizer_weights/adam/m", "top_level_model_weights/x"],
        ),
    ],
    ids=str,
)
def test_arrays_that_are_not_weights_are_ignored(name, more, tmp_path):
    arrays = stored_in(name)
    if name.startswith("big_vision"):
        arrays = forms.unwrapped(arrays)
    path = tmp_path / "m.npz"
    np.savez(path, **{**arrays, **dict.fromkeys(more, np.zeros(3, "f4"))})
    with open_file(path) as checkpoint:
        source = find(checkpoint, Known(3, (32, 48)))
    assert set(more) <= set(source.ignored)


@pytest.mark.parametrize("family", ["official", "big_vision", "timm"])
def test_dialects_are_read_as_the_usual_names(family):
    layout = LAYOUTS[family]
    choices = {"stem_stages": (1,), "patch_size": 1}
    choices = {} if family == "big_vision" else choices
    parts = layout.names(tiny_config(**choices)).values()
    for name in [part.name for row in parts for part in row]:
        for dialect in layout.dialects.values():
            changed = rename(name, dialect.changes)
            assert rename(changed, layout.aliases) == name
