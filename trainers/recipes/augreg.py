"""Recipes of AugReg, Steiner et al. 2022, arXiv:2106.10270."""

import dataclasses

from trainers.recipes.recipe import Recipe
from trainers.recipes.vit import FINE_TUNING

# The names are those of the paper; the file names of the official checkpoints
# call its light1 light0, and its light2 light1.
_BASE = "inception_crop|flip_lr"
AUGREG_LEVELS = {
    "none": _BASE,
    "light1": f"{_BASE}|randaugment(2, 0)",
    "light2": f"{_BASE}|randaugment(2, 10)|mixup(0.2)",
    "medium1": f"{_BASE}|randaugment(2, 15)|mixup(0.2)",
    "medium2": f"{_BASE}|randaugment(2, 15)|mixup(0.5)",
    "strong1": f"{_BASE}|randaugment(2, 20)|mixup(0.5)",
    "strong2": f"{_BASE}|randaugment(2, 20)|mixup(0.8)",
}

_PRE_TRAINING = Recipe(
    source="arXiv:2106.10270; README of vision_transformer; loss, bias and "
    "optimizer: vit_i21k.py of big_vision",
    dataset="tfrecord:imagenet21k",
    augment=AUGREG_LEVELS["medium1"],
    eval_preprocess="resize_small(256)|central_crop",
    model="B/16",
    head_bias=-10.0,
    batch_size=4096,
    epochs=300,
    loss="sigmoid",
    learning_rate=1e-3,
    warmup_steps=10_000,
    weight_decay=0.1,
    accumulator_dtype="bfloat16",
)

_FINE_TUNING = dataclasses.replace(
    FINE_TUNING,
    source="transfer.py of big_vision",
    dataset="imagenet2012",
    train_split="train[:99%]",
    eval_preprocess="resize_small(448)|central_crop",
    init_from="B/32-augreg",
    init_head="reset",
    total_steps=20_000,
)

_CIFAR = dataclasses.replace(
    _FINE_TUNING,
    dataset="cifar10",
    train_split="train[:98%]",
    augment="resize_small(448)|random_crop|flip_lr",
    total_steps=10_000,
    learning_rate=3e-3,
)

_PETS = dataclasses.replace(
    _FINE_TUNING,
    dataset="oxford_iiit_pet",
    train_split="train[:90%]",
    total_steps=500,
    learning_rate=3e-3,
    warmup_steps=100,
    epochs_per_eval=10,
)


RECIPES = {
    "augreg_i21k_ti16": dataclasses.replace(
        _PRE_TRAINING,
        expected="Ti/16: 78.22 % on ImageNet, fine-tuned at 384 pixels. Not "
        "run here.",
        augment=AUGREG_LEVELS["none"],
        model="Ti/16",
        weight_decay=0.03,
    ),
    "augreg_i21k_b32": dataclasses.replace(
        _PRE_TRAINING,
        expected="B/32: 83.59 % on ImageNet, fine-tuned at 384 pixels. Not run "
        "here.",
        augment=AUGREG_LEVELS["light2"],
        model="B/32",
    ),
    "augreg_i21k_b16": dataclasses.replace(
        _PRE_TRAINING,
        expected="B/16: 85.49 % on ImageNet, fine-tuned at 384 pixels. Not run "
        "here.",
    ),
    "augreg_i21k_l16": dataclasses.replace(
        _PRE_TRAINING,
        expected="L/16: 85.59 % on ImageNet, fine-tuned at 384 pixels. Not run "
        "here.",
        augment=AUGREG_LEVELS["strong1"],
        model="L/16",
    ),
    "augreg_i21k_r50_l32": dataclasses.replace(
        _PRE_TRAINING,
        expected="R50+L/32: 85.99 % on ImageNet, fine-tuned at 384 pixels. Not "
        "run here.",
        model="R50+L/32",
        dropout_rate=0.1,
        stochastic_depth_rate=0.1,
    ),
    "augreg_i21k_b16_gap": dataclasses.replace(
        _PRE_TRAINING,
        source="vit_i21k.py of big_vision",
        expected="No result is published for average pooling. Not run here.",
        augment=AUGREG_LEVELS["light2"],
        model="B/16-gap",
    ),
    "augreg_i1k_b16": dataclasses.replace(
        _PRE_TRAINING,
        source="arXiv:2106.10270; vit_i1k.py of big_vision",
        expected="B/16: 79.84 % on ImageNet at 224 pixels (table 3, the best "
        "of many settings, possibly not of this one). Not run here.",
        dataset="imagenet2012",
        train_split="train[:99%]",
        augment=AUGREG_LEVELS["medium2"],
        representation_size=768,
        head_bias=-6.9,
    ),
    "augreg_finetune_imagenet_b16": dataclasses.replace(
        _FINE_TUNING,
        source="arXiv:2106.10270, table 4; README of vision_transformer",
        expected="B/16: 85.49 % on ImageNet. Not run here.",
        init_from="B/16-augreg",
    ),
    "augreg_finetune_imagenet_b32": dataclasses.replace(
        _FINE_TUNING,
        expected="B/32: 83.27 % on ImageNet. Not run here.",
    ),
    "augreg_finetune_cifar10_b32": dataclasses.replace(
        _CIFAR,
        expected="B/32: 98.55 % on CIFAR-10. Not run here.",
    ),
    "augreg_finetune_cifar100_b32": dataclasses.replace(
        _CIFAR,
        expected="B/32: 91.35 % on CIFAR-100. Not run here.",
        dataset="cifar100",
        learning_rate=0.01,
    ),
    "augreg_finetune_pets_b32": dataclasses.replace(
        _PETS,
        expected="B/32: 93.78 % on Pets. Not run here.",
    ),
    "augreg_finetune_flowers_b32": dataclasses.replace(
        _PETS,
        expected="B/32: 99.43 % on Flowers. Not run here.",
        dataset="oxford_flowers102",
    ),
}
