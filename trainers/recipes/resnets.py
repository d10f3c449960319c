"""Recipes of ResNets, the baselines of the ViT paper.

The BiT-HyperRule for three sizes of data sets: their number of images decides
the length, the warm-up and mixup; the size of the images the resolution. And a
ResNet of Goyal et al. 2017, arXiv:1706.02677.
"""

import dataclasses

from trainers.recipes.recipe import Recipe

LARGE_IMAGES = "resize(512)|random_crop|flip_lr"
SMALL_IMAGES = "resize(160)|random_crop|flip_lr"  # Below 96 x 96 pixels.

# Fewer than 20,000 images.
_SMALL = Recipe(
    source="arXiv:1912.11370, section 3.3; figures: bit_hyperrule.py of "
    "big_transfer",
    image_size=480,
    augment=LARGE_IMAGES,
    model="R50x1",
    init_from="BiT-M-R50x1",
    init_head="reset",
    batch_size=512,
    total_steps=500,
    optimizer="sgd",
    learning_rate=0.003,
    schedule="steps",
    warmup_steps=100,
    milestones="0.4,0.6,0.8",
    clip_norm=0.0,
    epochs_per_eval=10,
)
# Fewer than 500,000 images.
_MEDIUM = dataclasses.replace(
    _SMALL,
    augment=f"{LARGE_IMAGES}|mixup(0.1)",
    total_steps=10_000,
    warmup_steps=500,
    milestones="0.3,0.6,0.9",
    epochs_per_eval=1,
)
_LARGE = dataclasses.replace(_MEDIUM, total_steps=20_000)


RECIPES = {
    "pets_r50x1": dataclasses.replace(
        _SMALL,
        expected="BiT-M-R50x1: no figure in the paper. Not run here.",
        dataset="oxford_iiit_pet",
    ),
    "cifar10_r50x1": dataclasses.replace(
        _MEDIUM,
        expected="BiT-M-R50x1: 97.4 % on CIFAR-10 (README of big_transfer). "
        "Not run here.",
        dataset="cifar10",
        image_size=128,
        augment=f"{SMALL_IMAGES}|mixup(0.1)",
    ),
    "imagenet_r50x1": dataclasses.replace(
        _LARGE,
        expected="BiT-M-R50x1: 80.68 % on ImageNet (README of big_transfer). "
        "Not run here.",
        dataset="imagenet2012",
    ),
    # Their decay of 1e-4 is added before the momentum of 0.9, which multiplies
    # it by ten.
    "resnet50_i1k": Recipe(
        source="arXiv:1706.02677, section 5",
        expected="ResNet-50: 76.3 % on ImageNet. Not run here.",
        dataset="imagenet2012",
        augment="inception_crop(smallest=0.08)|flip_lr",
        eval_preprocess="resize_small(256)|central_crop",
        model="ResNet50",
        batch_size=1024,
        epochs=90,
        optimizer="sgd",
        learning_rate=0.4,
        schedule="steps",
        warmup_steps=6_255,
        milestones="1/3,2/3,8/9",  # Epochs 30, 60 and 80.
        weight_decay=1e-3,
        clip_norm=0.0,
    ),
}
