"""The callback that draws while a model is trained."""

import sys

import keras
import numpy as np
import pytest
import tensorflow as tf
from matplotlib.figure import Figure

from keras_vit import VisionTransformer
from keras_vit.analysis import (
    attention_distances,
    attention_rollout,
    head_grid,
    plots,
    position_similarity,
)
from keras_vit.analysis.callbacks import AttentionPictures
from keras_vit.preprocessing.description import from_range
from tests.tiny import noise, randomize, tiny_config, to_numpy

SIZE = 16
ALL = {
    "attention/rollout",
    "attention/distance",
    "positions/similarity",
    "embedding/filters",
}


@pytest.fixture
def quick(monkeypatch):
    """Make every picture black: to draw takes most of the time."""
    black = np.zeros((1, 1, 3), "uint8")
    monkeypatch.setattr(plots, "render", lambda figure: black)


def make_model(seed=0, **choices):
    """Return a model of 4 patches, one block and weights that are not zero."""
    keras.utils.set_random_seed(seed)
    config = tiny_config(**{"image_size": SIZE, "depth": 1, **choices})
    return randomize(VisionTransformer(config))


def fit(model, *callbacks, epochs=2):
    """Train for two updates an epoch, under Keras."""
    images = noise(8, *model.input_shape[1:], seed=1)
    labels = np.arange(8) % 7
    model.compile(
        keras.optimizers.Adam(0.01),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        jit_compile=False,  # It would take most of the time.
    )
    return model.fit(
        images, labels, 4, epochs, verbose=0, callbacks=list(callbacks)
    )


def drive(model, callback, steps=()):
    """Train under another loop, which counts by itself; return the positions.

    An epoch ends at each of `steps`.
    """
    model.optimizer = None  # As trainers/training/trainer.py does.
    callback.set_model(model)
    callback.on_train_begin()
    frames = [position_similarity(model)]
    for epoch, step in enumerate(steps):
        table = model.get_layer("position_embedding").trainable_variables[0]
        table.assign(noise(*table.shape, seed=step))
        callback.on_epoch_end(epoch, {"step": step})
        frames.append(position_similarity(model))
    callback.on_train_end()
    return frames


def images_for(model, count=2):
    return np.clip(noise(count, *model.input_shape[1:], seed=2) / 3, -1, 1)


def logged(folder):
    """Return {(tag, step): pictures} of the event files in a folder."""
    found = {}
    for path in sorted(folder.glob("*tfevents*")):
        for record in tf.data.TFRecordDataset(str(path)):
            event = tf.compat.v1.Event.FromString(record.numpy())
            for value in event.summary.value:
                _, _, *files = tf.make_ndarray(value.tensor)
                pictures = [tf.io.decode_png(f).numpy() for f in files]
                found[value.tag, event.step] = pictures
    return found


@pytest.mark.slow(30)
def test_training_under_keras_goes_on_as_without_it_to_the_bit(tmp_path, quick):
    """Weights, seeds of dropout, the optimizer, the order of the images."""
    alone, watched = (make_model(dropout_rate=0.2) for _ in range(2))
    keras.utils.set_random_seed(5)
    first = fit(alone).history
    keras.utils.set_random_seed(5)
    callback = AttentionPictures(images_for(watched), tmp_path)
    again = fit(watched, callback).history
    assert first == again
    states = [
        [*model.variables, *model.optimizer.variables]
        for model in (alone, watched)
    ]
    assert any("seed" in variable.path for variable in states[0])
    assert len(states[0]) == len(states[1])
    for a, b in zip(*states):
        np.testing.assert_array_equal(to_numpy(a), to_numpy(b))
    # The optimizer has counted the updates.
    found = logged(tmp_path / "attention")
    assert set(found) == {(tag, step) for tag in ALL for step in (0, 2, 4)}
    [picture] = found["positions/similarity", 4]
    want = plots.plot_position_similarity(position_similarity(watched))
    np.testing.assert_array_equal(picture, plots.render(want))


def test_pictures_are_those_of_the_model_at_that_time(tmp_path):
    model = make_model()
    callback = AttentionPictures(images_for(model), tmp_path)
    frames = drive(model, callback, [30])
    found = logged(tmp_path / "attention")
    assert set(found) == {(tag, step) for tag in ALL for step in (0, 30)}
    for step, frame in zip((0, 30), frames):
        [picture] = found["positions/similarity", step]
        want = plots.render(plots.plot_position_similarity(frame))
        np.testing.assert_array_equal(picture, want)
    [picture] = found["attention/distance", 30]
    distances = attention_distances(model, callback.images)
    want = plots.render(plots.plot_distances(distances, (2, 2), 8, 1))
    np.testing.assert_array_equal(picture, want)


def test_draws_before_the_first_update_and_after_some_epochs(tmp_path, quick):
    model = make_model()
    images = images_for(model, 1)
    callback = AttentionPictures(images, tmp_path / "new", every_epochs=2)
    drive(model, callback, [3, 6, 9, 12, 15])
    steps = {step for _, step in logged(tmp_path / "new/attention")}
    assert steps == {0, 6, 12}
    # A training that goes on has been drawn before.
    callback = AttentionPictures(images, tmp_path / "on", first_step=6)
    drive(model, callback, [9])
    assert {step for _, step in logged(tmp_path / "on/attention")} == {9}


def test_shows_the_predictions_for_the_images(tmp_path, monkeypatch, quick):
    """By hand: the grids, the pixels and the classes that are drawn."""
    drawn = []

    def record(pixels, grids, titles, patch_size):
        drawn.append((pixels, grids, titles, patch_size))
        return Figure()

    monkeypatch.setattr(plots, "plot_overlays", record)
    model = make_model()
    images = images_for(model)
    names = [f"class {i}" for i in range(7)]
    # The model reads other numbers than those of [-1, 1].
    callback = AttentionPictures(
        images, tmp_path, class_names=names, normalization=from_range(-1, 3)
    )
    drive(model, callback)
    [(pixels, grids, titles, patch_size)] = drawn
    np.testing.assert_allclose(pixels, (images + 1) / 4 * 255, atol=0.51)
    want = head_grid(model, images, attention_rollout(model, images))
    np.testing.assert_allclose(grids, want, rtol=1e-5)
    assert patch_size == 8
    logits = to_numpy(model(images, training=False)).astype("float64")
    shares = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    for title, share in zip(titles, shares):
        assert title == f"class {share.argmax()}\n{share.max():.1%}"


@pytest.mark.parametrize(
    "choices, missing",
    [
        ({"position_embedding": "none"}, {"positions/similarity"}),
        ({"channels": 4}, {"embedding/filters"}),
        ({"stem_stages": (), "patch_size": 4}, {"embedding/filters"}),
        ({"use_dynamic_image_size": True, "num_classes": 0}, set()),
        ({"pooling": "avg", "use_class_token": False}, set()),
    ],
    ids=str,
)
def test_what_a_model_does_not_have_is_left_out(
    tmp_path, quick, choices, missing
):
    model = make_model(**choices)
    size = model.config.image_size
    images = noise(1, *size, model.config.channels, seed=2)
    callback = AttentionPictures(images, tmp_path)
    callback.set_model(model)
    model.optimizer = None
    callback.on_train_begin()
    callback.on_train_end()
    found = {tag for tag, _ in logged(tmp_path / "attention")}
    assert found == ALL - missing


def test_averaged_weights_are_looked_at_and_left_alone(tmp_path):
    model, other = make_model(), make_model()
    values = [noise(*v.shape, seed=9) for v in model.trainable_variables]
    for variable, value in zip(other.trainable_variables, values):
        variable.assign(value)
    before = [to_numpy(x) for x in model.weights]
    images = images_for(model)
    folders = tmp_path / "averaged", tmp_path / "assigned"
    for looked_at, averages, folder in zip(
        (model, other), (lambda: values, lambda: None), folders
    ):
        callback = AttentionPictures(images, folder, averages=averages)
        drive(looked_at, callback)
    averaged, assigned = (logged(folder / "attention") for folder in folders)
    assert set(averaged) == set(assigned) == {(tag, 0) for tag in ALL}
    for key, pictures in averaged.items():
        np.testing.assert_array_equal(pictures, assigned[key])
    own = plots.plot_position_similarity(position_similarity(model))
    [picture] = averaged["positions/similarity", 0]
    assert np.abs(picture.astype(int) - plots.render(own)).max() > 20
    for a, b in zip(before, model.weights):
        np.testing.assert_array_equal(a, to_numpy(b))


def test_what_it_cannot_watch_is_named_before_the_training(tmp_path):
    images = np.zeros((1, SIZE, SIZE, 3))
    dense = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    with pytest.raises(ValueError, match="VisionTransformer.*Sequential"):
        AttentionPictures(images, tmp_path).set_model(dense)
    callback = AttentionPictures(images[:, :8], tmp_path)
    with pytest.raises(
        ValueError, match=r"`images`.*\(16, 16, 3\).*\(1, 8, 16, 3\)"
    ):
        callback.set_model(make_model())
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "images, choices, message",
    [
        (np.zeros((8, 8, 3)), {}, r"\(B, H, W, C\).*\(8, 8, 3\)"),
        (np.zeros((0, 8, 8, 3)), {}, "B > 0"),
        (np.zeros((1, 8, 8, 3)), {"every_epochs": 0}, "every_epochs=0"),
        (
            np.zeros((1, 8, 8, 3)),
            {"activation": "relu"},
            "'softmax', 'sigmoid'",
        ),
    ],
)
def test_bad_arguments_are_refused(tmp_path, images, choices, message):
    with pytest.raises(ValueError, match=message):
        AttentionPictures(images, tmp_path, **choices)


def test_says_that_tensorflow_is_missing(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorflow", None)
    callback = AttentionPictures(np.zeros((1, SIZE, SIZE, 3)), tmp_path)
    with pytest.raises(ImportError, match="pip install tensorflow"):
        callback.on_train_begin()
