"""Recipe, every choice of a training run; RECIPES; and the flags made of it."""

import dataclasses
import math
import typing

from absl import flags

from keras_vit.layers import GELUS, POOLINGS, POSITION_EMBEDDINGS
from keras_vit.models import VARIANTS
from keras_vit.tables import pick
from trainers.augment import parse_augmentation
from trainers.datasets import FOLDER_PREFIX
from trainers.losses import LOSSES
from trainers.optimizers import OPTIMIZERS
from trainers.schedules import DECAYS
from trainers.strategies import STRATEGIES

PRECISIONS = {"float32": "float32", "bfloat16": "mixed_bfloat16"}


def _option(default, text, choices=None):
    metadata = {"help": text, "choices": choices and list(choices)}
    return dataclasses.field(default=default, metadata=metadata)


@dataclasses.dataclass(frozen=True)
class Recipe:
    """Every choice of a training run; each field is a flag of its name."""

    # Data.
    dataset: str = _option(
        "digits",
        "Data set: digits, any name of tensorflow-datasets, or "
        f"{FOLDER_PREFIX}PATH.",
    )
    data_dir: str | None = _option(
        None, "Where tensorflow-datasets keeps its data sets."
    )
    image_size: int = _option(
        224, "Side of the images, in pixels. A multiple of the patch size."
    )
    augment: str = _option(
        "",
        "Augmentation, operations separated by '|', such as "
        "'inception_crop|flip_lr|mixup(0.2)'. See trainers/augment.py.",
    )
    # Model.
    model: str = _option("B/16", "Variant of the model.", VARIANTS)
    patch_size: int | None = _option(
        None, "Side of a patch, in pixels, if not that of the variant."
    )
    pooling: str | None = _option(
        None, "Pooling, if not that of the variant.", POOLINGS
    )
    position_embedding: str = _option(
        "learned", "Position embedding.", POSITION_EMBEDDINGS
    )
    gelu: str = _option("tanh", "Form of the GELU.", GELUS)
    representation_size: int | None = _option(
        None, "Size of a tanh layer before the head."
    )
    dropout_rate: float = _option(0.0, "Dropout after the dense layers.")
    stochastic_depth_rate: float = _option(
        0.0, "Probability of dropping a branch of the last block."
    )
    head_bias: float = _option(0.0, "Initial bias of the head.")
    init_from: str | None = _option(
        None,
        "What to start from: a model.keras, a checkpoint of any family, or the "
        "name of a pretrained model. Positions are resized, a head of other "
        "classes is replaced. The flags of the model above are not used; with "
        "a checkpoint the rates of dropping and the head bias are.",
    )
    # Training.
    batch_size: int = _option(512, "Images of a step, over all devices.")
    epochs: float = _option(90.0, "Passes over the training split.")
    total_steps: int | None = _option(
        None, "Number of updates; replaces `epochs`."
    )
    loss: str = _option("softmax", "Loss.", LOSSES)
    label_smoothing: float = _option(
        0.0, "Weight of a label that is given to all classes alike."
    )
    optimizer: str = _option("adamw", "Optimizer.", OPTIMIZERS)
    learning_rate: float = _option(1e-3, "Highest learning rate.")
    schedule: str = _option("cosine", "Decay of the learning rate.", DECAYS)
    warmup_steps: int = _option(0, "Updates until the highest rate.")
    weight_decay: float = _option(
        0.0, "Decay of the kernels; multiplied by the learning rate."
    )
    clip_norm: float = _option(
        1.0, "Largest global norm of the gradient; 0 does not clip."
    )
    seed: int = _option(0, "Of the weights, the order and the augmentation.")
    # Running.
    strategy: str = _option("one_device", "Devices to use.", STRATEGIES)
    precision: str = _option("float32", "Type of computation.", PRECISIONS)
    use_xla: bool = _option(False, "Compile the step with XLA.")
    steps_per_loop: int = _option(
        10, "Updates in one call of the compiled function."
    )
    epochs_per_eval: int = _option(1, "Epochs between two evaluations.")

    def __post_init__(self):
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            choices = field.metadata["choices"]
            if choices and value is not None:
                pick(dict.fromkeys(choices), value, field.name)
        parse_augmentation(self.augment, (self.image_size, self.image_size))
        for name in (
            "image_size",
            "batch_size",
            "epochs",
            "total_steps",
            "learning_rate",
            "steps_per_loop",
            "epochs_per_eval",
        ):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise ValueError(
                    f"`{name}` must be positive. Received: {name}={value}"
                )
        for name in ("weight_decay", "clip_norm", "warmup_steps"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(
                    f"`{name}` must be 0 or more. "
                    f"Received: {name}={getattr(self, name)}"
                )
        if not 0 <= self.label_smoothing < 1:
            raise ValueError(
                "`label_smoothing` must be in [0, 1). "
                f"Received: label_smoothing={self.label_smoothing}"
            )


RECIPES = {
    # 98 % and more on the test split, in minutes on two cores; see README.
    "digits": Recipe(
        dataset="digits",
        image_size=8,
        augment="affine(12, 0.08, 0.12)",
        model="Pico/2",
        batch_size=64,
        epochs=200,
        learning_rate=3e-3,
        warmup_steps=100,
        weight_decay=0.05,
        stochastic_depth_rate=0.1,
        label_smoothing=0.1,
        steps_per_loop=50,
        epochs_per_eval=20,
    ),
    # A common small-image setting; not run here.
    "cifar10": Recipe(
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


def define_flags():
    """Define --recipe and one absl flag for each field of Recipe."""
    flags.DEFINE_enum(
        "recipe", "digits", list(RECIPES), "Where the flags below start from."
    )
    types = typing.get_type_hints(Recipe)
    for field in dataclasses.fields(Recipe):
        kinds = set(typing.get_args(types[field.name])) or {types[field.name]}
        define = {
            str: flags.DEFINE_string,
            int: flags.DEFINE_integer,
            float: flags.DEFINE_float,
            bool: flags.DEFINE_bool,
        }[(kinds - {type(None)}).pop()]
        text = f"{field.metadata['help']} Default: that of the recipe."
        choices = field.metadata["choices"]
        if choices:
            flags.DEFINE_enum(field.name, None, choices, text)
        else:
            define(field.name, None, text)


def recipe_from_flags(values: flags.FlagValues = flags.FLAGS) -> Recipe:
    """Return the recipe of --recipe, changed by the flags that were given."""
    given = {
        field.name: values[field.name].value
        for field in dataclasses.fields(Recipe)
        if values[field.name].value is not None
    }
    if "epochs" in given and "total_steps" not in given:
        given["total_steps"] = None
    return dataclasses.replace(RECIPES[values.recipe], **given)
