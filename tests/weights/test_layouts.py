"""The tables of names: complete, of known rows, and the same both ways."""

import numpy as np
import pytest

from keras_vit import VARIANTS
from keras_vit.weights.expressible import find_inexpressible
from keras_vit.weights.families import LAYOUTS
from keras_vit.weights.layer_shapes import layers_of
from keras_vit.weights.saving import WRITERS
from keras_vit.weights.stored_parts import parts_of
from tests.tiny import noise, tiny_config
from tests.weights.test_layer_shapes import CONFIGS

MLP_OF_EACH_BLOCK = {"relative_positions": "mlp", "relative_hidden_dim": 5}
SHARED_TABLE = {
    "relative_positions": "table",
    "use_shared_relative_positions": True,
}
TEMPLATES = {
    layer.template
    for choices in (*CONFIGS.values(), MLP_OF_EACH_BLOCK, SHARED_TABLE)
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
    refused = layout.refuse(config) or find_inexpressible(config)
    if refused or positions not in ("learned", layout.no_table):
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
