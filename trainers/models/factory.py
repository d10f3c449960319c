"""The model of a recipe: new, from a `.keras` file, or from a checkpoint."""

import dataclasses

import keras

from keras_vit import from_checkpoint
from keras_vit.layers.pooling import needs_distillation_token
from keras_vit.models import VARIANTS, VisionTransformer
from keras_vit.weights.families.family import HEAD_LAYERS
from trainers.data.datasets import ImageDataset
from trainers.models.baselines import build_baseline
from trainers.models.bit_checkpoints import (
    find_bit,
    load_bit_checkpoint,
)
from trainers.models.fine_tuning import choose_trained
from trainers.models.initial_model import copy_with_new, load_initial_model
from trainers.models.initial_notes import explain_other_classes
from trainers.models.keras_files import find_model_file
from trainers.models.objectives import add_objective, class_names_of
from trainers.recipes.baselines import BASELINES
from trainers.recipes.recipe import PRECISIONS, Recipe


def build_model(recipe: Recipe, dataset: ImageDataset) -> keras.Model:
    """Return the model of `recipe` for the images and classes of `dataset`.

    What the recipe does not train is frozen. Without labels to learn, it is a
    model around an encoder without a head.

    Raises:
        ValueError: If the model cannot be built, or `init_from` is neither a
            VisionTransformer, a BiT ResNet nor a checkpoint, or has another
            number of channels.
    """
    model = _build_whole(recipe, dataset)
    if isinstance(model, VisionTransformer):
        model = _change_pooling(model, recipe)
        # The file of the model says how the run prepared its images.
        model.config = dataclasses.replace(
            model.config, preprocessing=recipe.preprocessing
        )
    choose_trained(model, recipe)
    return add_objective(model, recipe)


def _build_whole(recipe, dataset):
    class_names = class_names_of(recipe, dataset)
    num_classes = len(class_names)
    dtype = PRECISIONS[recipe.precision].policy
    if not recipe.init_from and recipe.model in BASELINES:
        return build_baseline(
            recipe.model,
            image_size=recipe.image_size,
            channels=dataset.channels,
            num_classes=num_classes,
            dtype=dtype,
            head_bias=recipe.head_bias,
        )
    if not recipe.init_from:
        return _build_variant(recipe, dataset.channels, num_classes, dtype)
    path = find_model_file(recipe.init_from)
    if not path.endswith(".keras"):
        return _load_checkpoint(recipe, dataset.channels, num_classes, dtype)
    is_other = explain_other_classes(recipe, class_names) is not None
    model = load_initial_model(
        path,
        recipe.image_size,
        num_classes,
        dataset.channels,
        "reset" if is_other else recipe.init_head,
        dtype,
        representation_size=recipe.representation_size,
        head_bias=recipe.head_bias,
    )
    if isinstance(model, VisionTransformer):
        copy = model.with_remat(recipe.use_remat)
        copy.load_report = model.load_report
        return copy
    return model


LAST_NORMS = ("encoder_norm", "pooling_norm")


def _change_pooling(model, recipe):
    """Return the model, or a copy that pools as the recipe says.

    The head is new, since it reads other features; so is a norm at another
    place.
    """
    changes = {
        name: value
        for name, value in _given(_pooling_options(recipe)).items()
        if value != getattr(model.config, name)
    }
    if not changes:
        return model
    new_norms = LAST_NORMS if "use_pooling_norm" in changes else ()
    names = ("pooling", *new_norms, *HEAD_LAYERS)
    copy = copy_with_new(model, names, **changes)
    report = getattr(model, "load_report", None)
    if report:
        copy.load_report = report.with_reset(
            w.path for w in copy.weights if w.path.split("/")[0] in names
        )
    return copy


def _build_variant(recipe, channels, num_classes, dtype):
    config = VARIANTS[recipe.model].config
    changes = {
        **_sizes(recipe, config),
        "image_size": recipe.image_size,
        "channels": channels,
        "num_classes": num_classes,
        "patch_size": recipe.patch_size,
        **_pooling_options(recipe),
        "position_embedding": recipe.position_embedding,
        "position_placement": recipe.position_placement,
        "relative_positions": recipe.relative_positions,
        "activation": recipe.mlp_activation,
        "representation_size": recipe.representation_size,
        **_training_options(recipe),
    }
    if needs_distillation_token(recipe.pooling):
        changes |= {"use_class_token": True, "use_distillation_token": True}
    config = dataclasses.replace(config, **_given(changes))
    return VisionTransformer(config, dtype=dtype)


def _sizes(recipe, config):
    """Return the options of the blocks; heads keep their size by default."""
    num_heads = recipe.num_heads
    if recipe.width and not num_heads:
        if recipe.width % config.head_size:
            raise ValueError(
                "`width` must be a multiple of the size of a head of "
                f"{recipe.model}, {config.head_size}, or `num_heads` must be "
                f"given. Received: width={recipe.width}"
            )
        num_heads = recipe.width // config.head_size
    return {
        "depth": recipe.depth,
        "width": recipe.width,
        "mlp_dim": recipe.mlp_dim,
        "num_heads": num_heads,
    }


def _load_checkpoint(recipe, channels, num_classes, dtype):
    bit_path = find_bit(recipe.init_from)
    if bit_path:
        return load_bit_checkpoint(
            bit_path,
            image_size=recipe.image_size,
            channels=channels,
            num_classes=num_classes,
            head=recipe.init_head,
            head_bias=recipe.head_bias,
            dtype=dtype,
        )
    options = _given(_training_options(recipe))
    if recipe.init_head == "reset":
        # As in the official fine-tuning, a new head does not keep the tanh
        # layer of the old one.
        options["representation_size"] = recipe.representation_size
    return from_checkpoint(
        recipe.init_from,
        image_size=recipe.image_size,
        classes=num_classes,
        channels=channels,
        dtype=dtype,
        head=recipe.init_head,
        classifier_activation="linear",  # The losses take logits.
        num_heads=recipe.num_heads or "published",
        architecture=recipe.architecture,
        preprocessing=recipe.preprocessing,
        **options,
    )


def _pooling_options(recipe):
    """Return the options of the pooling, also of an initial model."""
    return {
        "pooling": recipe.pooling,
        "use_pooling_norm": recipe.use_pooling_norm,
    }


def _training_options(recipe):
    """Return the options of a model that a checkpoint does not contain."""
    return {
        "dropout_rate": recipe.dropout_rate,
        "stochastic_depth_rate": recipe.stochastic_depth_rate,
        "head_bias": recipe.head_bias,
        "use_remat": recipe.use_remat,
    }


def _given(choices):
    """Return the choices that are not None; the model sets the others."""
    return {name: x for name, x in choices.items() if x is not None}
