"""The settings of the recipes for photos, by the number of photos.

Needs no TensorFlow, so that --help is fast.
"""

import math
from typing import NamedTuple


class SizeRule(NamedTuple):
    """The rule that computes settings from the number of training images.

    Args:
        image_passes: Number of passes over a single image; over N images,
            image_passes / sqrt(N) are made.
        fewest_epochs, most_epochs: Limits of the number of passes.
        image_rate: Learning rate for batches of one image; it grows with the
            square root of the batch size.
        augment: Augmentation.
    """

    image_passes: float
    fewest_epochs: int
    most_epochs: int
    image_rate: float
    augment: str


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
    augment="inception_crop(smallest=0.25)|flip_lr|randaugment(2, 5)"
    "|mixup(0.2)",
)


def choose_settings(
    name: str,
    num_images: int,
    *,
    is_pretrained: bool,
    image_size: int,
    given: dict,
    num_replicas: int = 1,
) -> dict:
    """Return the settings that suit a number of images, by field.

    Args:
        name: Name of the recipe, a key of RULES.
        num_images: Number of training images.
        is_pretrained: Whether there is an initial model.
        image_size: Side of the images, in pixels.
        given: Settings that stay, by field.
        num_replicas: Number of replicas; the batch is a multiple of it.
    """
    rule = RULES[name] if is_pretrained else FROM_SCRATCH
    size = 2 ** round(math.log2(max(num_images / NUM_BATCHES, 1)))
    smallest, largest = BATCH_SIZES
    shares = num_replicas * given.get("accumulation_steps", 1)
    size = math.ceil(min(max(size, smallest), largest) / shares) * shares
    batch_size = given.get("batch_size", size)
    epochs = round(rule.image_passes / math.sqrt(num_images))
    epochs = min(max(epochs, rule.fewest_epochs), rule.most_epochs)
    epochs = given.get("epochs", float(epochs))
    steps_per_epoch = max(round(num_images / batch_size), 1)
    steps = given.get("total_steps") or math.ceil(epochs * steps_per_epoch)
    rate = float(f"{rule.image_rate * math.sqrt(batch_size):.2g}")
    short_side = round(image_size / CENTRAL_SHARE)
    settings = {
        "batch_size": batch_size,
        "epochs": epochs,
        "warmup_steps": min(math.ceil(WARMUP_SHARE * steps), steps - 1),
        "learning_rate": rate,
        "augment": rule.augment,
        "eval_preprocess": f"resize_small({short_side})|central_crop",
        "epochs_per_eval": max(
            round(steps / steps_per_epoch / NUM_EVALUATIONS), 1
        ),
    }
    return {**settings, **given}


FITTED_FIELDS = (
    "batch_size",
    "epochs",
    "warmup_steps",
    "learning_rate",
    "augment",
    "eval_preprocess",
    "epochs_per_eval",
)

# The fields that follow from the memory that there is.
MEMORY_FIELDS = ("accumulation_steps", "use_remat")

_FINE_TUNING = SizeRule(
    image_passes=700,
    fewest_epochs=5,
    most_epochs=60,
    image_rate=3e-5,
    augment="inception_crop(smallest=0.35)|flip_lr",
)

# All begin with a pre-trained model. Fewer trained weights need higher rates.
RULES = {
    "photos": _FINE_TUNING,
    "photos_lora": _FINE_TUNING._replace(image_rate=1.2e-4),
    "photos_linear": _FINE_TUNING._replace(image_rate=6e-4),
}
