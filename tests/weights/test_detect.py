"""Families and their names in every form that is found in the wild."""

import numpy as np
import pytest

from keras_vit import from_checkpoint
from keras_vit.weights.containers import open_checkpoint
from keras_vit.weights.families import LAYOUTS
from keras_vit.weights.layouts import rename
from keras_vit.weights.positions import Known
from keras_vit.weights.source import identify
from keras_vit.weights.stored_parts import parts_of
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
GAP = "big_vision_gap.npz"

# Name of a golden case, and what is done to its arrays. The answer stays.
FORMS = {
    "opt_target": (TOKEN, forms.with_training_state),
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
def test_every_form_gives_the_same_answer(form, tmp_path):
    name, change = FORMS[form]
    np.savez(tmp_path / "form.npz", **change(stored_in(name)))
    model = from_checkpoint(tmp_path / "form.npz")
    tolerance = 5e-5 if "hybrid" in name else 1e-5
    assert_answers(model, name, tolerance)


def test_what_belongs_to_the_training_is_ignored(tmp_path):
    arrays = forms.with_training_state(stored_in(TOKEN))
    np.savez(tmp_path / "sam.npz", **arrays)
    report = from_checkpoint(tmp_path / "sam.npz").load_report
    assert all(name.startswith("opt/target/") for name in report.used)
    assert all(name.startswith("opt/state/") for name in report.ignored)
    assert len(report.used) + len(report.ignored) == len(arrays)


def test_another_network_is_refused_and_shown(tmp_path):
    np.savez(tmp_path / "other.npz", **{"conv1/kernel": np.zeros(3)})
    with pytest.raises(ValueError, match="not a ViT of a known family.*conv1"):
        from_checkpoint(tmp_path / "other.npz")


@pytest.mark.parametrize(
    ("name", "wrapper"),
    [
        (TOKEN, "target/"),
        (TOKEN, "params/"),
        (TIMM, "module."),
        (TIMM, "model."),
        (TIMM, "_orig_mod."),
        (TIMM, "state_dict."),
        ("hf_vit", "module."),
        ("hf_vit", "model."),
        ("big_vision_gap.npz", "img/"),
        ("big_vision_gap.npz", "params/img/"),
    ],
)
def test_what_may_stand_before_every_name(name, wrapper, tmp_path):
    arrays = forms.wrapped(forms.unwrapped(stored_in(name)), wrapper)
    np.savez(tmp_path / "m.npz", **arrays)
    options = {"num_heads": 3} if name in (TIMM, "hf_vit") else {}
    if name == "hf_vit":
        options["activation"] = "exact"
    model = from_checkpoint(tmp_path / "m.npz", **options)
    assert set(model.load_report.used) == set(arrays)
    assert_answers(model, name)


@pytest.mark.parametrize(
    ("name", "more"),
    [
        (TOKEN, ["opt_state/0/count", "step", "chrono/a"]),
        (TOKEN, ["optimizer/x", "state/x", "measurements/x"]),
        (TIMM, ["mask_token", "epoch", "optimizer"]),
        ("hf_vit", ["vit.embeddings.mask_token"]),
        ("hf_vit", ["vit.embeddings.position_ids"]),
        ("big_vision_gap.npz", ["txt/head/kernel", "t", "b"]),
        ("keras_hub", ["seed_generator/vars/0", "optimizer/vars/0"]),
        ("vit_keras.weights.h5", ["layers/dropout/seed_generator/vars/0"]),
        ("vit_keras.weights.h5", ["optimizer/vars/0"]),
        ("vit_keras.h5", ["optimizer_weights/adam/m"]),
        ("vit_keras.h5", ["top_level_model_weights/x"]),
    ],
    ids=str,
)
def test_arrays_that_are_not_weights_are_ignored(name, more, tmp_path):
    arrays = stored_in(name)
    if name.startswith("big_vision"):
        arrays = forms.unwrapped(arrays)
    path = tmp_path / "m.npz"
    np.savez(path, **{**arrays, **dict.fromkeys(more, np.zeros(3, "f4"))})
    with open_checkpoint(path) as checkpoint:
        source = identify(checkpoint, Known(3, (32, 48)))
    assert set(more) <= set(source.ignored)


def test_an_unknown_family_names_foreign_parts(tmp_path):
    arrays = {"reg_token": np.zeros(3, "f4"), "a": np.zeros(3, "f4")}
    np.savez(tmp_path / "m.npz", **arrays)
    words = r"not a ViT of a known family.* They show register tokens"
    with pytest.raises(ValueError, match=words):
        from_checkpoint(tmp_path / "m.npz")


@pytest.mark.parametrize("family", ["official", "big_vision", "timm"])
def test_dialects_are_read_as_the_usual_names(family):
    layout = LAYOUTS[family]
    choices = {"stem_stages": (1,), "patch_size": 1}
    choices = {} if family == "big_vision" else choices
    parts = parts_of(layout, tiny_config(**choices)).values()
    for name in [part.name for row in parts for part in row]:
        for dialect in layout.dialects.values():
            changed = rename(name, dialect.changes)
            assert rename(changed, layout.aliases) == name
