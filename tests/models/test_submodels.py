import keras
import numpy as np
import pytest

from keras_vit import VisionTransformer
from keras_vit.models import DenseConfig, dense_predictor
from keras_vit.models.vit import check_vision_transformer
from tests.tiny import tiny_config


def make(name="vit"):
    return VisionTransformer(tiny_config(depth=1), name=name)


def functional(inner, name="outer"):
    pixels = keras.Input((32, 32, 3))
    return keras.Model(pixels, inner(pixels), name=name)


WRAPPERS = {
    "sequential": lambda vit: keras.Sequential([vit]),
    "functional": functional,
    "copied_sequential": lambda vit: keras.models.clone_model(
        keras.Sequential([keras.Input((32, 32, 3)), vit])
    ),
    "twice": lambda vit: functional(keras.Sequential([vit], name="middle")),
}


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_the_message_names_the_call_that_works(wrapper):
    vit = make("a_vit")
    model = WRAPPERS[wrapper](vit)
    with pytest.raises(ValueError, match="Received: ") as error:
        check_vision_transformer(model)
    call = str(error.value).split("inside of it: ")[1].split(". Received")[0]
    found = eval(call, {"model": model})  # The user's own next step.
    check_vision_transformer(found)
    assert found is vit or wrapper == "copied_sequential"
    assert found.name == "a_vit"


def test_a_clone_without_a_configuration_is_told_apart():
    vit = make()
    with pytest.raises(ValueError, match="from_config.*Received: Functional"):
        check_vision_transformer(keras.models.clone_model(vit))
    dense = dense_predictor(vit, DenseConfig(2, blocks=(0,)))
    with pytest.raises(ValueError, match="Transformer. Received: DensePred"):
        check_vision_transformer(dense)
    copy = VisionTransformer.from_config(vit.get_config())
    copy.set_weights(vit.get_weights())
    check_vision_transformer(copy)
    images = np.ones((1, 32, 32, 3))
    np.testing.assert_array_equal(
        *(keras.ops.convert_to_numpy(m(images)) for m in (vit, copy))
    )


@pytest.mark.parametrize("model", [None, "model.keras", keras.Sequential([])])
def test_what_holds_none_is_refused_without_advice(model):
    with pytest.raises(ValueError, match=r"VisionTransformer\. Received"):
        check_vision_transformer(model)
