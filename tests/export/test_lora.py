"""Exports of a model with LoRA: its LoRA weights are merged."""

import numpy as np
import pytest
import tensorflow as tf

from keras_vit.export import (
    FORMATS,
    export_file,
    export_model,
    export_saved_model,
)
from keras_vit.models.tuning import layers_with_lora
from tests.export.conftest import make_model
from tests.tiny import noise


@pytest.fixture(scope="module")
def tuned():
    model = make_model(depth=1)
    model.enable_lora(2, alpha=3)
    for index, weight in enumerate(model.trainable_weights):
        weight.assign(noise(*weight.shape, seed=[5, index], scale=0.2))
    return model


def test_a_saved_model_has_merged_kernels_alone(tuned, images, tmp_path):
    export_saved_model(tuned, tmp_path / "exported", images)
    loaded = tf.saved_model.load(str(tmp_path / "exported"))
    serve = loaded.signatures["serving_default"]
    answer = serve(images=tf.constant(images))
    np.testing.assert_allclose(
        next(iter(answer.values())), tuned(images), atol=1e-4
    )
    stored = tf.train.list_variables(tmp_path / "exported/variables/variables")
    shapes = [tuple(shape) for _, shape in stored]
    factor = tuple(
        tuned.get_layer("block_00").attention.qkv.lora_kernel_a.shape
    )
    assert (24, 72) in shapes
    assert factor == (24, 2) and factor not in shapes
    assert len(layers_with_lora(tuned)) == 2, "the model was changed"


class Stop(Exception):
    pass


def stop(request, folder):
    assert not layers_with_lora(request.model)
    raise Stop


def test_a_file_is_made_of_the_merged_model(tuned, images, tmp_path):
    row = FORMATS["onnx"]._replace(write=stop, packages=())
    with pytest.raises(Stop):
        export_file(row, tuned, tmp_path / "model.onnx", images)


def test_the_bundle_compares_and_times_the_merged_model(
    tuned, images, tmp_path, monkeypatch
):
    row = FORMATS["saved_model"]._replace(write=stop)
    monkeypatch.setitem(FORMATS, "saved_model", row)
    with pytest.raises(Stop):
        export_model(
            tuned, tmp_path / "new", images, ["saved_model"], verbose=False
        )
