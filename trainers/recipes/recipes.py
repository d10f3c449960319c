"""Recipe, every choice of a training run; RECIPES; and the flags made of it."""

import dataclasses
import math
import pathlib
import re
import typing

from absl import flags

from keras_vit.layers import GELUS, POOLINGS, POSITION_EMBEDDINGS
from keras_vit.models import VARIANTS
from keras_vit.tables import pick
from trainers.augment.augmentation import parse_augmentation
from trainers.augment.augreg import describe_augreg
from trainers.data.datasets import PATH_NAMES
from trainers.distribute.strategies import STRATEGIES
from trainers.models.baselines import BASELINES
from trainers.optim.losses import LOSSES
from trainers.optim.optimizers import OPTIMIZERS
from trainers.optim.schedules import DECAYS

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
        f"Data set: digits, any name of tensorflow-datasets, {PATH_NAMES}.",
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
        "'inception_crop|flip_lr|mixup(0.2)'. See docs/recipes.md.",
    )
    eval_preprocess: str = _option(
        "",
        "What is done to an image to evaluate on, such as "
        "'resize_small(256)|central_crop'. Empty: the image is resized.",
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
    init_head: str = _option(
        "auto",
        "What becomes of the head of `init_from`: auto keeps one for as many "
        "classes, reset starts it anew.",
        ["auto", "reset"],
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
    log_attention: int = _option(
        0,
        "Test images that TensorBoard shows with what the model looks at, at "
        "each evaluation; what becomes of the position table is kept, too.",
        is_free=True,
    )
    peak_tflops: float | None = _option(
        None,
        "Most that one device can do, in 10^12 operations a second, to "
        "compare with; measured if not given.",
        is_free=True,
    )

    @property
    def activation(self) -> str:
        """What turns the logits into probabilities: softmax or sigmoid.

        A loss has the name of the activation that belongs to it.
        """
        return self.loss

    @property
    def value_range(self) -> tuple[float, float]:
        """The numbers that the model reads for pixels of 0 and 255."""
        size = (self.image_size, self.image_size)
        return parse_augmentation(
            self.eval_preprocess, size, "eval_preprocess"
        ).value_range

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
            "log_attention",
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


# The rows. `weight_decay` is that of Keras, multiplied by the learning rate;
# docs/recipes.md says how it compares to the figures of the sources.

# Of the digits, which are here: for demonstrations and checks.
_DIGITS = Recipe(
    source="Of this project.",
    expected="98.9 to 99.4 % on the test split; see docs/results.md.",
    dataset="digits",
    image_size=8,
    augment="affine(12, 0.08, 0.12)",
    model="Pico/2",
    batch_size=64,
    epochs=200,
    learning_rate=3e-3,
    warmup_steps=100,
    weight_decay=0.05,
    label_smoothing=0.1,
    steps_per_loop=50,
    epochs_per_eval=20,
)

# Pre-training as in the first paper.
_PAPER_I21K = Recipe(
    dataset="tfrecord:imagenet21k",  # Not in tensorflow-datasets.
    augment="inception_crop|flip_lr",
    eval_preprocess="resize_small(256)|central_crop",
    model="B/16",
    representation_size=768,
    dropout_rate=0.1,
    head_bias=-10.0,
    batch_size=4096,
    epochs=90,
    loss="sigmoid",
    learning_rate=1e-3,
    schedule="linear",
    warmup_steps=10_000,
    final_fraction=0.01,  # Ends at 1e-5.
    weight_decay=0.03,
    clip_norm=0.0,  # Clipping is for ImageNet-1k alone.
)

# Fine-tuning as in the first paper.
_PAPER_TUNING = Recipe(
    source="arXiv:2010.11929, table 4; rate and warm-up: configs of "
    "vision_transformer",
    image_size=384,
    augment="inception_crop|flip_lr",
    init_from="B/16-i21k",
    init_head="reset",
    batch_size=512,
    optimizer="sgd",
    learning_rate=0.03,
    warmup_steps=500,
    accumulator_dtype="bfloat16",
)
_CIFAR10 = dataclasses.replace(
    _PAPER_TUNING, dataset="cifar10", total_steps=10_000
)
_CIFAR100 = dataclasses.replace(_CIFAR10, dataset="cifar100")
_PETS = dataclasses.replace(
    _PAPER_TUNING,
    source="arXiv:2010.11929, table 4; rate: one of the four it tries; "
    "warm-up: transfer.py of big_vision",
    dataset="oxford_iiit_pet",
    total_steps=500,
    learning_rate=0.01,
    warmup_steps=100,
    epochs_per_eval=10,
)

# AugReg: how much of augmentation and of regularisation.
_AUGREG_I21K = Recipe(
    source="arXiv:2106.10270; README of vision_transformer; loss, bias and "
    "optimizer: vit_i21k.py of big_vision",
    dataset="tfrecord:imagenet21k",
    augment=describe_augreg("medium1"),
    eval_preprocess="resize_small(256)|central_crop",
    model="B/16",
    head_bias=-10.0,
    batch_size=4096,
    epochs=300,
    loss="sigmoid",
    learning_rate=1e-3,
    warmup_steps=10_000,
    weight_decay=0.1,
    accumulator_dtype="bfloat16",
)
_AUGREG_TUNING = dataclasses.replace(
    _PAPER_TUNING,
    source="transfer.py of big_vision",
    dataset="imagenet2012",
    train_split="train[:99%]",
    eval_preprocess="resize_small(448)|central_crop",
    init_from="B/32-augreg",
    init_head="reset",
    total_steps=20_000,
)
_AUGREG_CIFAR = dataclasses.replace(
    _AUGREG_TUNING,
    dataset="cifar10",
    train_split="train[:98%]",
    augment="resize_small(448)|random_crop|flip_lr",
    total_steps=10_000,
    learning_rate=3e-3,
)
_AUGREG_PETS = dataclasses.replace(
    _AUGREG_TUNING,
    dataset="oxford_iiit_pet",
    train_split="train[:90%]",
    total_steps=500,
    learning_rate=3e-3,
    warmup_steps=100,
    epochs_per_eval=10,
)

# The plain ViT of the note on better baselines.
_PLAIN_S16 = Recipe(
    source="arXiv:2205.01580; vit_s16_i1k.py of big_vision",
    dataset="imagenet2012",
    train_split="train[:99%]",
    augment="inception_crop|flip_lr|randaugment(2, 10)|mixup(0.2)",
    eval_preprocess="resize_small(256)|central_crop",
    model="S/16-gap",
    position_embedding="sincos_2d",
    representation_size=384,
    batch_size=1024,
    epochs=90,
    learning_rate=1e-3,
    warmup_steps=10_000,
    weight_decay=0.1,
    accumulator_dtype="bfloat16",
)

RECIPES = {
    "digits": _DIGITS,
    # Nothing in it is drawn for a device or a part of a batch.
    "digits_exact": dataclasses.replace(
        _DIGITS,
        expected="The same weights on one device and on several, on one "
        "worker and on several, and with gradients accumulated.",
        model="mu/16",
        patch_size=2,
        batch_size=32,
        total_steps=20,
        learning_rate=1e-3,
        warmup_steps=4,
        average_decay=0.9,
        clip_norm=0.1,  # Low enough to clip.
        steps_per_loop=5,
    ),
    "digits_pretrain": dataclasses.replace(
        _DIGITS,
        expected="A model.keras for digits_transfer.",
        dataset="digits_0to4",
        epochs=50,
        stochastic_depth_rate=0.1,
    ),
    "digits_transfer": dataclasses.replace(
        _DIGITS,
        expected="More than the same updates give without init_from.",
        dataset="digits_5to9",
        image_size=16,
        init_from="saved_models/digits_pretrain/model.keras",
        init_head="reset",
        total_steps=66,  # Six epochs.
        learning_rate=0.01,
        warmup_steps=10,
        weight_decay=0.0,
        stochastic_depth_rate=0.1,
        label_smoothing=0.0,
        epochs_per_eval=1,
    ),
    # From scratch, on a machine with a GPU.
    "cifar10": Recipe(
        source="Of this project; common choices for small images.",
        expected="Not run here.",
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
    "i21k_b16": dataclasses.replace(
        _PAPER_I21K,
        source="arXiv:2010.11929, table 3; loss, bias, hidden layer and end of "
        "the decay: issues 2 and 34 of vision_transformer",
        expected="B/16: 47.88 % on other images of ImageNet-21k (issue 62 of "
        "vision_transformer). Not run here.",
    ),
    "i1k_b16": dataclasses.replace(
        _PAPER_I21K,
        source="arXiv:2010.11929, table 3; loss as i21k_b16; bias: "
        "vit_i1k.py of big_vision",
        expected="B/16: 74.79 % on ImageNet at 224 pixels (issue 62 of "
        "vision_transformer). Not run here.",
        dataset="imagenet2012",
        head_bias=-6.9,
        epochs=300,
        learning_rate=3e-3,
        schedule="cosine",
        final_fraction=0.0,
        weight_decay=0.3,
        clip_norm=1.0,
    ),
    "augreg_i21k_ti16": dataclasses.replace(
        _AUGREG_I21K,
        expected="Ti/16: 78.22 % on ImageNet, fine-tuned at 384 pixels. Not "
        "run here.",
        augment=describe_augreg("none"),
        model="Ti/16",
        weight_decay=0.03,
    ),
    "augreg_i21k_b32": dataclasses.replace(
        _AUGREG_I21K,
        expected="B/32: 83.59 % on ImageNet, fine-tuned at 384 pixels. Not run "
        "here.",
        augment=describe_augreg("light2"),
        model="B/32",
    ),
    "augreg_i21k_b16": dataclasses.replace(
        _AUGREG_I21K,
        expected="B/16: 85.49 % on ImageNet, fine-tuned at 384 pixels. Not run "
        "here.",
    ),
    "augreg_i21k_l16": dataclasses.replace(
        _AUGREG_I21K,
        expected="L/16: 85.59 % on ImageNet, fine-tuned at 384 pixels. Not run "
        "here.",
        augment=describe_augreg("strong1"),
        model="L/16",
    ),
    "augreg_i21k_r50_l32": dataclasses.replace(
        _AUGREG_I21K,
        expected="R50+L/32: 85.99 % on ImageNet, fine-tuned at 384 pixels. Not "
        "run here.",
        model="R50+L/32",
        dropout_rate=0.1,
        stochastic_depth_rate=0.1,
    ),
    "augreg_i21k_b16_gap": dataclasses.replace(
        _AUGREG_I21K,
        source="vit_i21k.py of big_vision",
        expected="None is published for pooling by averaging. Not run here.",
        augment=describe_augreg("light2"),
        model="B/16-gap",
    ),
    "augreg_i1k_b16": dataclasses.replace(
        _AUGREG_I21K,
        source="arXiv:2106.10270; vit_i1k.py of big_vision",
        expected="B/16: 79.84 % on ImageNet at 224 pixels (table 3, the best "
        "of many settings, this one or another). Not run here.",
        dataset="imagenet2012",
        train_split="train[:99%]",
        augment=describe_augreg("medium2"),
        representation_size=768,
        head_bias=-6.9,
    ),
    "s16_i1k_90ep": dataclasses.replace(
        _PLAIN_S16,
        expected="S/16: 76.5 % on ImageNet, 83.1 % on ReaL, 64.2 % on V2. Not "
        "run here.",
    ),
    "s16_i1k_150ep": dataclasses.replace(
        _PLAIN_S16,
        expected="S/16: 78.5 % on ImageNet, 84.5 % on ReaL, 66.4 % on V2. Not "
        "run here.",
        epochs=150,
    ),
    "s16_i1k_300ep": dataclasses.replace(
        _PLAIN_S16,
        expected="S/16: 80.0 % on ImageNet, 85.4 % on ReaL, 68.3 % on V2. Not "
        "run here.",
        epochs=300,
    ),
    # Their decay of 1e-4 is inside of the momentum, which makes ten of it.
    "resnet50_i1k": Recipe(
        source="arXiv:1706.02677, section 5",
        expected="ResNet-50: 76.3 % on ImageNet, with a rate that falls in "
        "steps. Not run here.",
        dataset="imagenet2012",
        augment="inception_crop(smallest=0.08)|flip_lr",
        eval_preprocess="resize_small(256)|central_crop",
        model="ResNet50",
        batch_size=1024,
        epochs=90,
        optimizer="sgd",
        learning_rate=0.4,
        warmup_steps=6_255,
        weight_decay=1e-3,
        clip_norm=0.0,
    ),
    "imagenet_b16": dataclasses.replace(
        _PAPER_TUNING,
        expected="B/16: 83.97 % on ImageNet, 88.35 % on ReaL (table 5); "
        "84.53 % by the official code. Not run here.",
        dataset="imagenet2012",
        total_steps=20_000,
    ),
    "imagenet_l16_512": dataclasses.replace(
        _PAPER_TUNING,
        source="arXiv:2010.11929, tables 2 and 4",
        expected="L/16: 85.30 % on ImageNet, 88.62 % on ReaL (table 2). Not "
        "run here.",
        dataset="imagenet2012",
        image_size=512,
        init_from="L/16-i21k",
        total_steps=20_000,
        average_decay=0.9999,
    ),
    "cifar10_b16": dataclasses.replace(
        _CIFAR10,
        expected="B/16: 98.95 % on CIFAR-10 (table 5); 99.02 % by the official "
        "code. Not run here.",
        learning_rate=0.01,
    ),
    "cifar10_b16_500steps": dataclasses.replace(
        _CIFAR10,
        source="README of vision_transformer; rate: its default",
        expected="B/16: 98.59 % on CIFAR-10. Not run here.",
        total_steps=500,
        warmup_steps=50,
    ),
    "cifar10_b16_1000steps": dataclasses.replace(
        _CIFAR10,
        source="README of vision_transformer; rate: its default",
        expected="B/16: 98.86 % on CIFAR-10. Not run here.",
        total_steps=1000,
        warmup_steps=100,
    ),
    "cifar10_b32_100steps": dataclasses.replace(
        _CIFAR10,
        source="vit_jax.ipynb of vision_transformer",
        expected="B/32: 97.7 % on CIFAR-10. Not run here.",
        image_size=224,
        init_from="B/32-i21k",
        total_steps=100,
        warmup_steps=5,
    ),
    "cifar100_b16": dataclasses.replace(
        _CIFAR100,
        expected="B/16: 91.67 % on CIFAR-100 (table 5); 92.06 % by the "
        "official code. Not run here.",
    ),
    "cifar100_b16_500steps": dataclasses.replace(
        _CIFAR100,
        source="README of vision_transformer; rate: its default",
        expected="B/16: 89.17 % on CIFAR-100. Not run here.",
        total_steps=500,
        warmup_steps=50,
    ),
    "cifar100_b16_1000steps": dataclasses.replace(
        _CIFAR100,
        source="README of vision_transformer; rate: its default",
        expected="B/16: 91.15 % on CIFAR-100. Not run here.",
        total_steps=1000,
        warmup_steps=100,
    ),
    "pets_b16": dataclasses.replace(
        _PETS,
        expected="B/16: 94.43 % on Pets (table 5). Not run here.",
    ),
    "flowers_b16": dataclasses.replace(
        _PETS,
        expected="B/16: 99.38 % on Flowers (table 5). Not run here.",
        dataset="oxford_flowers102",
    ),
    # The 1000 images of CIFAR-100; the other tasks by --dataset and
    # --train_split, without what changes their labels, such as flip_lr.
    "vtab_l16": dataclasses.replace(
        _PAPER_TUNING,
        source="arXiv:2010.11929, table 4 and appendix B.1.1; images as in "
        "arXiv:1912.11370; split: task_adaptation",
        expected="L/16: 72.72 % in the mean over the 19 tasks (table 2). Not "
        "run here.",
        dataset="cifar100",
        train_split="train[:800]+train[45000:45200]",
        augment="resize(448)|random_crop|flip_lr",
        init_from="L/16-i21k",
        total_steps=2500,
        learning_rate=0.01,
        epochs_per_eval=250,
    ),
    "augreg_finetune_imagenet_b16": dataclasses.replace(
        _AUGREG_TUNING,
        source="arXiv:2106.10270, table 4; README of vision_transformer",
        expected="B/16: 85.49 % on ImageNet. Not run here.",
        init_from="B/16-augreg",
    ),
    "augreg_finetune_imagenet_b32": dataclasses.replace(
        _AUGREG_TUNING,
        expected="B/32: 83.27 % on ImageNet. Not run here.",
    ),
    "augreg_finetune_cifar10_b32": dataclasses.replace(
        _AUGREG_CIFAR,
        expected="B/32: 98.55 % on CIFAR-10. Not run here.",
    ),
    "augreg_finetune_cifar100_b32": dataclasses.replace(
        _AUGREG_CIFAR,
        expected="B/32: 91.35 % on CIFAR-100. Not run here.",
        dataset="cifar100",
        learning_rate=0.01,
    ),
    "augreg_finetune_pets_b32": dataclasses.replace(
        _AUGREG_PETS,
        expected="B/32: 93.78 % on Pets. Not run here.",
    ),
    "augreg_finetune_flowers_b32": dataclasses.replace(
        _AUGREG_PETS,
        expected="B/32: 99.43 % on Flowers. Not run here.",
        dataset="oxford_flowers102",
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


def describe_recipes() -> str:
    """Return RECIPES as a Markdown table, that of docs/recipes.md."""
    names = "recipe model data pixels length batch rate source expected".split()
    rows = [names, ["---"] * len(names)]
    for name, recipe in RECIPES.items():
        length = f"{recipe.epochs:g} epochs"
        if recipe.total_steps:
            length = f"{recipe.total_steps:,} updates"
        rows.append(
            [
                f"`{name}`",
                f"`{recipe.init_from or recipe.model}`",
                f"`{recipe.dataset}`",
                str(recipe.image_size),
                length,
                str(recipe.batch_size),
                f"{recipe.learning_rate:g}",
                recipe.source,
                recipe.expected,
            ]
        )
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def update_page(path: str):
    """Replace the table of recipes in a Markdown page by that of RECIPES.

    Raises:
        ValueError: If there is no such table in the page.
    """
    page, table = pathlib.Path(path), describe_recipes()
    header = table.splitlines()[0]
    text, count = re.subn(
        rf"^{re.escape(header)}\n(?:\|.*\n)*",
        lambda match: table,
        page.read_text(encoding="utf-8"),
        flags=re.MULTILINE,
    )
    if not count:
        raise ValueError(
            "`path` must be a page with a table that begins with "
            f"{header!r}. Received: path={path!r}"
        )
    page.write_text(text, encoding="utf-8")
