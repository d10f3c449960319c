"""Checkpoints judged by timm itself.

It runs in a process of its own, see peers.py, which makes random models and
their answers.
"""

from typing import NamedTuple

import keras
import numpy as np
import pytest

from keras_vit import VisionTransformer, from_checkpoint, load_checkpoint
from keras_vit.layers.resize import (
    adapt_channels,
    resize_distances,
    resize_patch_kernel,
    resize_positions,
)
from tests.tiny import randomize, to_numpy
from tests.weights.peer_process import (
    HYBRID,
    MARKS,
    arrays_in,
    build,
    close,
    work,
)

pytestmark = MARKS

TOLERANCE = 5e-6


class Case(NamedTuple):
    """A model of another library, and how its file is read.

    Args:
        build: Arguments of the worker's task.
        read: Arguments of `from_checkpoint`.
        tolerance: How far logits may be off.
    """

    build: dict
    read: dict = {}
    tolerance: float = TOLERANCE


# ------------------------------------------------------------------ the cases

TIMM_TINY = {
    "img_size": 32,
    "patch_size": 8,
    "embed_dim": 48,
    "depth": 3,
    "num_heads": 3,
    "num_classes": 7,
}
HYBRID_TINY = {
    "img_size": 128,
    "embed_dim": 48,
    "depth": 2,
    "num_heads": 3,
    "num_classes": 7,
}
# Sixteen patches, which a square could hold as well.
RECTANGLE_MAX = {"img_size": (16, 64), "global_pool": "max"}
MAP = {"class_token": False, "global_pool": "map"}
NO_TOKEN = {"class_token": False, "global_pool": "avg"}


def timm(changes=None, read=None, images=(2, 32, 32, 3), **build):
    arguments = {**TIMM_TINY, **(changes or {})}
    build = {"arguments": arguments, "images": images, **build}
    read = {"num_heads": arguments["num_heads"], **(read or {})}
    return Case(build, read)


def hybrid(name, channels, details):
    arguments = {**HYBRID_TINY, "in_chans": channels}
    build = {"name": name, "arguments": arguments, "details": details}
    build["images"] = (2, 128, 128, channels)
    return Case(build, {"num_heads": 3}, HYBRID)


TIMM = {
    "token": timm(
        details=True,
        resized=[
            ({"img_size": (48, 40)}, (2, 48, 40, 3)),
            ({"img_size": (24, 16)}, (2, 24, 16, 3)),
            ({"img_size": 64, "patch_size": 16}, (2, 64, 64, 3)),
            ({"img_size": 30, "patch_size": 6}, (2, 30, 30, 3)),
        ],
    ),
    "avg": timm({"global_pool": "avg"}, details=True),
    "avg_without_fc_norm": timm(
        {"global_pool": "avg", "fc_norm": False}, {"pooling": "avg"}
    ),
    "avg_without_token": timm(
        NO_TOKEN,
        {"activation": "exact", "norm_placement": "before"},
        details=True,
        resized=[({"img_size": (40, 56)}, (2, 40, 56, 3))],
    ),
    "token_with_fc_norm": timm({"fc_norm": True}, {"pooling": "token"}),
    "max": timm({"global_pool": "max"}, {"pooling": "max"}),
    "map": timm(
        {"global_pool": "map", "class_token": False},
        {"activation": "exact"},
        details=True,
    ),
    "map_tanh": timm(
        {"global_pool": "map", "class_token": False, "act_layer": "gelu_tanh"},
        {"activation": "tanh"},
    ),
    "no_pooling": timm({"global_pool": ""}, {"pooling": "none"}),
    "no_embed_class": timm(
        {"no_embed_class": True}, {"source_image_size": 32}, details=True
    ),
    "no_qkv_bias": timm({"qkv_bias": False}, details=True),
    "rectangle": timm(
        {"img_size": (24, 48)}, {"image_size": (24, 48)}, (2, 24, 48, 3)
    ),
    "border": timm(
        {"img_size": (30, 46)}, {"source_image_size": (30, 46)}, (2, 30, 46, 3)
    ),
    "5_channels": timm({"in_chans": 5}, images=(2, 32, 32, 5)),
    "tanh": timm({"act_layer": "gelu_tanh"}, {"activation": "tanh"}),
    "register_tokens": timm({"reg_tokens": 4}),
    "register_tokens_apart": timm(
        {"reg_tokens": 4, "no_embed_class": True}, {"image_size": 32}
    ),
    "distilled": timm(name="deit"),
    "distilled_without_head": timm({"num_classes": 0}, name="deit"),
    "layer_scale": timm({"init_values": 0.1}, details=True),
    "qk_norm": timm({"qk_norm": True}),
    "pre_norm": timm(
        {"pre_norm": True},
        {
            "layer_norm_epsilon": 1e-6,
            "activation": "exact",
            "rotary_positions": "none",
        },
    ),
    "attention_norm": timm(
        {"scale_attn_norm": True}, {"layer_norm_epsilon": 1e-6}
    ),
    "no_final_norm": timm({"final_norm": False}, {"use_final_norm": False}),
    "no_classes": timm({"num_classes": 0}),
    "wide_mlp": timm({"mlp_ratio": 3.4, "embed_dim": 96}),
    "bfloat16": timm(dtype="bfloat16"),
    "hub": Case(
        {
            "name": "vit_tiny_patch16_224",
            "arguments": {},
            "images": (2, 224, 224, 3),
            "hub": {},
        }
    ),
    "hub_with_arguments": Case(
        {
            "name": "vit_small_patch16_224",
            "arguments": {**TIMM_TINY, "act_layer": "gelu_tanh"},
            "images": (2, 32, 32, 3),
            "hub": {**TIMM_TINY, "act_layer": "gelu_tanh"},
        }
    ),
    # Without a part of the architecture; its epsilon is another as well.
    **{
        f"hub_{value}": Case(
            {
                "name": "vit_base_patch16_clip_224",
                "arguments": {**TIMM_TINY, name: value},
                "images": (2, 32, 32, 3),
                "hub": {**TIMM_TINY, name: value},
            },
            {"preprocessing": "clip"},
        )
        for name, value in (("pos_embed", "none"), ("norm_layer", "rmsnorm"))
    },
    "hub_rectangle_max": Case(
        {
            "name": "vit_small_patch16_224",
            "arguments": {**TIMM_TINY, **RECTANGLE_MAX},
            "images": (2, 16, 64, 3),
            "hub": {**TIMM_TINY, **RECTANGLE_MAX},
        }
    ),
    # Two architectures of equal arguments, but for the GELU.
    **{
        f"hub_{name}": Case(
            {
                "name": name,
                "arguments": {**TIMM_TINY, **MAP},
                "images": (2, 32, 32, 3),
                "hub": {**TIMM_TINY, **MAP},
            }
        )
        for name in (
            "vit_base_patch32_siglip_256",
            "vit_base_patch16_siglip_256",
        )
    },
    # The tokens behind so deep a stem are rounded by 3e-4 in timm itself.
    "R50": hybrid("vit_base_r50_s16_224", 3, details=False),
    "R26_5_channels": hybrid("vit_small_r26_s32_224", 5, details=True),
}


def timm_hub(name="vit_small_patch16_224", images=(2, 32, 32, 3), **changes):
    """Return a timm model in a folder with its configuration.

    A change to None leaves an argument out.
    """
    arguments = {**TIMM_TINY, **changes}
    arguments = {k: v for k, v in arguments.items() if v is not None}
    build = {"name": name, "arguments": arguments, "images": images}
    return Case({**build, "hub": arguments})


# What looks like a model that we have, and is another. It may be refused or
# warned of, or right; not wrong and silent.
DOUBTFUL = {
    "map_with_token": timm({"global_pool": "map"}),
    "rectangle_as_a_square": timm(
        {"img_size": (16, 64)}, {"image_size": (16, 64)}, (2, 16, 64, 3)
    ),
    "rectangle_as_a_square_and_token": timm(
        {"img_size": (40, 80), "no_embed_class": True},
        {"image_size": (40, 80)},
        (2, 40, 80, 3),
    ),
    "hub_avgmax": timm_hub(global_pool="avgmax"),
    "hub_quick_gelu": timm_hub(act_layer="quick_gelu"),
    "hub_relu": timm_hub(act_layer="relu"),
    "hub_elu": timm_hub(act_layer="elu"),
    "hub_pools_the_token_too": timm_hub(
        global_pool="avg", pool_include_prefix=True
    ),
    "hub_post_norm": timm_hub("vit_base_patch16_rpn_224"),
    "hub_rotates_halves": timm_hub(
        "vit_base_patch16_rope_224", rope_rotate_half=True
    ),
    "hub_rotates_neighbours": timm_hub(
        "vit_base_patch16_dinov3", rope_rotate_half=False
    ),
    # All tokens are pooled, and not only the patches.
    "hub_map_of_dinov3": timm_hub(
        "vit_small_patch16_dinov3", global_pool="map"
    ),
    "hub_map_of_rope": timm_hub(
        "vit_small_patch16_rope_mixed_224", global_pool="map"
    ),
    "hub_map_of_gates": timm_hub("eva02_base_patch14_224", global_pool="map"),
    "hub_map_of_gates_without_token": timm_hub(
        "eva02_base_patch14_224", global_pool="map", class_token=False
    ),
    "hub_map_of_patches": timm_hub(
        "test_vit3", global_pool="map", pool_include_prefix=False
    ),
    # The heads are 12, those of the architecture.
    "hub_heads": timm_hub(
        "vit_base_patch16_224", embed_dim=192, depth=12, num_heads=None
    ),
    "hub_gates_after_a_norm": timm_hub(
        "vit_giant_patch14_dinov2", pre_norm=True
    ),
    "hub_gates_of_gelu": timm_hub("vit_giant_patch14_dinov2", act_layer="gelu"),
    "hub_rotates_as_dinov3": timm_hub(
        "eva02_base_patch14_224", rope_type="dinov3"
    ),
    "hub_mixed_rows_first": timm_hub(
        "vit_small_patch16_rope_mixed_224", rope_grid_indexing="ij"
    ),
    "hub_centered_columns_first": timm_hub(
        "vit_small_patch16_dinov3", rope_grid_indexing="xy"
    ),
    "hub_distilled_norm": timm_hub(
        "deit_tiny_distilled_patch16_224", fc_norm=True
    ),
    "hub_no_final_norm": timm_hub(final_norm=False),
    "hub_counts_otherwise": timm_hub(
        "vit_base_patch16_rope_224", rope_grid_offset=2.0
    ),
}
# What has no place in a VisionTransformer, and the words of the error.
REFUSED = {
    # The file alone cannot tell them from positions that were lost.
    "no_positions": (
        timm({"pos_embed": "none"}, {"image_size": 32}),
        "lacks pos_embed",
    ),
    "pre_norm_untold": (
        timm({"pre_norm": True}),
        "norm before the first block",
    ),
    "attention_norm_untold": (
        timm({"scale_attn_norm": True}),
        "norm inside the attention.*`layer_norm_epsilon=`",
    ),
    "no_final_norm_untold": (
        timm({"final_norm": False}),
        r"no norm\.weight.*`use_final_norm=`",
    ),
    "heads_untold": (
        timm({"num_classes": 0}, {"num_heads": None}),
        "`num_heads=`",
    ),
}
# Shapes and sizes of the single functions.
RESAMPLE = {
    "kernel": (16, 16, 3, 8),
    "positions": (13, 8),
    "sizes": (8, 12, 14, 32),
    "grids": ((3, 4), (6, 5), (2, 3), (3, 9), (7, 4)),
    "channels": (1, 2, 3, 4, 7),
}


@pytest.fixture(scope="module")
def built(peers_folder):
    """Return a function from the name of a case to its folder."""
    requests = {name: case.build for name, case in {**TIMM, **DOUBTFUL}.items()}
    for name, (case, _) in REFUSED.items():
        requests[name] = {**case.build, "images": None}
    return build("build_timm", requests, peers_folder)


def source_of(path):
    """Return the file or folder of weights in a case's folder."""
    file = path / "weights.safetensors"
    return file if file.exists() else path


def expected_of(path):
    return arrays_in(path / "expected.npz")


def read(path, case, **changes):
    return from_checkpoint(source_of(path), **{**case.read, **changes})


def answers_of(model, x):
    """Return the tokens after every block and the answer of `model`."""
    blocks = [x.output for x in model.layers if x.name.startswith("block_")]
    part = keras.Model(model.input, [*blocks, model.output])
    *blocks, answer = [to_numpy(y) for y in part(x)]
    found = {f"hidden/{index}": tokens for index, tokens in enumerate(blocks)}
    return {**found, "logits": answer}


def all_close(answers, expected, tolerance, label):
    """Compare the arrays in both; tokens as closely as their size allows."""
    for key in sorted(answers.keys() & expected.keys()):
        kind = key.split("/")[0]
        size = np.abs(expected[key]).max() if kind == "hidden" else 1
        limit = tolerance * max(size, 1)
        close(answers[key], expected[key], limit, f"{label} {kind}")


# ----------------------------------------------------------------- from others


@pytest.mark.parametrize("key", TIMM)
def test_a_model_answers_the_same(key, built):
    case = TIMM[key]
    path = built(key)
    expected = expected_of(path)
    model = read(path, case)
    answers = answers_of(model, expected["x"])
    assert len(answers) > model.config.depth
    all_close(answers, expected, case.tolerance, key)
    assert model.load_report.notes == () or case.read
    assert not model.load_report.ignored
    assert not model.load_report.reset


def test_logits_are_of_the_size_that_the_tolerances_are_for(built):
    expected = expected_of(built("hub"))
    assert 1 < np.abs(expected["logits"]).max() < 6


@pytest.mark.parametrize("key", ["token", "map_tanh"])
def test_the_other_gelu_gives_another_answer(key, built):
    path, case = built(key), TIMM[key]
    tanh = "tanh" in key
    assert read(path, case).config.activation == ("tanh" if tanh else "exact")
    model = read(path, case, activation="exact" if tanh else "tanh")
    expected = expected_of(path)
    difference = to_numpy(model(expected["x"])) - expected["logits"]
    assert np.abs(difference).max() > 1e-5


@pytest.mark.parametrize("key", REFUSED)
def test_what_is_refused(key, built):
    case, words = REFUSED[key]
    path = built(key)
    with pytest.raises(ValueError, match=words):
        read(path, case)


@pytest.mark.parametrize("key", DOUBTFUL)
def test_no_model_is_taken_for_another(key, built):
    path = built(key)
    expected = expected_of(path)
    try:
        model = read(path, DOUBTFUL[key])
    except (ValueError, UserWarning):
        return
    close(to_numpy(model(expected["x"])), expected["logits"], TOLERANCE, key)


@pytest.mark.parametrize("key", ["avg", "no_qkv_bias"])
def test_loading_into_a_model(key, built):
    path, case = built(key), TIMM[key]
    expected = expected_of(path)
    model = VisionTransformer(read(path, case).config)
    randomize(model)
    report = load_checkpoint(model, source_of(path), head="strict")
    assert not report.notes
    answer = to_numpy(model(expected["x"]))
    close(answer, expected["logits"], TOLERANCE, f"{key} loaded")


# ------------------------------------------------------------------ other sizes

TIMM_RESIZED = [
    (name, index)
    for name, case in TIMM.items()
    for index in range(len(case.build.get("resized", ())))
]


@pytest.mark.parametrize("name,index", TIMM_RESIZED)
def test_timm_loaded_in_another_size(name, index, built):
    case = TIMM[name]
    path = built(name)
    changes, _ = case.build["resized"][index]
    choices = {"image_size": changes["img_size"]}
    if "patch_size" in changes:
        choices["patch_size"] = changes["patch_size"]
        choices["patch_resize"] = "bicubic_antialias"
    model = read(path, case, position_resize="bicubic_antialias", **choices)
    assert model.load_report.resized
    expected = resized_of(path, index)
    table = to_numpy(model.get_layer("position_embedding").embedding)
    label = f"{name} resized {index}"
    close(table, expected.pop("positions"), 1e-6, f"{label} positions")
    all_close(answers_of(model, expected["x"]), expected, TOLERANCE, label)


def resized_of(path, index):
    prefix = f"resized/{index}/"
    return {
        key.removeprefix(prefix): value
        for key, value in expected_of(path).items()
        if key.startswith(prefix)
    }


def test_tables_and_kernels_are_resized_as_by_timm(tmp_path):
    task = {"task": "resample", "output": tmp_path / "found.npz", **RESAMPLE}
    assert work([task], tmp_path, "resample") == [None]
    resampled = arrays_in(tmp_path / "found.npz")
    rule = "bicubic_antialias"
    for key, expected in resampled.items():
        kind, _, size = key.partition("/")
        sides = tuple(map(int, size.split("x"))) if size else ()
        if not size:
            continue  # What is resized.
        tolerance = 1e-6
        if kind == "distances":
            table = resampled["distances"]
            actual = resize_distances(table, (4, 4), sides, rule)
            tolerance = 1e-5
        elif kind == "patch":
            # Theirs is a pseudo-inverse in float32, ours in float64.
            actual = resize_patch_kernel(resampled["kernel"], *sides, rule)
            tolerance = 3e-5
        elif kind == "positions":
            grid = RESAMPLE["grids"][0]
            actual = resize_positions(resampled["table"], grid, sides, rule)
        else:
            actual = adapt_channels(resampled["kernel"], *sides)
        close(actual, expected, tolerance, key)


def test_the_epsilons_of_the_other_stem_answer_otherwise(built):
    path = built("R26_5_channels")
    expected = expected_of(path)
    model = read(path, TIMM["R26_5_channels"], stem_epsilons="official")
    difference = to_numpy(model(expected["x"])) - expected["logits"]
    assert np.abs(difference).max() > 5e-5
