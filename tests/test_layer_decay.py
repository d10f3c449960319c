"""Layer-wise decay: the factors, and an optimizer of Keras that has them."""

import dataclasses
import math

import keras
import numpy as np
import pytest

from keras_vit import VisionTransformer
from keras_vit.layer_decay import (
    LayerDecayOptimizer,
    layer_decay_optimizer,
    layer_rates,
)
from tests.tiny import LATER_KINDS, noise, randomize, tiny_config, to_numpy


def test_layer_rates_of_a_vision_transformer():
    config = tiny_config(
        depth=3, representation_size=5, stem_stages=(1,), patch_size=2
    )
    variables = VisionTransformer(config).trainable_variables
    rates = layer_rates(variables, 0.5)
    of_layer = {}
    for variable, rate in zip(variables, rates):
        of_layer.setdefault(variable.path.split("/")[0], set()).add(rate)
    assert of_layer == {
        "stem": {0.0625},
        "patch_encoder": {0.0625},
        "class_token": {0.0625},
        "position_embedding": {0.0625},
        "block_00": {0.125},
        "block_01": {0.25},
        "block_02": {0.5},
        "encoder_norm": {1.0},
        "pre_logits": {1.0},
        "predictions": {1.0},
    }


def test_positions_of_a_block_have_its_rate():
    model = VisionTransformer(tiny_config(**LATER_KINDS["beit"]))
    paths = [v.path for v in model.variables]
    rates = dict(zip(paths, layer_rates(model.variables, 0.5)))
    for index, rate in enumerate((0.25, 0.5)):
        name = f"relative_positions_{index:02d}/table"
        assert rates[name] == rates[f"block_{index:02d}/mlp/out/bias"] == rate
    assert rates["patch_encoder/kernel"] == 0.125


@dataclasses.dataclass
class Named:
    path: str


# Paths, and the powers of the decay that they get.
PATHS = [
    (["a/k", "block_09/b/k", "block_100/b/k", "c/k"], [102, 92, 1, 0]),
    # Frozen layers in front change no rate.
    (["block_01/b/kernel", "block_02/b/kernel", "c/kernel"], [2, 1, 0]),
]


@pytest.mark.parametrize(("paths", "powers"), PATHS)
def test_rates_go_by_the_number_of_the_block(paths, powers):
    rates = layer_rates([Named(path) for path in paths], 0.9)
    assert rates == pytest.approx([0.9**power for power in powers])
    assert layer_rates([Named("a/kernel"), Named("b/bias")], 1.0) == [1, 1]


def test_what_cannot_decay_is_refused():
    for path in ("a/kernel", "stem/resblock_01/kernel", "block_01x/kernel"):
        with pytest.raises(ValueError, match="`layer_decay` must be 1.*=0.5"):
            layer_rates([Named(path)], 0.5)
    for decay in (0, -0.5, 1.5, math.nan):
        with pytest.raises(ValueError, match="`layer_decay`"):
            layer_rates([Named("block_00/kernel")], decay)
    model = VisionTransformer(tiny_config())
    sgd = keras.optimizers.SGD(0.1)
    for wrong in ("adamw", keras.optimizers.LossScaleOptimizer(sgd)):
        with pytest.raises(ValueError, match="`optimizer` must"):
            layer_decay_optimizer(wrong, model, 0.5)
    optimizer = layer_decay_optimizer(sgd, model, 0.5)
    optimizer.learning_rate = 0.25
    assert float(optimizer.learning_rate) == float(sgd.learning_rate) == 0.25


def test_frozen_weights_change_no_rate():
    """Of a model of three blocks; the head alone is still the last layer."""
    model = VisionTransformer(tiny_config(depth=3))
    every = layer_rates(model.trainable_variables, 0.5, model.variables)
    want = dict(zip([v.path for v in model.trainable_variables], every))
    for arguments in (
        {},
        {"keep": ["positions"]},
        {"num_last_blocks": 2},
        {"keep": ["norms"]},
    ):
        model.freeze(**arguments)
        variables = model.trainable_variables
        rates = layer_rates(variables, 0.5, model.variables)
        assert rates == [want[variable.path] for variable in variables]


def test_a_lora_update_has_the_rate_of_its_block():
    model = VisionTransformer(tiny_config())
    model.enable_lora(2)
    rates = layer_rates(model.trainable_variables, 0.5, model.variables)
    found = dict(zip([v.path for v in model.trainable_variables], rates))
    assert found["block_00/attention/qkv/lora_kernel_a"] == 0.25
    assert found["block_01/attention/out/lora_kernel_b"] == 0.5
    assert found["predictions/kernel"] == 1


# The optimizer of Keras

VECTORS, LABELS = noise(4, 5), np.arange(4)


def make_model():
    """Return dense layers with the names of a model of two blocks."""
    layers = [
        keras.layers.Dense(4, name=name)
        for name in ("embedding", "block_00", "block_01", "head")
    ]
    return randomize(keras.Sequential([keras.Input((5,)), *layers]))


def fit(make_optimizer, epochs=1, **compile_options):
    """Return a model, its weights before, and after training."""
    keras.utils.set_random_seed(0)
    model = make_model()
    before = [to_numpy(v) for v in model.trainable_variables]
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(make_optimizer(model), loss, **compile_options)
    model.fit(VECTORS, LABELS, batch_size=4, epochs=epochs, verbose=0)
    after = [to_numpy(v) for v in model.trainable_variables]
    return model, before, after


def changes_of(make_optimizer, **compile_options):
    _, before, after = fit(make_optimizer, **compile_options)
    return [b - a for a, b in zip(before, after, strict=True)]


@pytest.mark.parametrize("compiled", ["eagerly", "compiled", "with XLA"])
def test_a_step_of_sgd_is_scaled_with_its_decay_and_clipped_before(compiled):
    """The change of each weight is the factor times that without factors."""
    options = {
        "eagerly": {"run_eagerly": True},
        "compiled": {"jit_compile": False},
        "with XLA": {"jit_compile": True},
    }[compiled]
    if compiled == "with XLA" and keras.backend.backend() == "torch":
        pytest.skip("Keras compiles no step on PyTorch")

    def sgd():
        return keras.optimizers.SGD(0.1, weight_decay=0.3, global_clipnorm=0.5)

    whole = changes_of(lambda model: sgd(), **options)
    scaled = changes_of(
        lambda model: layer_decay_optimizer(sgd(), model, 0.5), **options
    )
    rates = layer_rates(make_model().trainable_variables, 0.5)
    assert set(rates) == {0.125, 0.25, 0.5, 1.0}
    for got, want, rate in zip(scaled, whole, rates, strict=True):
        np.testing.assert_allclose(got, rate * want, atol=2e-6)


def test_a_step_of_adam_is_scaled_by_a_schedule_too():
    """The first step of Adam moves each weight by the rate itself."""
    schedule = keras.optimizers.schedules.ExponentialDecay(1e-3, 1, 0.5)
    changes = changes_of(
        lambda model: layer_decay_optimizer(
            keras.optimizers.Adam(schedule, epsilon=1e-12), model, 0.5
        )
    )
    rates = layer_rates(make_model().trainable_variables, 0.5)
    for change, rate in zip(changes, rates, strict=True):
        size = np.median(np.abs(change))
        np.testing.assert_allclose(size, 1e-3 * rate, rtol=1e-2)


def test_weights_without_decay_stay_so():
    inner = keras.optimizers.AdamW(weight_decay=0.1)
    model = make_model()
    optimizer = layer_decay_optimizer(inner, model, 0.5)
    optimizer.exclude_from_weight_decay(var_names=["bias"])
    optimizer.build(model.trainable_variables)
    for variable in model.trainable_variables:
        decays = inner._use_weight_decay(variable)
        assert decays == variable.path.endswith("kernel")


def test_a_saved_model_continues_with_its_optimizer(tmp_path):
    def make(model):
        adam = keras.optimizers.AdamW(1e-3, weight_decay=0.1)
        return layer_decay_optimizer(adam, model, 0.5)

    model, _, _ = fit(make, epochs=2)
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    assert isinstance(again.optimizer, LayerDecayOptimizer)
    assert again.optimizer.rates == model.optimizer.rates
    for one, other in zip(
        model.optimizer.variables, again.optimizer.variables, strict=True
    ):
        np.testing.assert_array_equal(to_numpy(one), to_numpy(other))
    for tuned in (model, again):
        tuned.fit(VECTORS, LABELS, batch_size=4, verbose=0)
    for one, other in zip(model.weights, again.weights, strict=True):
        np.testing.assert_allclose(to_numpy(one), to_numpy(other), atol=1e-6)


def test_another_model_is_refused():
    small = VisionTransformer(tiny_config(depth=1))
    with pytest.raises(ValueError, match="without the layer .*embedding"):
        fit(
            lambda model: layer_decay_optimizer(
                keras.optimizers.SGD(0.1), small, 0.5
            ),
            run_eagerly=True,
        )
