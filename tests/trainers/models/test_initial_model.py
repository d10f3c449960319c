import dataclasses

import keras
import pytest

import keras_vit
from tests.trainers.made import assert_same_weights
from trainers.models.initial_model import load_initial_model


def test_fine_tuning_on_other_classes_gets_a_new_head(run):
    model = load_initial_model(str(run.model_path), 8, 3, 1)
    assert model.output_shape == (None, 3)
    kernel, bias = model.get_layer("predictions").get_weights()
    assert not kernel.any() and not bias.any()
    assert run.load_model().get_layer("predictions").get_weights()[0].any()


@pytest.mark.parametrize("size", [None, 5])
def test_a_head_that_is_reset_does_not_keep_the_old_tanh_layer(tmp_path, size):
    path = str(tmp_path / "pre_trained.keras")
    options = {"representation_size": 7, "head_bias": -10.0}
    model = keras_vit.ViT_Ti16(
        input_shape=(32, 32, 1), classes=10, depth=1, width=24, mlp_dim=24
    )
    config = dataclasses.replace(model.config, **options)
    model = keras_vit.VisionTransformer(config)
    model.trainable = False
    model.save(path)
    reset = load_initial_model(
        path, 32, 10, 1, "reset", representation_size=size, head_bias=0.5
    )
    assert reset.config.representation_size == size
    head = reset.get_layer("predictions")
    kernel, bias = head.get_weights()
    assert kernel.shape == (size or 24, 10)
    assert not kernel.any() and (bias == 0.5).all()
    layers = [head, reset.get_layer("pre_logits")] if size else [head]
    weights = [w.path for layer in layers for w in layer.weights]
    assert [w.path for w in reset.trainable_weights] == sorted(
        weights, key=[w.path for w in reset.weights].index
    )
    for name in ("block_00", "encoder_norm"):
        assert_same_weights(model.get_layer(name), reset.get_layer(name))


@pytest.mark.parametrize(
    "path, channels, message",
    [
        ("absent.keras", 1, "existing .keras file.*absent.keras"),
        (None, 3, "1 channels; those of the data set have 3"),
        ("dense.keras", 1, "VisionTransformer.*Sequential"),
    ],
)
def test_bad_start_is_refused(run, tmp_path, path, channels, message):
    if path == "dense.keras":
        path = f"{tmp_path}/{path}"
        layers = [keras.Input((3,)), keras.layers.Dense(2)]
        keras.Sequential(layers).save(path)
    with pytest.raises(ValueError, match=message):
        load_initial_model(path or str(run.model_path), 8, 10, channels)
