"""Every layer fulfils the contract of tests/contracts.py."""

import keras
import pytest

from keras_vit import layers
from tests import contracts
from tests.contracts import POLICIES
from tests.layers.cases import CASES
from tests.tiny import tensorflow_only

each_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES)
# The first of each layer of images: for what no argument changes.
# Weights, values and gradients of every case are tested all the same.
OF_IMAGES = {}
for name, case in CASES.items():
    if not case.is_beside:
        OF_IMAGES.setdefault(case.layer_class, (name, case))
each_layer_of_images = pytest.mark.parametrize(
    "case",
    [case for _, case in OF_IMAGES.values()],
    ids=[name for name, _ in OF_IMAGES.values()],
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


@each_case
def test_saved_and_reloaded_model_is_exact(case, tmp_path):
    contracts.check_saved_model_is_exact(case, tmp_path)


@each_case
@pytest.mark.parametrize("policy", POLICIES)
def test_mixed_precision_stays_within_rounding(case, policy):
    contracts.check_precision(case, policy)


@each_case
def test_gradient_reaches_every_variable_and_the_input(case):
    contracts.check_gradients(case)


@tensorflow_only
@each_case
@pytest.mark.parametrize("jit_compile", [False, True], ids=["graph", "xla"])
def test_graph_equals_eager(case, jit_compile):
    contracts.check_graph_equals_eager(case, jit_compile)


@each_layer_of_images
def test_partial_batch_equals_one_call(case):
    contracts.check_partial_batch(case)
