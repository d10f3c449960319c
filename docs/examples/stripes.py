"""A plug-in: pictures of stripes, and what to learn them with."""

import keras
import numpy as np
import tensorflow as tf
from keras import ops

from trainers.data.readers.indexed import IndexedImages
from trainers.recipes.recipe import Recipe


def draw(split, index):
    """Return an image (16, 16, 3), always the same for one number."""
    random = np.random.default_rng([split == "train", index])
    place = np.mgrid[:16, :16][index % 2]  # Rows, or columns.
    waves = np.sin(place * random.uniform(0.8, 2) + random.uniform(0, 6))
    image = 128 + 60 * waves[..., None] + random.normal(0, 30, (16, 16, 3))
    return image.clip(0, 255).astype("uint8")


def open_stripes(path, labels):
    """Return the data set; PATH of --dataset=stripes:PATH is not used."""
    numbers = {"train": 400, "test": 100}
    classes = {split: np.arange(n) % 2 for split, n in numbers.items()}
    return IndexedImages(["horizontal", "vertical"], classes, draw)


def shade(darkest: float = 0.5):
    """Darken an image by a random factor."""

    def apply(image, seed):
        return image * tf.random.stateless_uniform((), seed, darkest, 1.0)

    return apply


def certainty(labels, logits):
    """Return the probability of the right class of each image, (B,)."""
    return ops.sum(labels * ops.softmax(logits), -1)


class StopWhenSure(keras.callbacks.Callback):
    """Ends the training when the certainty is high enough."""

    def on_epoch_end(self, epoch, logs=None):
        if logs["val_certainty"] > 0.95:
            self.model.stop_training = True


DATASETS = {"stripes": open_stripes}
OPERATIONS = {"shade": shade}
METRICS = {"certainty": certainty}
CALLBACKS = [lambda trainer: StopWhenSure()]
RECIPES = {
    "stripes": Recipe(
        dataset="stripes",
        augment="flip_lr|shade(0.6)",
        image_size=16,
        model="Ti/16",
        patch_size=4,
        depth=2,
        width=32,
        mlp_dim=64,
        num_heads=2,
        batch_size=20,
        epochs=40,
        learning_rate=3e-3,
        warmup_steps=40,
    )
}
