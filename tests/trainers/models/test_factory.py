"""The model of a recipe: new, from a file of ours, or from a checkpoint."""

import dataclasses
import json
import pathlib
import shutil

import keras
import numpy as np
import pytest

import keras_vit
from tests.trainers.made import assert_same_weights
from trainers.models.factory import build_model
from trainers.training.run_folder import NamedModel


def test_model_flags_reach_the_model(recipe, digits):
    changes = {
        "pooling": "map",
        "position_embedding": "sincos_2d",
        "representation_size": 12,
        "dropout_rate": 0.3,
        "stochastic_depth_rate": 0.2,
        "head_bias": -3.0,
        "patch_size": 4,
        "depth": 3,
        "mlp_dim": 20,
        "num_heads": 2,
    }
    changed = dataclasses.replace(recipe, mlp_activation="exact", **changes)
    config = build_model(changed, digits).config
    assert {name: getattr(config, name) for name in changes} == changes
    assert config.activation == "exact"


def test_heads_keep_their_size_at_another_width(recipe, digits):
    usual = build_model(recipe, digits).config
    width = 2 * usual.width
    wide = build_model(dataclasses.replace(recipe, width=width), digits).config
    assert (wide.width, wide.head_size) == (width, usual.head_size)
    assert wide.mlp_dim == usual.mlp_dim
    changed = dataclasses.replace(recipe, width=width, num_heads=1)
    assert build_model(changed, digits).config.head_size == width
    odd = dataclasses.replace(recipe, width=width + 1)
    with pytest.raises(ValueError, match="`width` must be a multiple.*num_he"):
        build_model(odd, digits)


def test_fine_tuning_starts_from_the_file_at_another_size(run, digits):
    recipe = dataclasses.replace(
        run.load_recipe(), init_from=str(run.model_path), image_size=16
    )
    source = run.load_model()
    model = build_model(recipe, digits)
    assert model.input_shape == (None, 16, 16, 1)
    for layer in ("block_00", "predictions"):
        assert_same_weights(source.get_layer(layer), model.get_layer(layer))


def test_fine_tuning_starts_from_the_folder_of_a_run(run, digits, tmp_path):
    recipe = dataclasses.replace(
        run.load_recipe(),
        init_from=str(run.folder),
        augment="",
        dropout_rate=0.1,
        stochastic_depth_rate=0.2,
    )
    model = build_model(recipe, digits)
    assert_same_weights(run.load_model(), model)
    # As of a checkpoint, these are those of the recipe.
    config = model.config
    assert (config.dropout_rate, config.stochastic_depth_rate) == (0.1, 0.2)
    shutil.copy(run.recipe_path, tmp_path)  # Not finished.
    unfinished = dataclasses.replace(recipe, init_from=str(tmp_path))
    with pytest.raises(ValueError, match="the folder of a finished run"):
        build_model(unfinished, digits)


def test_other_files_are_refused(run, digits, tmp_path):
    part, other = tmp_path / "part.keras", tmp_path / "file.py"
    part.write_bytes(run.model_path.read_bytes()[:-3000])
    other.write_text("")
    for path, fault in (
        (part, "part.keras cannot be read: it is not a complete"),
        (other, r"\.npz, .*\.msgpack, .* in \.keras"),
    ):
        recipe = dataclasses.replace(run.load_recipe(), init_from=str(path))
        with pytest.raises(ValueError, match=fault):
            build_model(recipe, digits)


def test_the_activation_of_a_checkpoint_is_not_trained(run, digits, tmp_path):
    """The losses take logits, and predictions its probabilities."""
    golden = pathlib.Path(__file__).parents[2] / "golden" / "keras_hub"
    folder = shutil.copytree(golden, tmp_path / "preset")
    task = json.loads((folder / "task.json").read_text())
    task["config"]["activation"] = "sigmoid"
    (folder / "task.json").write_text(json.dumps(task))
    recipe = dataclasses.replace(run.load_recipe(), init_from=str(folder))
    assert build_model(recipe, digits).config.classifier_activation is None
    named = NamedModel(str(folder))
    assert named.activation == "sigmoid"
    assert named.load_model().config.classifier_activation is None


def test_fine_tuning_starts_from_a_checkpoint(run, digits):
    """Another size, other classes, grey images; the body is the file's."""
    path = pathlib.Path(__file__).parents[2] / "golden" / "official_token.npz"
    recipe = dataclasses.replace(
        run.load_recipe(),
        init_from=str(path),
        image_size=16,
        dropout_rate=0.1,
        stochastic_depth_rate=0.2,
        precision="bfloat16",
    )
    source = keras_vit.from_checkpoint(path)
    model = build_model(recipe, digits)
    assert model.input_shape == (None, 16, 16, 1)
    assert model.output_shape == (None, 10)
    assert model.config.dropout_rate == 0.1
    assert model.config.stochastic_depth_rate == 0.2
    assert model.config.activation == source.config.activation
    assert model.dtype_policy.name == "mixed_bfloat16"
    assert_same_weights(
        source.get_layer("block_01"), model.get_layer("block_01")
    )


def test_the_architecture_of_a_checkpoint_is_a_flag(run, digits, tmp_path):
    """A bare file of timm, whose weights do not show the quick GELU."""
    golden = pathlib.Path(__file__).parents[2] / "golden"
    path = shutil.copy(golden / "timm_token.safetensors", tmp_path)
    recipe = dataclasses.replace(
        run.load_recipe(),
        init_from=path,
        num_heads=3,
        architecture="vit_base_patch16_clip_quickgelu_224",
    )
    assert build_model(recipe, digits).config.activation == "quick"
    recipe = dataclasses.replace(recipe, architecture="vit_bose_patch16_224")
    with pytest.raises(ValueError, match="`architecture` must be .*vit_bose"):
        build_model(recipe, digits)


@pytest.mark.parametrize("name", ["official_token.npz", None])
def test_fine_tuning_averages_patches_before_a_new_norm(run, digits, name):
    """As in the fine-tuning of a masked autoencoder."""
    path = pathlib.Path(__file__).parents[2] / "golden" / str(name)
    recipe = dataclasses.replace(
        run.load_recipe(),
        init_from=str(path if name else run.model_path),
        init_head="reset",
        pooling="avg",
        use_pooling_norm=True,
    )
    source = build_model(
        dataclasses.replace(recipe, pooling=None, use_pooling_norm=None), digits
    )
    model = build_model(recipe, digits)
    assert "encoder_norm" not in [layer.name for layer in model.layers]
    # Either kind of file says what is new.
    assert {"pooling_norm/gamma", "predictions/kernel"} <= set(
        model.load_report.reset
    )
    images = np.random.default_rng(0).normal(size=(2, 8, 8, 1))
    last = f"block_{source.config.depth - 1:02}"
    tokens = keras.Model(source.input, source.get_layer(last).output)(images)
    patches = np.asarray(tokens)[:, source.config.num_prefix_tokens :]
    means = patches.mean(axis=1)
    means -= means.mean(axis=-1, keepdims=True)
    deviation = np.sqrt(means.var(axis=-1, keepdims=True) + 1e-6)
    features = keras.Model(model.input, model.get_layer("pooling_norm").output)
    np.testing.assert_allclose(
        features(images), means / deviation, atol=1e-4, rtol=1e-4
    )
    assert not model.get_layer("predictions").get_weights()[0].any()


def test_another_pooling_trains_its_layers_although_all_else_is_frozen(
    run, digits, tmp_path
):
    frozen = run.load_model()
    frozen.trainable = False
    frozen.save(tmp_path / "frozen.keras")
    recipe = dataclasses.replace(
        run.load_recipe(),
        init_from=str(tmp_path / "frozen.keras"),
        pooling="map",
        use_pooling_norm=False,  # As in the file.
    )
    for changes in ({}, {"train_only": "head"}):
        model = build_model(dataclasses.replace(recipe, **changes), digits)
        trained = {w.path.split("/")[0] for w in model.trainable_weights}
        assert trained == {"pooling", "predictions"}
    assert_same_weights(
        model.get_layer("encoder_norm"), frozen.get_layer("encoder_norm")
    )
