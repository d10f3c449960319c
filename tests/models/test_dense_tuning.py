"""A DensePredictor in parts: frozen, with LoRA, copied with changes."""

import functools

import keras
import numpy as np
import pytest

from keras_vit import VisionTransformer, load_lora, save_lora
from keras_vit.models import DenseConfig, dense_predictor
from tests.models.test_dense import CONFIGS, make_dense
from tests.models.test_freezing import trained
from tests.tiny import make, noise, randomize, to_numpy

IMAGES = noise(2, 32, 32, 3)


def of_head(model):
    """Return the weights of the layers that the encoder does not have."""
    names = layers_of_encoder(model.config)
    return {w.path for w in model.weights if w.path.split("/")[0] not in names}


@functools.cache
def layers_of_encoder(config):
    return {layer.name for layer in VisionTransformer(config).layers}


def tuned(name, layers=("qkv", "head"), rank=1):
    """Return a model with low-rank updates that are not zero."""
    model = make_dense(name)
    model.enable_lora(rank, layers, alpha=3)
    factors = [w for w in model.weights if w.name.startswith("lora_")]
    for index, factor in enumerate(factors):
        factor.assign(noise(*factor.shape, seed=[7, index], scale=0.2))
    return model


def fit(model):
    """Train one step with SGD, with the absolute error."""
    # TensorFlow would take longer for the graph of the update than for it.
    is_tensorflow = keras.backend.backend() == "tensorflow"
    model.compile(keras.optimizers.SGD(0.01), "mae", run_eagerly=is_tensorflow)
    targets = noise(2, 32, 32, model.head.num_outputs, seed=3)
    model.fit(IMAGES, targets, epochs=1, verbose=0)


@pytest.mark.parametrize("name", CONFIGS)
def test_freezing_leaves_the_head(name):
    model = make_dense(name)
    statistics = {w.path for w in model.weights if "/moving_" in w.path}
    model.freeze()
    assert trained(model) == of_head(model) - statistics
    model.freeze(keep=(), num_last_blocks=1)
    last = f"block_{model.config.depth - 1:02d}/"
    others = trained(model) - of_head(model)
    assert {
        path for path in others if not path.startswith("encoder_norm/")
    } == {w.path for w in model.weights if w.path.startswith(last)}
    assert of_head(model) - statistics <= trained(model)
    model.unfreeze()
    assert trained(model) == {w.path for w in model.weights} - statistics


@pytest.mark.parametrize("name", ["joined", "classes"])
@pytest.mark.parametrize("keep", [(), ("head",)], ids=str)
def test_the_statistics_of_a_frozen_head_stay(name, keep):
    model = make_dense(name)
    model.freeze(keep=keep, num_last_blocks=0)
    norm = model.get_layer("head_norm")
    before = [to_numpy(x) for x in (norm.moving_mean, norm.moving_variance)]
    fit(model)
    after = [to_numpy(x) for x in (norm.moving_mean, norm.moving_variance)]
    for old, new in zip(before, after):
        assert (old == new).all() == (not keep)


def test_a_convolution_gets_an_update():
    model = tuned("depth", ["head"])
    layer = model.get_layer("fusion_0_projection")
    a, b = map(to_numpy, (layer.lora_kernel_a, layer.lora_kernel_b))
    update = np.einsum("hwir,ro->hwio", a, b)
    merged = model.merge_lora().get_layer("fusion_0_projection")
    np.testing.assert_allclose(
        to_numpy(merged.kernel), to_numpy(layer._kernel) + 3 * update, atol=1e-6
    )
    untouched = model.get_layer("stage_0_resize")  # A transposed convolution.
    assert not getattr(untouched, "lora_enabled", False)


@pytest.mark.parametrize("name", CONFIGS)
def test_merged_updates_give_the_same_outputs(tmp_path, name):
    model = tuned(name)
    merged = model.merge_lora()
    expected = to_numpy(model(IMAGES))
    scale = np.abs(expected).max()
    assert np.abs(to_numpy(make_dense(name)(IMAGES)) - expected).max() > (
        1e-3 * scale
    )
    np.testing.assert_allclose(
        to_numpy(merged(IMAGES)) / scale, expected / scale, atol=1e-5
    )
    model.save(tmp_path / "dense.keras")
    again = keras.saving.load_model(tmp_path / "dense.keras")
    np.testing.assert_array_equal(
        to_numpy(again(IMAGES)), to_numpy(merged(IMAGES))
    )
    assert trained(again) == trained(merged)
    assert again.head == model.head


def test_all_of_it_is_merged_within_a_larger_model(tmp_path):
    model = tuned("classes")
    outer = keras.Sequential([keras.Input(model.input_shape[1:]), model])
    outer.save(tmp_path / "outer.keras")
    [loaded] = keras.saving.load_model(tmp_path / "outer.keras").layers
    merged = {w.path: to_numpy(w) for w in model.merge_lora().weights}
    assert merged.keys() == {w.path for w in loaded.weights}
    for weight in loaded.weights:
        np.testing.assert_array_equal(to_numpy(weight), merged[weight.path])


@pytest.mark.parametrize("name", ["depth", "classes"])
def test_lora_weights_have_a_file_of_their_own(tmp_path, name):
    """With the statistics of the head's batch norm, which training changes."""
    model = tuned(name)
    fit(model)
    save_lora(model, tmp_path / "lora.safetensors")
    again = make_dense(name)
    load_lora(again, tmp_path / "lora.safetensors")
    assert trained(again) == trained(model)
    np.testing.assert_array_equal(
        to_numpy(again(IMAGES)), to_numpy(model(IMAGES))
    )
    other = make_dense("bins")
    with pytest.raises(ValueError, match="does not fit the model"):
        load_lora(other, tmp_path / "lora.safetensors")


def test_a_rank_that_a_kernel_does_not_have_is_refused():
    model = make_dense("depth")
    with pytest.raises(ValueError, match=r"`rank` .* to 1 .*predictions.*=2"):
        model.enable_lora(2, ["head"])
    assert trained(model) == {w.path for w in model.weights}


@pytest.mark.parametrize(
    ("name", "size"),
    [("classes", 32), ("depth", 32), *((name, (48, 40)) for name in CONFIGS)],
    ids=str,
)
def test_another_image_size_is_that_of_the_encoder(name, size):
    encoder = make(depth=4, num_registers=2)
    model = randomize(dense_predictor(encoder, CONFIGS[name]), seed=5)
    for weight in model.weights:
        if weight.path.endswith("moving_variance"):
            weight.assign(keras.ops.abs(weight) + 0.5)
    found = {w.path: to_numpy(w) for w in model.weights}
    for weight in encoder.weights:
        if weight.path in found and "predictions" not in weight.path:
            weight.assign(found[weight.path])
    expected = dense_predictor(encoder.with_image_size(size), model.head)
    head = of_head(model)
    for weight in expected.weights:
        if weight.path in head:
            weight.assign(found[weight.path])
    model.freeze()
    resized = model.with_image_size(size)
    assert trained(resized) == trained(model)
    images = noise(1, *np.broadcast_to(size, 2), 3)
    np.testing.assert_array_equal(
        to_numpy(resized(images)), to_numpy(expected(images))
    )
    if size == 32:
        np.testing.assert_array_equal(
            to_numpy(resized(images)), to_numpy(model(images))
        )


def test_other_copies_keep_the_weights():
    model = make_dense("classes")
    model.freeze()
    remat = model.with_remat()
    assert remat.config.use_remat and remat.head == model.head
    half = model.with_dtype("mixed_bfloat16")
    for copy in (remat, half):
        assert trained(copy) == trained(model)
        for new, old in zip(copy.weights, model.weights, strict=True):
            np.testing.assert_array_equal(to_numpy(new), to_numpy(old))
    np.testing.assert_allclose(
        to_numpy(remat(IMAGES)), to_numpy(model(IMAGES)), atol=1e-5
    )


def test_the_task_and_the_classes_are_known(tmp_path):
    names = ["sky", "road"]
    model = dense_predictor(make(), DenseConfig(2, class_names=names))
    assert model.task == "segment"
    model.save(tmp_path / "dense.keras")
    again = keras.saving.load_model(tmp_path / "dense.keras")
    assert again.head.class_names == ("sky", "road")
    assert dense_predictor(make(), DenseConfig(1)).task == "depth"


@pytest.mark.parametrize(
    "names, words",
    [
        (["sky"], "2 names, one for each output.*'sky'"),
        ("ab", "tuple of strings or None.*'ab'"),
        ([1, 2], r"tuple of strings or None.*\[1, 2\]"),
    ],
)
def test_wrong_class_names_are_refused(names, words):
    with pytest.raises(ValueError, match=f"`class_names` must .*{words}"):
        DenseConfig(2, class_names=names)
