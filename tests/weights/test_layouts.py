"""The tables of names: complete, of known rows, and the same both ways."""

import math
import re

import numpy as np
import pytest

from keras_vit import VARIANTS, VisionTransformer
from keras_vit.weights.families import LAYOUTS
from keras_vit.weights.foreign_parts import FOREIGN_PARTS
from keras_vit.weights.layer_shapes import layers_of
from keras_vit.weights.layouts import parts_of, rename
from keras_vit.weights.saving import WRITERS
from tests.tiny import noise, tiny_config

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
}


@pytest.mark.parametrize("name", CONFIGS)
def test_the_list_of_weights_is_that_of_the_model(name):
    """In name, shape and order; the list builds nothing."""
    config = tiny_config(**CONFIGS[name])
    listed = {
        f"{layer.path}/{weight}": shape
        for layer in layers_of(config)
        for weight, shape in layer.shapes.items()
    }
    weights = VisionTransformer(config).weights
    assert listed == {weight.path: tuple(weight.shape) for weight in weights}


@pytest.mark.parametrize("name", VARIANTS)
def test_the_list_has_the_parameters_of_the_published_models(name):
    variant = VARIANTS[name]
    sizes = [
        math.prod(shape)
        for layer in layers_of(variant.config)
        for shape in layer.shapes.values()
    ]
    assert sum(sizes) == variant.num_parameters


TEMPLATES = {
    layer.template
    for choices in CONFIGS.values()
    for layer in layers_of(tiny_config(**choices))
}


@pytest.mark.parametrize("family", LAYOUTS)
def test_every_row_of_a_table_is_a_layer(family):
    assert set(LAYOUTS[family].names) <= TEMPLATES


@pytest.mark.parametrize("family", WRITERS)
@pytest.mark.parametrize("name", CONFIGS)
def test_what_a_family_can_express_has_names_for_all_of_it(family, name):
    config = tiny_config(**CONFIGS[name])
    layout = LAYOUTS[family]
    positions = config.position_embedding
    if layout.refuse(config) or positions not in ("learned", layout.no_table):
        return
    names = [
        p.name for parts in parts_of(layout, config).values() for p in parts
    ]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("family", LAYOUTS)
def test_a_form_and_back_is_the_same(family):
    config = tiny_config()
    for parts in parts_of(LAYOUTS[family], config).values():
        for part in parts:
            array = noise(*part.shape)
            stored = part.form.to_file(array, config.num_heads)
            assert stored.shape == part.shape_in_file(config.num_heads)
            back = part.form.to_ours(np.ascontiguousarray(stored), part.shape)
            np.testing.assert_array_equal(back, array)


def test_the_shape_in_a_file_costs_no_memory():
    layout, config = LAYOUTS["timm"], VARIANTS["e/14"].config
    parts = parts_of(layout, config)["block_55/mlp/hidden/kernel"]
    assert parts[0].shape_in_file(16) == (15_360, 1792)
    empty = np.broadcast_to(np.float32(0), (4, 6))
    for style in (LAYOUTS["official"].style, layout.style):
        for kind in ("heads_in", "heads_out", "dense"):
            stored = style[kind]["kernel"][1].to_file(empty, 2)
            assert set(stored.strides) == {0}


@pytest.mark.parametrize("family", ["official", "big_vision", "timm"])
def test_spellings_are_read_as_the_usual_names(family):
    layout = LAYOUTS[family]
    choices = {"stem_stages": (1,), "patch_size": 1}
    choices = {} if family == "big_vision" else choices
    parts = parts_of(layout, tiny_config(**choices)).values()
    for name in [part.name for row in parts for part in row]:
        for spelling in layout.spellings.values():
            spelled = rename(name, spelling.changes)
            assert rename(spelled, layout.aliases) == name


def test_no_name_of_ours_is_foreign():
    for family, layout in LAYOUTS.items():
        for names in layout.names.values():
            for name in (names,) if isinstance(names, str) else names:
                for pattern, what in FOREIGN_PARTS:
                    assert not re.search(pattern, name), (family, what)
