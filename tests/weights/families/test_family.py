"""Names, shapes and forms of weights in the families of checkpoints."""

import math
import random
import re

import keras
import numpy as np
import pytest

from keras_vit import VARIANTS, VisionTransformer, layers
from keras_vit.weights.families import LAYOUTS
from keras_vit.weights.families.family import NUMBER, shapes_of
from tests.tiny import (
    LATER_KINDS,
    PAPER_POSITIONS,
    SAPIENS_2,
    noise,
    tiny_config,
)

CONFIGS = {
    "token": {},
    "average": {"pooling": "avg", "use_class_token": False},
    "map": {"pooling": "map", "use_class_token": False},
    "max": {"pooling": "max"},
    "tokens": {"pooling": "none", "num_classes": 0},
    "pooling_norm": {"pooling": "avg", "use_pooling_norm": True},
    "pre_logits": {"representation_size": 16},
    "rectangle": {"image_size": (16, 40), "channels": 5},
    "learned_2d": {"position_embedding": "learned_2d"},
    "sincos_1d": {"position_embedding": "sincos_1d"},
    "sincos_2d": {"position_embedding": "sincos_2d"},
    "no_positions": {"position_embedding": "none"},
    "root": {"stem_stages": (), "patch_size": 4, "channels": 1},
    "stem": {"stem_stages": (2, 1, 2), "patch_size": 1, "depth": 1},
    **LATER_KINDS,
    "sapiens2": SAPIENS_2,
    "radio": {
        "num_registers": 3,
        "pooling": "prefix",
        "pooling_indices": (2, 0),
    },
    "mlcd": {"rotary_positions": "axial_class", "position_embedding": "none"},
    **PAPER_POSITIONS,
    "wide_pooling": {
        "pooling": "token_and_avg",
        "use_pooling_norm": True,
        "representation_size": 16,
    },
    "probe": {"pooling": "probe"},
    "rounded": {"rotary_positions": "centered_bfloat16"},
}
# The tables whose rows have weights, by the fields of ViTConfig.
TABLES = {
    "pooling": layers.POOLINGS,
    "norm": layers.NORMS,
    "position_embedding": layers.POSITION_EMBEDDINGS,
    "rotary_positions": layers.ROTARY_POSITIONS,
    "relative_positions": layers.RELATIVE_POSITIONS,
}


@pytest.mark.parametrize("name", CONFIGS)
def test_the_list_of_weights_is_that_of_the_model(name):
    """In name, shape and order; the list builds nothing."""
    config = tiny_config(**CONFIGS[name])
    listed = shapes_of(config)
    weights = VisionTransformer(config).weights
    assert listed == {weight.path: tuple(weight.shape) for weight in weights}


@pytest.mark.parametrize("field", TABLES)
def test_each_row_of_a_table_is_compared_above(field):
    shown = {getattr(tiny_config(**row), field) for row in CONFIGS.values()}
    assert shown == set(TABLES[field])


@pytest.mark.parametrize("name", VARIANTS)
def test_the_list_has_the_parameters_of_the_published_models(name):
    variant = VARIANTS[name]
    shapes = shapes_of(variant.config).values()
    assert sum(map(math.prod, shapes)) == variant.num_parameters


def test_every_row_of_a_table_is_a_layer():
    mlp = {"relative_positions": "mlp", "relative_hidden_dim": 5}
    table = {
        "relative_positions": "table",
        "use_shared_relative_positions": True,
    }
    keras.utils.set_random_seed(0)
    before = random.getstate()
    layers = {
        re.sub(NUMBER, "_#", path.rpartition("/")[0])
        for choices in (*CONFIGS.values(), mlp, table)
        for path in shapes_of(tiny_config(**choices))
    }
    # A list draws none, or a new head would depend on the file beside it.
    assert random.getstate() == before
    for key, family in LAYOUTS.items():
        assert set(family.layers) <= layers, key


@pytest.mark.parametrize("key", LAYOUTS)
def test_a_form_and_back_is_the_same(key):
    """Each weight has names of its own as well."""
    config = tiny_config()
    parts = [p for row in LAYOUTS[key].names(config).values() for p in row]
    assert len({part.name for part in parts}) == len(parts)
    for part in parts:
        array = noise(*part.shape)
        stored = part.form.to_file(array, config.num_heads)
        assert stored.shape == part.shape_in_file(config.num_heads)
        back = part.form.to_ours(np.ascontiguousarray(stored), part.shape)
        np.testing.assert_array_equal(back, array)
