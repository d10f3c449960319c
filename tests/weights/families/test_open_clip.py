"""OpenCLIP: timm's CLIP under the names of the original code."""

import dataclasses
import json
import re

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from keras_vit import Preprocessing, from_checkpoint, save_checkpoint
from tests.tiny import make, noise, to_numpy
from tests.weights.cases import TIMM, assert_answers, stored_in

# Its images want another mode than the default, which is noted.
pytestmark = pytest.mark.filterwarnings("ignore:.*preprocess_input:UserWarning")
# From open_clip's import of timm's names, backwards.
NAMES = (
    (r"^patch_embed\.proj\.", "conv1."),
    (r"^cls_token$", "class_embedding"),
    (r"^pos_embed$", "positional_embedding"),
    (r"^norm_pre\.", "ln_pre."),
    (r"^norm\.", "ln_post."),
    (r"^blocks\.", "transformer.resblocks."),
    (r"\.norm([12])\.", r".ln_\1."),
    (r"\.attn\.qkv\.", ".attn.in_proj_"),
    (r"\.attn\.proj\.", ".attn.out_proj."),
    (r"\.mlp\.fc1\.", ".mlp.c_fc."),
    (r"\.mlp\.fc2\.", ".mlp.c_proj."),
    (r"^head\.weight$", "proj"),
)
TOWER = {"width": 24, "head_width": 8, "image_size": 32, "patch_size": 8}


def clip(**choices):
    return make(
        use_patch_bias=False,
        use_embedding_norm=True,
        layer_norm_epsilon=1e-5,
        **{
            "activation": "quick",
            "preprocessing": "clip",
            "position_resize": "bicubic_antialias",
            **choices,
        },
    )


def open_clip_arrays(model, folder):
    """Return the arrays of a model as OpenCLIP names and shapes them."""
    save_checkpoint(model, folder / "timm.npz", layout="timm")
    arrays = {}
    with np.load(folder / "timm.npz") as file:
        for name in file.files:
            new, array = name, file[name]
            for pattern, replacement in NAMES:
                new = re.sub(pattern, replacement, new)
            if new == "head.bias":
                continue
            if new in ("class_embedding", "positional_embedding"):
                array = array.reshape(-1, 24)
            if new == "class_embedding":
                array = array[0]
            if new == "proj":
                array = np.ascontiguousarray(array.T)
            if new.startswith("__"):
                continue
            arrays[f"visual.{new}"] = array
    text = {"transformer.resblocks.0.ln_1.weight": np.ones(4, "float32")}
    others = {"positional_embedding": np.ones((3, 4), "float32")}
    return {**arrays, **text, **others, "logit_scale": np.float32([3])}


@pytest.fixture
def model():
    model = clip()
    bias = model.get_layer("predictions").bias
    bias.assign(np.zeros(bias.shape, "float32"))
    return model


def write(arrays, folder, **described):
    save_file(arrays, folder / "open_clip_model.safetensors")
    config = {"model_cfg": {"vision_cfg": TOWER, **described}}
    (folder / "open_clip_config.json").write_text(json.dumps(config))


def test_the_image_tower_is_read(model, tmp_path):
    folder = tmp_path / "clip"
    folder.mkdir()
    write(open_clip_arrays(model, tmp_path), folder, quick_gelu=True)
    again = from_checkpoint(folder / "open_clip_model.safetensors")
    # Its file says nothing of images, so they are read as OpenCLIP reads them.
    settings = Preprocessing("clip", "shortest", "bicubic")
    expected = dataclasses.replace(model.config, preprocessing=settings)
    assert again.config == expected
    x = noise(2, 32, 32, 3)
    np.testing.assert_allclose(
        to_numpy(again(x)), to_numpy(model(x)), atol=1e-6
    )


def test_without_its_configuration_it_asks(model, tmp_path):
    save_file(open_clip_arrays(model, tmp_path), tmp_path / "m.safetensors")
    with pytest.raises(ValueError) as error:
        from_checkpoint(tmp_path / "m.safetensors")
    assert "`activation=`" in str(error.value)
    assert "`num_heads=`" in str(error.value)
    again = from_checkpoint(
        tmp_path / "m.safetensors", num_heads=3, activation="quick"
    )
    assert again.config == model.config


def test_a_tower_without_its_last_norm_is_of_another_family(model, tmp_path):
    """So are towers of Perception Encoder, which turn queries and keys."""
    arrays = open_clip_arrays(model, tmp_path)
    arrays = {k: v for k, v in arrays.items() if "ln_post" not in k}
    save_file(arrays, tmp_path / "m.safetensors")
    with pytest.raises(ValueError, match="known famil"):
        from_checkpoint(
            tmp_path / "m.safetensors", num_heads=3, activation="exact"
        )


def test_a_refusal_lists_every_reason(model, tmp_path):
    tower = {
        **TOWER,
        "attentional_pool": True,
        "norm_kwargs": {"elementwise_affine": False},
        "act_kwargs": {"inplace": True},
        "act_layer": "mish",
        "pool_type": "none",
        "global_average_pool": True,
        "scale_fc": False,
        "head_width": 0,
    }
    arrays = open_clip_arrays(model, tmp_path)
    arrays["visual.rope.freqs"] = np.ones(2, "float32")
    write(arrays, tmp_path, vision_cfg=tower)
    with pytest.raises(ValueError) as error:
        from_checkpoint(tmp_path)
    for reason in (
        "attentional_pool=True",
        "norm_kwargs={'elementwise_affine': False}",
        "act_kwargs={'inplace': True}",
        "global_average_pool=True",
        "head_width=0",
        "act_layer='mish'",
        "pool_type='none'",
        "rotary positions (visual.rope.freqs)",
    ):
        assert reason in str(error.value)


@pytest.mark.parametrize("name, gelu", [("tanh", "tanh"), ("none", "exact")])
def test_what_keywords_of_the_tower_state(name, gelu, model, tmp_path):
    tower = {
        **TOWER,
        "act_kwargs": {"approximate": name},
        "norm_kwargs": {"eps": 1e-3},
    }
    write(open_clip_arrays(model, tmp_path), tmp_path, vision_cfg=tower)
    config = from_checkpoint(tmp_path).config
    assert (config.activation, config.layer_norm_epsilon) == (gelu, 1e-3)


def test_a_width_that_is_not_that_of_the_arrays_is_refused(model, tmp_path):
    """The number of heads follows from it."""
    tower = {**TOWER, "width": 48}
    write(open_clip_arrays(model, tmp_path), tmp_path, vision_cfg=tower)
    with pytest.raises(ValueError, match="width=48, .* of width 24"):
        from_checkpoint(tmp_path)


def test_a_norm_after_the_average(model, tmp_path):
    """CLIPA averages the patches before `ln_post`."""
    tower = {**TOWER, "pool_type": "avg", "final_ln_after_pool": True}
    arrays = open_clip_arrays(model, tmp_path)
    write(arrays, tmp_path, vision_cfg=tower)
    found = from_checkpoint(tmp_path)
    x = noise(2, 32, 32, 3)
    (patches,) = found.features(x, blocks=(1,), norm=False)
    pooled = to_numpy(patches).reshape(2, 16, 24).mean(axis=1)
    centred = pooled - pooled.mean(axis=1, keepdims=True)
    normed = centred / np.sqrt(centred.var(axis=1, keepdims=True) + 1e-5)
    normed = normed * arrays["visual.ln_post.weight"]
    logits = (normed + arrays["visual.ln_post.bias"]) @ arrays["visual.proj"]
    np.testing.assert_allclose(to_numpy(found(x)), logits, atol=1e-5)


def test_a_tower_of_timm_has_its_architecture(tmp_path):
    trunk = make(pooling="avg", use_class_token=False, activation="tanh")
    path = tmp_path / "timm.safetensors"
    save_checkpoint(trunk, path, layout="timm")
    tower = {
        "timm_model_name": "vit_so400m_patch16_siglip_gap_256",
        "timm_pool": "avg",
        "image_size": 32,
    }
    arrays = {f"visual.trunk.{k}": v for k, v in load_file(path).items()}
    write(arrays, tmp_path, vision_cfg=tower)
    found = from_checkpoint(tmp_path, num_heads=3)
    assert found.config.activation == "tanh"
    assert not any("assumed" in n for n in found.load_report.notes)
    x = noise(2, 32, 32, 3)
    np.testing.assert_array_equal(to_numpy(found(x)), to_numpy(trunk(x)))


@pytest.mark.parametrize("prefix", ["", "model.visual."])
def test_an_image_tower_alone_is_read(model, prefix, tmp_path):
    arrays = open_clip_arrays(model, tmp_path)
    alone = {
        prefix + name.removeprefix("visual."): array
        for name, array in arrays.items()
        if name.startswith("visual.")
    }
    save_file(alone, tmp_path / "tower.safetensors")
    images = noise(2, 32, 32, 3)
    found = from_checkpoint(
        tmp_path / "tower.safetensors", num_heads=3, activation="quick"
    )
    np.testing.assert_allclose(
        to_numpy(found(images)), to_numpy(model(images)), atol=1e-5
    )


@pytest.mark.parametrize("prefix", ["visual.", ""])
@pytest.mark.parametrize("part", ["proj.weight", "mlp.fc1.weight"])
def test_the_projection_of_a_tower_of_timm(prefix, part, load):
    arrays = stored_in(TIMM)
    kernel, bias = arrays.pop("head.weight"), arrays.pop("head.bias")
    arrays = {f"{prefix}trunk.{name}": a for name, a in arrays.items()}
    text = {"text.proj.0.weight": np.ones((3, 4), "float32")}
    arrays |= {f"{prefix}head.{part}": kernel, **text}
    if part.startswith("mlp"):
        with pytest.raises(ValueError, match="a projection with an MLP"):
            load(arrays, num_heads=3)
        return
    model = load(arrays, num_heads=3)
    layer = model.get_layer("predictions")
    np.testing.assert_array_equal(to_numpy(layer.kernel), kernel.T)
    layer.bias.assign(bias)
    assert_answers(model, TIMM)
