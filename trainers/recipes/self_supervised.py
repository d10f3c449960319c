"""Recipes without labels: masked patches, and the masked autoencoder."""

import dataclasses

from trainers.recipes.recipe import Recipe

_IMAGENET_SIZE = 1_281_167  # Images of its training split.

_MAE = Recipe(
    source="arXiv:2111.06377; code of its authors (facebookresearch/mae). "
    "Differs: images are resized bilinearly, not bicubically; the first "
    "weights are those of vision_transformer; tokens have no weight decay",
    dataset="imagenet2012",
    augment="inception_crop(smallest=0.2)|flip_lr|normalize(imagenet)",
    eval_preprocess="resize_small(256)|central_crop|normalize(imagenet)",
    model="B/16",
    mlp_activation="exact",
    objective="autoencoder",
    batch_size=4096,
    epochs=800,
    learning_rate=1.5e-4 * 4096 / 256,
    adam_beta2=0.95,
    warmup_steps=round(40 * _IMAGENET_SIZE / 4096),  # 40 epochs.
    weight_decay=0.05,
    clip_norm=0.0,
)

_MAE_FINE_TUNING = dataclasses.replace(
    _MAE,
    source="arXiv:2111.06377, code of its authors. Differs: the operations of "
    "RandAugment are those of vision_transformer, and their magnitude has no "
    "noise; images are resized bilinearly, not bicubically; erased pixels are "
    "uniform noise; the head starts at zero; tokens have no weight decay",
    augment="inception_crop(smallest=0.08)|flip_lr|randaugment(2, 9)|"
    "random_erasing|normalize(imagenet)|mixup(0.8)|cutmix(1.0)",
    pooling="avg",
    use_pooling_norm=True,
    init_from="B/16-mae",
    init_head="reset",
    objective="classify",
    batch_size=1024,
    epochs=100,
    learning_rate=5e-4 * 1024 / 256,
    adam_beta2=0.999,
    warmup_steps=round(5 * _IMAGENET_SIZE / 1024),  # 5 epochs.
    layer_decay=0.65,
    stochastic_depth_rate=0.1,
    label_smoothing=0.1,
    final_fraction=1e-6 / (5e-4 * 1024 / 256),
)


RECIPES = {
    "mae_b16": dataclasses.replace(
        _MAE,
        expected="B/16: 83.6 % on ImageNet, fine-tuned after 1,600 epochs. Not "
        "run here.",
    ),
    "mae_l16": dataclasses.replace(
        _MAE,
        expected="L/16: 85.5 % on ImageNet, fine-tuned. Not run here.",
        model="L/16",
    ),
    "mae_finetune_b16": dataclasses.replace(
        _MAE_FINE_TUNING,
        expected="B/16: 83.664 % on ImageNet. Not run here.",
    ),
    "mae_finetune_l16": dataclasses.replace(
        _MAE_FINE_TUNING,
        expected="L/16: 85.952 % on ImageNet. Not run here.",
        init_from="L/16-mae",
        epochs=50,
        learning_rate=1e-3 * 1024 / 256,
        layer_decay=0.75,
        stochastic_depth_rate=0.2,
        final_fraction=1e-6 / (1e-3 * 1024 / 256),
    ),
}
