"""A model as a `torch.nn.Module`, as docs/backends.md describes it."""

import keras
import pytest

from keras_vit import VisionTransformer
from tests.tiny import noise, tiny_config

CONFIG = tiny_config(num_classes=0, dropout_rate=0.5)
IMAGES = noise(2, 32, 32, 3)

pytestmark = pytest.mark.skipif(
    keras.backend.backend() != "torch", reason="of PyTorch alone"
)


@pytest.mark.parametrize("mode", [True, False])
def test_dropout_is_active_where_the_call_says_so(mode):
    model = VisionTransformer(CONFIG)
    expected = model(IMAGES)
    model.train(mode)
    assert model(IMAGES).equal(expected)
    assert not model(IMAGES, training=True).equal(expected)


def test_converted_weights_are_refused():
    model = VisionTransformer(CONFIG)
    model.half()
    with pytest.raises(RuntimeError, match="dtype"):
        model(IMAGES)
