"""big_vision: stacked blocks, and the position tables of its oldest files."""

import numpy as np
import pytest

from tests.tiny import to_numpy
from tests.weights import forms
from tests.weights.cases import assert_answers, stored_in
from tests.weights.test_detect import FORMS


def test_a_row_that_is_dropped_is_reported(load):
    name, change = FORMS["unused_class_slot"]
    report = load(change(stored_in(name))).load_report
    assert report.ignored == ("params/pos_embedding, row 0",)


def test_the_slot_of_old_files_is_added_to_the_class_token(load):
    arrays = stored_in("big_vision_tok.npz")
    slot = np.linspace(-1, 1, 24, dtype="float32")
    arrays["params/cls"] = arrays["params/cls"] - slot
    model = load(forms.with_class_slot(arrays, slot))
    assert_answers(model, "big_vision_tok.npz")


@pytest.mark.parametrize("stack", [False, True])
def test_blocks_beyond_the_tenth_keep_their_order(stack, load):
    """Sorted as text, block 10 would come before block 2."""
    name = "big_vision_gap.npz"
    arrays = forms.deeper(stored_in(name), 12)
    key = "params/Transformer/encoderblock_{}/MlpBlock_0/Dense_0/kernel"
    expected = [arrays[key.format(i)] for i in range(12)]
    if stack:
        prefix = "params/Transformer/encoderblock"
        leaves = [k.removeprefix(prefix + "_0") for k in arrays]
        leaves = [k for k in leaves if k.startswith("/")]
        stacks = {
            prefix + leaf: np.stack(
                [arrays.pop(f"{prefix}_{i}{leaf}") for i in range(12)]
            )
            for leaf in leaves
        }
        arrays.update(stacks)
    model = load(arrays)
    assert model.config.depth == 12
    for index, kernel in enumerate(expected):
        layer = model.get_layer(f"block_{index:02d}").mlp.hidden
        np.testing.assert_array_equal(to_numpy(layer.kernel), kernel)


def test_naflex(load):
    """A matrix for flat patches, and a table with axes of its grid."""
    name = "big_vision_map.npz"
    arrays = stored_in(name)
    kernel = arrays["params/embedding/kernel"]
    arrays["params/embedding/kernel"] = kernel.reshape(-1, 24)
    table = arrays["params/pos_embedding"]
    arrays["params/pos_embedding"] = table.reshape(4, 4, 24)
    model = load(arrays, num_heads=3)
    assert_answers(model, name)
    assert model.config.position_resize == "bilinear_antialias"
