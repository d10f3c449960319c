import numpy as np

from keras_vit.layers import LayerScale, TransformerBlock
from tests.tiny import noise, randomize, to_numpy


def test_each_feature_has_a_factor():
    layer, x = LayerScale(), noise(2, 5, 12)
    np.testing.assert_allclose(to_numpy(layer(x)), 1e-5 * x, rtol=1e-6)
    randomize(layer)
    np.testing.assert_allclose(
        to_numpy(layer(x)), x * to_numpy(layer.scale), rtol=1e-6
    )


def test_a_block_with_factors_of_zero_changes_nothing():
    block, x = TransformerBlock(3, 20, layer_scale_init=0.0), noise(2, 5, 12)
    np.testing.assert_array_equal(to_numpy(block(x)), x)
