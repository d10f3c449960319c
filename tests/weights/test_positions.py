"""The image size of a position table, and cases that are not guessed."""

import json
import shutil

import numpy as np
import pytest

from keras_vit import (
    VisionTransformer,
    from_checkpoint,
    load_checkpoint,
    save_checkpoint,
)
from tests.tiny import make, noise, randomize, tiny_config, to_numpy
from tests.weights.cases import (
    TIMM,
    TOKEN,
    assert_answers,
    expected_of,
    path_of,
)


def test_rectangles_come_from_the_argument(alone):
    path = alone("timm_rect.safetensors")
    with pytest.raises(ValueError, match="16 positions are not a square grid"):
        from_checkpoint(path, num_heads=3)
    with pytest.raises(ValueError, match=r"Received: \(32, 64\)"):
        from_checkpoint(path, num_heads=3, image_size=(32, 64))
    model = from_checkpoint(path, num_heads=3, image_size=(24, 40))
    assert_answers(model, "timm_rect.safetensors")


def test_the_image_size_of_sine_positions_comes_from_the_argument(alone):
    path = alone("big_vision_sincos_rep.npz")
    with pytest.raises(ValueError, match="no position table"):
        from_checkpoint(path)
    model = from_checkpoint(path, image_size=32)
    assert model.config.position_embedding == "sincos_2d"
    assert_answers(model, "big_vision_sincos_rep.npz")


def test_a_square_that_may_be_a_rectangle_is_not_guessed(alone):
    """17 rows: a class token and either 4x4 or 2x8 patches."""
    path = alone(TIMM)
    wanted = {"num_heads": 3, "image_size": (16, 64)}
    with pytest.raises(ValueError, match="32x32 or 16x64.*source_image_size="):
        from_checkpoint(path, **wanted)
    with pytest.raises(ValueError, match="32x32 or 8x136"):  # No class row.
        from_checkpoint(path, num_heads=3, image_size=(8, 136))
    tables = []
    for size in ((32, 32), (16, 64)):
        model = from_checkpoint(path, **wanted, source_image_size=size)
        assert model.config.image_size == (16, 64)
        assert bool(model.load_report.resized) == (size == (32, 32))
        again = model.with_num_classes(0)
        load_checkpoint(again, path, source_image_size=size)
        for layer in (model, again):
            layer = layer.get_layer("position_embedding")
            tables.append(to_numpy(layer.embedding))
    np.testing.assert_array_equal(tables[0], tables[1])
    np.testing.assert_array_equal(tables[2], tables[3])
    assert np.abs(tables[0] - tables[2]).max() > 0.1
    with pytest.raises(ValueError, match=r"Received: \(24, 32\)"):
        from_checkpoint(path, num_heads=3, source_image_size=(24, 32))
    path.with_suffix(".json").write_text('{"image_size": [16, 64]}')
    told = from_checkpoint(path, num_heads=3)
    assert told.config.image_size == (16, 64)
    # The official code resizes squares only, but trains on anything.
    official = alone(TOKEN)
    with pytest.raises(ValueError, match="32x32 or 16x64"):
        from_checkpoint(official, image_size=(16, 64))


def test_of_several_sizes_the_one_that_fits_is_taken(alone):
    """A rectangle that was tuned from a square, as timm's folders say it."""
    path = alone("timm_rect.safetensors")
    config = {
        "pretrained_cfg": {"input_size": [3, 224, 224]},
        "model_args": {"img_size": [24, 40], "num_heads": 3},
    }
    path.with_suffix(".json").write_text(json.dumps(config))
    assert from_checkpoint(path).config.image_size == (24, 40)


def test_the_image_size_of_a_root_alone(tmp_path):
    name = "official_hybrid_root_only.npz"
    shutil.copy(path_of(name), tmp_path / "m.npz")
    model = from_checkpoint(tmp_path / "m.npz")
    assert model.config.image_size == expected_of(name)["x"].shape[1:3]


@pytest.mark.parametrize(
    "choices",
    [
        {"num_registers": 2, "layer_scale_init": 1e-5},
        {"num_registers": 2, "use_class_token": False, "pooling": "avg"},
        {"use_distillation_token": True, "pooling": "distilled"},
    ],
    ids=["class token, registers", "registers", "class token, distillation"],
)
def test_tokens_of_a_model_without_their_rows_get_their_positions(
    choices, tmp_path
):
    """The rows of the file are added to the tokens, and outputs are equal."""
    choices = {**choices, "activation": "exact"}
    source = make(**choices)
    save_checkpoint(source, tmp_path / "m.safetensors", layout="timm")
    config = tiny_config(**choices, use_prefix_positions=False)
    model = randomize(VisionTransformer(config), 2)
    load_checkpoint(model, tmp_path / "m.safetensors")
    x = noise(2, 32, 32, 3)
    np.testing.assert_allclose(
        to_numpy(model(x)), to_numpy(source(x)), rtol=0, atol=1e-5
    )


def test_a_norm_of_the_only_head_is_one_of_the_width(tmp_path):
    """Names and shapes are equal, and so are outputs."""
    choices = {"num_heads": 1, "qk_norm": "head", "activation": "exact"}
    model = make(**choices)
    save_checkpoint(model, tmp_path / "m.safetensors", layout="timm")
    again, x = from_checkpoint(tmp_path / "m.safetensors"), noise(2, 32, 32, 3)
    np.testing.assert_allclose(
        to_numpy(again(x)), to_numpy(model(x)), rtol=0, atol=1e-6
    )
