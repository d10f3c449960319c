"""LoRA: low-rank updates that are added, trained, copied and merged."""

import keras
import numpy as np
import pytest

from keras_vit import VisionTransformer
from tests.models.test_freezing import fit, trained
from tests.tiny import LATER_KINDS, make, noise, to_numpy

IMAGES = noise(2, 32, 32, 3)
ALL = ("qkv", "out", "mlp_hidden", "mlp_out", "head")


def tuned(layers=ALL, dtype=None, **choices):
    """Return a model with low-rank updates that are not zero."""
    model = make(dtype, **choices)
    model.enable_lora(2, layers, alpha=3)
    factors = [w for w in model.weights if w.name.startswith("lora_")]
    for index, factor in enumerate(factors):
        factor.assign(noise(*factor.shape, seed=[7, index], scale=0.2))
    return model


def factors_of(*layers):
    return {f"{path}/lora_kernel_{x}" for path in layers for x in "ab"}


HEAD = {"predictions/kernel", "predictions/bias"}
BLOCKS = ("block_00", "block_01")
LAYERS = {
    "head": ["predictions"],
    "qkv": [f"{block}/attention/qkv" for block in BLOCKS],
    "out": [f"{block}/attention/out" for block in BLOCKS],
    "mlp_hidden": [f"{block}/mlp/hidden" for block in BLOCKS],
    "mlp_out": [f"{block}/mlp/out" for block in BLOCKS],
}


def test_factors_and_head_are_trained():
    model = make()
    model.enable_lora(2)
    assert trained(model) == HEAD | factors_of(*LAYERS["qkv"], *LAYERS["out"])


@pytest.mark.parametrize("name", LAYERS)
def test_layers_are_chosen_by_name(name):
    model = make()
    model.enable_lora(2, [name], keep=())
    assert trained(model) == factors_of(*LAYERS[name])


def test_both_heads_of_a_distilled_model_get_updates():
    model = tuned(["head"], **LATER_KINDS["deit"])
    heads = [f"predictions/{name}_head" for name in ("class", "teacher")]
    assert factors_of(*heads) < trained(model)
    merged = model.merge_lora()
    np.testing.assert_allclose(
        to_numpy(merged(IMAGES)), to_numpy(model(IMAGES)), atol=1e-5
    )


def test_parts_are_trained_if_asked():
    model = make()
    model.enable_lora(2, keep=["norms", "biases", "positions", "class_token"])
    names = {path.split("/")[-1] for path in trained(model)}
    assert names == {
        *("gamma", "beta", "bias", "embedding", "token"),
        *("lora_kernel_a", "lora_kernel_b"),
    }


@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16"])
def test_outputs_do_not_change_at_first(dtype):
    model = make(dtype)
    want = to_numpy(model(IMAGES))
    model.enable_lora(2, ALL, alpha=16)
    np.testing.assert_array_equal(to_numpy(model(IMAGES)), want)


def test_fit_trains_the_updates_and_predict_uses_them():
    model = make()
    model.compile("sgd")
    before = model.predict(IMAGES, verbose=0)
    model.enable_lora(2)
    # With B at zero, A has no gradient yet.
    assert fit(model) == {p for p in trained(model) if not p.endswith("_a")}
    assert fit(model) == trained(model)
    after = model.predict(IMAGES, verbose=0)
    assert np.abs(after - before).max() > 1e-3
    np.testing.assert_allclose(after, to_numpy(model(IMAGES)), atol=1e-5)


@pytest.mark.parametrize(
    "copy", [lambda model: model, lambda model: model.with_image_size(32)]
)
def test_updates_are_trained_after_weights_were_loaded(copy, tmp_path):
    """Keras would set both factors to zero, where neither has a gradient."""
    path = tmp_path / "plain.weights.h5"
    make().save_weights(path)
    model = make()
    model.enable_lora(2)
    model = copy(model)
    model.load_weights(path)
    assert np.abs(to_numpy(make()(IMAGES)) - to_numpy(model(IMAGES))).max() == 0
    fit(model)
    for name in ("a", "b"):
        factor = getattr(
            model.get_layer("block_00").attention.qkv, f"lora_kernel_{name}"
        )
        assert np.abs(to_numpy(factor)).max() > 0


def test_merged_kernels_are_the_sum():
    model = tuned()
    merged = model.merge_lora()
    layer = model.get_layer("block_01").mlp.hidden
    update = to_numpy(layer.lora_kernel_a) @ to_numpy(layer.lora_kernel_b)
    np.testing.assert_allclose(
        to_numpy(merged.get_layer("block_01").mlp.hidden.kernel),
        to_numpy(layer._kernel) + 3 / 2 * update,
        atol=1e-6,
    )
    plain = VisionTransformer(model.config)
    assert [w.path for w in merged.weights] == [w.path for w in plain.weights]
    np.testing.assert_allclose(
        to_numpy(merged(IMAGES)), to_numpy(model(IMAGES)), atol=1e-5
    )


def test_a_merged_model_stays_frozen():
    merged = tuned(("qkv", "out")).merge_lora()
    assert trained(merged) == HEAD
    merged.unfreeze()
    assert len(trained(merged)) == len(merged.weights)
    merged.enable_lora(1)  # Again, from here.


COPIES = {
    "image size": lambda model: model.with_image_size(32),
    "remat": lambda model: model.with_remat(),
    "dtype": lambda model: model.with_dtype("float32"),
}


@pytest.mark.parametrize("copy", COPIES)
def test_copies_have_the_lora_weights(copy):
    model = tuned()
    again = COPIES[copy](model)
    assert trained(again) == trained(model)
    np.testing.assert_array_equal(
        to_numpy(again(IMAGES)), to_numpy(model(IMAGES))
    )


def test_a_new_head_has_no_update():
    model = tuned().with_num_classes(3)
    assert not model.get_layer("predictions").lora_enabled
    assert HEAD < trained(model)
    assert model.get_layer("block_00").attention.qkv.lora_enabled


def test_freezing_keeps_the_factors():
    model = make()
    model.enable_lora(2, ["qkv"])
    model.freeze(keep=())
    assert trained(model) == factors_of(*LAYERS["qkv"])
    model.unfreeze()
    missing = {w.path for w in model.weights} - trained(model)
    assert missing == {f"{path}/kernel" for path in LAYERS["qkv"]}


ERRORS = [
    ({"rank": 0}, r"`rank`.*from 1 to 24.*=0"),
    ({"rank": 25}, r"`rank`.*block_00/attention/.*\(24, 24\).*=25"),
    ({"rank": 1.5}, "`rank`.*=1.5"),
    ({"layers": ["mlp"]}, "`layers`.*'mlp'"),
    ({"layers": "qkv"}, "`layers` must be a sequence"),
    ({"layers": []}, r"`layers`.*\(\)"),
    ({"keep": ["bias"]}, "`keep` must be one of"),
    ({"alpha": 0}, "`alpha`.*=0"),
]


@pytest.mark.parametrize(("arguments", "message"), ERRORS, ids=str)
def test_errors_leave_the_model_as_it_was(arguments, message):
    model = make()
    with pytest.raises(ValueError, match=message):
        model.enable_lora(**{"rank": 2, **arguments})
    assert len(trained(model)) == len(model.weights)


def test_models_without_the_layer_and_with_updates_are_refused():
    with pytest.raises(ValueError, match="it has no head"):
        make(num_classes=0).enable_lora(2, ["head"])
    with pytest.raises(ValueError, match="has LoRA.*merge_lora.*'rank': 2"):
        tuned().enable_lora(2)
    model = make()
    model.quantize("int8")
    with pytest.raises(ValueError, match="quantised model cannot be fine-tun"):
        model.enable_lora(2)


@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16"])
@pytest.mark.parametrize("way", ["weights", "model", "larger model"])
def test_all_files_of_keras_have_kernels_merged_in_float32(
    tmp_path, dtype, way
):
    model = tuned(dtype=dtype)
    merged = {w.path: to_numpy(w.value) for w in model.merge_lora().weights}
    if way == "weights":
        model.save_weights(tmp_path / "model.weights.h5")
        loaded = make(dtype)
        loaded.load_weights(tmp_path / "model.weights.h5")
    elif way == "model":
        model.save(tmp_path / "model.keras")
        loaded = keras.saving.load_model(tmp_path / "model.keras")
    else:
        shape = model.input_shape[1:]
        outer = keras.Sequential([keras.Input(shape), model])
        outer.save(tmp_path / "model.keras")
        loaded = keras.saving.load_model(tmp_path / "model.keras").layers[0]
    for weight in loaded.weights:
        found, expected = to_numpy(weight.value), merged[weight.path]
        np.testing.assert_array_equal(found, expected, err_msg=weight.path)


@pytest.mark.skipif(
    keras.backend.backend() != "torch", reason="Of a module of PyTorch."
)
def test_a_loop_of_pytorch_trains_the_lora_weights():
    import torch

    model = make()
    model.enable_lora(2)
    factors = {w.path for w in model.trainable_weights}
    kept = {n for n, p in model.named_parameters() if p.requires_grad}
    assert len(kept) == len(factors) == 10
    assert sum("lora" in name for name in model.state_dict()) == 8
    before = {w.path: to_numpy(w.value).copy() for w in model.weights}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):  # In the first step, only the second factors move.
        optimizer.zero_grad()
        model(torch.from_numpy(IMAGES), training=True).square().sum().backward()
        optimizer.step()
    changed = {
        w.path
        for w in model.weights
        if (to_numpy(w.value) != before[w.path]).any()
    }
    assert changed == factors


def test_a_copy_and_its_source_predict_in_turn():
    """Whose arrays JAX frees while it computes; the other has its own."""
    source, images = make(), noise(2, 32, 32, 3)
    copy = source.with_classifier_activation("softmax")
    answers = [model.predict_on_batch(images) for model in (source, copy)]
    for model, answer in zip((source, copy), answers):
        np.testing.assert_array_equal(model.predict_on_batch(images), answer)
