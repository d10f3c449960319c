"""What every layer promises, for a case of tests/layers/cases.py."""

import keras
import numpy as np
from keras.src.testing import TestCase

from tests.tiny import noise, randomize, to_numpy

# What mixed precision may cost, relative to the largest output: a few units
# in the last place of the type, summed over the products of a layer.
POLICIES = {"mixed_bfloat16": 0.06, "mixed_float16": 0.01}


def check_keras_layer_test(case):
    """Keras' own test: serialisation, shapes, types, a training step."""
    TestCase("run_layer_test").run_layer_test(
        case.layer_class,
        init_kwargs=case.kwargs,
        input_shape=case.input_shape,
        expected_output_shape=output_shape(case),
    )


def output_shape(case):
    """Return the shape that the formula says."""
    return case.output_shape or case.expect(case.make()).shape


def check_config_round_trip(case):
    """Each constructor argument survives get_config and from_config."""
    layer = case.layer_class(**case.kwargs, name="chosen")
    config = layer.get_config()
    assert case.layer_class.from_config(config).get_config() == config
    assert config["name"] == "chosen"
    for name, value in case.kwargs.items():
        assert _plain(config[name]) == _plain(value), name


def check_saved_model_is_exact(case, folder):
    """A reloaded functional model with the layer gives the same outputs."""
    model = _functional(case)
    model.save(folder / "model.keras")
    loaded = keras.saving.load_model(folder / "model.keras")
    x = case.inputs()
    np.testing.assert_array_equal(to_numpy(loaded(x)), to_numpy(model(x)))
    for ours, theirs in zip(model.weights, loaded.weights, strict=True):
        assert ours.path == theirs.path


def check_precision(case, policy):
    """Mixed precision keeps the weights, and the outputs within rounding."""
    expected = to_numpy(case.make()(case.inputs()))
    layer = case.make(dtype=policy)
    actual = layer(case.inputs())
    compute_dtype = policy.removeprefix("mixed_")
    assert keras.backend.standardize_dtype(actual.dtype) == compute_dtype
    assert {weight.dtype for weight in layer.weights} <= {"float32"}
    tolerance = POLICIES[policy] * np.abs(expected).max()
    np.testing.assert_allclose(
        to_numpy(actual), expected, rtol=0, atol=tolerance
    )


def check_gradients(case):
    """The loss depends on the input and on each trainable variable."""
    layer = case.make()
    if case.is_beside and not layer.trainable_variables:
        return
    found = gradients(layer, case.inputs(), is_exact=False)
    for name, gradient in found.items():
        if case.is_beside and name == "the input":
            continue
        assert gradient is not None, f"no gradient reaches {name}"
        gradient = to_numpy(gradient)
        assert np.isfinite(gradient).all(), name
        assert np.abs(gradient).max() > 1e-6, f"zero gradient of {name}"


def check_graph_equals_eager(case, jit_compile):
    """tf.function and XLA give the same outputs as eager execution."""
    import tensorflow as tf

    layer = case.make()
    if jit_compile and not layer.supports_jit:
        return  # As Keras knows, which does not compile a model with it.
    graph = tf.function(lambda x: layer(x), jit_compile=jit_compile)
    x = tf.constant(case.inputs())
    expected = to_numpy(layer(x))
    np.testing.assert_allclose(
        to_numpy(graph(x)), expected, rtol=1e-5, atol=1e-5
    )


def check_partial_batch(case):
    """Five images in batches of two give the outputs of five at once."""
    model = _functional(case)
    x = case.inputs(batch=5)
    actual = model.predict(x, batch_size=2, verbose=0)
    assert actual.shape == (5, *output_shape(case)[1:])
    np.testing.assert_allclose(actual, to_numpy(model(x)), rtol=1e-5, atol=1e-5)


def gradients(layer, x, is_exact=True, **arguments):
    """Return {path: gradient of a loss} of each trainable variable, and of x.

    The loss weighs the outputs with random numbers: the plain sum of, say, a
    layer norm does not depend on its input. Exact ones compile longer on JAX.
    """
    weights = noise(*layer(x).shape, seed=9)
    names = [variable.path for variable in layer.trainable_variables]
    compute = _GRADIENTS[keras.backend.backend()]
    found = compute(layer, x, weights, is_exact, **arguments)
    return dict(zip([*names, "the input"], found, strict=True))


def _tensorflow_gradients(layer, x, weights, _, **arguments):
    import tensorflow as tf

    x = tf.constant(x)
    with tf.GradientTape() as tape:
        tape.watch(x)
        loss = tf.reduce_sum(layer(x, **arguments) * weights)
    return tape.gradient(
        loss, [*(v.value for v in layer.trainable_variables), x]
    )


def _jax_gradients(layer, x, weights, is_exact, **arguments):
    import jax

    def loss(trainable, x):
        outputs, _ = layer.stateless_call(
            trainable,
            [v.value for v in layer.non_trainable_variables],
            x,
            **arguments,
        )
        return (outputs * weights).sum()

    values = [v.value for v in layer.trainable_variables]
    # As users compile: conftest.py asks for less care, which costs a bit of
    # float32 in the slope of a tanh.
    care = {"xla_backend_optimization_level": 2} if is_exact else None
    gradient = jax.jit(jax.grad(loss, argnums=(0, 1)), compiler_options=care)
    by_variable, by_input = gradient(values, x)
    return [*by_variable, by_input]


def _torch_gradients(layer, x, weights, _, **arguments):
    x = keras.ops.convert_to_tensor(x).requires_grad_()
    loss = (layer(x, **arguments) * keras.ops.convert_to_tensor(weights)).sum()
    loss.backward()
    return [*(v.value.grad for v in layer.trainable_variables), x.grad]


_GRADIENTS = {
    "tensorflow": _tensorflow_gradients,
    "jax": _jax_gradients,
    "torch": _torch_gradients,
}


def _functional(case):
    inputs = keras.Input(case.input_shape[1:])
    layer = case.layer_class(**case.kwargs, name="layer")
    return randomize(keras.Model(inputs, layer(inputs)))


def _plain(value):
    # Keras stores a kernel size of 3 as (3, 3), and tuples as lists.
    if isinstance(value, (tuple, list)):
        value = tuple(value)
        return value[0] if len(set(value)) == 1 else value
    return value
