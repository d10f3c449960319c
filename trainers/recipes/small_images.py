"""Recipes for small images, trained from scratch on one GPU."""

from trainers.recipes.schema import Recipe

RECIPES = {
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
