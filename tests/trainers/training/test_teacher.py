"""Training with a teacher: the effect on the weights, and errors."""

import dataclasses

import keras
import numpy as np
import pytest
import scipy.special
import tensorflow as tf

from keras_vit import (
    FlexibleVisionTransformer,
    VisionTransformer,
    preprocess_input,
)
from keras_vit.preprocessing.description import NORMALIZATIONS
from tests.tiny import noise, randomize, tiny_config, to_numpy
from trainers.data.datasets import open_dataset
from trainers.optim.losses import TARGETS
from trainers.training import run_folder
from trainers.training.objectives import (
    find_normalization,
    make_distillation,
    make_teach,
    open_teacher,
)
from trainers.training.run_folder import RunFolder
from trainers.training.trainer import prepare

NAMES = [str(digit) for digit in range(10)]


def make_model(seed=0, **choices):
    choices = {
        "image_size": 8,
        "patch_size": 2,
        "channels": 1,
        "num_classes": 10,
        **choices,
    }
    return randomize(VisionTransformer(tiny_config(**choices)), seed)


@pytest.fixture(scope="module")
def teacher(tmp_path_factory):
    """Return the path of a model of digits with random weights."""
    path = tmp_path_factory.mktemp("teacher") / "model.keras"
    make_model(1).save(path)
    return str(path)


@pytest.fixture
def taught(recipe, teacher):
    return dataclasses.replace(
        recipe,
        teacher=teacher,
        total_steps=1,
        label_smoothing=0.0,
        weight_decay=0.0,
        clip_norm=0.0,
        optimizer="sgd",
        learning_rate=0.1,
        schedule="constant",
    )


@pytest.mark.parametrize(
    ("weight", "changed"), [(0.0, {"class_head"}), (1.0, {"teacher_head"})]
)
def test_each_classifier_learns_of_its_own(taught, tmp_path, weight, changed):
    taught = dataclasses.replace(
        taught, pooling="distilled", distillation_weight=weight
    )
    trainer = prepare(taught, str(tmp_path))
    head = trainer.loop.model.get_layer("predictions")
    parts = ("class_head", "teacher_head")
    before = {p: getattr(head, p).get_weights() for p in parts}
    trainer.train()
    moved = {
        part
        for part in parts
        for old, new in zip(before[part], getattr(head, part).get_weights())
        if np.any(old != new)
    }
    assert moved == changed
    # The trained model returns the mean of both, as ever.
    model = RunFolder(tmp_path).load_model()
    assert model.config.pooling == "distilled"
    assert model.output_shape == (None, 10)


def test_target_temperature_and_share_are_those_of_the_recipe(taught):
    """What labels and teacher share, see test_update.py."""
    teacher, student = noise(5, 10, seed=1), noise(5, 10, seed=2)
    p, q = (scipy.special.softmax(x / 3, -1) for x in (teacher, student))
    scores = scipy.special.log_softmax(student, -1)
    expected = {
        "hard": -scores[np.arange(5), teacher.argmax(-1)],
        "soft": 9 * np.sum(scipy.special.rel_entr(p, q), -1),
    }
    assert expected.keys() == set(TARGETS)
    for target, want in expected.items():
        recipe = dataclasses.replace(
            taught,
            distillation_target=target,
            distillation_temperature=3.0,
            distillation_weight=0.3,
            class_weights="balanced",  # Of the labels alone.
        )
        dataset = open_dataset(recipe.dataset)
        found = make_distillation(recipe, dataset, make_model())
        assert found.weight == 0.3
        np.testing.assert_allclose(
            found.loss(teacher, student), want, rtol=1e-4
        )


def test_the_teacher_sees_the_images_as_it_was_trained():
    pixels = np.random.default_rng(0).integers(0, 256, (2, 32, 32, 3), "uint8")
    teacher = make_model(
        1, image_size=32, patch_size=8, channels=3, preprocessing="clip"
    )
    ours = NORMALIZATIONS["imagenet"]
    teach = make_teach(teacher, NORMALIZATIONS["clip"], ours)
    found = teach(tf.constant(preprocess_input(pixels, "channels_last", ours)))
    expected = teacher(preprocess_input(pixels, "channels_last", "clip"))
    np.testing.assert_allclose(found, to_numpy(expected), atol=1e-5)
    # At its own size.
    small = make_model(1, image_size=16, patch_size=8, channels=3)
    teach = make_teach(small, ours, ours)
    images = preprocess_input(pixels, "channels_last", ours)
    expected = small(tf.image.resize(images, (16, 16)))
    np.testing.assert_allclose(
        teach(tf.constant(images)), to_numpy(expected), atol=1e-5
    )


@pytest.mark.parametrize("name", ["softmax", "sigmoid"])
def test_probabilities_are_turned_into_logits(name):
    model = make_model(3)
    ends_in_it = model.with_classifier_activation(name)
    images = tf.random.stateless_normal((4, 8, 8, 1), (0, 0))
    pair = NORMALIZATIONS["vit"]
    logits = make_teach(model, pair, pair)(images)
    found = make_teach(ends_in_it, pair, pair)(images)
    activate = getattr(tf.nn, name)
    np.testing.assert_allclose(activate(found), activate(logits), atol=1e-6)


def test_certain_probabilities_have_finite_logits():
    image = keras.Input((8, 8, 1))
    x = keras.layers.Dense(2, "sigmoid", bias_initializer="ones")
    model = keras.Model(image, x(keras.layers.Flatten()(image)))
    model.layers[-1].set_weights([np.zeros((64, 2)), np.array([-200, 200])])
    pair = NORMALIZATIONS["vit"]
    ((no, yes),) = make_teach(model, pair, pair)(tf.zeros((1, 8, 8, 1)))
    assert -50 < no < -20 and 20 < yes < 50


@pytest.mark.parametrize("kind", ["functional", "sequential"])
def test_a_model_around_ours_has_its_normalization(kind):
    inner = make_model(num_classes=0, preprocessing="imagenet", channels=3)
    if kind == "sequential":
        model = keras.Sequential([inner, keras.layers.Dense(10)])
        model.build((None, 8, 8, 3))
    else:
        image = keras.Input((8, 8, 3))
        model = keras.Model(image, keras.layers.Dense(10)(inner(image)))
    ours = NORMALIZATIONS["vit"]
    pair, _ = find_normalization(model, ours)
    assert pair == NORMALIZATIONS["imagenet"]
    # A classifier of other layers is fed as the trained model.
    other = keras.Sequential([keras.Input((8, 8, 3)), keras.layers.Flatten()])
    pair, source = find_normalization(other, ours)
    assert pair == ours and "as the trained model" in source


def test_a_run_and_a_model_of_keras_can_teach(taught, tmp_path, trained):
    images = keras.Input((8, 8, 1))
    x = keras.layers.Flatten()(images)
    keras.Model(images, keras.layers.Dense(10)(x)).save(tmp_path / "k.keras")
    for path in (trained, tmp_path / "k.keras"):
        recipe = dataclasses.replace(taught, teacher=str(path))
        dataset = open_dataset(recipe.dataset)
        found = make_distillation(recipe, dataset, make_model())
        assert found.teach(tf.zeros((2, 8, 8, 1))).shape == (2, 10)


def test_a_model_of_the_hub_can_teach(taught, monkeypatch):
    asked = []

    def load(path, **choices):
        asked.append(path)
        return make_model()

    monkeypatch.setattr(run_folder, "is_dense_checkpoint", lambda path: False)
    monkeypatch.setattr(run_folder, "from_checkpoint", load)
    recipe = dataclasses.replace(taught, teacher="hf://owner/model")
    open_teacher(recipe, open_dataset(recipe.dataset))
    assert asked == ["hf://owner/model"]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: make_model(num_classes=7), "10 classes.*7"),
        (lambda: make_model(num_classes=0), "10 classes.*features"),
        (lambda: make_model(channels=3), "1 channels.*3"),
        (lambda: FlexibleVisionTransformer(make_model()), "FlexibleVision"),
    ],
)
def test_other_teachers_are_refused(taught, tmp_path, make, message):
    path = tmp_path / "model.keras"
    make().save(path)
    taught = dataclasses.replace(taught, teacher=str(path))
    with pytest.raises(ValueError, match=message):
        prepare(taught, str(tmp_path / "run"))


def test_other_classes_and_no_file_are_refused(taught, recipe, tmp_path):
    run = RunFolder(tmp_path / "teacher")
    run.save_recipe(recipe, NAMES[::-1])
    run.save_model(make_model())
    for path in (run.folder, run.model_path):
        taught = dataclasses.replace(taught, teacher=str(path))
        with pytest.raises(ValueError, match="in this order: 0, 1.*with 9, 8"):
            prepare(taught, str(tmp_path / "run"))
    taught = dataclasses.replace(taught, teacher=str(tmp_path / "no.keras"))
    with pytest.raises(ValueError, match="`teacher` cannot be read.*no.keras"):
        prepare(taught, str(tmp_path / "run"))
    with pytest.raises(ValueError, match=r"`distillation_weight` must be in"):
        dataclasses.replace(taught, distillation_weight=1.5)
