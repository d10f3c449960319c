"""Writing models with an answer for each pixel, for transformers."""

import dataclasses
import json

import keras
import numpy as np
import pytest

from keras_vit.convert import convert
from keras_vit.models import DenseConfig, DensePredictor, dense_predictor
from keras_vit.weights import dense_from_checkpoint, save_checkpoint
from tests.tiny import make, noise, randomize, to_numpy
from tests.weights.peer_process import MARKS, arrays_in, is_close, work

pytestmark = pytest.mark.filterwarnings("ignore:.*preprocess_input:UserWarning")

HEAD = {
    "head": "dpt",
    "width": 6,
    "stage_widths": (3, 4, 5, 6),
    "blocks": (0, 1, 2, 3),
}
VIT = {"depth": 4, "activation": "exact", "image_size": 64, "patch_size": 16}
DINOV2 = {**VIT, "layer_scale_init": 0.1, "preprocessing": "imagenet"}
# The encoder, and the head.
MODELS = {
    "classes": (
        VIT,
        DenseConfig(
            3,
            **HEAD,
            use_norm=False,
            output_width=None,
            readout="project",
            class_names=("sky", "road", "tree"),
            dropout_rate=0.2,
        ),
    ),
    "dpt": (
        # The images of an odd number of patches have to be resized.
        {**VIT, "activation": "tanh", "image_size": 48},
        DenseConfig(
            1,
            **HEAD,
            use_norm=False,
            use_batch_norm=True,
            use_unit_bias=False,
            activation="relu",
            readout="add",
            has_exact_sizes=False,
        ),
    ),
    "dpt_backbone": (
        DINOV2,
        DenseConfig(
            1,
            **{**HEAD, "blocks": (0, 2, 3, 4)},
            activation="relu",
            readout="project",
            has_exact_sizes=False,
        ),
    ),
    "depth_anything": (
        {**DINOV2, "image_size": 42, "patch_size": 14},
        DenseConfig(1, **HEAD, activation="relu", output_width=5),
    ),
    "depth_anything_metric": (
        {**DINOV2, "use_gated_mlp": True, "mlp_dim": 32, "activation": "silu"},
        DenseConfig(
            1, **HEAD, activation="sigmoid", output_scale=20, use_norm=False
        ),
    ),
}


def make_model(name, **changes):
    choices, head = MODELS[name]
    depth = max(head.blocks) + 1
    encoder = make(**{**choices, "depth": depth})
    head = dataclasses.replace(head, **changes)
    model = randomize(dense_predictor(encoder, head))
    for weight in model.weights:
        if weight.path.endswith("moving_variance"):
            weight.assign(keras.ops.abs(weight) + 0.5)
        if weight.path == "predictions/bias":
            # Depths are positive.
            weight.assign(np.ones(weight.shape, "float32"))
    return model


def images_of(model):
    return noise(2, *model.config.image_size, 3)


@pytest.mark.parametrize("name", MODELS)
def test_what_is_written_is_read_again(tmp_path, name):
    model = make_model(name)
    assert save_checkpoint(model, tmp_path, layout="huggingface") == ()
    again = dense_from_checkpoint(tmp_path)
    fields = {"has_exact_sizes": model.head.has_exact_sizes}
    if name != "classes":  # They are trained without.
        fields["dropout_rate"] = model.head.dropout_rate
    assert dataclasses.replace(again.head, **fields) == model.head
    fields = ("preprocessing", "width", "depth", "activation", "image_size")
    for field in fields:
        ours, theirs = (getattr(m.config, field) for m in (model, again))
        assert ours == theirs, field
    weights = {w.path: to_numpy(w) for w in model.weights}
    assert {w.path for w in again.weights} == weights.keys()
    for weight in again.weights:
        np.testing.assert_array_equal(to_numpy(weight), weights[weight.path])
    images = images_of(model)
    expected = to_numpy(model(images))
    assert expected.std() > 1e-3
    np.testing.assert_allclose(
        to_numpy(again(images)), expected, atol=1e-5 * np.abs(expected).max()
    )


def test_updates_are_merged(tmp_path):
    model = make_model("classes")
    model.enable_lora(2, ["qkv", "head"], keep=())
    for index, weight in enumerate(model.trainable_weights):
        weight.assign(noise(*weight.shape, seed=[7, index], scale=0.2))
    save_checkpoint(model, tmp_path, layout="huggingface")
    again = dense_from_checkpoint(tmp_path)
    merged = {w.path: to_numpy(w) for w in model.merge_lora().weights}
    for weight in again.weights:
        np.testing.assert_array_equal(to_numpy(weight), merged[weight.path])


def test_the_classes_are_named(tmp_path):
    save_checkpoint(make_model("classes"), tmp_path, layout="huggingface")
    content = json.loads((tmp_path / "config.json").read_text())
    assert content["id2label"] == {"0": "sky", "1": "road", "2": "tree"}
    unnamed = make_model("classes", class_names=None)
    save_checkpoint(unnamed, tmp_path, layout="huggingface")
    assert dense_from_checkpoint(tmp_path).head.class_names is None


def test_a_file_of_keras_is_converted(tmp_path):
    model = make_model("classes")
    model.save(tmp_path / "model.keras")
    source, target = str(tmp_path / "model.keras"), str(tmp_path / "out")
    convert(source, target, "huggingface", image_size=32)
    again = dense_from_checkpoint(target)
    assert again.head.class_names == model.head.class_names
    assert again.config.image_size == (32, 32)


def test_a_crop_is_noted(tmp_path):
    model = make_model("classes")
    settings = dataclasses.replace(
        model.config.preprocessing, crop_fraction=0.875
    )
    config = dataclasses.replace(model.config, preprocessing=settings)
    model = DensePredictor(config, model.head)
    [note] = save_checkpoint(model, tmp_path, layout="huggingface")
    assert "resizes the whole photo to 64x64" in note


REFUSED = {
    "head='linear'": ("classes", {}, {"head": "linear"}),
    "use_norm=True": ("classes", {}, {"use_norm": True}),
    "activation='relu'": ("classes", {}, {"activation": "relu"}),
    "has_exact_sizes=True": ("dpt", {}, {"has_exact_sizes": True}),
    "activation=None": ("dpt", {}, {"activation": None}),
    "output_scale=2.0": ("dpt", {}, {"output_scale": 2}),
    "made from 32 numbers": ("dpt", {}, {"output_width": 5}),
    "2 outputs": ("dpt", {}, {"num_outputs": 2}),
    r"class_names=\('far',\)": ("dpt", {}, {"class_names": ["far"]}),
    r"blocks=\(1, 0, 2, 3\)": ("dpt", {}, {"blocks": (1, 0, 2, 3)}),
    "hidden_act": ("dpt", {}, {"readout": "project"}),
    "readout='add'": ("depth_anything", {}, {"readout": "add"}),
    "use_batch_norm=True": ("depth_anything", {}, {"use_batch_norm": True}),
    "output_scale=0.5": ("depth_anything", {}, {"output_scale": 0.5}),
    r"image_size=\(64, 32\)": ("classes", {"image_size": (64, 32)}, {}),
    "not 'dinov2'": ("classes", {"layer_scale_init": 0.1}, {}),
    "'dinov2_with_registers'": (
        "depth_anything",
        {"num_registers": 2, "use_prefix_positions": False},
        {},
    ),
}


@pytest.mark.parametrize("words", REFUSED)
def test_what_transformers_does_not_have_is_refused(tmp_path, words):
    name, choices, changes = REFUSED[words]
    encoder, head = MODELS[name]
    model = dense_predictor(
        make(**{**encoder, **choices}), dataclasses.replace(head, **changes)
    )
    with pytest.raises(ValueError, match=f"cannot express .*{words}"):
        save_checkpoint(model, tmp_path / "out", layout="huggingface")
    assert not (tmp_path / "out").exists()


def test_other_layouts_are_refused(tmp_path):
    with pytest.raises(ValueError, match="`layout` must .*layout='timm'"):
        save_checkpoint(make_model("dpt"), tmp_path / "a", layout="timm")


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    """Return what transformers answers with the folders, or an error."""
    folder, requests = tmp_path_factory.mktemp("dense"), {}
    for name in MODELS:
        model, path = make_model(name), folder / name
        save_checkpoint(model, path, layout="huggingface")
        np.savez(folder / f"{name}.x.npz", x=images_of(model))
        config = json.loads((path / "config.json").read_text())
        requests[name] = {
            "task": "answer_pixels",
            "path": path,
            "images": folder / f"{name}.x.npz",
            "output": folder / f"{name}.y.npz",
            "kind": config["architectures"][0],
        }
    errors = work(list(requests.values()), folder, "dense")
    return {
        name: error or arrays_in(requests[name]["output"])["y"]
        for name, error in zip(requests, errors)
    }


class TestInTransformers:
    pytestmark = MARKS

    @pytest.mark.parametrize("name", MODELS)
    def test_outputs_are_the_same(self, answers, name):
        assert type(answers[name]) is np.ndarray, answers[name]
        model = make_model(name)
        is_close(answers[name], to_numpy(model(images_of(model))), 1e-4)
