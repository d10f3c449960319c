"""Recipe: every setting of a training run, with its help text and its range."""

import dataclasses
from typing import TYPE_CHECKING

from trainers.data.file_lists import LIST_NAMES
from trainers.recipes.distillation_options import DistillationOptions
from trainers.recipes.fine_tuning import check_fine_tuning
from trainers.recipes.milestones import read_milestones
from trainers.recipes.model_options import ModelOptions
from trainers.recipes.objective_options import (
    ObjectiveOptions,
    check_objective,
)
from trainers.recipes.options import (
    FRACTION,
    INNER_SHARE,
    NOT_NEGATIVE,
    POSITIVE,
    SEED,
    check_value,
    free_option,
    note,
    option,
)
from trainers.recipes.patch_sizes import read_patch_sizes
from trainers.recipes.precisions import PRECISIONS

if TYPE_CHECKING:
    from keras_vit.preprocessing.normalization import Normalization
    from keras_vit.preprocessing.settings import Preprocessing

# The keys of the tables of these names in `trainers.optim` and
# `trainers.distribute`, written out so that --help imports no TensorFlow.
# Loss -> the function that turns logits into probabilities.
LOSSES = {"softmax": "softmax", "sigmoid": "sigmoid"}
OPTIMIZERS = ("adamw", "adam", "lamb", "adafactor", "lion", "sgd")
DECAYS = ("cosine", "linear", "constant", "rsqrt", "steps")
DTYPES = ("float32", "bfloat16")  # Of the accumulator and of gradients.
STRATEGIES = ("one_device", "mirrored", "multi_worker", "tpu")


@dataclasses.dataclass(frozen=True)
class Recipe(ObjectiveOptions, DistillationOptions, ModelOptions):
    """Every setting of a training run; each field is a flag of the same name.

    The settings of the model are in `ModelOptions`, those of a teacher in
    `DistillationOptions`, and what is learned in `ObjectiveOptions`.
    `source` and `expected` are notes without flags: the source of the values
    and the expected accuracy.
    """

    source: str = note()
    expected: str = note()
    # Data.
    dataset: str = option(
        "digits",
        f"Data set: digits, any name of tensorflow-datasets, {LIST_NAMES} or "
        "tfrecord:PATH.",
    )
    data_dir: str | None = free_option(
        None, "Folder of the data sets of tensorflow-datasets.", is_local=True
    )
    train_split: str | None = option(
        None,
        "Split to train on, or a slice such as 'train[:98%]'. Default: that "
        "of the data set.",
    )
    eval_split: str | None = option(
        None,
        "Split to evaluate on, or a slice of one. Default: that of the data "
        "set.",
    )
    image_size: int = option(
        224,
        "Side of the images, in pixels. Must be a multiple of the patch size.",
        range=POSITIVE,
    )
    augment: str = option(
        "",
        "Augmentation: operations separated by '|'. For example "
        "'inception_crop|flip_lr|mixup(0.2)'; see docs/recipes.md.",
    )
    eval_preprocess: str = option(
        "",
        "Preprocessing of the evaluation images, operations as in `augment`. "
        "For example 'resize_small(256)|central_crop'. If empty, the image is "
        "resized.",
    )
    num_streams: int = option(
        1,
        "Number of parts of the training split. Each batch contains equally "
        "many images of each part, and a worker reads only the parts that it "
        "needs.",
        range=POSITIVE,
    )
    max_bad_examples: int = free_option(
        0,
        "Number of unreadable images to skip before the training stops.",
        range=NOT_NEGATIVE,
    )
    data_service: str | None = free_option(
        None,
        "Address grpc://host:port of a tf.data service that prepares the "
        "images. With a service, a run cannot be repeated "
        "exactly.",
    )
    # Training.
    batch_size: int = option(
        512, "Number of images per update, over all devices.", range=POSITIVE
    )
    epochs: float = option(
        90.0, "Number of passes over the training split.", range=POSITIVE
    )
    total_steps: int | None = option(
        None, "Number of updates; replaces `epochs`.", range=POSITIVE
    )
    loss: str = option("softmax", "Loss.", LOSSES)
    label_smoothing: float = option(
        0.0,
        "Share of the label that is distributed equally over all classes.",
        range=FRACTION,
    )
    class_weights: str = option(
        "none",
        "Weights of the classes in the loss. With balanced, all classes count "
        "equally, however many images they have.",
        ["none", "balanced"],
    )
    optimizer: str = option("adamw", "Optimizer.", OPTIMIZERS)
    adam_beta2: float = option(
        0.999,
        "Decay of the mean square of the gradients, for adam, adamw and lamb.",
        range=INNER_SHARE,
    )
    learning_rate: float = option(
        1e-3, "Highest learning rate.", range=POSITIVE
    )
    schedule: str = option("cosine", "Decay of the learning rate.", DECAYS)
    warmup_steps: int = option(
        0,
        "Number of first updates in which the rate rises linearly.",
        range=NOT_NEGATIVE,
    )
    cooldown_steps: int = option(
        0,
        "Number of last updates in which the rate falls linearly to 0.",
        range=NOT_NEGATIVE,
    )
    final_fraction: float = option(
        0.0,
        "Final rate of the cosine and linear schedules, relative to the "
        "highest.",
        range=FRACTION,
    )
    timescale: int = option(
        10_000, "Timescale of the rsqrt schedule, in updates.", range=POSITIVE
    )
    milestones: str = option(
        "0.3,0.6,0.9",
        "Shares of the updates after which the rate of the steps schedule "
        "falls to a tenth, such as '0.3,0.6,0.9' or '1/3,2/3'.",
    )
    weight_decay: float = option(
        0.0,
        "Weight decay of the kernels, multiplied by the learning rate.",
        range=NOT_NEGATIVE,
    )
    layer_decay: float = option(
        1.0,
        "Ratio of the learning rates of a block and of the block after it.",
        range=POSITIVE,
    )
    accumulator_dtype: str = option(
        "float32",
        "Dtype in which the optimizer keeps the mean of the gradients.",
        DTYPES,
    )
    average_decay: float = option(
        0.0,
        "Decay of a moving average of the weights; 0 for no average. The "
        "averaged weights are evaluated and saved.",
        range=FRACTION,
    )
    use_average_debias: bool = option(
        False, "Start the average at 0 and correct the bias, as Adam does."
    )
    accumulation_steps: int = free_option(
        1,
        "Number of parts of the batch of a device. The parts are computed one "
        "after the other, which needs less memory.",
        range=POSITIVE,
    )
    clip_norm: float = option(
        1.0,
        "Largest global norm of the gradient; 0 does not clip.",
        range=NOT_NEGATIVE,
    )
    seed: int = option(
        0,
        "Seed of the weights, the order, the augmentation and dropout.",
        range=SEED,
    )
    # Running.
    strategy: str = free_option("one_device", "Devices to use.", STRATEGIES)
    precision: str = option("float32", "Precision of training.", PRECISIONS)
    use_xla: bool = free_option(False, "Compile the step with XLA.")
    gradient_dtype: str = option(
        "float32",
        "Dtype in which gradients are summed over several devices; those of "
        "vectors always in float32.",
        DTYPES,
    )
    steps_per_loop: int = free_option(
        10,
        "Largest number of updates in one call of the compiled function.",
        range=POSITIVE,
    )
    epochs_per_eval: float = option(
        1.0, "Epochs between two evaluations.", range=POSITIVE
    )
    keep_best: bool = option(
        False, "Save the model of the best evaluation instead of the last one."
    )
    patience: int | None = option(
        None,
        "With keep_best: evaluations without a better one until training "
        "stops. 0 never stops it. Default: it does not stop.",
        range=NOT_NEGATIVE,
    )
    steps_per_checkpoint: int | None = free_option(
        None,
        "Updates between two checkpoints. In addition, each evaluation writes "
        "one.",
        range=POSITIVE,
    )
    num_checkpoints: int = free_option(
        2, "Number of newest checkpoints to keep.", range=POSITIVE
    )
    log_attention: int = free_option(
        0,
        "Number of test images whose attention TensorBoard shows at each "
        "evaluation. If positive, the position similarities are recorded too.",
        range=NOT_NEGATIVE,
    )
    peak_tflops: float | None = free_option(
        None,
        "Peak of one device, in 10^12 operations a second. MFU is relative to "
        "it. Default: measured.",
        range=POSITIVE,
        is_local=True,
    )

    @property
    def activation(self) -> str:
        """The function that turns the logits into probabilities, by name."""
        return LOSSES[self.loss]

    @property
    def normalization(self) -> "Normalization":
        """Mean and deviation by which pixels are normalised for the model."""
        return self.preprocessing.mean_and_deviation

    @property
    def preprocessing(self) -> "Preprocessing":
        """The preprocessing of the evaluation, for the model."""
        from trainers.augment.operation_lines import preprocessing_in

        size = (self.image_size, self.image_size)
        return preprocessing_in(self.eval_preprocess, size)

    def normalized_for(self, settings: "Preprocessing") -> "Recipe":
        """Return a recipe that normalises images for a model.

        Args:
            settings: The preprocessing of the model. Operations of the recipe
                that normalise images by themselves stay.
        """
        from trainers.augment.operation_lines import add_normalization

        lines = {
            name: add_normalization(getattr(self, name), settings)
            for name in ("augment", "eval_preprocess")
        }
        return dataclasses.replace(self, **lines)

    def __post_init__(self):
        for field in dataclasses.fields(self):
            check_value(field, getattr(self, field.name))
        check_fine_tuning(self)
        check_objective(self)
        # These raise if the field is invalid.
        read_patch_sizes(self)
        read_milestones(self.milestones)
        if self.patience and not self.keep_best:
            raise ValueError(
                "`patience` needs `keep_best`. Received: "
                f"patience={self.patience}, keep_best={self.keep_best}"
            )

    def check_operations(self):
        """Raise a ValueError unless `augment` and `eval_preprocess` are valid.

        This needs TensorFlow; the other fields are checked at once.
        """
        from trainers.augment.augmentation import parse_augmentation

        size = (self.image_size, self.image_size)
        pairs = [
            parse_augmentation(getattr(self, name), size, name).normalization
            for name in ("augment", "eval_preprocess")
        ]
        if pairs[0] != pairs[1]:
            raise ValueError(
                "`augment` and `eval_preprocess` must have the same mean and "
                f"deviation. Received: {pairs[0]} and {pairs[1]}; end both "
                "with the same 'value_range(low, high)' or 'normalize(name)'"
            )
