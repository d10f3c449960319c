"""The model of a recipe: new, from a file of ours, or from a checkpoint."""

import dataclasses
import json
import pathlib
import shutil

import keras
import numpy as np
import pytest

import keras_vit
from trainers.models.factory import build_model, load_initial_model
from trainers.models.initial_head import (
    explain_other_classes,
    explain_other_size,
)


def test_seed_decides_the_initial_weights(recipe, digits):
    keras.utils.set_random_seed(recipe.seed)
    first = build_model(recipe, digits).get_weights()
    keras.utils.set_random_seed(recipe.seed)
    again = build_model(recipe, digits).get_weights()
    keras.utils.set_random_seed(1)
    other = build_model(recipe, digits).get_weights()
    assert all(np.array_equal(a, b) for a, b in zip(first, again))
    assert not all(np.array_equal(a, b) for a, b in zip(first, other))


@pytest.mark.parametrize(
    "field, value, attribute",
    [
        ("pooling", "map", "pooling"),
        ("use_pooling_norm", True, "use_pooling_norm"),
        ("position_embedding", "sincos_2d", "position_embedding"),
        ("mlp_activation", "exact", "activation"),
        ("representation_size", 12, "representation_size"),
        ("dropout_rate", 0.3, "dropout_rate"),
        ("stochastic_depth_rate", 0.3, "stochastic_depth_rate"),
        ("head_bias", -3.0, "head_bias"),
        ("patch_size", 4, "patch_size"),
        ("depth", 3, "depth"),
        ("mlp_dim", 20, "mlp_dim"),
        ("num_heads", 2, "num_heads"),
    ],
)
def test_model_flags_reach_the_model(recipe, digits, field, value, attribute):
    model = build_model(dataclasses.replace(recipe, **{field: value}), digits)
    assert getattr(model.config, attribute) == value


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
        for a, b in zip(
            source.get_layer(layer).get_weights(),
            model.get_layer(layer).get_weights(),
        ):
            np.testing.assert_array_equal(a, b)


def test_a_head_for_other_classes_is_replaced(run, digits):
    """Also if they are as many; those of a run lie in its folder."""
    recipe = dataclasses.replace(
        run.load_recipe(), init_from=str(run.model_path)
    )
    names = digits.class_names
    assert explain_other_classes(recipe, names) is None
    file = run.folder / "recipe.json"
    content = json.loads(file.read_text())
    theirs = {**content, "class_names": [*names[1:], names[0]]}
    file.write_text(json.dumps(theirs))
    folder = dataclasses.replace(recipe, init_from=str(run.folder))
    assert explain_other_classes(folder, names)
    reason = explain_other_classes(recipe, names)
    assert "other classes (1, 2, 3, 4, 5, ...): a new one" in reason
    head = build_model(recipe, digits).get_layer("predictions")
    assert not any(weight.any() for weight in head.get_weights())
    # Nothing is said where there is nothing to say.
    reset = dataclasses.replace(recipe, init_head="reset")
    assert explain_other_classes(reset, names) is None
    assert explain_other_classes(recipe, names[:3]) is None
    file.unlink()
    assert explain_other_classes(recipe, names) is None
    file.write_text(json.dumps(content))


def test_images_of_another_size_than_before_are_noted(run, tmp_path):
    recipe = dataclasses.replace(
        run.load_recipe(), init_from=str(run.model_path)
    )
    assert explain_other_size(recipe) is None
    larger = dataclasses.replace(recipe, image_size=16)
    assert explain_other_size(larger) == (
        f"{run.model_path} was trained on images of 8x8 pixels, and this run "
        "has 16x16. To keep the size: --image_size=8"
    )
    shutil.copy(run.model_path, tmp_path / "model.keras")
    for beside in (None, "no JSON", "[1]", '{"recipe": 1}'):
        if beside:
            (tmp_path / "recipe.json").write_text(beside)
        alone = dataclasses.replace(larger, init_from=f"{tmp_path}/model.keras")
        assert explain_other_size(alone) is None
    assert explain_other_size(dataclasses.replace(larger, init_from="")) is None


def test_fine_tuning_starts_from_the_folder_of_a_run(run, digits, tmp_path):
    recipe = dataclasses.replace(
        run.load_recipe(), init_from=str(run.folder), augment=""
    )
    for a, b in zip(
        run.load_model().get_weights(),
        build_model(recipe, digits).get_weights(),
        strict=True,
    ):
        np.testing.assert_array_equal(a, b)
    shutil.copy(run.recipe_path, tmp_path)  # Not finished.
    unfinished = dataclasses.replace(recipe, init_from=str(tmp_path))
    with pytest.raises(ValueError, match="the folder of a finished run"):
        build_model(unfinished, digits)


def test_a_damaged_file_is_called_so(run, digits, tmp_path):
    path = tmp_path / "part.keras"
    path.write_bytes(run.model_path.read_bytes()[:-3000])
    recipe = dataclasses.replace(run.load_recipe(), init_from=str(path))
    with pytest.raises(
        ValueError, match="part.keras cannot be read: it is no complete"
    ):
        build_model(recipe, digits)


def test_other_files_are_refused_with_all_known_endings(run, digits, tmp_path):
    path = tmp_path / "file.py"
    path.write_text("")
    recipe = dataclasses.replace(run.load_recipe(), init_from=str(path))
    with pytest.raises(ValueError, match=r"\.npz, .*\.h5, .* in \.keras"):
        build_model(recipe, digits)


@pytest.mark.parametrize("name", ["official_token.npz", "hf_vit"])
def test_fine_tuning_starts_from_a_checkpoint(run, digits, name):
    """Another size, other classes, grey images; the body is the file's."""
    path = pathlib.Path(__file__).parents[2] / "golden" / name
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
    for a, b in zip(
        source.get_layer("block_01").get_weights(),
        model.get_layer("block_01").get_weights(),
    ):
        np.testing.assert_array_equal(a, b)


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
    assert hasattr(model, "load_report") == bool(name)
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
    model = build_model(recipe, digits)
    trained = {w.path.split("/")[0] for w in model.trainable_weights}
    assert trained == {"pooling", "predictions"}
    np.testing.assert_array_equal(
        model.get_layer("encoder_norm").get_weights(),
        frozen.get_layer("encoder_norm").get_weights(),
    )


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


def test_fine_tuning_has_the_precision_of_its_own_recipe(run, digits):
    recipe = dataclasses.replace(
        run.load_recipe(), init_from=str(run.model_path), precision="bfloat16"
    )
    model = build_model(recipe, digits)
    assert model.get_layer("block_00").compute_dtype == "bfloat16"


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
