"""The levels of augmentation of AugReg, as lines of operations."""

from keras_vit.tables import pick


def describe_augreg(level: str) -> str:
    """Return the line of operations of an AugReg level, as for pre-training.

    Raises:
        ValueError: If there is no such level.

    Example:
        >>> describe_augreg("medium1")
        'inception_crop|flip_lr|randaugment(2, 15)|mixup(0.2)'
    """
    num_ops, magnitude, alpha = pick(AUGREG_LEVELS, level, "level")
    text = "inception_crop|flip_lr"
    if num_ops:
        text += f"|randaugment({num_ops}, {magnitude})"
    if alpha:
        text += f"|mixup({alpha})"
    return text


# num_ops and magnitude of randaugment, alpha of mixup: Steiner et al. 2022,
# arXiv:2106.10270. The names are those of the paper; the file names of the
# official checkpoints call its light1 light0, and its light2 light1.
AUGREG_LEVELS = {
    "none": (0, 0, 0.0),
    "light1": (2, 0, 0.0),
    "light2": (2, 10, 0.2),
    "medium1": (2, 15, 0.2),
    "medium2": (2, 15, 0.5),
    "strong1": (2, 20, 0.5),
    "strong2": (2, 20, 0.8),
}
