import keras
import numpy as np
import pytest

from trainers.optimizers import OPTIMIZERS, make_optimizer


@pytest.fixture
def dense():
    layer = keras.layers.Dense(3, bias_initializer="ones")
    layer.build((None, 4))
    return layer


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_weight_decay_touches_kernels_only(name, dense):
    kernel = dense.kernel.numpy()
    optimizer = make_optimizer(name, 0.5, 0.1, dense.trainable_variables)
    zeros = [np.zeros(v.shape, "float32") for v in dense.trainable_variables]
    optimizer.apply(zeros, dense.trainable_variables)
    np.testing.assert_allclose(
        dense.kernel, kernel * (1 - 0.5 * 0.1), rtol=1e-6
    )
    np.testing.assert_array_equal(dense.bias, np.ones(3))


def test_adamw_first_step_is_the_learning_rate_times_the_sign(dense):
    bias = dense.bias.numpy()
    optimizer = make_optimizer("adamw", 0.01, 0.0, dense.trainable_variables)
    gradients = [np.ones((4, 3), "float32"), np.array([2.0, -3.0, 1e-3], "f")]
    optimizer.apply(gradients, dense.trainable_variables)
    np.testing.assert_allclose(
        dense.bias, bias - 0.01 * np.sign(gradients[1]), rtol=1e-4
    )


def test_sgd_has_momentum_of_nine_tenths(dense):
    optimizer = make_optimizer("sgd", 0.1, 0.0, dense.trainable_variables)
    ones = [np.ones(v.shape, "float32") for v in dense.trainable_variables]
    optimizer.apply(ones, dense.trainable_variables)
    optimizer.apply(ones, dense.trainable_variables)
    np.testing.assert_allclose(dense.bias, 1 - 0.1 - 0.1 * 1.9, rtol=1e-6)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_no_optimizer_clips_since_the_loop_does(name, dense):
    optimizer = make_optimizer(name, 0.1, 0.0, dense.trainable_variables)
    assert optimizer.clipnorm is None
    assert optimizer.global_clipnorm is None
    assert optimizer.clipvalue is None


def test_unknown_optimizer_is_an_error_that_lists_the_known(dense):
    with pytest.raises(ValueError, match="'adamw', 'sgd'.*'adam'"):
        make_optimizer("adam", 0.1, 0.0, dense.trainable_variables)
