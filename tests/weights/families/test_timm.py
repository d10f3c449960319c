"""timm: settings that its files leave open, and JSON written for it."""

import dataclasses

import numpy as np
import pytest

from keras_vit import (
    VARIANTS,
    VisionTransformer,
    from_checkpoint,
    load_checkpoint,
    save_checkpoint,
)
from keras_vit.weights.families import LAYOUTS, timm
from keras_vit.weights.families.inference import Known
from keras_vit.weights.find import find
from tests.tiny import LATER_KINDS, make, tiny_config, to_numpy
from tests.weights.cases import TIMM, assert_answers, checkpoint_of, stored_in


def test_a_table_of_timm_without_the_row_of_the_class_token(tmp_path):
    """no_embed_class=True: positions are added before the token is."""
    arrays = stored_in(TIMM)
    row = arrays["pos_embed"][:, :1]
    arrays["pos_embed"] = arrays["pos_embed"][:, 1:]
    arrays["cls_token"] = arrays["cls_token"] + row
    np.savez(tmp_path / "m.npz", **arrays)
    with pytest.raises(ValueError, match="16 positions are not a square grid"):
        from_checkpoint(tmp_path / "m.npz", num_heads=3)
    path = tmp_path / "m.npz"
    for size in ((16, 64), 32):
        model = from_checkpoint(path, num_heads=3, source_image_size=size)
        table = to_numpy(model.get_layer("position_embedding").embedding)
        np.testing.assert_array_equal(table, arrays["pos_embed"][0])
        assert not model.config.use_prefix_positions
    assert_answers(model, TIMM)
    # A size for the model alone does not say that the row is missing: these
    # might be 3x5 patches behind one.
    with pytest.raises(ValueError, match="16 positions are not a square grid"):
        from_checkpoint(path, num_heads=3, image_size=32)


def test_timm_makes_the_mlp_as_wide_as_it_was():
    """timm: hidden_features=int(dim * mlp_ratio)."""
    for width in range(1, 400, 3):
        for mlp_dim in (width + 1, 2 * width + 3, 4 * width - 1):
            config = tiny_config(width=width, mlp_dim=mlp_dim, num_heads=1)
            [model] = LAYOUTS["timm"].write(config).files.values()
            assert int(width * model["model_args"]["mlp_ratio"]) == mlp_dim


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("vit_so400m_patch16_siglip_gap_512", "tanh"),
        ("vit_so400m_patch14_siglip_378", "exact"),
    ],
)
def test_the_architecture_determines_the_gelu(name, expected):
    """All of them are compared in test_timm_architectures.py."""
    source = checkpoint_of("timm", VARIANTS["Ti/16"].config)
    # The file has no attention pooling, which one of them has.
    source.json = {"architecture": name, "num_heads": 3}
    source.json["global_pool"] = "token"
    assert find(source).config.activation == expected
    assert not find(source).notes
    # What the arguments of the model say goes before.
    source.json["model_args"] = {"act_layer": "gelu"}
    assert find(source).config.activation == "exact"


@pytest.mark.parametrize("tag", ["", ".a_tag"])
def test_the_architecture_determines_the_heads(tag):
    source = checkpoint_of("timm", VARIANTS["B/16"].config)
    source.json = {"architecture": f"vit_base_patch16_gap_224{tag}"}
    assert find(source).config.num_heads == 16


@pytest.mark.parametrize("tag", ["openai", "laion2b"])
def test_the_tag_of_an_architecture_tells_the_gelu_of_its_training(tag):
    config = LATER_KINDS["clip"] | {"activation": "exact"}
    config = dataclasses.replace(VARIANTS["B/16"].config, **config)
    source = checkpoint_of("timm", config)
    name = "vit_base_patch16_clip_224"
    named = find(source, Known(architecture=f"{name}.{tag}"))
    source.json = {"architecture": name, "pretrained_cfg": {"tag": tag}}
    assert named.notes == find(source).notes
    assert len(named.notes) == (tag == "openai")


def test_a_model_that_lacks_its_last_block_is_not_taken_for_another():
    """Only one architecture of this width has 23 blocks."""
    config = dataclasses.replace(VARIANTS["L/16"].config, depth=23)
    source = checkpoint_of("timm", config)
    source.json = {"architecture": "vit_large_patch16_224"}
    with pytest.raises(ValueError, match="does not store the number of heads"):
        find(source)


@pytest.mark.parametrize("depth", [1, 8])
def test_an_argument_for_the_depth_leaves_the_heads(depth):
    config = dataclasses.replace(VARIANTS["B/16"].config, depth=depth)
    source = checkpoint_of("timm", config)
    source.json = {"architecture": "vit_base_patch16_224"}
    source.json["model_args"] = {"depth": depth}
    assert find(source).config.num_heads == 12
    # A width may have heads of another size.
    source.json["model_args"]["embed_dim"] = 768
    with pytest.raises(ValueError, match="does not store the number of heads"):
        find(source)


SIGLIP = {"use_class_token": False, "pooling": "map", "num_classes": 0}


@pytest.mark.parametrize(
    ("variant", "changes", "name"),
    [
        ("B/32", {"image_size": 256}, "vit_base_patch32_siglip"),
        ("L/16", {"image_size": 512}, "vit_large_patch16_siglip_512"),
        (
            "So400m/14",
            {"patch_size": 16, "image_size": 384},
            "vit_so400m_patch16_siglip",
        ),
        (
            "B/16",
            {
                "width": 1536,
                "depth": 40,
                "mlp_dim": 6144,
                "num_heads": 16,
                "image_size": 256,
            },
            "vit_giantopt_patch16_siglip",
        ),
        ("L/16", {"image_size": 384}, None),
        ("So400m/14", {"image_size": 224}, None),
        ("B/32", {"use_class_token": True, "pooling": "token"}, None),
    ],
    ids=str,
)
def test_without_a_configuration_the_sizes_tell_the_gelu(
    variant, changes, name
):
    config = VARIANTS[variant].config
    config = dataclasses.replace(config, **{**SIGLIP, **changes})
    source = find(checkpoint_of("timm", config), Known(config.num_heads))
    assert source.config.activation == ("tanh" if name else "exact")
    assert [name in note for note in source.notes] == [True] * bool(name)


def test_an_assumed_gelu_is_a_warning_that_the_argument_settles(
    tmp_path, monkeypatch
):
    monkeypatch.setitem(timm.TANH_SIZES, (24, 2, 8, None), "vit_tiny_siglip")
    model = make(use_class_token=False, pooling="avg", activation="exact")
    save_checkpoint(model, tmp_path / "own.npz", layout="timm")
    assert from_checkpoint(tmp_path / "own.npz").config.activation == "exact"
    with np.load(tmp_path / "own.npz") as arrays:
        np.savez(tmp_path / "m.npz", **arrays)
    options = {"num_heads": 3}
    with pytest.warns(UserWarning, match="Pass `activation='tanh'` to confirm"):
        model = from_checkpoint(tmp_path / "m.npz", **options)
    assert model.config.activation == "tanh"
    for activation in ("tanh", "exact"):
        # Warnings are errors.
        model = from_checkpoint(
            tmp_path / "m.npz", activation=activation, **options
        )
        assert model.config.activation == activation
    # A model that exists has a GELU.
    tanh = VisionTransformer(
        dataclasses.replace(model.config, activation="tanh")
    )
    assert not load_checkpoint(tanh, tmp_path / "m.npz").notes
