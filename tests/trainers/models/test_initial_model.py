import dataclasses

import keras
import numpy as np
import pytest

import keras_vit
from tests.tiny import tiny_config
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
        for old, new in zip(
            model.get_layer(name).get_weights(),
            reset.get_layer(name).get_weights(),
        ):
            np.testing.assert_array_equal(old, new)


def test_fine_tuning_a_classifier_with_softmax_trains_its_logits(
    digits, tmp_path
):
    path = str(tmp_path / "softmax.keras")
    model = keras_vit.ViT_Ti16(
        input_shape=(32, 32, 1), classes=10, depth=1, width=24, mlp_dim=24
    )
    model.save(path)
    loaded = load_initial_model(path, 32, 10, 1)
    head = loaded.get_layer("predictions")
    assert head.activation is keras.activations.linear


@pytest.mark.parametrize(
    "path, channels, message",
    [
        ("absent.keras", 1, "existing .keras file.*absent.keras"),
        (None, 3, "1 channels; those of the data set have 3"),
    ],
)
def test_bad_start_is_refused(run, path, channels, message):
    with pytest.raises(ValueError, match=message):
        load_initial_model(path or str(run.model_path), 8, 10, channels)


def test_start_from_another_kind_of_model_is_refused(tmp_path):
    path = str(tmp_path / "dense.keras")
    keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)]).save(path)
    with pytest.raises(ValueError, match="VisionTransformer.*Sequential"):
        load_initial_model(path, 8, 10, 1)


@pytest.mark.parametrize(
    "image_size, num_classes, head, resized, reset",
    [
        (32, 5, "auto", (), ()),
        (
            48,
            5,
            "auto",
            ("position_embedding/embedding: (17, 24) to (37, 24)",),
            (),
        ),
        (32, 4, "auto", (), ("predictions/kernel", "predictions/bias")),
        (32, 5, "reset", (), ("predictions/kernel", "predictions/bias")),
    ],
)
def test_a_report_says_what_the_model_has_from_the_file(
    tmp_path, image_size, num_classes, head, resized, reset
):
    path = str(tmp_path / "model.keras")
    model = keras_vit.VisionTransformer(tiny_config(num_classes=5))
    model.save(path)
    found = load_initial_model(path, image_size, num_classes, 3, head)
    report = found.load_report
    assert (report.path, report.resized, report.reset) == (path, resized, reset)
    names = [weight.path for weight in model.weights]
    assert report.used == tuple(n for n in names if n not in reset)
