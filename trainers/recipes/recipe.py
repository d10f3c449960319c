"""Recipe: every setting of a training run, with its help text and its range.

Needs neither Keras nor TensorFlow, so that --help is fast. The names of tables
that need them are written out; tests compare both.
"""

import dataclasses
import math
import re
import typing
from collections.abc import Callable, Iterable, Mapping
from fractions import Fraction

from keras_vit.arguments import is_number, is_whole
from keras_vit.tables import check_name, guess
from trainers.data.file_lists import LIST_NAMES
from trainers.data.labels import DEPTH, MAPS, SEGMENT, LabelOptions, parse_goal
from trainers.data.pixels import PixelOptions, parse_pixel_range
from trainers.recipes.baselines import BASELINES

if typing.TYPE_CHECKING:
    from keras_vit.preprocessing.description import Normalization, Preprocessing

# Of `keras_vit.models`,
VARIANTS = (
    *("Ti/16", "S/16", "S/32", "B/8", "B/16", "B/32", "L/16", "L/32", "H/14"),
    *("R+Ti/16", "R26+S/32", "R26+B/32", "R50+B/16", "R50+B/32"),
    *("R50+L/16", "R50+L/32", "S/16-gap", "S/32-gap", "B/16-gap", "B/32-gap"),
    *("mu/16", "M/16", "So400m/14", "g/14", "g-opt/16", "G/14", "G-opt/16"),
    *("e/14", "Pico/2"),
)
PARTS = ("head", "norms", "biases", "positions", "class_token")
LORA_LAYERS = ("qkv", "out", "mlp_hidden", "mlp_out", "head")
# of `keras_vit.layers`,
POOLINGS = (
    *("token", "avg", "max", "token_and_avg", "distilled", "prefix", "map"),
    *("map_patches", "probe", "none"),
)
POSITION_EMBEDDINGS = (
    *("none", "learned", "learned_2d", "sincos_1d", "sincos_2d"),
)
POSITION_PLACEMENTS = ("stem", "every_block", "every_block_shared")
ACTIVATIONS = ("tanh", "exact", "quick", "silu", "relu", "elu")
# of `keras_vit.pretraining`,
PATCH_TARGETS = ("mean_color", "small_patch", "pixels")
# and of `trainers.optim` and `trainers.engine`.
# Loss -> the function that turns logits into probabilities.
LOSSES = {
    "softmax": "softmax",
    **dict.fromkeys(("sigmoid", "focal", "asymmetric"), "sigmoid"),
}
OPTIMIZERS = ("adamw", "adam", "lamb", "adafactor", "lion", "sgd")
DECAYS = ("cosine", "linear", "constant", "rsqrt", "steps")
DTYPES = ("float32", "bfloat16")  # Of the accumulator and of gradients.
STRATEGIES = (
    *("one_device", "mirrored", "multi_worker", "tpu"),
    *("data_parallel", "fsdp", "tensor_parallel"),
)

# Experiment trackers -> their packages, and what installs them.
TRACKERS = {
    "tensorboard": ("tensorboard", "tensorboard"),
    "mlflow": ("mlflow", "mlflow-skinny"),
    "wandb": ("wandb", "wandb"),
    "trackio": ("trackio", "trackio"),
}
LABELS = ("auto", "one", "several")
CLASSIFY = "classify"
# Share of hidden patches of each objective without labels, as in its paper.
MASK_RATIOS = {"masked_patches": 0.5, "autoencoder": 0.75}
ALL, LAST_BLOCKS = "all", "last_blocks:N"  # Of `train_only`, beside PARTS.


@dataclasses.dataclass(frozen=True)
class Precision:
    """A row of PRECISIONS, the dtypes of computation in training.

    Args:
        policy: Keras' type policy of the layers.
        peak_dtype: Type of the products by which the peak of a device is
            measured.
        scales_loss: Whether small gradients need a loss scale.
    """

    policy: str
    peak_dtype: str
    scales_loss: bool = False


PRECISIONS = {
    "float32": Precision("float32", "float32"),
    "bfloat16": Precision("mixed_bfloat16", "bfloat16"),
    "float16": Precision("mixed_float16", "bfloat16", scales_loss=True),
}


class NumberRange(typing.NamedTuple):
    """The allowed values of a number in a recipe.

    Args:
        text: Completes the sentence "`epochs` must be ...".
        includes: Returns whether a number is in the range.
    """

    text: str
    includes: Callable[[float], bool]


POSITIVE = NumberRange("positive", lambda x: 0 < x < math.inf)
NOT_NEGATIVE = NumberRange("0 or more", lambda x: 0 <= x < math.inf)
FRACTION = NumberRange("in [0, 1)", lambda x: 0 <= x < 1)
SHARE = NumberRange("in [0, 1]", lambda x: 0 <= x <= 1)
INNER_SHARE = NumberRange("in (0, 1)", lambda x: 0 < x < 1)
SEED = NumberRange("in [0, 2**32)", lambda x: 0 <= x < 2**32)


def option(
    default,
    text: str,
    choices: Iterable[str] | None = None,
    *,
    range: NumberRange | None = None,
    is_free: bool = False,
    is_local: bool = False,
):
    """Return a field that is a flag.

    Args:
        default: The value if neither the recipe nor a flag sets one.
        text: Help text of the flag; "" for a note, which is no flag.
        choices: The allowed names; None if the value is not a name.
        range: The allowed numbers; None allows all.
        is_free: Whether a run may continue with another value.
        is_local: Whether the workers of a run may have different values.
    """
    metadata = {
        "help": text,
        "choices": choices and list(choices),
        "range": range,
        "is_free": is_free,
        "is_local": is_local,
    }
    return dataclasses.field(default=default, metadata=metadata)


def free_option(default, text: str, choices=None, **more):
    """Return the field of `option` that a run may continue with changed."""
    return option(default, text, choices, is_free=True, **more)


@dataclasses.dataclass(frozen=True)
class Recipe:
    """Every setting of a training run; each field is a flag of the same name.

    `source` and `expected` are notes without flags: the source of the values
    and the expected accuracy.

    Raises:
        ValueError: If a value is not allowed, or if it contradicts another
            one. The message names both.
    """

    source: str = free_option("", "", is_local=True)
    expected: str = free_option("", "", is_local=True)
    # Data.
    dataset: str = option(
        "digits",
        f"Data set: digits, any name of tensorflow-datasets, {LIST_NAMES} or "
        "tfrecord:PATH; with --objective=segment or depth, pairs:PATH: a "
        "folder with images/ and masks/ (or depths/) of the same names, or a "
        "table with the columns image and mask (or depth).",
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
    labels: str = free_option(
        "auto",
        "Whether an image has one class or may have several labels. auto is "
        "what the data are: several if a cell of a table has several, if it "
        "has a column for each class, or if the label of the data set is a "
        "list. With folder:PATH, several makes equal photos in several folders "
        "one photo of all these classes.",
        LABELS,
    )
    label_separator: str | None = option(
        None,
        "With csv:PATH, what is between the labels in a cell. Default: found.",
    )
    channels: int | None = option(
        None,
        "Channels of the images, if they are not 3: 1 for grey levels; more of "
        ".npy files (height, width, channels) and of TIFF files with a frame "
        "for each. Data sets of tensorflow-datasets have their own.",
        range=POSITIVE,
    )
    pixel_range: str | None = option(
        None,
        "The numbers that are black and white in image files of more than 8 "
        "bits, such as 0,4095 for those of 12 bits. Default: that of the "
        "model of `init_from`, or 0,65535 for PNG and TIFF of 16 bits; others "
        "need it.",
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
    # Objective.
    objective: str = option(
        CLASSIFY,
        "What is learned: the classes of images, of their pixels (segment), "
        "or the distance of each pixel (depth); or without labels the colours "
        "of corrupted patches, or the pixels of hidden ones (masked "
        "autoencoder). Without labels, the saved model is the encoder, for "
        "--init_from.",
        [CLASSIFY, *MAPS, *MASK_RATIOS],
    )
    dense_head: str = option(
        "linear",
        "With segment and depth: the head. linear reads the patches of one or "
        "more blocks; dpt fuses four blocks at four resolutions.",
        ("linear", "dpt"),
    )
    dense_blocks: str = option(
        "",
        "With segment and depth: numbers of the blocks that the head reads, "
        "from 0 or, negative, from the end, separated by commas. Default: the "
        "last one; of dpt, the last of each quarter.",
    )
    dice_weight: float = option(
        0.0,
        "With segment: weight of the Dice loss beside the cross-entropy.",
        range=NOT_NEGATIVE,
    )
    depth_loss: str = option(
        "metric",
        "With depth: metric learns metres; relative learns the order and the "
        "ratios of nearness, up to scale and shift, of maps from anywhere.",
        ("metric", "relative"),
    )
    max_depth: float = option(
        10.0,
        "With depth: largest distance in metres. What is farther does not "
        "count.",
        range=POSITIVE,
    )
    depth_unit: float | None = option(
        None,
        "With depth: metres of one step in maps. Default: 0.001 in whole "
        "numbers of 16 bits, 1 in floats; others need it.",
        range=POSITIVE,
    )
    mask_ratio: float | None = option(
        None,
        "Without labels: share of the patches that are hidden. Default: 0.5 "
        "for masked_patches, 0.75 for autoencoder.",
        range=INNER_SHARE,
    )
    patch_target: str = option(
        "mean_color",
        "For masked_patches: the mean colour of a patch, those of its 4x4 "
        "cells, or its pixels.",
        PATCH_TARGETS,
    )
    decoder_width: int = option(
        512, "For autoencoder: width of the decoder.", range=POSITIVE
    )
    decoder_depth: int = option(
        8, "For autoencoder: number of blocks of the decoder.", range=POSITIVE
    )
    decoder_heads: int = option(
        16,
        "For autoencoder: number of attention heads of the decoder.",
        range=POSITIVE,
    )
    normalize_pixels: bool = option(
        True,
        "For autoencoder: predict the pixels of a patch relative to their "
        "mean and deviation.",
    )
    # Teacher.
    teacher: str | None = option(
        None,
        "Model whose predictions the model learns beside the labels "
        "(distillation): the folder of a run, a .keras file, a checkpoint or "
        "the name of a published one. It sees the same augmented images. A "
        "model with --pooling=distilled learns them with a token of their own.",
        is_local=True,
    )
    distillation_target: str = option(
        "hard",
        "What is learned of the teacher: hard is its most likely class, soft "
        "are its probabilities.",
        ("hard", "soft"),
    )
    distillation_weight: float = option(
        0.5,
        "Share of the teacher in the loss; the labels have the rest.",
        range=SHARE,
    )
    distillation_temperature: float = option(
        1.0,
        "Divisor of the logits of teacher and model with soft targets.",
        range=POSITIVE,
    )
    # Model.
    model: str = option(
        "B/16",
        "Variant of the model; or a ResNet, of BiT or of keras.applications.",
        [*VARIANTS, *BASELINES],
    )
    depth: int | None = option(
        None,
        "Number of blocks. Default: that of the variant.",
        range=POSITIVE,
    )
    width: int | None = option(
        None,
        "Features of a token. Default: that of the variant.",
        range=POSITIVE,
    )
    mlp_dim: int | None = option(
        None,
        "Features inside the MLP of a block. Default: that of the variant.",
        range=POSITIVE,
    )
    patch_size: int | None = option(
        None, "Side of a patch in pixels. Default: that of the variant."
    )
    patch_sizes: str = option(
        "",
        "Patch sizes to train with, separated by commas, such as 4,6,8: one is "
        "drawn for each update (FlexiViT). The model that is evaluated and "
        "saved has patches of `patch_size`.",
    )
    pooling: str | None = option(
        None, "Pooling. Default: that of the variant.", POOLINGS
    )
    use_pooling_norm: bool | None = option(
        None,
        "Whether the last norm follows the pooling instead of the last block. "
        "Default: that of the variant.",
    )
    position_embedding: str = option(
        "learned", "Position embedding.", POSITION_EMBEDDINGS
    )
    position_placement: str = option(
        "stem",
        "Where it is added: before the first block, before each with a table "
        "of its own, or with one table for all.",
        POSITION_PLACEMENTS,
    )
    relative_positions: str = option(
        "none",
        "What attention knows of the distance of patches: a number for each "
        "distance and head, or a key for each difference of places.",
        ("none", "table", "keys"),
    )
    mlp_activation: str = option(
        "tanh",
        "Activation of the MLPs: the tanh, exact or quick form of the GELU, "
        "SiLU, ReLU or ELU.",
        ACTIVATIONS,
    )
    representation_size: int | None = option(
        None, "Size of a tanh layer before the head."
    )
    use_remat: bool = free_option(
        False,
        "Compute the blocks again in the backward pass. This needs less "
        "memory and more time.",
    )
    dropout_rate: float = option(
        0.0,
        "Dropout rate after the positions, the attention and both MLP layers.",
    )
    stochastic_depth_rate: float = option(
        0.0, "Probability of dropping a branch of the last block."
    )
    patch_dropout_rate: float = option(
        0.0, "Share of the patches that training leaves out of each image."
    )
    merged_tokens: int = option(
        0,
        "Number of patches that each block merges with similar ones, which is "
        "faster and less accurate; 0 for none.",
        range=NOT_NEGATIVE,
    )
    head_bias: float = option(0.0, "Initial bias of the head.")
    init_from: str | None = option(
        None,
        "Initial model: the folder of a run, a model.keras, a checkpoint, or "
        "the name of a published one. Checkpoints of any family are read, and "
        "those of BiT. "
        "The position table is resized, and a head for another number of "
        "classes is replaced. The flags of the model are ignored, except those "
        "of the pooling, which give it a new head if they change it, the "
        "dropout rates and, with a checkpoint, the head bias.",
        is_local=True,
    )
    num_heads: int | None = option(
        None,
        "Number of attention heads, for a new model or a checkpoint that does "
        "not store it. Default: heads of the same size as in the variant, or "
        "the number of the published model of the same size.",
        range=POSITIVE,
    )
    architecture: str | None = option(
        None,
        "Architecture of the checkpoint of `init_from` in timm, such as "
        "vit_base_patch16_clip_224, if no config.json is beside the file. It "
        "settles what its weights do not show.",
    )
    init_head: str = option(
        "auto",
        "What to do with the head of the model of `init_from`. auto keeps it "
        "if the number of classes is the same, and their names, if the file is "
        "in the folder of a run; reset always initialises it anew.",
        ["auto", "reset"],
    )
    train_only: str | None = option(
        None,
        "Parts of the model to train, separated by commas. Any of head, norms, "
        "biases, positions, class_token and last_blocks:N, the last N blocks "
        "with everything after them; or all. Default: the head with LoRA, "
        "otherwise all that is not frozen in the model of `init_from`.",
    )
    lora_rank: int = option(
        0,
        "Rank of the low-rank updates of kernels (LoRA); 0 for none. They are "
        "trained in place of the kernels.",
        range=NOT_NEGATIVE,
    )
    lora_layers: str = option(
        "qkv,out",
        "Layers with LoRA, separated by commas. Any of qkv, out, mlp_hidden, "
        "mlp_out and head.",
    )
    lora_alpha: float | None = option(
        None,
        "Scale of the LoRA updates, divided by the rank. Default: the rank.",
        range=POSITIVE,
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
    loss: str = option(
        "softmax",
        "Loss. For several labels, sigmoid is in place of softmax; focal and "
        "asymmetric give less weight to the labels that are right already.",
        LOSSES,
    )
    label_smoothing: float = option(
        0.0,
        "Share of the label that is distributed equally over all classes.",
        range=FRACTION,
    )
    class_weights: str = option(
        "none",
        "Weights of the classes in the loss. With balanced, all classes count "
        "equally, however many images they have; of several labels, the images "
        "with a label as much as those without.",
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
    strategy: str = free_option(
        "one_device",
        "Devices to use: on TensorFlow one_device, mirrored, multi_worker or "
        "tpu; on JAX one_device, data_parallel, fsdp or tensor_parallel, over "
        "all devices of the machine.",
        STRATEGIES,
    )
    model_devices: int = free_option(
        1,
        "On JAX, with fsdp or tensor_parallel: number of devices that share "
        "each dense layer. With tensor_parallel, 1 stands for all devices of "
        "a machine.",
        range=POSITIVE,
    )
    precision: str = option("float32", "Precision of training.", PRECISIONS)
    use_xla: bool = free_option(False, "Compile the step with XLA.")
    gradient_dtype: str = option(
        "float32",
        "Dtype in which gradients are summed over several devices; on "
        "TensorFlow, those of vectors always in float32. Several devices of "
        "JAX sum them in the dtype of the layers, which must be given.",
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
    threshold_goal: str = free_option(
        "f1",
        "How the least probability of each of several labels is chosen on the "
        "evaluation split: f1 for the highest F1, precision:0.9 for the lowest "
        "threshold of that precision.",
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
    trackers: str = free_option(
        "tensorboard",
        "Where the figures of the training go beside metrics.csv, separated "
        f"by commas: any of {', '.join(TRACKERS)}.",
        is_local=True,
    )
    peak_tflops: float | None = free_option(
        None,
        "Peak of one device, in 10^12 operations a second. MFU is relative to "
        "it. Default: measured.",
        range=POSITIVE,
        is_local=True,
    )

    def __post_init__(self):
        for field in dataclasses.fields(self):
            _check_value(field, getattr(self, field.name))
        # The properties raise if the text of their field is invalid.
        parts, num_last_blocks = self.trained_parts
        _ = self.lora_layer_names, self.patch_size_list, self.milestone_shares
        _ = self.tracker_names, self.pixel_options
        is_resnet = not self.init_from and self.model in BASELINES
        if self.lora_rank:
            if ALL in parts or num_last_blocks:
                raise ValueError(
                    "`train_only` must be parts such as 'head,norms' with "
                    "LoRA, whose kernels are frozen. Received: train_only="
                    f"{self.train_only!r}, lora_rank={self.lora_rank}"
                )
        else:
            needed = "a positive `lora_rank`"
            self._check_unset(
                ("lora_layers", "lora_alpha"), needed, "lora_rank"
            )
        if is_resnet and (self.train_only is not None or self.lora_rank):
            raise ValueError(
                "`train_only` and `lora_rank` need a VisionTransformer. "
                f"Received: model={self.model!r}"
            )
        for objectives, names in _NEED_OBJECTIVE.items():
            if self.objective not in objectives:
                needed = f"--objective={' or '.join(objectives)}"
                self._check_unset(names, needed, "objective")
        _ = self.dense_block_list
        if self.objective != CLASSIFY:
            if is_resnet:
                raise ValueError(
                    f"`objective` {self.objective!r} needs a Vision "
                    f"Transformer. Received: model={self.model!r}"
                )
        parse_goal(self.threshold_goal)
        if self.patience and not self.keep_best:
            raise ValueError(
                "`patience` needs `keep_best`. Received: "
                f"patience={self.patience}, keep_best={self.keep_best}"
            )

    @classmethod
    def from_fields(cls, fields: Mapping) -> "Recipe":
        """Return the recipe of a file; operations are not checked yet.

        Args:
            fields: The values by name; others have their defaults.

        Raises:
            ValueError: If there is no such field, or a value is not allowed.
        """
        if not isinstance(fields, Mapping):
            raise ValueError(
                f"`recipe` must be an object. Received: {fields!r}"
            )
        cls.check_names(fields)
        return cls(**fields)

    @classmethod
    def check_names(cls, names: Iterable[str]):
        """Raise a ValueError unless all names are those of fields."""
        known = [field.name for field in dataclasses.fields(cls)]
        unknown = [name for name in names if name not in known]
        if unknown:
            raise ValueError(
                "`recipe` has no fields called "
                f"{', '.join(map(str, unknown))}{guess(unknown[0], known)}"
            )

    def _check_unset(self, names, needed, field):
        """Raise a ValueError if a field is set that has no effect."""
        for name in names:
            if getattr(self, name) != getattr(Recipe, name):
                raise ValueError(
                    f"`{name}` needs {needed}. Received: "
                    f"{name}={getattr(self, name)!r}, "
                    f"{field}={getattr(self, field)!r}"
                )

    def check_effect(self, names: Iterable[str]):
        """Raise a ValueError if one of the fields has no effect."""
        for fields, (other, values) in _NEED_VALUES.items():
            value = getattr(self, other)
            has_effect = value in values if values else value
            for name in () if has_effect else set(fields) & set(names):
                raise ValueError(
                    f"`{name}` has no effect without --{other}"
                    f"{'=' * bool(values)}{' or '.join(values)}. Received: "
                    f"{name}={getattr(self, name)!r}, {other}={value!r}"
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

    @property
    def needs_labels(self) -> bool:
        """Whether the model learns what somebody said of the images."""
        return self.objective not in MASK_RATIOS

    @property
    def has_maps(self) -> bool:
        """Whether the model learns an answer for each pixel."""
        return self.objective in MAPS

    @property
    def label_options(self) -> LabelOptions:
        """How the labels of the data set are read."""
        if self.has_maps:
            limits = self.depth_unit, self.max_depth
            return LabelOptions(self.objective, None, *limits)
        return LabelOptions(self.labels, self.label_separator)

    @property
    def dense_block_list(self) -> tuple[int, ...]:
        """The blocks that a head of MAPS reads; () for the default."""
        words = _split(self.dense_blocks)
        count = {"linear": len(words), "dpt": 4}[self.dense_head]
        are_numbers = all(re.fullmatch(r"-?\d+", word) for word in words)
        if not are_numbers or (words and len(words) != count):
            number = "four " if self.dense_head == "dpt" else ""
            raise ValueError(
                f"`dense_blocks` must be {number}numbers of blocks such as "
                f"'2,5,8,11'. Received: dense_blocks={self.dense_blocks!r}, "
                f"dense_head={self.dense_head!r}"
            )
        return tuple(map(int, words))

    @property
    def pixel_options(self) -> PixelOptions:
        """How the pixels of the image files are read."""
        return PixelOptions(self.channels, parse_pixel_range(self.pixel_range))

    def for_labels(self, has_several: bool) -> "Recipe":
        """Return the recipe for images of one class each, or of several labels.

        Raises:
            ValueError: If a field is for the other kind.
        """
        changes = {"labels": "several" if has_several else "one"}
        if has_several and self.loss == "softmax":
            changes["loss"] = "sigmoid"
        if not has_several and self.loss in ("focal", "asymmetric"):
            raise ValueError(
                f"`loss` {self.loss!r} is for several labels, and the images "
                f"have one each. Received: dataset={self.dataset!r}, "
                f"labels={self.labels!r}"
            )
        if has_several and self.teacher and self.distillation_target == "hard":
            raise ValueError(
                "`distillation_target` must be soft for several labels. "
                f"Received: distillation_target={self.distillation_target!r}"
            )
        return dataclasses.replace(self, **changes)

    @property
    def activation(self) -> str:
        """The function that turns the logits into probabilities, by name."""
        return LOSSES[self.loss]

    @property
    def preprocessing(self) -> "Preprocessing":
        """The preprocessing of the evaluation, for the model."""
        from trainers.augment.augmentation import preprocessing_in

        size = (self.image_size, self.image_size)
        found = preprocessing_in(self.eval_preprocess, size)
        pixel_range = self.pixel_options.pixel_range
        return dataclasses.replace(found, pixel_range=pixel_range)

    @property
    def normalization(self) -> "Normalization":
        """Mean and deviation by which pixels are normalised for the model."""
        return self.preprocessing.mean_and_deviation

    def normalized_for(self, settings: "Preprocessing") -> "Recipe":
        """Return a recipe that normalises images for a model.

        Args:
            settings: The preprocessing of the model. Operations of the recipe
                that normalise images by themselves stay.
        """
        from trainers.augment.augmentation import add_normalization

        lines = {
            name: add_normalization(getattr(self, name), settings)
            for name in ("augment", "eval_preprocess")
        }
        if self.pixel_range is None and settings.pixel_range:
            low, high = settings.pixel_range
            lines["pixel_range"] = f"{low:g},{high:g}"
        return dataclasses.replace(self, **lines)

    @property
    def milestone_shares(self) -> tuple[float, ...]:
        """The milestones as shares of the training.

        Example:
            >>> Recipe(milestones="1/4,0.5").milestone_shares
            (0.25, 0.5)
        """
        received = f"Received: milestones={self.milestones!r}"
        try:
            words = self.milestones.split(",")
            shares = tuple(float(Fraction(word)) for word in words)
        except (ValueError, ZeroDivisionError):
            raise ValueError(
                "`milestones` must be shares such as '0.3,0.6,0.9' or "
                f"'1/3,2/3'. {received}"
            ) from None
        ends = [0, *shares, 1]
        if not all(low < high for low, high in zip(ends, ends[1:])):
            raise ValueError(
                f"`milestones` must ascend and lie between 0 and 1. {received}"
            )
        return shares

    @property
    def patch_size_list(self) -> tuple[int, ...]:
        """The patch sizes to train with; () for the one of the model."""
        received = f"Received: patch_sizes={self.patch_sizes!r}"
        words = _split(self.patch_sizes)
        if not all(word.isdecimal() and int(word) for word in words):
            raise ValueError(
                "`patch_sizes` must be numbers of pixels such as '4,6,8'. "
                f"{received}"
            )
        if words and self.pooling == "distilled":
            raise ValueError(
                "`patch_sizes` and a distillation token do not go together. "
                f"{received}, pooling={self.pooling!r}"
            )
        return tuple(map(int, words))

    @property
    def trained_parts(self) -> tuple[list[str], int]:
        """The parts of `train_only` and its number of last blocks."""
        names = _split(self.train_only or "")
        blocks = [re.fullmatch(r"last_blocks:(\d+)", name) for name in names]
        parts = [name for name, block in zip(names, blocks) if not block]
        numbers = [int(block[1]) for block in blocks if block]
        for name in parts:
            name = "last_blocks" if name == LAST_BLOCKS else name
            check_name((*PARTS, ALL, LAST_BLOCKS), name, "train_only")
        if len(numbers) > 1 or (ALL in parts and len(names) > 1):
            raise ValueError(
                "`train_only` must be 'all', or parts with at most one "
                f"last_blocks:N. Received: train_only={self.train_only!r}"
            )
        return parts, max(numbers, default=0)

    @property
    def tracker_names(self) -> list[str]:
        """The names of the experiment trackers."""
        names = _split(self.trackers)
        for name in names:
            check_name(TRACKERS, name, "trackers")
        return names

    @property
    def lora_layer_names(self) -> list[str]:
        """The names of the layers with LoRA."""
        names = _split(self.lora_layers)
        for name in names or [""]:
            check_name(LORA_LAYERS, name, "lora_layers")
        return names


# Fields that have no effect without labels.
_NEED_OBJECTIVE = {
    (CLASSIFY,): (
        *("teacher", "patch_sizes", "representation_size", "log_attention"),
        *("patch_dropout_rate", "merged_tokens"),
    ),
    (CLASSIFY, *MAPS): ("lora_rank", "train_only"),
    (CLASSIFY, *MASK_RATIOS): (
        *("loss", "class_weights", "pooling", "use_pooling_norm"),
        *("head_bias", "label_separator"),
    ),
    (CLASSIFY, SEGMENT, *MASK_RATIOS): ("label_smoothing",),
    MAPS: ("dense_head", "dense_blocks"),
    (SEGMENT,): ("dice_weight",),
    (DEPTH,): ("depth_loss", "max_depth", "depth_unit"),
}
# What has an effect only with some values of another field, () for any: a
# recipe may have it at hand, and nobody gives it for nothing.
_NEED_VALUES = {
    ("mask_ratio",): ("objective", tuple(MASK_RATIOS)),
    ("patch_target",): ("objective", ("masked_patches",)),
    (
        *("decoder_width", "decoder_depth", "decoder_heads"),
        "normalize_pixels",
    ): ("objective", ("autoencoder",)),
    (
        *("distillation_target", "distillation_weight"),
        "distillation_temperature",
    ): ("teacher", ()),
    ("milestones",): ("schedule", ("steps",)),
    ("timescale",): ("schedule", ("rsqrt",)),
    ("use_average_debias",): ("average_decay", ()),
}
# The types of fields, and what their values must be.
_TYPES = {
    bool: (lambda value: isinstance(value, bool), "true or false"),
    float: (is_number, "a number"),
    int: (is_whole, "a whole number"),
    str: (lambda value: isinstance(value, str), "text"),
}


def _check_value(field, value):
    """Raise a ValueError if a value, perhaps from a file, is not allowed."""
    received = f"Received: {field.name}={value!r}"
    types = typing.get_args(field.type) or (field.type,)
    if value is None and type(None) in types:
        return
    is_of_type, rule = _TYPES[types[0]]
    if not is_of_type(value):
        raise ValueError(f"`{field.name}` must be {rule}. {received}")
    choices, range = field.metadata["choices"], field.metadata["range"]
    if choices:
        check_name(choices, value, field.name)
    if range and not range.includes(value):
        raise ValueError(f"`{field.name}` must be {range.text}. {received}")
    if is_number(value) and not math.isfinite(value):
        raise ValueError(f"`{field.name}` must be finite. {received}")


def _split(text):
    return [word.strip() for word in text.split(",") if word.strip()]
