"""The settings by the names of timm's architectures, against its models."""

import csv

import pytest

from keras_vit.weights.families.timm_tables import (
    VISIBLE_PARTS,
    fields_of,
    has_part,
    heads_of,
)
from tests.golden import FOLDER

with open(FOLDER / "timm_architectures.tsv", encoding="utf-8") as file:
    ROWS = {
        row["architecture"]: row for row in csv.DictReader(file, delimiter="\t")
    }
# Blocks that no VisionTransformer has.
FOREIGN_BLOCKS = (
    "ParallelThingsBlock",
    "ParallelScalingBlock",
    "DiffParallelScalingBlock",
)
OURS = {"gelu": "exact", "gelu_tanh": "tanh", "quick_gelu": "quick"}
ROTARY = {"": "none", "cat": "axial", "dinov3": "centered", "mixed": "mixed"}


def is_ours(row):
    return (
        row["block"] not in FOREIGN_BLOCKS
        and "resnet" not in (row["architecture"])
    )


@pytest.mark.parametrize("name", [n for n, row in ROWS.items() if is_ours(row)])
def test_the_name_tells_what_the_file_does_not(name):
    row, settings = ROWS[name], fields_of(name)
    assert settings["layer_norm_epsilon"] == float(row["epsilon"])
    if row["activation"].lower() != "silu":  # Every gate has it.
        assert settings["activation"] == OURS[row["activation"]]
    after = row["block"] in ("ResPostBlock", "ResPostRelPosBlock", "post-norm")
    assert settings["norm_placement"] == ("after" if after else "before")
    assert settings["rotary_positions"] == ROTARY[row["rope"]]
    if row["rope"] in ("cat", "dinov3"):
        temperature = float(row["temperature"] or 10_000)
        assert settings["rotary_temperature"] == temperature
    if row["rope"] == "cat":
        axes = {"ij": "yx", "xy": "xy"}[row["indexing"]]
        reference = row["reference"].strip("()").split(", ")
        reference = tuple(map(int, reference)) if row["reference"] else None
        assert settings["rotary_axes"] == axes
        assert settings.get("rotary_offset", 0) == float(row["offset"] or 0)
        assert settings.get("rotary_reference_size") == reference
    if "relpos" not in name:
        pooling = settings.get("pooling")
        assert pooling == row["pool"] or pooling is None
        # What names and shapes do not show.
        assert pooling or row["pool"] != "avg"
    pooling_heads = row["pool_heads"]
    expected = int(pooling_heads) if pooling_heads.isdecimal() else None
    assert settings.get("pooling_heads") == expected


@pytest.mark.parametrize("name", [n for n, row in ROWS.items() if is_ours(row)])
def test_the_name_and_the_sizes_tell_the_heads(name):
    row = ROWS[name]
    width, depth, heads = (int(row[k]) for k in ("width", "depth", "heads"))
    if width == 2432:
        pytest.skip("Grouped queries, which are refused.")
    assert heads_of(name, width, depth) == heads
    assert heads_of(name, width) == heads
    assert heads_of(name, width, depth + 1) in (None, heads)
    assert heads_of(name, width + 1, depth) is None


@pytest.mark.parametrize(
    "name", ["my_vit", "vit_base_patch16_new_224", "resnet50", ""]
)
def test_a_name_that_is_not_known_tells_nothing(name):
    assert fields_of(name) is None


# Queries and keys have their biases together in most models.
@pytest.mark.parametrize(
    "part", [part for part in VISIBLE_PARTS if part != "biases of keys"]
)
def test_the_name_tells_which_parts_have_arrays(part):
    for name, row in ROWS.items():
        assert has_part(part, name, {}) == (part in row["parts"].split(", "))


@pytest.mark.parametrize(
    "part, arguments, expected",
    [
        ("LayerScale", {"init_values": None}, False),
        ("LayerScale", {"init_values": 1.0}, True),
        ("register tokens", {"reg_tokens": 0}, False),
        ("attention pooling", {"global_pool": "avg"}, False),
        ("attention pooling", {"global_pool": "map"}, True),
    ],
)
def test_arguments_of_the_model_have_priority(part, arguments, expected):
    assert has_part(part, "test_vit3", {})
    assert has_part(part, "test_vit3", arguments) == expected
