"""The augmentation of each task of VTAB: none that changes its labels.

Needs no TensorFlow, so that --help is fast.

Reference: Kolesnikov et al. 2020, arXiv:1912.11370, supplement F.
"""

# The recipes whose augmentation depends on the task.
RECIPES_BY_TASK = ("vtab_l16",)
# A mirrored image would show another angle or another place.
NO_FLIP = (
    "vtab:dsprites_location",
    "vtab:dsprites_orientation",
    "vtab:smallnorb_azimuth",
)
# A part of an image has fewer objects, or other places and distances.
NO_CROP = (
    "vtab:clevr_count",
    "vtab:clevr_distance",
    "vtab:dmlab",
    "vtab:dsprites_location",
    "vtab:kitti_distance",
)


def choose_augment(dataset: str, image_size: int = 384) -> str:
    """Return the augmentation for a task of VTAB.

    Args:
        dataset: The task.
        image_size: Side of the images for the model. Crops are cut out of
            images that are larger by a sixth, 448 pixels for 384.

    Example:
        >>> choose_augment("vtab:pets")
        'resize(448)|random_crop|flip_lr'
        >>> choose_augment("vtab:dsprites_location")
        'resize'
    """
    larger = round(image_size * 7 / 6)
    line = "resize" if dataset in NO_CROP else f"resize({larger})|random_crop"
    return line if dataset in NO_FLIP else f"{line}|flip_lr"


def fit_to_task(name: str, given: dict) -> dict:
    """Return the flags that were given, and the augmentation of the task.

    Args:
        name: Name of the recipe.
        given: The values of the flags that were given, by field.
    """
    dataset = given.get("dataset", "")
    if name not in RECIPES_BY_TASK or not dataset.startswith("vtab:"):
        return given
    augment = choose_augment(dataset, given.get("image_size", 384))
    return {"augment": augment, **given}
