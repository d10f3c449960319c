"""MaskedAutoencoder, judged by transformers' ViTMAEForPreTraining."""

import pathlib

import keras
import numpy as np
import pytest
from keras import ops
from safetensors.numpy import load_file

from keras_vit import VisionTransformer, from_checkpoint
from keras_vit.layers.positions import POSITION_EMBEDDINGS
from keras_vit.pretraining import MaskedAutoencoder, fix_positions
from keras_vit.pretraining.masked_autoencoder import encode_visible
from keras_vit.pretraining.masking import RandomPatchOrder
from keras_vit.pretraining.targets import cut_grid
from tests.tiny import LATER_KINDS, noise, randomize, tiny_config, to_numpy

GOLDEN = pathlib.Path(__file__).parents[1] / "golden"
SMALL = {"decoder_width": 8, "decoder_depth": 1, "decoder_heads": 2}


@pytest.fixture
def golden():
    return dict(np.load(GOLDEN / "hf_vit_mae.expected.npz"))


@pytest.fixture
def model(golden, monkeypatch):
    """The model of the golden file, with the patches hidden that it hid."""
    hidden = golden["mask"].sum(-1).astype(int)
    assert set(hidden) == {12}
    # Theirs are sorted by their noise, the visible ones first.
    order = np.argsort(golden["noise"], axis=-1)
    order = np.concatenate([order[:, 4:], order[:, :4]], axis=-1)
    monkeypatch.setattr(
        RandomPatchOrder,
        "call",
        lambda self, images, training=None: ops.convert_to_tensor(
            order.astype("int32")
        ),
    )
    path = GOLDEN / "hf_vit_mae"
    encoder = from_checkpoint(path, preprocessing="imagenet")
    model = MaskedAutoencoder(
        encoder,
        mask_ratio=0.7,
        decoder_width=16,
        decoder_depth=2,
        decoder_heads=2,
    )
    copy_decoder(model, load_file(path / "model.safetensors"))
    return model


def copy_decoder(model, arrays):
    """Copy the decoder of transformers into ours."""

    def kernel(name):
        return arrays[f"decoder.{name}.weight"].T

    def vector(name, kind="bias"):
        return arrays[f"decoder.{name}.{kind}"]

    def copy(layer, name):
        layer.set_weights([kernel(name), vector(name)])

    def copy_norm(layer, name):
        layer.set_weights([vector(name, "weight"), vector(name)])

    copy(model.get_layer("decoder_embed"), "decoder_embed")
    copy(model.get_layer("decoder_predictions"), "decoder_pred")
    copy_norm(model.get_layer("decoder_norm"), "decoder_norm")
    model.get_layer("mask_token").set_weights([arrays["decoder.mask_token"]])
    for index in range(2):
        block = model.get_layer(f"decoder_block_{index:02d}")
        start = f"decoder_encoder.layer.{index}"
        copy_norm(block.attention_norm, f"{start}.layernorm_before")
        copy_norm(block.mlp_norm, f"{start}.layernorm_after")
        parts = [
            f"{start}.attention.attention.{part}"
            for part in ("query", "key", "value")
        ]
        block.attention.qkv.set_weights(
            [
                np.concatenate([kernel(part) for part in parts], axis=-1),
                np.concatenate([vector(part) for part in parts]),
            ]
        )
        copy(block.attention.out, f"{start}.attention.output.dense")
        copy(block.mlp.hidden, f"{start}.intermediate.dense")
        copy(block.mlp.out, f"{start}.output.dense")


def test_predictions_and_loss_are_those_of_transformers(model, golden):
    outputs = model(golden["images"])
    order = to_numpy(outputs["order"])
    want = np.take_along_axis(
        golden["predictions"], order[:, :12, None], axis=1
    )
    np.testing.assert_allclose(
        to_numpy(outputs["predictions"]), want, atol=1e-5
    )
    losses = to_numpy(model.compute_losses(outputs))
    np.testing.assert_allclose(
        losses.mean(), golden["loss_normalized"], rtol=1e-5
    )


def test_the_loss_of_plain_pixels_is_that_of_transformers(model, golden):
    plain = MaskedAutoencoder(
        model.encoder, 0.7, 16, 2, 2, normalize_pixels=False
    )
    plain.set_weights(model.get_weights())
    losses = to_numpy(plain.compute_losses(plain(golden["images"])))
    np.testing.assert_allclose(losses.mean(), golden["loss_pixels"], rtol=1e-5)


def test_fixed_positions_are_those_of_transformers(model, golden):
    encoder = VisionTransformer(model.config)
    fix_positions(encoder)
    for layer, name in (
        (encoder.get_layer("position_embedding"), "positions"),
        (model.get_layer("decoder_positions"), "decoder_positions"),
    ):
        np.testing.assert_allclose(
            to_numpy(layer.embedding), golden[name], atol=1e-6
        )
        assert not layer.trainable


@pytest.mark.parametrize("kind", ["", *LATER_KINDS])
def test_the_encoder_sees_only_visible_patches(kind):
    """Other pixels in hidden patches change nothing that it computes."""
    choices = {**LATER_KINDS.get(kind, {}), "num_classes": 0}
    if choices.get("pooling") == "distilled":
        choices["pooling"] = "token"
    encoder = VisionTransformer(tiny_config(**choices))
    model = randomize(MaskedAutoencoder(encoder, **SMALL))
    images = noise(2, *model.input_shape[1:])
    first = model(images)
    covered, _ = model.reconstruct(images)
    hidden = first["predictions"].shape[1]
    # The order of an image depends on its pixels: keep it.
    fixed = to_numpy(first["order"])
    layer = model.get_layer("patch_order")
    layer.call = lambda images, training=None: ops.convert_to_tensor(fixed)
    second = model(covered)
    np.testing.assert_allclose(
        to_numpy(first["predictions"]),
        to_numpy(second["predictions"]),
        atol=1e-5,
    )
    patches = np.asarray(to_numpy(cut_grid(covered, model.config)))
    zeros = (patches == 0).all(-1).sum(-1)
    assert (zeros == hidden).all()


def test_it_agrees_with_the_encoder_where_nothing_is_hidden():
    """With the blocks of the encoder, in another order of the patches."""
    config = tiny_config(num_classes=0, pooling="none")
    encoder = randomize(VisionTransformer(config))
    images = noise(2, *config.image_size, 3)
    count = config.grid_size[0] * config.grid_size[1]
    order = np.stack(
        [np.random.default_rng(i).permutation(count) for i in (1, 2)]
    )
    given = keras.Input((count,), dtype="int32")
    model = keras.Model(
        [encoder.inputs[0], given], encode_visible(encoder, given, 0)
    )
    got = to_numpy(model([images, order.astype("int32")]))
    want = to_numpy(encoder(images))
    rows = np.take_along_axis(want[:, 1:], order[..., None], axis=1)
    np.testing.assert_allclose(got[:, 0], want[:, 0], atol=1e-5)
    np.testing.assert_allclose(got[:, 1:], rows, atol=1e-5)


def test_a_reconstruction_keeps_visible_patches():
    encoder = VisionTransformer(tiny_config(num_classes=0))
    model = randomize(MaskedAutoencoder(encoder, **SMALL))
    images = noise(2, *model.input_shape[1:])
    covered, predicted = model.reconstruct(images)
    is_visible = covered != 0
    assert 0 < is_visible.mean() < 0.3
    np.testing.assert_array_equal(predicted[is_visible], images[is_visible])
    assert (predicted[~is_visible] != images[~is_visible]).all()
    # What was normalised for the target gets its own moments back.
    outputs = model(images)
    truths = np.take_along_axis(
        to_numpy(cut_grid(images, model.config)),
        to_numpy(outputs["order"])[:, : outputs["targets"].shape[1], None],
        axis=1,
    )
    back = model.paint(to_numpy(outputs["targets"]), truths)
    np.testing.assert_allclose(back, truths, atol=1e-4)


def test_fit_needs_no_labels_and_the_file_is_the_same_model(
    tmp_path, without_xla
):
    encoder = VisionTransformer(tiny_config(num_classes=0))
    model = MaskedAutoencoder(encoder, **SMALL)
    images = np.repeat(noise(1, *model.input_shape[1:]), 8, axis=0)
    table = to_numpy(model.get_layer("decoder_positions").embedding).copy()
    model.compile(keras.optimizers.Adam(3e-3))
    many = np.tile(images, (20, 1, 1, 1))
    options = {"batch_size": 8, "epochs": 3, "verbose": 0}
    history = model.fit(many, **options).history["loss"]
    assert history[-1] < 0.9 * history[0]
    np.testing.assert_array_equal(
        to_numpy(model.get_layer("decoder_positions").embedding), table
    )
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    for name, value in model(images).items():
        np.testing.assert_array_equal(
            to_numpy(again(images)[name]), to_numpy(value)
        )
    assert again.encoder.config == encoder.config


@pytest.mark.parametrize(
    "choices, fields, message",
    [
        ({"mask_ratio": 1.0}, {}, "`mask_ratio`"),
        ({"mask_ratio": 0.0}, {}, "`mask_ratio`"),
        ({"decoder_depth": 0}, {}, "`decoder_depth` must be positive"),
        ({}, {"use_dynamic_image_size": True}, "one image size"),
        (
            {},
            {"image_size": (32, 35), "ignore_border": True},
            "fill its images",
        ),
        ({}, {"stem_stages": (), "patch_size": 1}, "no stem"),
        ({}, {"relative_positions": "keys"}, "relative_positions='keys'"),
    ],
)
def test_what_cannot_be_is_refused(choices, fields, message):
    encoder = VisionTransformer(tiny_config(num_classes=0, **fields))
    with pytest.raises(ValueError, match=message):
        MaskedAutoencoder(encoder, **{**SMALL, **choices})


def test_a_quantized_encoder_is_refused():
    """Its kernels have no gradient."""
    encoder = VisionTransformer(tiny_config(num_classes=0))
    encoder.quantize("int8")
    with pytest.raises(ValueError, match="`encoder` must not be quantised"):
        MaskedAutoencoder(encoder, **SMALL)


@pytest.mark.parametrize("kind", POSITION_EMBEDDINGS)
def test_positions_are_fixed_only_where_they_are_a_learned_table(kind):
    encoder = VisionTransformer(tiny_config(position_embedding=kind))
    before = len(encoder.trainable_variables)
    fix_positions(encoder)
    assert before - len(encoder.trainable_variables) == (kind == "learned")
