"""Recipes for your own photos: the settings follow from their number."""

import dataclasses
import math
import shlex
from typing import NamedTuple

from trainers.recipes.recipe import Recipe


class SizeRule(NamedTuple):
    """The rule that computes settings from the number of training images.

    Args:
        image_passes: Number of passes over a single image; over N images,
            image_passes / sqrt(N) are made.
        fewest_epochs, most_epochs: Limits of the number of passes.
        image_rate: Learning rate for batches of one image; it grows with the
            square root of the batch size.
        augment: Augmentation, with a place for the smallest share of an image
            that is cut out.
        smallest: This share.
    """

    image_passes: float
    fewest_epochs: int
    most_epochs: int
    image_rate: float
    augment: str
    smallest: float


# Number of batches per epoch, unless they would be smaller or larger than this.
NUM_BATCHES = 10
BATCH_SIZES = (8, 256)
WARMUP_SHARE = 0.1
NUM_EVALUATIONS = 25
# Share of the short side that remains in evaluation, as with most ViTs.
CENTRAL_SHARE = 224 / 256

FROM_SCRATCH = SizeRule(
    image_passes=20_000,
    fewest_epochs=100,
    most_epochs=300,
    image_rate=6e-5,
    augment="inception_crop(smallest={})|flip_lr|randaugment(2, 5)|mixup(0.2)",
    smallest=0.25,
)
RANDAUGMENT_CHANNELS = (1, 3)
# A small part of an image may lack some of its labels.
SMALLEST_OF_SEVERAL_LABELS = 0.7
FITTED_FIELDS = (
    *("batch_size", "epochs", "warmup_steps", "learning_rate", "augment"),
    *("eval_preprocess", "epochs_per_eval"),
)

# The fields that follow from the memory that there is.
MEMORY_FIELDS = ("accumulation_steps", "use_remat")

_FINE_TUNING = SizeRule(
    image_passes=700,
    fewest_epochs=5,
    most_epochs=60,
    image_rate=3e-5,
    augment="inception_crop(smallest={})|flip_lr",
    smallest=0.35,
)

# All begin with a pre-trained model. Fewer trained weights need higher rates.
RULES = {
    "photos": _FINE_TUNING,
    "photos_lora": _FINE_TUNING._replace(image_rate=1.2e-4),
    "photos_linear": _FINE_TUNING._replace(image_rate=6e-4),
}


def fit_to_images(
    name: str,
    recipe: Recipe,
    given: dict,
    num_images: int,
    num_replicas: int = 1,
    has_several_labels: bool = False,
) -> Recipe:
    """Return a recipe with the settings that suit a number of images.

    Args:
        name: Name of the recipe, a key of RULES.
        recipe: The recipe, changed by the flags that were given.
        given: The values of those flags, which stay.
        num_images: Number of training images.
        num_replicas: Number of replicas; the batch is a multiple of it.
        has_several_labels: Whether an image may have several labels.
    """
    rule = RULES[name] if recipe.init_from else FROM_SCRATCH
    size = 2 ** round(math.log2(max(num_images / NUM_BATCHES, 1)))
    fewest, most = BATCH_SIZES
    shares = num_replicas * given.get("accumulation_steps", 1)
    size = math.ceil(min(max(size, fewest), most) / shares) * shares
    batch_size = given.get("batch_size", size)
    epochs = round(rule.image_passes / math.sqrt(num_images))
    epochs = min(max(epochs, rule.fewest_epochs), rule.most_epochs)
    epochs = given.get("epochs", float(epochs))
    steps_per_epoch = max(round(num_images / batch_size), 1)
    steps = given.get("total_steps") or math.ceil(epochs * steps_per_epoch)
    smallest = rule.smallest
    if has_several_labels:
        smallest = SMALLEST_OF_SEVERAL_LABELS
    augment = rule.augment.format(smallest)
    if recipe.channels not in (None, *RANDAUGMENT_CHANNELS):
        calls = augment.split("|")
        augment = "|".join(c for c in calls if not c.startswith("randaugment"))
    short_side = round(recipe.image_size / CENTRAL_SHARE)
    passes_per_eval = steps / steps_per_epoch / NUM_EVALUATIONS
    settings = {
        "batch_size": batch_size,
        "epochs": epochs,
        "warmup_steps": min(math.ceil(WARMUP_SHARE * steps), steps - 1),
        "learning_rate": float(
            f"{rule.image_rate * math.sqrt(batch_size):.2g}"
        ),
        "augment": augment,
        "eval_preprocess": f"resize_small({short_side})|central_crop",
        "epochs_per_eval": max(round(passes_per_eval), 1),
    }
    return dataclasses.replace(recipe, **{**settings, **given})


def describe_fit(recipe: Recipe, num_images: int) -> str:
    """Return a line with the settings that follow from images and memory."""
    fields = dict.fromkeys(FITTED_FIELDS)
    if recipe.total_steps:
        fields["total_steps"] = fields.pop("epochs")
    for name in MEMORY_FIELDS:
        if getattr(recipe, name) != getattr(Recipe, name):
            fields[name] = None
    settings = (
        shlex.quote(f"--{name}={getattr(recipe, name)}") for name in fields
    )
    return f"Settings for {num_images:,} training images: {' '.join(settings)}"


_PHOTOS = Recipe(
    source="This project; rules in recipes/photos.py.",
    expected="Depends on the photos.",
    dataset="folder:photos",
    model="Ti/16",
    weight_decay=0.05,
    label_smoothing=0.1,
    class_weights="balanced",
    keep_best=True,
    patience=10,
)
_PARTS = dataclasses.replace(_PHOTOS, init_from="S/16-augreg")

# The settings that follow from the number of images are those for 1,000.
RECIPES = {
    name: fit_to_images(name, recipe, given={}, num_images=1000)
    for name, recipe in {
        "photos": _PHOTOS,
        "photos_lora": dataclasses.replace(_PARTS, lora_rank=8),
        "photos_linear": dataclasses.replace(_PARTS, train_only="head"),
    }.items()
}
