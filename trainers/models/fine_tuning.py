"""Choosing which weights of a model a recipe trains."""

import keras

from keras_vit.models import VisionTransformer
from keras_vit.pretraining import PretrainingModel
from trainers.models.objectives import plain_encoder
from trainers.recipes.recipe import ALL, Recipe


def choose_trained(model: keras.Model, recipe: Recipe):
    """Freeze the weights that `recipe` does not train; add LoRA weights.

    Raises:
        ValueError: If the model has fewer blocks than the recipe trains, or a
            kernel is smaller than the rank of its update. If it is not a
            VisionTransformer, and the recipe chooses.
    """
    parts, num_last_blocks = recipe.trained_parts
    is_chosen = recipe.lora_rank or recipe.train_only is not None
    if is_chosen and not isinstance(model, VisionTransformer):
        raise ValueError(
            "`train_only` and `lora_rank` need a VisionTransformer. "
            f"Received: init_from={recipe.init_from!r}, a {model.name}"
        )
    if num_last_blocks and num_last_blocks > model.config.depth:
        raise ValueError(
            "`train_only` must name at most as many last blocks as the model "
            f"has blocks, {model.config.depth}. "
            f"Received: train_only={recipe.train_only!r}"
        )
    if recipe.lora_rank:
        model.enable_lora(
            recipe.lora_rank,
            recipe.lora_layer_names,
            alpha=recipe.lora_alpha,
            keep=parts or ["head"],
        )
    elif parts == [ALL]:
        model.unfreeze()
    elif recipe.train_only is not None:
        model.freeze(keep=parts, num_last_blocks=num_last_blocks)


def plain_model(model: keras.Model, recipe: Recipe) -> keras.Model:
    """Return the model to keep: without LoRA, frozen as before the recipe.

    Of a model that learns without labels, this is the encoder.

    What `recipe` froze is trainable again, so that another run from this
    model trains all weights unless its recipe freezes some.
    """
    if isinstance(model, PretrainingModel):
        return plain_encoder(model)
    if not isinstance(model, VisionTransformer):
        return model
    if recipe.train_only is None and not recipe.lora_rank:
        return model
    plain = model.merge_lora()  # A copy: the run may go on with `model`.
    plain.unfreeze()
    return plain
