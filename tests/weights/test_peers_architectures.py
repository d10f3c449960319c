"""Architectures of timm, judged by timm itself.

One of each kind that is read; `python -m benchmarks.families` takes all.
"""

import re
import shutil

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from keras_vit import from_checkpoint, save_checkpoint
from keras_vit.weights.read import read_preprocessing
from tests.tiny import LATER_KINDS, SAPIENS_2, make, noise, to_numpy
from tests.weights.peer_process import (
    HYBRID,
    MARKS,
    answer_there,
    arrays_in,
    build,
    is_close,
    read,
)

pytestmark = MARKS

# How images are normalised is said by the architecture, and told.
quiet = pytest.mark.filterwarnings("ignore:.*preprocess_input:UserWarning")
READ = (
    "aimv2_large_patch14_224",
    "beit3_base_patch16_224",
    "beit_base_patch16_224",
    "beitv2_large_patch16_224",
    "deit3_base_patch16_224",
    "deit_tiny_distilled_patch16_224",
    "eva02_base_patch14_224",
    "eva02_base_patch16_clip_224",
    "eva02_enormous_patch14_clip_224",
    "eva02_tiny_patch14_336",
    "eva_giant_patch14_224",
    "eva_giant_patch14_clip_224",
    "eva_large_patch14_196",
    "flexivit_small",
    "naflexvit_base_patch16_gap",
    "naflexvit_base_patch16_map",
    "naflexvit_base_patch16_par_gap",
    "naflexvit_base_patch16_radio_v3",
    "naflexvit_base_patch16_siglip",
    "naflexvit_so400m_patch16_radio_v4",
    "test_vit2",
    "test_vit3",
    "test_vit_relpos",
    "vit_base_patch14_dinov2",
    "vit_base_patch14_reg4_dinov2",
    "vit_base_patch16_clip_224",
    "vit_base_patch16_clip_quickgelu_224",
    "vit_base_patch16_dinov3",
    "vit_base_patch16_dinov3_qkvb",
    "vit_base_patch16_lingbot",
    "vit_base_patch16_radio_v3",
    "vit_base_patch16_rope_ape_224",
    "vit_base_patch16_rope_mixed_ape_224",
    "vit_base_patch16_rope_reg1_gap_256",
    "vit_base_patch16_rpn_224",
    "vit_base_patch16_sapiens2",
    "vit_giant_patch14_reg4_dinov2",
    "vit_huge_plus_patch16_dinov3",
    "vit_intern300m_patch14_448",
    "vit_large_patch16_radio_v3",
    "vit_large_patch16_rope_224",
    "vit_large_patch16_siglip_512",
    "vit_medium_patch16_reg4_gap_256",
    "vit_pe_core_base_patch16_224",
    "vit_pe_core_gigantic_patch14_448",
    "vit_pe_lang_large_patch14_448",
    "vit_pe_spatial_tiny_patch16_512",
    "vit_relpos_base_patch16_clsgap_224",
    "vit_relpos_base_patch32_plus_rpn_256",
    "vit_small_patch16_rope_mixed_224",
    "vit_small_plus_patch16_dinov3_qkvb",
    "vit_so150m_patch16_reg4_map_256",
    "vit_so400m_patch14_reg1_tipsv2",
    "vit_srelpos_small_patch16_224",
    "vit_tiny_r_s16_p8_224",
)
# The part that the refusal names.
REFUSED = {
    "samvit_base_patch16": "attention in windows",
    "vit_dlittle_patch16_reg1_gap_256": "differential attention",
    "vit_pwee_patch16_reg1_gap_256": "parallel blocks",
    "vit_small_patch16_18x2_224": "parallel blocks",
    "vit_base_resnet26d_224": "a convolutional stem",
    "vit_large_patch16_sapiens2": "grouped queries",
}
# Files without config.json that would be read, and wrongly.
AMBIGUOUS = {
    "eva02_tiny_patch14_224": "`rotary_positions=`",
    "vit_base_patch16_clip_224": "`activation=`",
    "vit_base_patch16_dinov3": "`architecture=`",
    "vit_base_patch16_radio_v3": "`use_final_norm=`",
    "vit_base_patch16_rope_224": "`rotary_positions=`",
    "vit_pe_core_base_patch16_224": "`rotary_positions=`",
    "vit_so150m_patch16_reg4_map_256": "`pooling=`",
}


@pytest.fixture(scope="module")
def built(peers_folder):
    """Return a function from the name of an architecture to its folder."""
    requests = {
        f"arch/{name}": {"name": name, "resized": name in READ}
        for name in (*READ, *REFUSED)
    }
    requests |= {f"bare/{x}": {"name": x, "hub": False} for x in AMBIGUOUS}
    return build("build_architecture", requests, peers_folder)


def expected_of(folder):
    return arrays_in(folder / "expected.npz")


@pytest.mark.parametrize("name", READ)
def test_an_architecture_answers_the_same(name, built):
    folder = built(f"arch/{name}")
    model = read(folder)
    expected = expected_of(folder)
    tolerance = HYBRID if "_r_" in name else 1e-5
    is_close(to_numpy(model(expected["x"])), expected["logits"], tolerance)
    assert not model.load_report.reset
    assert not model.load_report.ignored


@pytest.mark.parametrize("name", READ)
@quiet
def test_at_another_size_it_answers_the_same(name, built):
    """Loaded at this size, and loaded and then changed to it."""
    folder = built(f"arch/{name}")
    expected = expected_of(folder)
    x = expected["other/x"]
    size = x.shape[1:3]
    for model in (
        from_checkpoint(folder, image_size=size),
        read(folder).with_image_size(size),
    ):
        is_close(to_numpy(model(x)), expected["other/logits"])


# Arrays without which a file of timm may look like one of another model.
TELLING = (
    r"\.(ls\d\.gamma|gamma_\d)$",
    r"\.(ls2\.gamma|gamma_2)$",
    "reg_token",
    "cls_token",
    "dist_token",
    "pos_embed$",
    "norm_pre",
    "^norm\\.",
    "^fc_norm\\.",
    r"norm\d?\.bias$",
    r"\.[qk]_norm\.",
    r"\.mlp\.norm\.",
    r"\.attn\.norm\.",
    r"patch_embed\.norm\.",
    r"\.(qkv\.|[qkv]_proj\.|[qv]_)bias$",
    r"\.k_proj\.bias$",
    r"proj\.bias$",
    r"rope\.freqs",
    "rel_pos|relative_position",
    "attn_pool",
)


@pytest.mark.parametrize("name", READ)
def test_a_file_that_lacks_a_part_is_refused(name, built, tmp_path):
    """All arrays of a part at once, as if the model never had it."""
    folder = built(f"arch/{name}")
    arrays = load_file(folder / "model.safetensors")
    shutil.copy(folder / "config.json", tmp_path)
    for pattern in TELLING:
        rest = {k: a for k, a in arrays.items() if not re.search(pattern, k)}
        if len(rest) < len(arrays):
            save_file(rest, tmp_path / "model.safetensors")
            with pytest.raises(ValueError, match="model.safetensors"):
                read_preprocessing(tmp_path)


FEATURES = (
    "beit_base_patch16_224",
    "eva02_base_patch14_224",
    "vit_base_patch14_reg4_dinov2",
    "vit_base_patch16_clip_224",
    "vit_base_patch16_dinov3",
    "vit_base_patch16_radio_v3",
)


@pytest.mark.parametrize("name", FEATURES)
def test_features_are_those_of_forward_intermediates(name, built):
    folder = built(f"arch/{name}")
    model = read(folder)
    expected = expected_of(folder)
    for index, actual in enumerate(model.features(expected["x"])):
        is_close(to_numpy(actual), expected[f"map/{index}"])


@pytest.mark.parametrize("name", REFUSED)
def test_an_architecture_that_is_refused_by_name(name, built):
    with pytest.raises(ValueError, match=REFUSED[name]):
        from_checkpoint(built(f"arch/{name}"))


@pytest.mark.parametrize("name", AMBIGUOUS)
def test_a_bare_file_asks_for_what_it_does_not_show(name, built):
    file = built(f"bare/{name}") / "weights.safetensors"
    with pytest.raises(ValueError, match=AMBIGUOUS[name]):
        from_checkpoint(file, num_heads=3)


@pytest.mark.parametrize("name", AMBIGUOUS)
@quiet
def test_the_architecture_settles_a_bare_file(name, built):
    folder = built(f"bare/{name}")
    expected = expected_of(folder)
    size = expected["x"].shape[1:3]
    model = from_checkpoint(
        folder / "weights.safetensors",
        num_heads=3,
        architecture=name,
        image_size=size,
        source_image_size=size,
    )
    is_close(to_numpy(model(expected["x"])), expected["logits"])


# NaFlex is written as a plain ViT of timm.
SAME_NAMES = [name for name in READ if not name.startswith("naflex")]


@pytest.mark.parametrize("name", SAME_NAMES)
@quiet
def test_what_is_written_again_is_the_same(name, built, tmp_path):
    """The arrays of a file, and the configuration of a folder."""
    folder = built(f"arch/{name}")
    model = read(folder)
    save_checkpoint(model, tmp_path / "model.safetensors", layout="timm")
    before = load_file(folder / "model.safetensors")
    after = load_file(tmp_path / "model.safetensors")
    assert before.keys() == after.keys()
    for key, array in before.items():
        np.testing.assert_array_equal(after[key], array, key)
    try:
        save_checkpoint(model, tmp_path / "again", layout="timm")
    except ValueError as error:
        assert "_r_" in name and "hybrids" in str(error)
        return
    again, x = from_checkpoint(tmp_path / "again"), expected_of(folder)["x"]
    np.testing.assert_allclose(
        to_numpy(again(x)), to_numpy(model(x)), rtol=0, atol=1e-6
    )


# One for each class and function of timm that models are written for.
LOADED_THERE = (
    "aimv2_large_patch14_224",
    "beit3_base_patch16_224",
    "beit_base_patch16_224",
    "deit_tiny_distilled_patch16_224",
    "eva02_base_patch14_224",
    "eva02_base_patch16_clip_224",
    "eva02_enormous_patch14_clip_224",
    "naflexvit_base_patch16_gap",
    "test_vit3",
    "vit_base_patch14_reg4_dinov2",
    "vit_base_patch16_clip_quickgelu_224",
    "vit_base_patch16_dinov3_qkvb",
    "vit_base_patch16_rope_mixed_ape_224",
    "vit_base_patch16_rope_reg1_gap_256",
    "vit_base_patch16_rpn_224",
    "vit_base_patch16_sapiens2",
    "vit_giant_patch14_reg4_dinov2",
    "vit_intern300m_patch14_448",
    "vit_pe_core_gigantic_patch14_448",
    "vit_pe_lang_large_patch14_448",
    "vit_relpos_base_patch32_plus_rpn_256",
    "vit_small_plus_patch16_dinov3_qkvb",
    "vit_srelpos_small_patch16_224",
)


# One of each kind that the package can build, whether timm has it or not.
KINDS = {
    **LATER_KINDS,
    "sapiens2": SAPIENS_2,
    "beit_after": {**LATER_KINDS["beit"], "norm_placement": "after"},
    "beit_clip": {**LATER_KINDS["beit"], "use_embedding_norm": True},
    "beit_registers": {**LATER_KINDS["beit"], "num_registers": 1},
    "deit_token": {**LATER_KINDS["deit"], "pooling": "token"},
    "deit_scale": {**LATER_KINDS["deit"], "layer_scale_init": 0.1},
    "eva_after": {**LATER_KINDS["eva02"], "norm_placement": "after"},
    "eva_clip": {
        **LATER_KINDS["eva02"],
        "use_embedding_norm": True,
        "use_patch_bias": False,
    },
    "clip_after": {**LATER_KINDS["clip"], "norm_placement": "after"},
    "relative_scale": {**LATER_KINDS["relative_mlp"], "layer_scale_init": 0.1},
    "rms": {"norm": "rms"},
    "after": {"norm_placement": "after"},
    "centered_tokens": {
        **LATER_KINDS["dinov3"],
        "pooling": "none",
        "num_classes": 0,
    },
}
WRITTEN_KINDS = {
    "clip",
    "deit",
    "beit",
    "relative_mlp",
    "eva02",
    "mixed",
    "dinov3",
    "sapiens2",
    "eva_after",
    "eva_clip",
    "rms",
    "after",
    "centered_tokens",
}


@pytest.fixture(scope="module")
def answered(built, peers_folder):
    """Return timm's answers with the written files, and ours."""
    models = {
        name: make(**{"activation": "exact", **choices})
        for name, choices in KINDS.items()
    }
    np.savez(peers_folder / "x.npz", x=noise(2, 32, 32, 3))
    images = dict.fromkeys(KINDS, peers_folder / "x.npz")
    for name in LOADED_THERE:
        models[name] = read(built(f"arch/{name}"))
        images[name] = built(f"arch/{name}") / "expected.npz"
    found = answer_there(models, "timm", peers_folder, images)
    return found, {
        name: to_numpy(models[name](np.load(images[name])["x"]))
        for name in found
    }


@pytest.mark.parametrize("name", [*sorted(WRITTEN_KINDS), *LOADED_THERE])
def test_timm_answers_the_same_with_what_we_write(name, answered):
    there, here = (answers[name] for answers in answered)
    assert isinstance(there, dict), there
    is_close(there["logits"], here, 5e-6)


def test_what_timm_does_not_compute_is_refused(answered):
    assert answered[0].keys() == {*WRITTEN_KINDS, *LOADED_THERE}
