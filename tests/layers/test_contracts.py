"""Every layer fulfils the contract of tests/contracts.py."""

import keras
import pytest

from keras_vit import layers
from tests import contracts
from tests.layers.cases import CASES
from tests.tiny import tensorflow_only

# The first case of each layer: for what no argument changes. Weights, values
# and gradients of every case are tested all the same.
FIRST = {}
for name, case in CASES.items():
    FIRST.setdefault(case.layer_class, name)


def each(*names):
    return pytest.mark.parametrize("case", [CASES[n] for n in names], ids=names)


each_case = each(*CASES)
each_layer = each(*FIRST.values())
each_layer_of_images = each(
    *(name for name in FIRST.values() if not CASES[name].is_beside)
)


def test_every_layer_and_every_row_of_a_table_has_a_case():
    known = {case.layer_class for case in CASES.values()}
    for member in vars(layers).values():
        if isinstance(member, type) and issubclass(member, keras.layers.Layer):
            assert member in known
    for table in (
        *("POOLINGS", "POSITION_EMBEDDINGS", "NORMS"),
        *("RELATIVE_POSITIONS", "ROTARY_POSITIONS"),
    ):
        assert set(getattr(layers, table).values()) - {None} <= known


@each_layer_of_images
def test_passes_the_layer_test_of_keras(case):
    contracts.check_keras_layer_test(case)


@each_case
def test_config_round_trip(case):
    contracts.check_config_round_trip(case)


@each_layer
def test_saved_and_reloaded_model_is_exact(case, tmp_path):
    """tests/models/test_vision_transformer.py has models of all arguments."""
    contracts.check_saved_model_is_exact(case, tmp_path)


@each_case
def test_bfloat16_stays_within_rounding(case):
    contracts.check_precision(case, "mixed_bfloat16")


@each_layer
def test_float16_stays_within_rounding(case):
    contracts.check_precision(case, "mixed_float16")


@each_case
def test_gradient_reaches_every_variable_and_the_input(case):
    contracts.check_gradients(case)


@tensorflow_only
@each_case
def test_graph_equals_eager(case):
    contracts.check_graph_equals_eager(case, jit_compile=False)


@tensorflow_only
@each_layer
def test_xla_equals_eager(case):
    contracts.check_graph_equals_eager(case, jit_compile=True)


@each_layer_of_images
def test_partial_batch_equals_one_call(case):
    contracts.check_partial_batch(case)
