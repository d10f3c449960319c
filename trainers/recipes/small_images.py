"""Recipes for small images: digits, for demonstrations, and CIFAR-10."""

import dataclasses

from trainers.recipes.recipe import Recipe

_DIGITS = Recipe(
    source="This project.",
    expected="97.8 to 99.4 % on the test split; see docs/results.md.",
    dataset="digits",
    image_size=8,
    augment="affine(12, 0.08, 0.12)",
    model="Pico/2",
    batch_size=64,
    epochs=100,
    learning_rate=3e-3,
    warmup_steps=100,
    weight_decay=0.05,
    label_smoothing=0.1,
    steps_per_loop=50,
    epochs_per_eval=10,
)


RECIPES = {
    "digits": _DIGITS,
    # Nothing in it is drawn for a device or a part of a batch.
    "digits_exact": dataclasses.replace(
        _DIGITS,
        expected="Equal weights for any number of devices and workers, with "
        "and without gradient accumulation.",
        model="mu/16",
        patch_size=2,
        batch_size=32,
        total_steps=20,
        learning_rate=1e-3,
        warmup_steps=4,
        average_decay=0.9,
        clip_norm=0.1,  # Low enough to clip.
        steps_per_loop=5,
    ),
    "flexi_digits": dataclasses.replace(
        _DIGITS,
        source="This project, after Beyer et al. 2023, FlexiViT, "
        "arXiv:2212.08013.",
        expected="One model for patches of all these sizes; see "
        "docs/results.md.",
        image_size=24,
        patch_size=6,
        patch_sizes="3,4,6,8,12",
    ),
    "mpp_digits": dataclasses.replace(
        _DIGITS,
        source="This project, after arXiv:2010.11929, appendix B.1.2.",
        expected="An encoder for --init_from; see docs/results.md.",
        objective="masked_patches",
        epochs=400,
        label_smoothing=0.0,
    ),
    "mae_digits": dataclasses.replace(
        _DIGITS,
        source="This project, after He et al. 2021, arXiv:2111.06377.",
        expected="An encoder for --init_from; see docs/results.md.",
        objective="autoencoder",
        decoder_width=32,
        decoder_depth=2,
        decoder_heads=4,
        adam_beta2=0.95,
        epochs=400,
        label_smoothing=0.0,
    ),
    "digits_pretrain": dataclasses.replace(
        _DIGITS,
        expected="A model.keras for digits_transfer.",
        dataset="digits_0to4",
        epochs=50,
        stochastic_depth_rate=0.1,
    ),
    "digits_transfer": dataclasses.replace(
        _DIGITS,
        expected="Higher accuracy than the same updates without init_from.",
        dataset="digits_5to9",
        image_size=16,
        init_from="saved_models/digits_pretrain/model.keras",
        init_head="reset",
        total_steps=66,  # Six epochs.
        learning_rate=0.01,
        warmup_steps=10,
        weight_decay=0.0,
        stochastic_depth_rate=0.1,
        label_smoothing=0.0,
        epochs_per_eval=1,
    ),
    # From scratch, on a machine with a GPU.
    "cifar10": Recipe(
        source="This project; common choices for small images.",
        expected="Not run here.",
        dataset="cifar10",
        image_size=32,
        augment="pad_crop(4)|flip_lr",
        model="Ti/16",
        patch_size=4,
        batch_size=512,
        epochs=200,
        learning_rate=1e-3,
        warmup_steps=1000,
        weight_decay=0.1,
        stochastic_depth_rate=0.1,
        label_smoothing=0.1,
    ),
}
