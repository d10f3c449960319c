"""What users edit on the layers of a model survives, as in any Keras model."""

import copy
import pickle

import keras
import numpy as np
import pytest

from keras_vit import VisionTransformer, pretraining, save_checkpoint
from tests.tiny import noise, randomize, tiny_config

KINDS = {
    "map": {"pooling": "map", "relative_positions": "mlp"},
    "hybrid of two heads": {
        "patch_size": 1,
        "stem_stages": (1, 1),
        "use_distillation_token": True,
        "pooling": "distilled",
    },
}
# Attributes that are set on all layers of a kind, however deep they are.
EDITS = {
    keras.layers.Dropout: {"rate": 0.25},
    keras.layers.LayerNormalization: {"epsilon": 0.125},
    keras.layers.GroupNormalization: {"epsilon": 0.5},
    keras.layers.Dense: {"kernel_regularizer": keras.regularizers.L2(0.5)},
}


def make_edited(kind):
    model = VisionTransformer(
        tiny_config(
            dropout_rate=0.1,
            attention_dropout_rate=0.1,
            stochastic_depth_rate=0.1,
            classifier_activation="softmax",
            relative_hidden_dim=4,
            **KINDS[kind],
        )
    )
    for layer in model._flatten_layers(include_self=False):
        for layer_class, values in EDITS.items():
            for name, value in values.items():
                if isinstance(layer, layer_class):
                    setattr(layer, name, value)
    model.layers[-1].activation = keras.activations.linear
    block = model.get_layer("block_01")
    block.stochastic_depth.rate = 0.5
    block.mlp.activation = "exact"
    block.use_remat = True
    block.attention.trainable = False
    model.get_layer("patch_encoder").trainable = False
    return randomize(model)


def saved(model, path):
    model.save(path)
    return keras.saving.load_model(
        path, custom_objects={"VisionTransformer": VisionTransformer}
    )


def with_weights(new, model):
    new.set_weights(model.get_weights())
    return new


def inside(model, folder):
    image = keras.Input(model.input_shape[1:])
    outer = saved(keras.Model(image, model(image)), folder / "m.keras")
    return outer.get_layer(model.name)


# Way -> the model that it makes of a model.
WAYS = {
    "keras": lambda model, folder: saved(model, folder / "m.keras"),
    "h5": lambda model, folder: saved(model, folder / "m.h5"),
    "inside": inside,
    "plain": lambda model, folder: saved(
        keras.Model(model.input, model.output), folder / "m.keras"
    ),
    "deepcopy": lambda model, folder: copy.deepcopy(copy.deepcopy(model)),
    "pickle": lambda model, folder: pickle.loads(pickle.dumps(model)),
    "config": lambda model, folder: with_weights(
        type(model).from_config(model.get_config()), model
    ),
    "clone": lambda model, folder: with_weights(
        keras.models.clone_model(model), model
    ),
    "image size": lambda model, folder: model.with_image_size(
        model.config.image_size
    ),
}


def settings(model):
    """Return the configuration of every layer, however deep it is."""
    return {
        layer.path: {
            name: value
            for name, value in layer.get_config().items()
            if name not in ("dtype", "edits", "trainable")
        }
        for layer in model._flatten_layers(include_self=False)
        if not isinstance(layer, (keras.Model, keras.layers.InputLayer))
    }


@pytest.fixture(scope="module")
def edited():
    """Return a model of each kind, edited."""
    return {kind: make_edited(kind) for kind in KINDS}


@pytest.mark.filterwarnings("ignore")  # HDF5 is Keras' old format.
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", KINDS)
def test_edits_survive(kind, way, edited, tmp_path):
    model = edited[kind]
    new = WAYS[way](model, tmp_path)
    assert settings(new) == settings(model)
    assert len(new.losses) >= 8  # Those of the regularisers.
    if way not in ("clone", "plain"):  # Keras' own layers keep their own flag.
        trained = [weight.path for weight in model.trainable_weights]
        assert [weight.path for weight in new.trainable_weights] == trained
    x = noise(2, *model.input_shape[1:])
    np.testing.assert_allclose(
        *(keras.ops.convert_to_numpy(m(x)) for m in (new, model)), atol=1e-5
    )


def test_a_changed_field_overrules_an_edit(edited):
    model = edited["map"].with_layer_norm_epsilon(0.75)
    model = model.with_classifier_activation("sigmoid").with_remat(False)
    assert model.get_layer("encoder_norm").epsilon == 0.75
    assert model.get_layer("block_00").mlp_norm.epsilon == 0.75
    assert model.layers[-1].activation is keras.activations.sigmoid
    assert not model.get_layer("block_01").use_remat
    # All else stays edited.
    assert model.get_layer("block_01").mlp.activation == "exact"
    assert model.get_layer("dropout").rate == 0.25


@pytest.mark.parametrize(
    ("place", "name", "value"),
    [
        ("block_01/mlp/hidden", "activation", keras.activations.relu),
        ("block_00/attention", "num_heads", 1),
        ("encoder_norm", "epsilon", 0.5),
        ("predictions", "activation", keras.activations.softmax),
    ],
)
def test_other_libraries_get_no_model_of_edited_layers(
    place, name, value, tmp_path
):
    model = VisionTransformer(tiny_config(activation="exact"))
    layers = {x.path: x for x in model._flatten_layers()}
    model.get_layer("block_00").dropout.rate = 0.5
    layers["block_00/mlp/hidden"].kernel_regularizer = keras.regularizers.L2(1)
    save_checkpoint(model, tmp_path / "trained.safetensors", layout="timm")
    setattr(layers[place], name, value)
    with pytest.raises(ValueError, match=f"`model` .*{place}.{name}"):
        save_checkpoint(model, tmp_path / "m.safetensors", layout="timm")


def test_what_a_block_only_hands_down_is_no_edit(tmp_path):
    model = randomize(VisionTransformer(tiny_config(activation="exact")))
    block = model.get_layer("block_01")
    block.activation, block.num_heads, block.dropout_rate = "relu", 1, 0.5
    block.attention.norm_epsilon = block.layer_norm_epsilon = 0.5
    new, x = (
        saved(model, tmp_path / "m.keras"),
        noise(2, *model.input_shape[1:]),
    )
    np.testing.assert_array_equal(
        *(keras.ops.convert_to_numpy(m(x)) for m in (new, model))
    )
    assert "edits" not in model.get_config()


def test_what_no_new_layer_takes_is_not_saved(tmp_path):
    """The file could not be read again."""
    model = VisionTransformer(tiny_config())
    for name, attribute, value in (
        ("block_01", "norm_placement", "post"),
        ("position_embedding", "resize", "cubic"),
    ):
        layer = model.get_layer(name)
        before = getattr(layer, attribute)
        setattr(layer, attribute, value)
        with pytest.raises(ValueError, match=f"{name} has .*`{attribute}`"):
            model.save(tmp_path / "m.keras")
        setattr(layer, attribute, before)
    model.save(tmp_path / "m.keras")
    assert [path.name for path in tmp_path.iterdir()] == ["m.keras"]


def test_an_activation_that_no_file_could_name_is_refused():
    mlp = VisionTransformer(tiny_config()).get_layer("block_00").mlp
    for value in (keras.activations.relu, "gelu"):
        with pytest.raises(ValueError, match="`activation` must be one of"):
            mlp.activation = value
    assert mlp.activation == "tanh"


def test_a_model_without_edits_has_no_entry():
    assert "edits" not in VisionTransformer(tiny_config()).get_config()


@pytest.mark.parametrize("kind", ["MaskedAutoencoder", "MaskedPatchPrediction"])
def test_edits_of_a_pretraining_model_survive(kind, tmp_path):
    options = {"MaskedAutoencoder": {"decoder_width": 12, "decoder_heads": 3}}
    encoder = VisionTransformer(tiny_config(dropout_rate=0.1))
    model = getattr(pretraining, kind)(encoder, **options.get(kind, {}))
    for layer in model._flatten_layers():
        if isinstance(layer, keras.layers.LayerNormalization):
            layer.epsilon = 0.125
    predictions = [x for x in model.layers if x.name.endswith("predictions")][0]
    predictions.activation = keras.activations.tanh
    predictions.trainable = False
    new = saved(model, tmp_path / "m.keras")
    for layer in new._flatten_layers():
        if isinstance(layer, keras.layers.LayerNormalization):
            assert layer.epsilon == 0.125
    activation = new.get_layer(predictions.name).activation
    assert activation is keras.activations.tanh
    trained = [weight.path for weight in model.trainable_weights]
    assert [weight.path for weight in new.trainable_weights] == trained
