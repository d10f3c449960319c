"""Files in the names of the code of DINOv3 and EVA-02."""

import re

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from keras_vit import from_checkpoint, save_checkpoint
from tests.tiny import LATER_KINDS, noise, randomize, to_numpy
from tests.weights.cases import make

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*preprocess_input:UserWarning",
    "ignore:.*num_heads:UserWarning",
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
    found = from_checkpoint(path, num_heads=3, **arguments)
    x = noise(2, 32, 32, 3)
    np.testing.assert_array_equal(to_numpy(found(x)), to_numpy(model(x)))
    assert not found.load_report.reset


def test_eva_02(tmp_path):
    model = randomize(
        make(
            **LATER_KINDS["eva02"],
            rotary_temperature=10_000.0,
            pooling="avg",
            use_pooling_norm=True,
        )
    )
    arrays, path = write_original(model, tmp_path, EVA_02)
    assert "blocks.1.attn.q_bias" in arrays
    for name in ("rope", "blocks.0.attn.rope"):
        arrays |= {f"{name}.freqs_{part}": CONSTANT for part in ("cos", "sin")}
    save_file(arrays, path)
    with pytest.raises(ValueError, match="`architecture=`"):
        from_checkpoint(path)
    assert_same(model, path, architecture="eva02_base_patch14_224")


def test_dinov3_ignores_the_biases_of_keys(tmp_path):
    model = randomize(
        make(
            position_embedding="none",
            rotary_positions="centered",
            num_registers=2,
            layer_scale_init=0.1,
            qkv_bias="query_value",
            use_prefix_positions=False,
            layer_norm_epsilon=1e-5,
            activation="exact",
            num_classes=0,
        )
    )
    arrays, path = write_original(model, tmp_path, DINO_V3)
    for block in range(2):
        prefix = f"blocks.{block}.attn."
        query, value = (arrays.pop(f"{prefix}{x}_bias") for x in "qv")
        unused = np.full_like(query, 9.0)
        bias = np.concatenate([query, unused, value])
        arrays[f"{prefix}qkv.bias"] = bias
        mask = np.repeat(np.float32([1, 0, 1]), len(query))
        arrays[f"{prefix}qkv.bias_mask"] = mask
    arrays["rope_embed.periods"] = CONSTANT
    arrays["mask_token"] = CONSTANT
    save_file(arrays, path)
    with pytest.raises(ValueError, match="`architecture=`"):
        from_checkpoint(path)
    assert_same(
        model,
        path,
        architecture="vit_base_patch16_dinov3_qkvb",
        pooling="token",
        image_size=32,
    )
