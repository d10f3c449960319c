"""Files in the names of the code of DINO, MAE, DeiT III and EVA."""

import re

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from keras_vit import from_checkpoint, load_checkpoint, save_checkpoint
from tests.tiny import LATER_KINDS, make, noise, to_numpy

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*preprocess_input:UserWarning", "ignore:.*num_heads:UserWarning"
)
EVA_02 = (
    (r"attn\.([qv])_proj\.bias", r"attn.\1_bias"),
    (r"mlp\.fc1_g", "mlp.w1"),
    (r"mlp\.fc1_x", "mlp.w2"),
    (r"mlp\.fc2", "mlp.w3"),
    (r"mlp\.norm", "mlp.ffn_ln"),
    (r"attn\.norm", "attn.inner_attn_ln"),
)
DINO_V3 = ((r"reg_token", "storage_tokens"), (r"\.gamma_(\d)", r".ls\1.gamma"))
CONSTANT = np.full((4, 8), 3.0, "float32")


def write_original(model, folder, changes):
    """Return the arrays of a model in other names, and a path for them."""
    save_checkpoint(model, folder / "timm.safetensors", layout="timm")
    arrays = {}
    for name, array in load_file(folder / "timm.safetensors").items():
        for pattern, replacement in changes:
            name = re.sub(pattern, replacement, name)
        arrays[name] = array
    return arrays, folder / "original.safetensors"


def assert_same(model, path, **arguments):
    """Load the file, whose answers are those of `model`; return the other."""
    found = from_checkpoint(path, num_heads=3, **arguments)
    x = noise(2, 32, 32, 3)
    np.testing.assert_array_equal(to_numpy(found(x)), to_numpy(model(x)))
    assert not found.load_report.reset
    return found


def test_eva_02(tmp_path):
    model = make(
        **LATER_KINDS["eva02"],
        rotary_temperature=10_000.0,
        pooling="avg",
        use_pooling_norm=True,
    )
    arrays, path = write_original(model, tmp_path, EVA_02)
    assert "blocks.1.attn.q_bias" in arrays
    for name in ("rope", "blocks.0.attn.rope"):
        arrays |= {f"{name}.freqs_{part}": CONSTANT for part in ("cos", "sin")}
    save_file(arrays, path)
    with pytest.raises(ValueError, match="`architecture=`"):
        from_checkpoint(path)
    assert_same(model, path, architecture="eva02_base_patch14_224")


@pytest.mark.parametrize(
    ("prefix", "more"),
    [
        # The pretraining of EVA, and the text tower of EVA-CLIP.
        ("", ["lm_head.bias", "blocks.0.attn.relative_position_index"]),
        ("visual.", ["logit_scale", "text.ln_final.weight"]),
        (
            "",
            [
                "mask_token",
                "decoder_embed.weight",
                "decoder_pos_embed",
                "decoder_blocks.0.norm1.weight",
                "decoder_norm.bias",
                "decoder_pred.weight",
            ],
        ),
    ],
)
def test_what_stands_beside_the_encoder_is_left_out(prefix, more, tmp_path):
    model = make(activation="exact", num_classes=0)
    arrays, path = write_original(model, tmp_path, ())
    arrays = {prefix + name: array for name, array in arrays.items()}
    save_file({**arrays, **dict.fromkeys(more, CONSTANT)}, path)
    found = assert_same(model, path, activation="exact")
    is_mae = "decoder_pos_embed" in more
    assert (found.config.position_resize == "bicubic") == is_mae


def test_deit_iii_by_its_architecture(tmp_path):
    """Its position table has no row for the class token."""
    model = make(
        use_prefix_positions=False, layer_scale_init=0.1, activation="exact"
    )
    arrays, path = write_original(model, tmp_path, ())
    save_file(arrays, path)
    with pytest.raises(ValueError, match="`source_image_size="):
        from_checkpoint(path, num_heads=3)
    assert_same(model, path, architecture="deit3_small_patch16_224")


def test_a_model_with_other_rotary_positions_is_a_note(tmp_path):
    choices = {**LATER_KINDS["eva02"], "num_classes": 0}
    model = make(rotary_temperature=10_000.0, **choices)
    save_checkpoint(model, tmp_path / "timm", layout="timm")
    other = make(rotary_temperature=50.0, rotary_offset=1.0, **choices)
    with pytest.warns(UserWarning, match="rotary_"):
        report = load_checkpoint(other, tmp_path / "timm")
    text = " ".join(report.notes)
    assert "rotary_temperature=10000.0, the model with" in text
    assert "rotary_offset=0.0, the model with" in text


# ------------------------------------------------------------ DINO, DINOv2, MAE


def make_dinov2(**choices):
    return make(
        layer_scale_init=0.1, activation="exact", num_classes=0, **choices
    )


def resize_of(path):
    return from_checkpoint(path, num_heads=3).config.position_resize


def test_dinov2_resizes_positions_as_its_code_does(tmp_path):
    arrays, path = write_original(make_dinov2(), tmp_path, ())
    # timm keeps no mask token, and has a rule of its own.
    save_file(arrays, path)
    assert resize_of(path) == "bicubic_antialias"
    save_file({**arrays, "mask_token": CONSTANT}, path)
    model = make_dinov2(position_resize="bicubic_offset")
    found = assert_same(model, path)
    assert found.config.position_resize == "bicubic_offset"
    # The caller has the last word.
    loaded = {"position_resize": "official", "image_size": 48}
    report = from_checkpoint(path, num_heads=3, **loaded).load_report
    assert "(official)" in str(report)


def test_dinov2_with_registers_has_another_rule(tmp_path):
    model = make_dinov2(num_registers=2, use_prefix_positions=False)
    arrays, path = write_original(
        model, tmp_path, ((r"reg_token", "register_tokens"),)
    )
    # Its code has a row for the class token, which is added to the token.
    row = np.full((1, 1, 24), 0.5, "float32")
    arrays["pos_embed"] = np.concatenate([row, arrays["pos_embed"]], 1)
    arrays["cls_token"] = arrays["cls_token"] - row
    save_file({**arrays, "mask_token": CONSTANT}, path)
    found = from_checkpoint(path, num_heads=3)
    assert found.config.position_resize == "bicubic_antialias"
    x = noise(2, 32, 32, 3)
    np.testing.assert_allclose(
        to_numpy(found(x)), to_numpy(model(x)), atol=1e-6
    )


TRAINING_HEADS = {
    "dino_head.mlp.0.weight": CONSTANT,
    "ibot_head.last_layer.weight_g": CONSTANT,
    "head.mlp.0.weight": CONSTANT,
    "head.last_layer.weight_v": CONSTANT,
}


@pytest.mark.parametrize("prefix", ["", "teacher.backbone."])
def test_what_the_training_of_dino_writes(prefix, tmp_path):
    """Its blocks may be in groups, and its heads are beside them."""
    model = make_dinov2(position_resize="bicubic_offset")
    groups = ((r"^blocks\.(\d)\.", r"blocks.\1.\1."),)
    arrays, path = write_original(model, tmp_path, groups)
    assert "blocks.1.1.norm1.weight" in arrays
    arrays = {prefix + name: array for name, array in arrays.items()}
    outer = prefix.removesuffix("backbone.")
    heads = {outer + name: array for name, array in TRAINING_HEADS.items()}
    save_file({**arrays, **heads, f"{prefix}mask_token": CONSTANT}, path)
    found = assert_same(model, path)
    assert found.config.position_resize == "bicubic_offset"


DINO_V3_MODEL = {
    "width": 48,
    "position_embedding": "none",
    "num_registers": 2,
    "layer_scale_init": 0.1,
    "qkv_bias": "query_value",
    "use_prefix_positions": False,
    "layer_norm_epsilon": 1e-5,
    "activation": "exact",
    "num_classes": 0,
}


def make_dinov3(rotary_positions="centered"):
    """Return a model of heads of 16 features."""
    return make(rotary_positions=rotary_positions, **DINO_V3_MODEL)


def write_dinov3(folder):
    """Return arrays in the names of DINOv3, without periods, and a path."""
    arrays, path = write_original(make_dinov3(), folder, DINO_V3)
    for block in range(2):
        prefix = f"blocks.{block}.attn."
        query, value = (arrays.pop(f"{prefix}{x}_bias") for x in "qv")
        unused = np.full_like(query, 9.0)
        bias = np.concatenate([query, unused, value])
        arrays[f"{prefix}qkv.bias"] = bias
        mask = np.repeat(np.float32([1, 0, 1]), len(query))
        arrays[f"{prefix}qkv.bias_mask"] = mask
    arrays["mask_token"] = CONSTANT
    return arrays, path


TOLD = {
    "architecture": "vit_base_patch16_dinov3_qkvb",
    "pooling": "token",
    "image_size": 32,
}
# Those of DINOv3 in bfloat16, a number of 8 significant bits: 100^(1/4) is
# 3.1623 and 101.2 / 32; 100^(3/4) is 31.623 and 126.5 / 4.
EXACT = np.float32([1, 10**0.5, 10, 10**1.5])
ROUNDED = np.float32([1, 202 / 64, 10, 253 / 8])


def test_dinov3_ignores_the_biases_of_keys(tmp_path):
    arrays, path = write_dinov3(tmp_path)
    save_file(arrays, path)
    with pytest.raises(ValueError, match="`architecture=`"):
        from_checkpoint(path)
    assert_same(make_dinov3(), path, **TOLD)


@pytest.mark.parametrize(
    "periods, kind", [(EXACT, "centered"), (ROUNDED, "centered_bfloat16")]
)
def test_dinov3_computes_with_the_periods_of_its_file(tmp_path, periods, kind):
    arrays, path = write_dinov3(tmp_path)
    save_file({**arrays, "rope_embed.periods": periods}, path)
    found = assert_same(make_dinov3(kind), path, **TOLD)
    assert found.config.rotary_positions == kind
    # timm and Hugging Face compute with exact periods.
    as_timm = from_checkpoint(
        path, num_heads=3, rotary_positions="centered", **TOLD
    )
    save_checkpoint(as_timm, tmp_path / "again.safetensors", layout="timm")
    if kind != "centered":
        with pytest.raises(ValueError, match="rotary_positions"):
            save_checkpoint(
                found, tmp_path / "again.safetensors", layout="timm"
            )


def test_periods_of_another_model_are_refused(tmp_path):
    arrays, path = write_dinov3(tmp_path)
    save_file({**arrays, "rope_embed.periods": 2 * EXACT}, path)
    with pytest.raises(ValueError, match=r"periods.*rotary_temperature=100"):
        from_checkpoint(path, num_heads=3, **TOLD)
