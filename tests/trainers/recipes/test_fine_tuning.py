"""The flags that choose which weights are trained."""

import pytest

from trainers.recipes.recipe import Recipe


@pytest.mark.parametrize(
    "text, parts, num_last_blocks",
    [
        (None, [], 0),
        ("all", ["all"], 0),
        ("head", ["head"], 0),
        ("norms, biases,head", ["norms", "biases", "head"], 0),
        ("last_blocks:2", [], 2),
        ("positions,last_blocks:12", ["positions"], 12),
    ],
)
def test_parts_and_blocks(text, parts, num_last_blocks):
    recipe = Recipe(train_only=text)
    assert recipe.trained_parts == (parts, num_last_blocks)


def test_layers_of_lora():
    assert Recipe().lora_layer_names == ["qkv", "out"]
    recipe = Recipe(lora_rank=2, lora_layers="mlp_out, head")
    assert recipe.lora_layer_names == ["mlp_out", "head"]


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"train_only": "heads"}, "`train_only` must be one of 'head'.*'heads"),
        ({"train_only": "last_blocks"}, "must be one of.*'last_blocks:N'"),
        ({"train_only": "last_blocks:N"}, "must be one of.*'last_blocks'"),
        ({"train_only": "last_blocks:-1"}, "must be one of.*blocks:-1"),
        ({"train_only": "all,head"}, "`train_only` must be 'all', or parts"),
        (
            {"train_only": "last_blocks:1,last_blocks:2"},
            "at most one last_blocks:N",
        ),
        ({"lora_rank": -1}, "`lora_rank` must be 0 or more.*=-1"),
        ({"lora_layers": "qkv,mlp"}, "`lora_layers` must be one of.*'mlp'"),
        ({"lora_layers": ""}, "`lora_layers` must be one of"),
        ({"lora_alpha": 0.0}, "`lora_alpha` must be positive"),
        ({"lora_alpha": 2.0}, "`lora_alpha` needs a positive `lora_rank`"),
        ({"lora_layers": "head"}, "`lora_layers` needs a positive `lora_rank`"),
        ({"lora_rank": 2, "train_only": "all"}, "`train_only`.*with LoRA"),
        ({"lora_rank": 2, "train_only": "last_blocks:1"}, "lora_rank=2"),
        (
            {"model": "ResNet50", "train_only": "head"},
            "need a Vis.*ResNet50",
        ),
        ({"model": "ResNet50", "lora_rank": 2}, "need a Vis.*ResNet50"),
    ],
)
def test_errors_name_the_field(fields, message):
    with pytest.raises(ValueError, match=message):
        Recipe(**fields)
