"""Recipe, every choice of a training run; RECIPES; and the flags made of it."""

import dataclasses
import math
import typing

from absl import flags

from keras_vit.layers import GELUS, POOLINGS, POSITION_EMBEDDINGS
from keras_vit.models import VARIANTS
from keras_vit.tables import pick
from trainers.augment import parse_augmentation
from trainers.baselines import BASELINES
from trainers.datasets import FOLDER_PREFIX
from trainers.losses import LOSSES
from trainers.optimizers import OPTIMIZERS
from trainers.schedules import DECAYS
from trainers.strategies import STRATEGIES

PRECISIONS = {
    "float32": "float32",
    "bfloat16": "mixed_bfloat16",
    "float16": "mixed_float16",
}


def _option(default, text, choices=None, is_free=False):
    """Return a field that is a flag; a free one may change in a restart."""
    metadata = {
        "help": text,
        "choices": choices and list(choices),
        "is_free": is_free,
    }
    return dataclasses.field(default=default, metadata=metadata)


def _note():
    """Return a field that is no flag and changes nothing."""
    return dataclasses.field(
        default="", metadata={"choices": None, "is_free": True}
    )


@dataclasses.dataclass(frozen=True)
class Recipe:
    """Every choice of a training run; each field is a flag of its name.

    But for `source`, where the figures come from, and `expected`, what they
    should lead to: these are notes.
    """

    source: str = _note()
    expected: str = _note()
    # Data.
    dataset: str = _option(
        "digits",
        "Data set: digits, any name of tensorflow-datasets, or "
        f"{FOLDER_PREFIX}PATH.",
    )
    data_dir: str | None = _option(
        None, "Where tensorflow-datasets keeps its data sets.", is_free=True
    )
    train_split: str | None = _option(
        None, "Split to train on, such as 'train[:98%]', if not the usual one."
    )
    eval_split: str | None = _option(
        None, "Split to evaluate on, if not the usual one."
    )
    image_size: int = _option(
        224, "Side of the images, in pixels. A multiple of the patch size."
    )
    augment: str = _option(
        "",
        "Augmentation, operations separated by '|', such as "
        "'inception_crop|flip_lr|mixup(0.2)'. See trainers/augment.py.",
    )
    eval_preprocess: str = _option(
        "",
        "What is done to an image to evaluate on, such as "
        "'resize_small(256)|central_crop'. Default: the image is resized.",
    )
    num_streams: int = _option(
        1,
        "Parts that the training split is read in. Each batch takes as many "
        "images of each, each worker reads only those it needs.",
    )
    max_bad_examples: int = _option(
        0, "Unreadable images that are left out before it stops.", is_free=True
    )
    data_service: str | None = _option(
        None,
        "Address grpc://host:port of a tf.data service that decodes and "
        "augments; a run with it cannot be repeated to the bit.",
        is_free=True,
    )
    # Model.
    model: str = _option(
        "B/16",
        "Variant of the model, or a model of keras.applications.",
        [*VARIANTS, *BASELINES],
    )
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
    use_remat: bool = _option(
        False,
        "Compute the blocks again in the backward pass: less memory, more "
        "time.",
        is_free=True,
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
    cooldown_steps: int = _option(
        0, "Last updates, in which the rate falls to 0 along a line."
    )
    final_fraction: float = _option(
        0.0, "Share of the highest rate that cosine and linear end at."
    )
    timescale: int = _option(10_000, "Updates of the rsqrt schedule.")
    weight_decay: float = _option(
        0.0, "Decay of the kernels; multiplied by the learning rate."
    )
    layer_decay: float = _option(
        1.0, "Factor of the learning rate from each block to the one before."
    )
    accumulator_dtype: str = _option(
        "float32",
        "Type in which the optimizer keeps the mean of the gradients.",
        ["float32", "bfloat16"],
    )
    average_decay: float = _option(
        0.0,
        "Decay of a moving average of the weights, which is then evaluated "
        "and saved as the model; 0 for none.",
    )
    use_average_debias: bool = _option(
        False, "Start the average at 0 and correct for it, as Adam does."
    )
    accumulation_steps: int = _option(
        1,
        "Parts that the batch of a device is cut into, one after the other, "
        "to need less memory.",
        is_free=True,
    )
    clip_norm: float = _option(
        1.0, "Largest global norm of the gradient; 0 does not clip."
    )
    seed: int = _option(
        0, "Of the weights, the order, the augmentation and dropout."
    )
    # Running.
    strategy: str = _option(
        "one_device", "Devices to use.", STRATEGIES, is_free=True
    )
    precision: str = _option("float32", "Type of computation.", PRECISIONS)
    use_xla: bool = _option(False, "Compile the step with XLA.", is_free=True)
    steps_per_loop: int = _option(
        10, "Most updates in one call of the compiled function.", is_free=True
    )
    epochs_per_eval: float = _option(1.0, "Epochs between two evaluations.")
    steps_per_checkpoint: int | None = _option(
        None,
        "Updates between two checkpoints; there is one after each evaluation "
        "besides.",
        is_free=True,
    )
    num_checkpoints: int = _option(
        2, "Newest checkpoints that are kept.", is_free=True
    )
    peak_tflops: float | None = _option(
        None,
        "Most that one device can do, in 10^12 operations a second, to "
        "compare with; measured if not given.",
        is_free=True,
    )

    def __post_init__(self):
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            choices = field.metadata["choices"]
            if choices and value is not None:
                pick(dict.fromkeys(choices), value, field.name)
        size = (self.image_size, self.image_size)
        ranges = [
            parse_augmentation(getattr(self, name), size, name).value_range
            for name in ("augment", "eval_preprocess")
        ]
        if ranges[0] != ranges[1]:
            raise ValueError(
                "`augment` and `eval_preprocess` must give pixels of one "
                f"range. Received: {ranges[0]} and {ranges[1]}; end both with "
                "the same 'value_range(low, high)'"
            )
        for name in (
            "image_size",
            "batch_size",
            "epochs",
            "total_steps",
            "learning_rate",
            "steps_per_loop",
            "epochs_per_eval",
            "num_streams",
            "timescale",
            "layer_decay",
            "accumulation_steps",
            "steps_per_checkpoint",
            "num_checkpoints",
            "peak_tflops",
        ):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise ValueError(
                    f"`{name}` must be positive. Received: {name}={value}"
                )
        for name in (
            "weight_decay",
            "clip_norm",
            "warmup_steps",
            "cooldown_steps",
            "max_bad_examples",
        ):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(
                    f"`{name}` must be 0 or more. "
                    f"Received: {name}={getattr(self, name)}"
                )
        for name in ("label_smoothing", "average_decay", "final_fraction"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(
                    f"`{name}` must be in [0, 1). "
                    f"Received: {name}={getattr(self, name)}"
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


def flag_fields() -> list[dataclasses.Field]:
    """Return the fields of Recipe that are flags."""
    return [f for f in dataclasses.fields(Recipe) if "help" in f.metadata]


def define_flags():
    """Define --recipe and one absl flag for each field of Recipe."""
    flags.DEFINE_enum(
        "recipe", "digits", list(RECIPES), "Where the flags below start from."
    )
    types = typing.get_type_hints(Recipe)
    for field in flag_fields():
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
        for field in flag_fields()
        if values[field.name].value is not None
    }
    if "epochs" in given and "total_steps" not in given:
        given["total_steps"] = None
    return dataclasses.replace(RECIPES[values.recipe], **given)
