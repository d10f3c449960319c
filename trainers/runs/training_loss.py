"""The loss that a run minimises, and the predictions that count as right."""

from collections.abc import Callable

import keras
import numpy as np
import tensorflow as tf

from keras_vit.pretraining import PretrainingModel
from trainers.data.datasets import ImageDataset
from trainers.models.objectives import loss_and_hits
from trainers.optim.losses import LOSSES, is_best_class, smooth_labels
from trainers.recipes.recipe import Recipe


def make_loss(
    recipe: Recipe, dataset: ImageDataset, model: keras.Model
) -> tuple[Callable, Callable | None]:
    """Return the functions `loss` and `hits` of a `Step` for a recipe.

    Args:
        recipe: The recipe, with smoothed labels and class weights.
        dataset: The data set.
        model: The model to train.
    """
    if isinstance(model, PretrainingModel):
        return loss_and_hits(model)
    per_image = LOSSES[recipe.loss].function
    class_weights = None
    if recipe.class_weights == "balanced":
        class_weights = balance_classes(dataset)

    def loss(labels, logits):
        smoothed = smooth_labels(labels, recipe.label_smoothing)
        losses = per_image(smoothed, logits)
        if class_weights is None:
            return losses
        return losses * tf.linalg.matvec(labels, class_weights)

    return loss, is_best_class


def balance_classes(dataset: ImageDataset) -> np.ndarray:
    """Return weights with which all classes count equally.

    The weight of a class is inversely proportional to its number of training
    images; the mean over the images is 1.

    Shapes:
        returns: (C,), float32.

    Raises:
        ValueError: If a class has no training images, or an image several
            classes.
    """
    if dataset.has_several_classes(dataset.train_split):
        raise ValueError(
            "`class_weights` must be 'none' if images have several classes. "
            f"Received: dataset={dataset.name!r}"
        )
    labels = dataset.labels(dataset.train_split)
    counts = np.bincount(labels, minlength=len(dataset.class_names))
    empty = [name for name, n in zip(dataset.class_names, counts) if not n]
    if empty:
        raise ValueError(
            "`class_weights` must be 'none' unless each class has training "
            f"images. Received: dataset={dataset.name!r} without any of "
            f"{', '.join(map(repr, empty))}"
        )
    return (counts.sum() / (len(counts) * counts)).astype("float32")
