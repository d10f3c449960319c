import keras
import numpy as np
import pytest

from keras_vit import VisionTransformer
from keras_vit.pretraining import PATCH_TARGETS, MaskedPatchPrediction
from tests.tiny import LATER_KINDS, noise, randomize, tiny_config, to_numpy


def make(target="mean_color", **choices):
    encoder = VisionTransformer(tiny_config(**{"num_classes": 0, **choices}))
    return randomize(MaskedPatchPrediction(encoder, target=target))


@pytest.mark.parametrize("target", PATCH_TARGETS)
def test_losses_and_hits_are_those_of_numpy(target):
    model = make(target)
    outputs = model(noise(3, 32, 32, 3, scale=0.5))
    predictions, targets = (
        to_numpy(outputs[name]) for name in ("predictions", "targets")
    )
    losses = to_numpy(model.compute_losses(outputs))
    if target == "pixels":
        want = ((predictions - targets) ** 2).mean((1, 2))
        np.testing.assert_allclose(losses, want, rtol=1e-5)
        assert not model.has_hits
        return
    cells = PATCH_TARGETS[target] ** 2
    assert predictions.shape == (3, 8, cells, 512)
    truths = targets.astype(int)[..., None]
    logits = predictions - predictions.max(-1, keepdims=True)
    chosen = np.take_along_axis(logits, truths, axis=-1)[..., 0]
    entropy = np.log(np.exp(logits).sum(-1)) - chosen
    np.testing.assert_allclose(losses, entropy.mean((1, 2)), rtol=1e-4)
    hits = (predictions.argmax(-1) == targets).mean((1, 2))
    np.testing.assert_allclose(to_numpy(model.compute_hits(outputs)), hits)


@pytest.mark.parametrize("kind", ["", *LATER_KINDS])
def test_without_corruption_the_tokens_are_those_of_the_encoder(kind):
    choices = {**LATER_KINDS.get(kind, {}), "pooling": "none"}
    choices["use_pooling_norm"] = False
    # Neither is a part of the tokens.
    choices |= {"representation": "tanh", "representation_size": None}
    model = make(**choices)
    model.get_layer("corruption").call = lambda tokens, order: tokens
    images = noise(2, 32, 32, 3)
    outputs = model(images)
    hidden = to_numpy(outputs["order"])[:, :8, None]
    tokens = to_numpy(model.encoder(images))
    patches = tokens[:, model.config.num_prefix_tokens :]
    x = np.take_along_axis(patches, hidden, axis=1)
    head = model.get_layer("patch_predictions")
    want = x @ to_numpy(head.kernel) + to_numpy(head.bias)
    got = to_numpy(outputs["predictions"])[:, :, 0]
    np.testing.assert_allclose(got, want, atol=1e-4)


@pytest.mark.parametrize("target", PATCH_TARGETS)
def test_fit_needs_no_labels_and_the_file_is_the_same_model(
    target, tmp_path, without_xla
):
    encoder = VisionTransformer(tiny_config(depth=1, num_classes=0))
    model = MaskedPatchPrediction(encoder, target=target)
    images = noise(8, 32, 32, 3, scale=0.5)
    model.compile(keras.optimizers.Adam(3e-3))
    many = np.tile(images, (10, 1, 1, 1))
    options = {"batch_size": 8, "epochs": 2, "verbose": 0}
    history = model.fit(many, **options).history["loss"]
    assert history[-1] < 0.95 * history[0]
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    for name, value in model(images).items():
        np.testing.assert_array_equal(
            to_numpy(again(images)[name]), to_numpy(value)
        )


def test_a_model_that_knows_the_colours_paints_the_mean_of_each_patch():
    model = make()
    shades = np.random.default_rng(0).integers(0, 8, (2, 4, 4, 3))
    bytes_ = shades * 32 + 16  # The middle of each shade.
    images = np.kron(2 * bytes_ / 255 - 1, np.ones((1, 8, 8, 1)))
    outputs = model(images)
    classes = to_numpy(outputs["targets"]).astype(int)
    model.get_layer("patch_predictions").call = None  # Not asked.
    truths = np.zeros((2, 8, 192))
    painted = model.paint(100.0 * np.eye(512)[classes], truths)
    hidden = to_numpy(outputs["order"])[:, :8]
    means = (2 * bytes_ / 255 - 1).reshape(2, 16, 3)
    want = np.take_along_axis(means, hidden[..., None], axis=1)
    got = painted.reshape(2, 8, 64, 3).mean(2)
    np.testing.assert_allclose(got, want, atol=0.01)


def test_unknown_targets_are_refused():
    encoder = VisionTransformer(tiny_config(num_classes=0))
    with pytest.raises(ValueError, match="`target` must be one of 'mean_col"):
        MaskedPatchPrediction(encoder, target="colour")
