"""Recipe: every choice of a training run, with its help text and its rule."""

import dataclasses

from keras_vit.layers import GELUS, POOLINGS, POSITION_EMBEDDINGS
from keras_vit.models import VARIANTS
from trainers.augment.augmentation import parse_augmentation
from trainers.data.datasets import PATH_NAMES
from trainers.distribute.strategies import STRATEGIES
from trainers.optim.losses import LOSSES
from trainers.optim.rules import ACCUMULATOR_DTYPES, OPTIMIZERS
from trainers.optim.schedules import DECAYS
from trainers.recipes.options import (
    FRACTION,
    NOT_NEGATIVE,
    POSITIVE,
    check_value,
    note,
    option,
)
from trainers.recipes.precisions import PRECISIONS

# Models of keras.applications to compare with, trained in the same way.
BASELINES = ("ResNet50", "ResNet50V2")


@dataclasses.dataclass(frozen=True)
class Recipe:
    """Every choice of a training run; each field is a flag of its name.

    `source` and `expected` are notes and no flags: where the values come from,
    and the accuracy that they should lead to.
    """

    source: str = note()
    expected: str = note()
    # Data.
    dataset: str = option(
        "digits",
        f"Data set: digits, any name of tensorflow-datasets, {PATH_NAMES}.",
    )
    data_dir: str | None = option(
        None,
        "Folder in which tensorflow-datasets keeps its data sets.",
        is_free=True,
        is_local=True,
    )
    train_split: str | None = option(
        None,
        "Split to train on, or a slice of one such as 'train[:98%]', if not "
        "the usual one.",
    )
    eval_split: str | None = option(
        None, "Split to evaluate on, if not the usual one."
    )
    image_size: int = option(
        224,
        "Side of the images, in pixels. A multiple of the patch size.",
        range=POSITIVE,
    )
    augment: str = option(
        "",
        "Augmentation: operations separated by '|', such as "
        "'inception_crop|flip_lr|mixup(0.2)'. See docs/recipes.md.",
    )
    eval_preprocess: str = option(
        "",
        "Preprocessing of the images to evaluate on: operations separated by "
        "'|', such as 'resize_small(256)|central_crop'. Empty: the image is "
        "resized.",
    )
    num_streams: int = option(
        1,
        "Parts that the training split is read in. Each batch takes equally "
        "many images from each part, and a worker reads only the parts it "
        "needs.",
        range=POSITIVE,
    )
    max_bad_examples: int = option(
        0,
        "Unreadable images that are left out before the training stops.",
        range=NOT_NEGATIVE,
        is_free=True,
    )
    data_service: str | None = option(
        None,
        "Address grpc://host:port of a tf.data service that decodes and "
        "augments. A run that uses one cannot be repeated to the bit.",
        is_free=True,
    )
    # Model.
    model: str = option(
        "B/16",
        "Variant of the model, or a model of keras.applications.",
        [*VARIANTS, *BASELINES],
    )
    patch_size: int | None = option(
        None, "Side of a patch, in pixels, if not that of the variant."
    )
    pooling: str | None = option(
        None, "Pooling, if not that of the variant.", POOLINGS
    )
    position_embedding: str = option(
        "learned", "Position embedding.", POSITION_EMBEDDINGS
    )
    gelu: str = option("tanh", "Form of the GELU.", GELUS)
    representation_size: int | None = option(
        None, "Size of a tanh layer before the head."
    )
    use_remat: bool = option(
        False,
        "Compute the blocks again in the backward pass: takes less memory and "
        "more time.",
        is_free=True,
    )
    dropout_rate: float = option(0.0, "Dropout after the dense layers.")
    stochastic_depth_rate: float = option(
        0.0, "Probability of dropping a branch of the last block."
    )
    head_bias: float = option(0.0, "Initial bias of the head.")
    init_from: str | None = option(
        None,
        "What to start from: a model.keras, a checkpoint of any family, or the "
        "name of a pretrained model. Positions are resized, and a head for "
        "other classes is replaced. The model flags above are ignored, except "
        "for the dropout rates and the head bias with a checkpoint.",
        is_local=True,
    )
    init_head: str = option(
        "auto",
        "The head of the model of `init_from`: auto keeps one for as many "
        "classes, reset initialises it anew.",
        ["auto", "reset"],
    )
    # Training.
    batch_size: int = option(
        512, "Images of an update, over all devices.", range=POSITIVE
    )
    epochs: float = option(
        90.0, "Passes over the training split.", range=POSITIVE
    )
    total_steps: int | None = option(
        None, "Number of updates; replaces `epochs`.", range=POSITIVE
    )
    loss: str = option("softmax", "Loss.", LOSSES)
    label_smoothing: float = option(
        0.0,
        "Weight of a label that is shared by all classes equally.",
        range=FRACTION,
    )
    optimizer: str = option("adamw", "Optimizer.", OPTIMIZERS)
    learning_rate: float = option(
        1e-3, "Highest learning rate.", range=POSITIVE
    )
    schedule: str = option("cosine", "Decay of the learning rate.", DECAYS)
    warmup_steps: int = option(
        0, "Updates until the highest rate.", range=NOT_NEGATIVE
    )
    cooldown_steps: int = option(
        0,
        "Number of last updates in which the rate falls linearly to 0.",
        range=NOT_NEGATIVE,
    )
    final_fraction: float = option(
        0.0,
        "Fraction of the highest rate at which cosine and linear end.",
        range=FRACTION,
    )
    timescale: int = option(
        10_000, "Updates of the rsqrt schedule.", range=POSITIVE
    )
    weight_decay: float = option(
        0.0,
        "Decay of the kernels; multiplied by the learning rate.",
        range=NOT_NEGATIVE,
    )
    layer_decay: float = option(
        1.0,
        "Factor of the learning rate from each block to the one before.",
        range=POSITIVE,
    )
    accumulator_dtype: str = option(
        "float32",
        "Type in which the optimizer keeps the mean of the gradients.",
        ACCUMULATOR_DTYPES,
    )
    average_decay: float = option(
        0.0,
        "Decay of a moving average of the weights, which is then evaluated "
        "and saved as the model; 0 for none.",
        range=FRACTION,
    )
    use_average_debias: bool = option(
        False, "Start the average at 0 and correct for it, as Adam does."
    )
    accumulation_steps: int = option(
        1,
        "Parts that the batch of a device is divided into. They are computed "
        "one after the other, which takes less memory.",
        range=POSITIVE,
        is_free=True,
    )
    clip_norm: float = option(
        1.0,
        "Largest global norm of the gradient; 0 does not clip.",
        range=NOT_NEGATIVE,
    )
    seed: int = option(
        0, "Seed of the weights, the order, the augmentation and dropout."
    )
    # Running.
    strategy: str = option(
        "one_device", "Devices to use.", STRATEGIES, is_free=True
    )
    precision: str = option("float32", "Type of computation.", PRECISIONS)
    use_xla: bool = option(False, "Compile the step with XLA.", is_free=True)
    steps_per_loop: int = option(
        10,
        "Most updates in one call of the compiled function.",
        range=POSITIVE,
        is_free=True,
    )
    epochs_per_eval: float = option(
        1.0, "Epochs between two evaluations.", range=POSITIVE
    )
    steps_per_checkpoint: int | None = option(
        None,
        "Updates between two checkpoints; each evaluation writes one besides.",
        range=POSITIVE,
        is_free=True,
    )
    num_checkpoints: int = option(
        2,
        "Number of checkpoints to keep, the newest.",
        range=POSITIVE,
        is_free=True,
    )
    log_attention: int = option(
        0,
        "Number of test images whose attention maps TensorBoard shows at each "
        "evaluation; also records how the position embeddings change.",
        range=NOT_NEGATIVE,
        is_free=True,
    )
    peak_tflops: float | None = option(
        None,
        "Highest rate of one device, in 10^12 operations a second, of which "
        "MFU is a share; measured if not given.",
        range=POSITIVE,
        is_free=True,
        is_local=True,
    )

    @property
    def activation(self) -> str:
        """The function that turns the logits into probabilities, by name."""
        return LOSSES[self.loss].activation

    @property
    def value_range(self) -> tuple[float, float]:
        """The numbers that the model reads for pixels of 0 and 255."""
        size = (self.image_size, self.image_size)
        return parse_augmentation(
            self.eval_preprocess, size, "eval_preprocess"
        ).value_range

    def __post_init__(self):
        for field in dataclasses.fields(self):
            check_value(field, getattr(self, field.name))
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
