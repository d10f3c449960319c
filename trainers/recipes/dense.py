"""Recipes with an answer for each pixel: its class or its distance."""

import dataclasses

from trainers.recipes.recipe import Recipe

_LINEAR = Recipe(
    source="This project, after the linear heads of DINOv2, arXiv:2304.07193: "
    "a frozen encoder, here without a batch norm.",
    expected="Not run here.",
    objective="segment",
    dataset="oxford_iiit_pet",
    image_size=448,
    augment="inception_crop(smallest=0.25)|flip_lr",
    init_from="S/14-dinov2",
    train_only="head",
    batch_size=16,
    epochs=20,
    learning_rate=1e-3,
    warmup_steps=200,
    weight_decay=1e-4,
    keep_best=True,
)
_TUNE = dataclasses.replace(
    _LINEAR,
    source="This project: the head of DPT, arXiv:2103.13413, and smaller rates "
    "for earlier blocks.",
    train_only="all",
    dense_head="dpt",
    epochs=40,
    learning_rate=1e-4,
    warmup_steps=500,
    weight_decay=0.05,
    layer_decay=0.75,
    stochastic_depth_rate=0.1,
    dice_weight=0.5,
)
# In small, on digits in photographs of 32x32 pixels.
_DIGITS = Recipe(
    source="This project.",
    expected="See docs/results.md.",
    dataset="digits_in_photos",
    image_size=32,
    augment="affine(12, 0.08, 0.12)",
    model="mu/16",
    width=64,
    depth=6,
    mlp_dim=256,
    num_heads=4,
    patch_size=4,
    batch_size=64,
    epochs=20,
    learning_rate=2e-3,
    warmup_steps=100,
    weight_decay=0.05,
    steps_per_loop=50,
    epochs_per_eval=5,
)

RECIPES = {
    "segment_linear": _LINEAR,
    "segment_tune": _TUNE,
    "depth_linear": dataclasses.replace(
        _LINEAR,
        objective="depth",
        dataset="nyu_depth_v2",
        dense_blocks="2,5,8,11",
        augment="resize|flip_lr",
    ),
    "digits_in_photos": _DIGITS,
    "segment_digits": dataclasses.replace(
        _DIGITS, objective="segment", dense_blocks="1,3,5", dice_weight=0.5
    ),
    "depth_digits": dataclasses.replace(
        _DIGITS, objective="depth", dense_blocks="1,3,5"
    ),
}
