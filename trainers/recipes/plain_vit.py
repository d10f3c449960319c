"""Recipes of the plain ViT baselines, Beyer et al. 2022, arXiv:2205.01580."""

import dataclasses

from trainers.recipes.recipe import Recipe

_PLAIN_S16 = Recipe(
    source="arXiv:2205.01580; vit_s16_i1k.py of big_vision",
    dataset="imagenet2012",
    train_split="train[:99%]",
    augment="inception_crop|flip_lr|randaugment(2, 10)|mixup(0.2)",
    eval_preprocess="resize_small(256)|central_crop",
    model="S/16-gap",
    position_embedding="sincos_2d",
    representation_size=384,
    batch_size=1024,
    epochs=90,
    learning_rate=1e-3,
    warmup_steps=10_000,
    weight_decay=0.1,
    accumulator_dtype="bfloat16",
)


RECIPES = {
    "s16_i1k_90ep": dataclasses.replace(
        _PLAIN_S16,
        expected="S/16: 76.5 % on ImageNet, 83.1 % on ReaL, 64.2 % on V2. Not "
        "run here.",
    ),
    "s16_i1k_150ep": dataclasses.replace(
        _PLAIN_S16,
        expected="S/16: 78.5 % on ImageNet, 84.5 % on ReaL, 66.4 % on V2. Not "
        "run here.",
        epochs=150,
    ),
    "s16_i1k_300ep": dataclasses.replace(
        _PLAIN_S16,
        expected="S/16: 80.0 % on ImageNet, 85.4 % on ReaL, 68.3 % on V2. Not "
        "run here.",
        epochs=300,
    ),
}
