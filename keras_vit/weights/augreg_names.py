"""The 52,000 checkpoints of AugReg: `augreg` makes their names.

A name says how the model was trained, such as
`Ti_16-i21k-300ep-lr_0.001-aug_none-wd_0.03-do_0.0-sd_0.0`.

Reference: Steiner et al. 2021, arXiv:2106.10270.
"""

import math
import numbers
import re

from keras_vit.tables import pick


def augreg(
    model: str,
    *,
    data: str = "i21k",
    epochs: int = 300,
    learning_rate: float = 0.001,
    augmentation: str,
    weight_decay: float,
    dropout_rate: float = 0.0,
    stochastic_depth_rate: float = 0.0,
    dataset: str | None = None,
    steps: int = 20_000,
    tuning_rate: float = 0.01,
    image_size: int = 384,
) -> str:
    """Return the name of one of the 52,000 checkpoints of AugReg.

    The name can be used in place of a key of PRETRAINED. The file
    `augreg/index.csv` of the bucket lists the existing checkpoints; the
    authors select by its column `final_val`.

    Args:
        model: "Ti_16", "S_16", "S_32", "B_8", "B_16", "B_32", "L_16",
            "R_Ti_16", "R26_S_32" or "R50_L_32".
        data: The data of the pre-training: "i21k" or "i1k".
        epochs: Number of epochs of the pre-training.
        learning_rate: Learning rate of the pre-training.
        augmentation: "none", "light0", "light1", "medium1", "medium2",
            "strong1" or "strong2". The file names count the light levels from
            zero, and the paper counts them from one.
        weight_decay: Weight decay of the pre-training.
        dropout_rate: Dropout rate of the pre-training.
        stochastic_depth_rate: Rate of stochastic depth in the pre-training.
        dataset: The data of the fine-tuning, such as "imagenet2012"; None for
            the pre-trained model.
        steps: Number of updates of the fine-tuning. The name contains this
            number in thousands, rounded down.
        tuning_rate: Learning rate of the fine-tuning.
        image_size: Side of the images of the fine-tuning, in pixels.

    Raises:
        ValueError: If no checkpoint name contains one of the values.

    Example:
        >>> augreg("Ti_16", augmentation="none", weight_decay=0.03)
        'Ti_16-i21k-300ep-lr_0.001-aug_none-wd_0.03-do_0.0-sd_0.0'

    Reference: Steiner et al. 2021, arXiv:2106.10270.
    """
    pick(AUGREG_MODELS, model, "model")
    pick(PRETRAINING_CLASSES, data, "data")
    pick(dict.fromkeys(AUGREG_AUGMENTATIONS), augmentation, "augmentation")
    _check_numbers(
        numbers.Real,
        "number",
        learning_rate=learning_rate,
        weight_decay=weight_decay,
        dropout_rate=dropout_rate,
        stochastic_depth_rate=stochastic_depth_rate,
        tuning_rate=tuning_rate,
    )
    _check_numbers(
        numbers.Integral,
        "whole number",
        epochs=epochs,
        steps=steps,
        image_size=image_size,
    )
    name = (
        f"{model}-{data}-{epochs}ep-lr_{learning_rate}-aug_{augmentation}"
        f"-wd_{float(weight_decay)}-do_{float(dropout_rate)}"
        f"-sd_{float(stochastic_depth_rate)}"
    )
    if dataset is None:
        return name
    pick(AUGREG_DATASETS, dataset, "dataset")
    return (
        f"{name}--{dataset}-steps_{steps // 1000}k-lr_{tuning_rate}"
        f"-res_{image_size}"
    )


def _check_numbers(kind, title, **arguments):
    for argument, value in arguments.items():
        if not isinstance(value, kind) or not 0 <= value < math.inf:
            raise ValueError(
                f"`{argument}` must be a {title}, 0 or more. "
                f"Received: {argument}={value!r}"
            )


def parse_augreg(name: str) -> dict | None:
    """Parse an AugReg name into the arguments of `Pretrained`.

    Args:
        name: A name as `augreg` returns it.

    Returns:
        The arguments; None if `name` is not a name of AugReg.
    """
    found = AUGREG_NAME.fullmatch(name)
    if not found:
        return None
    return {
        "file": f"vit_models/augreg/{name}.npz",
        "variant": AUGREG_MODELS[found["model"]],
        "image_size": int(found["size"] or 224),
        "num_classes": AUGREG_DATASETS.get(
            found["tuned"], PRETRAINING_CLASSES[found["data"]]
        ),
    }


# Model in the file name -> variant.
AUGREG_MODELS = {
    "Ti_16": "Ti/16",
    "S_16": "S/16",
    "S_32": "S/32",
    "B_8": "B/8",
    "B_16": "B/16",
    "B_32": "B/32",
    "L_16": "L/16",
    "R_Ti_16": "R+Ti/16",
    "R26_S_32": "R26+S/32",
    "R50_L_32": "R50+L/32",
}
AUGREG_AUGMENTATIONS = (
    "none",
    "light0",
    "light1",
    "medium1",
    "medium2",
    "strong1",
    "strong2",
)
# Data set of the fine-tuning -> number of classes.
AUGREG_DATASETS = {
    "imagenet2012": 1000,
    "cifar100": 100,
    "oxford_iiit_pet": 37,
    "resisc45": 45,
    "kitti": 4,
}
# Data set of the pre-training -> number of classes.
PRETRAINING_CLASSES = {"i21k": 21_843, "i1k": 1000}
_MODELS = "|".join(AUGREG_MODELS)
_AUGMENTATIONS = "|".join(AUGREG_AUGMENTATIONS)
_DATASETS = "|".join(AUGREG_DATASETS)
_REAL = r"\d+(\.\d+)?(e-\d+)?"
AUGREG_NAME = re.compile(
    rf"(?P<model>{_MODELS})-(?P<data>i1k|i21k)-\d+ep-lr_{_REAL}"
    rf"-aug_({_AUGMENTATIONS})-wd_{_REAL}-do_{_REAL}-sd_{_REAL}"
    rf"(--(?P<tuned>{_DATASETS})-steps_\d+k-lr_{_REAL}-res_(?P<size>\d+))?"
)
