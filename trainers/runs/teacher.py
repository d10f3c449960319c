"""The teacher of a recipe, for distillation."""

import keras
import tensorflow as tf

from keras_vit.layers import DistilledHead
from keras_vit.models import VisionTransformer
from keras_vit.models.features import CLASSIFIER_ACTIVATIONS, name_output
from keras_vit.preprocessing import preprocess_input
from keras_vit.preprocessing.normalization import Normalization
from trainers.data.datasets import ImageDataset
from trainers.models.keras_files import RUN_RECIPE
from trainers.optim.distillation import Distillation, hard_loss, soft_loss
from trainers.optim.losses import LOSSES
from trainers.paths import as_path
from trainers.recipes.schema import Recipe
from trainers.runs.named_model import NamedModel
from trainers.runs.run import Run


def make_distillation(
    recipe: Recipe, dataset: ImageDataset, model: keras.Model
) -> Distillation | None:
    """Return what a model learns from the teacher of a recipe, if it has one.

    Args:
        recipe: The recipe.
        dataset: The data set, whose classes the teacher must have.
        model: The model to train.

    Raises:
        ValueError: If the teacher cannot be read, or has other classes or
            images.
    """
    if recipe.teacher is None:
        return None
    teacher, pair = open_teacher(recipe, dataset)
    loss = LOSSES[recipe.loss]
    if recipe.distillation_target == "hard":
        compare = hard_loss(loss.function)
    else:
        compare = soft_loss(
            loss.function,
            CLASSIFIER_ACTIVATIONS[loss.activation],
            recipe.distillation_temperature,
        )
    return Distillation(
        make_teach(teacher, pair, recipe.normalization),
        compare,
        recipe.distillation_weight,
        with_both_logits(model),
        teacher,
    )


def open_teacher(
    recipe: Recipe, dataset: ImageDataset
) -> tuple[keras.Model, Normalization]:
    """Return the teacher, and mean and deviation of its images.

    A model of Keras that is no VisionTransformer and of no run reads images as
    the trained model does.

    Args:
        recipe: The recipe.
        dataset: The data set.

    Raises:
        ValueError: See `make_distillation`.
    """
    folder, names = as_path(recipe.teacher), None
    try:
        if (folder / RUN_RECIPE).exists():
            run = Run(folder)
            model, names = run.load_model(), run.load_class_names()
            pair = run.load_recipe().normalization
        else:
            is_grey = dataset.channels == 1
            model = NamedModel(recipe.teacher, is_grey).load_model()
            pair = recipe.normalization
            if isinstance(model, VisionTransformer):
                pair = model.config.preprocessing.mean_and_deviation
    except ValueError as error:
        raise ValueError(f"`teacher` cannot be read: {error}") from None
    _check(model, names, recipe, dataset)
    model.trainable = False
    return model, pair


def _check(model, names, recipe, dataset):
    classes, shape = dataset.class_names, model.output_shape
    kind = name_output(model)
    received = f"Received: teacher={recipe.teacher!r}"
    if kind == "features" or len(shape) != 2 or shape[-1] != len(classes):
        raise ValueError(
            f"`teacher` must be a classifier of {len(classes)} classes. "
            f"{received}, which returns {kind} of the shape {shape}"
        )
    if names not in (None, classes):
        raise ValueError(
            "`teacher` must have the classes of the data set, in this order: "
            f"{', '.join(classes[:5])}, ... {received} with "
            f"{', '.join(names[:5])}, ..."
        )
    if model.input_shape[-1] != dataset.channels:
        raise ValueError(
            f"`teacher` must read images of {dataset.channels} channels. "
            f"{received}, which reads {model.input_shape[-1]}"
        )


def make_teach(
    teacher: keras.Model, theirs: Normalization, ours: Normalization
):
    """Return the function from images of a model to the teacher's logits.

    Shapes:
        The function takes images (B, H, W, C) and returns (B, classes).

    Args:
        teacher: The teacher.
        theirs: Mean and deviation of its images.
        ours: Mean and deviation of the images of the model.
    """
    returns_logits = name_output(teacher) == "logits"
    size = teacher.input_shape[1:3]

    def teach(images):
        if None not in size and tuple(images.shape[1:3]) != tuple(size):
            images = tf.image.resize(images, size)
        if theirs != ours:
            mean, deviation = ours
            pixels = 255 * (images * deviation + mean)
            images = preprocess_input(pixels, "channels_last", theirs)
        outputs = tf.cast(teacher(images, training=False), tf.float32)
        if not returns_logits:
            outputs = tf.math.log(tf.maximum(outputs, 1e-12))
        return tf.stop_gradient(outputs)

    return teach


class BothLogits(keras.layers.Layer):
    """Returns the logits of both classifiers of a DistilledHead.

    Args:
        head: The head, which shares its weights.
    """

    def __init__(self, head: DistilledHead):
        super().__init__(dtype=head.dtype_policy, name="both_logits")
        self.head = head

    def call(self, tokens):
        return self.head.both_logits(tokens)


def with_both_logits(model: keras.Model) -> keras.Model | None:
    """Return a model of the same layers with both kinds of logits.

    Args:
        model: The model to train.

    Returns:
        The model; None if there is no distillation token, so that labels and
        teacher share the logits.
    """
    heads = [x for x in model.layers if isinstance(x, DistilledHead)]
    if not heads:
        return None
    [head] = heads
    both = BothLogits(head)(head.input)
    student = keras.Model(model.input, list(both))
    for name in ("trainable_variables", "non_trainable_variables"):
        ours, theirs = getattr(student, name), getattr(model, name)
        if [id(v) for v in ours] != [id(v) for v in theirs]:
            raise AssertionError(f"{name} have another order")
    return student
