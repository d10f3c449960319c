"""ModelOptions: the fields of a recipe about its model."""

import dataclasses

from trainers.recipes.baselines import BASELINES
from trainers.recipes.options import (
    NOT_NEGATIVE,
    POSITIVE,
    free_option,
    option,
)

# The names of tables that need Keras are written out, so that --help does not:
# the keys of VARIANTS of `keras_vit.models`,
VARIANTS = (
    "Ti/16",
    "S/16",
    "S/32",
    "B/8",
    "B/16",
    "B/32",
    "L/16",
    "L/32",
    "H/14",
    "R+Ti/16",
    "R26+S/32",
    "R26+B/32",
    "R50+B/16",
    "R50+B/32",
    "R50+L/16",
    "R50+L/32",
    "S/16-gap",
    "S/32-gap",
    "B/16-gap",
    "B/32-gap",
    "mu/16",
    "M/16",
    "So400m/14",
    "g/14",
    "g-opt/16",
    "G/14",
    "G-opt/16",
    "e/14",
    "Pico/2",
)
# and of the tables of `keras_vit.layers`.
POOLINGS = (
    *("token", "avg", "max", "token_and_avg", "distilled", "prefix", "map"),
    *("map_patches", "probe", "none"),
)
POSITION_EMBEDDINGS = (
    *("none", "learned", "learned_2d", "sincos_1d", "sincos_2d"),
)
POSITION_PLACEMENTS = ("stem", "every_block", "every_block_shared")
ACTIVATIONS = ("tanh", "exact", "quick", "silu", "relu", "elu")


@dataclasses.dataclass(frozen=True)
class ModelOptions:
    """The model of a recipe, its initial weights, and which are trained."""

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
    head_bias: float = option(0.0, "Initial bias of the head.")
    init_from: str | None = option(
        None,
        "Initial model: the folder of a run, a model.keras, a checkpoint, or "
        "the name of a published one. Checkpoints of any family are read, and "
        "those of BiT. "
        "The position table is resized, and a head for another number of "
        "classes is replaced. The flags of the model are ignored, except those "
        "of the pooling, which give it a new head if they change it; with a "
        "checkpoint, the dropout rates and the head bias are used.",
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
