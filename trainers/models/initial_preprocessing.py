"""The preprocessing of the initial model of a run."""

import dataclasses
import json
import zipfile

import tensorflow as tf

from keras_vit.preprocessing.description import Preprocessing, as_preprocessing
from keras_vit.weights import read_preprocessing
from trainers.models.bit_checkpoints import find_bit
from trainers.models.keras_files import find_model_file
from trainers.recipes.recipe import Recipe


def initial_preprocessing(recipe: Recipe, channels: int) -> Preprocessing:
    """Return the preprocessing of `init_from`; no weight is read.

    Args:
        recipe: The recipe; without an initial model, the default is returned.
        channels: Channels of the images. If they are not those of a
            checkpoint, its first layer is adapted to the usual normalisation.

    Raises:
        ValueError: If `init_from` is not a checkpoint.
    """
    found = Preprocessing()
    source = find_model_file(recipe.init_from) if recipe.init_from else ""
    if source.endswith(".keras"):
        found = _read_keras_file(source)
    elif source and not find_bit(source):
        found = read_preprocessing(
            source,
            num_heads=recipe.num_heads or "published",
            image_size=recipe.image_size,
            architecture=recipe.architecture,
        )
    if len(found.mean) not in (1, channels):
        return dataclasses.replace(found, normalization="vit")
    return found


def _read_keras_file(path):
    """Return the preprocessing in a `.keras` file, the default without one.

    What is wrong with the file is said when it is loaded.
    """
    try:
        with tf.io.gfile.GFile(path, "rb") as file, zipfile.ZipFile(file) as z:
            config = json.loads(z.read("config.json"))["config"]["config"]
        return as_preprocessing(config["preprocessing"])
    except (
        KeyError,
        OSError,
        TypeError,
        ValueError,
        tf.errors.OpError,
        zipfile.BadZipFile,
    ):
        return Preprocessing()
