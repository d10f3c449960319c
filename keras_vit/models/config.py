"""ViTConfig: the configuration of a VisionTransformer, and its checks."""

import dataclasses
import math
import types
import typing
from collections.abc import Iterator

import numpy as np

from keras_vit.arguments import as_size, is_number, is_whole
from keras_vit.layers.attention import QK_NORMS, QKV_BIASES
from keras_vit.layers.block import LAYER_SCALE_BRANCHES, NORM_PLACEMENTS
from keras_vit.layers.mlp import ACTIVATIONS
from keras_vit.layers.norms import NORMS
from keras_vit.layers.pooling import POOLINGS
from keras_vit.layers.positions import POSITION_EMBEDDINGS, POSITION_PLACEMENTS
from keras_vit.layers.relative import RELATIVE_POSITIONS
from keras_vit.layers.resize import RESIZES
from keras_vit.layers.resnet_stem import STEM_EPSILONS
from keras_vit.layers.rotary import ROTARY_POSITIONS
from keras_vit.preprocessing.description import Preprocessing, as_preprocessing
from keras_vit.tables import check_name, guess

# What the layer before the head makes of the features: a tanh layer, as in the
# ViT of 2021, or unit vectors, as in CLIP, of a projection if it has a size.
REPRESENTATIONS = dict.fromkeys(("tanh", "unit"))
# The table of each field that is a name.
CHOICES = {
    "position_embedding": POSITION_EMBEDDINGS,
    "position_resize": RESIZES,
    "position_placement": POSITION_PLACEMENTS,
    "rotary_positions": ROTARY_POSITIONS,
    "relative_positions": RELATIVE_POSITIONS,
    "norm": NORMS,
    "norm_placement": NORM_PLACEMENTS,
    "layer_scale_branches": LAYER_SCALE_BRANCHES,
    "qkv_bias": QKV_BIASES,
    "qk_norm": QK_NORMS,
    "activation": ACTIVATIONS,
    "pooling": POOLINGS,
    "representation": REPRESENTATIONS,
    "stem_epsilons": STEM_EPSILONS,
}
# What a value must be -> a test, and the fields.
RULES = {
    "must be positive": (
        lambda value: 0 < value < math.inf,
        *("width", "depth", "mlp_dim", "num_heads", "patch_size", "channels"),
        *("layer_norm_epsilon", "rotary_temperature"),
    ),
    "must be positive or None": (
        lambda value: value is None or value > 0,
        *("pooling_heads", "pooling_mlp_dim", "relative_hidden_dim"),
        "representation_size",
    ),
    "must be 0 or more": (
        lambda value: value >= 0,
        *("num_classes", "num_registers", "merged_tokens"),
    ),
    "must be in [0, 1)": (
        lambda value: 0 <= value < 1,
        *("dropout_rate", "attention_dropout_rate", "stochastic_depth_rate"),
        "patch_dropout_rate",
    ),
    "must be finite or None": (
        lambda value: value is None or math.isfinite(value),
        "layer_scale_init",
    ),
    "must be softmax, sigmoid or None": (
        lambda value: value in ("softmax", "sigmoid", None),
        "probabilities",
    ),
    "must have a unit or more in each stage": (
        lambda value: not value or min(value) > 0,
        "stem_stages",
    ),
}
# For each annotation of a field: a description and a check of its values.
ANNOTATIONS = {
    bool: ("True or False", lambda value: isinstance(value, bool)),
    int: ("a whole number", is_whole),
    float: ("a number", is_number),
    tuple: (
        "a tuple of whole numbers",
        lambda value: isinstance(value, tuple) and all(map(is_whole, value)),
    ),
    tuple[str, ...]: (
        "a tuple of strings",
        lambda value: (
            isinstance(value, tuple)
            and all(isinstance(name, str) for name in value)
        ),
    ),
    tuple[float, float]: (
        "two numbers",
        lambda value: (
            isinstance(value, tuple)
            and len(value) == 2
            and all(map(is_number, value))
        ),
    ),
    types.NoneType: ("None", lambda value: value is None),
}


def settle_fields(config, **changes):
    """Check the types of the fields of a configuration, and unify them.

    Lists and ranges become tuples, and numbers of NumPy those of Python. Fields
    whose annotation is not in ANNOTATIONS are not checked.

    Args:
        config: A dataclass, which may be frozen.
        **changes: New values of fields.

    Raises:
        ValueError: If a value is not what the annotation of its field says.
    """
    given = {**vars(config), **changes}
    for name, value in given.items():
        if isinstance(value, np.generic | np.ndarray):
            value = value.tolist()  # Keras and JSON take none of NumPy's.
        value = tuple(value) if isinstance(value, list | range) else value
        object.__setattr__(config, name, value)
    for field in dataclasses.fields(config):
        is_union = isinstance(field.type, types.UnionType)
        parts = typing.get_args(field.type) if is_union else [field.type]
        kinds = [
            part if part in ANNOTATIONS else typing.get_origin(part)
            for part in parts
        ]
        if set(kinds) <= set(ANNOTATIONS):
            rules, tests = zip(*(ANNOTATIONS[kind] for kind in kinds))
            value = getattr(config, field.name)
            if not any(test(value) for test in tests):
                raise ValueError(
                    f"`{field.name}` must be {' or '.join(rules)}. "
                    f"Received: {field.name}={given[field.name]!r}"
                )


def find_problems(config: "ViTConfig") -> Iterator[tuple[str, ...]]:
    """Yield each rule that a configuration breaks, and the fields in it.

    The first field is the one that the rule is about. A problem may cause
    errors in the search for the next one.
    """
    if not isinstance(config.preprocessing, Preprocessing):
        rule = "must be a `Preprocessing`, a name or (mean, deviation)"
        yield rule, "preprocessing"
    for name, table in CHOICES.items():
        check_name(table, getattr(config, name), name)
    for rule, (test, *names) in RULES.items():
        for name in names:
            if not test(getattr(config, name)):
                yield rule, name

    # What several fields decide together.
    if config.width % config.num_heads:
        yield "must divide `width`", "num_heads", "width"
    if config.width % (config.pooling_heads or 1):
        yield "must divide `width`", "pooling_heads", "width"
    h, w = config.feature_size
    has_rest = bool(h % config.patch_size or w % config.patch_size)
    is_cut = has_rest and not config.ignore_border
    if min(h, w) < config.patch_size or is_cut:
        rule = "must divide the image, or the feature map of its stem"
        yield f"{rule}, {h}x{w}", "patch_size", "image_size"
    if len(config.preprocessing.mean) not in (1, config.channels):
        rule = "must have a mean for each channel, or one for all"
        yield rule, "preprocessing", "channels"
    if config.rotary_positions != "none" and config.head_size % 4:
        rule = "needs heads of a multiple of 4 features"
        yield rule, "rotary_positions", "num_heads", "width"
    if config.class_names is not None:
        if len(config.class_names) != config.num_classes:
            rule = "must have a name for each class, or be None"
            yield rule, "class_names", "num_classes"
    # The layers that these fields choose, and the token that they need.
    needs = {}
    for name in ("pooling", "rotary_positions", "relative_positions"):
        layer_class = CHOICES[name][getattr(config, name)]
        needs[name] = getattr(layer_class, "needs", ())
        token = getattr(layer_class, "needed_token", None)
        if token and not getattr(config, f"use_{token}_token"):
            yield f"needs the {token} token", name, f"use_{token}_token"
    if config.use_distillation_token and not config.use_class_token:
        rule = "needs the class token"
        yield rule, "use_distillation_token", "use_class_token"
    if "pooling_indices" in needs["pooling"]:
        count, places = config.num_prefix_tokens, config.pooling_indices
        if not places or not all(0 <= index < count for index in places):
            rule = f"must be places among the {count} tokens before the patches"
            yield rule, "pooling_indices"
    if "relative_hidden_dim" in needs["relative_positions"]:
        if not config.relative_hidden_dim:
            yield "must be given for an MLP", "relative_hidden_dim"
    if config.relative_positions != "none" and config.use_dynamic_image_size:
        rule = "are those of one grid of patches"
        yield rule, "relative_positions", "use_dynamic_image_size"
    # Merged tokens have no single place, and relative keys no single token.
    for name, field, others in (
        ("merged_tokens", "position_placement", ("stem",)),
        ("merged_tokens", "rotary_positions", ("none",)),
        ("merged_tokens", "relative_positions", ("none",)),
        ("patch_dropout_rate", "relative_positions", ("none", "table", "mlp")),
        ("merged_tokens", "use_dynamic_image_size", (False,)),
        ("patch_dropout_rate", "use_dynamic_image_size", (False,)),
    ):
        if getattr(config, name) and getattr(config, field) not in others:
            yield f"must be 0, or `{field}` {others[0]!r}", name, field
    for name in ("merged_tokens", "patch_dropout_rate"):
        if getattr(config, name) and config.pooling == "none":
            yield "must be 0 for outputs of every token", name, "pooling"
    if config.position_placement != "stem":
        rule = "must not be so if positions are added before every block"
        if config.position_embedding == "none":
            yield rule, "position_embedding", "position_placement"
        if not config.use_prefix_positions:
            yield rule, "use_prefix_positions", "position_placement"


@dataclasses.dataclass(frozen=True)
class ViTConfig:
    """The configuration of a VisionTransformer.

    Args:
        width: Size D of a token.
        depth: Number of Transformer blocks.
        mlp_dim: Hidden size of the MLP of a block.
        num_heads: Number of attention heads. Must divide `width`.
        patch_size: Side of a square patch, in pixels of the image or, with a
            stem, in cells of its feature map.
        image_size: (height, width) in pixels; one number means a square.
        use_dynamic_image_size: Whether to accept images of any size. If so,
            the position table has the grid of `image_size`, and each call
            resizes it.
        channels: Channels of the image.
        preprocessing: How images are resized, cropped and normalised before
            the model reads them: a `Preprocessing`, a key of NORMALIZATIONS,
            or (mean, deviation). The layers do not depend on it.
        stem_stages: Number of units in each stage of the ResNet stem of a
            hybrid; None for no stem; () for only its first convolution and
            pooling.
        stem_epsilons: A key of STEM_EPSILONS: the constants that the stem
            adds to its divisors, "official" or "timm".
        ignore_border: Whether pixels at the bottom and at the right that fill
            no patch are left out; otherwise the patches must divide the image.
        use_patch_bias: Whether the projection of the patches has a bias.
        use_patch_norm: Whether the patches are normalised before the positions
            are added.
        use_class_token: Whether to prepend the class token.
        use_distillation_token: Whether a second learned token follows the
            class token.
        num_registers: Number of learned tokens between these and the patches.
        position_embedding: A key of POSITION_EMBEDDINGS.
        position_resize: A key of RESIZES: how its table is resized for
            another grid.
        position_placement: Where it is added: before the first block ("stem"),
            before each with a table of its own ("every_block"), or with one
            table for all ("every_block_shared").
        use_prefix_positions: Whether the tokens before the patches have
            positions as well.
        use_embedding_norm: Whether the tokens are normalised before the first
            block.
        rotary_positions: A key of ROTARY_POSITIONS.
        rotary_temperature: Base of their frequencies.
        rotary_axes: "yx" or "xy", see `AxialRotaryPositions`.
        rotary_reference_size: (rows, columns) of the grid that positions are
            scaled to, see there.
        rotary_offset: Added to the positions, see there.
        relative_positions: A key of RELATIVE_POSITIONS.
        relative_hidden_dim: Size of the hidden layer of "mlp".
        use_shared_relative_positions: Whether all blocks share them.
        norm: The kind of all norms, a key of NORMS.
        norm_placement: "before" the attention and the MLP of a block, or
            "after" them.
        layer_scale_init: Initial factors at the end of each branch of a block;
            None for a model without them.
        layer_scale_branches: "both", or whether the branch of the "attention"
            alone has them.
        qkv_bias: Which of queries, keys and values have biases, a key of
            QKV_BIASES.
        use_block_bias: Whether the other projections of a block have biases.
        qk_norm: "none", or whether to normalise queries and keys in each
            "head" or over the "width".
        use_attention_inner_norm: Whether a norm precedes the last projection
            of the attention.
        use_mlp_inner_norm: Whether a norm precedes the last projection of the
            MLP.
        activation: A key of ACTIVATIONS: "tanh" for the GELU of the official
            code, "exact" for that of timm and Hugging Face.
        use_gated_mlp: Whether the MLP of a block has a gate (SwiGLU).
        use_final_norm: Whether a norm follows the last block.
        use_pooling_norm: Whether the last norm follows the pooling, as
            `fc_norm` does in timm, instead of the last block.
        pooling: A key of POOLINGS; "none" returns an output for every token.
        pooling_indices: Which tokens before the patches "prefix" joins.
        pooling_heads: Number of attention heads of the pooling "map". Default:
            `num_heads`.
        pooling_mlp_dim: Hidden size of its MLP. Default: `mlp_dim`.
        representation_size: Size of a layer before the head, or None.
        representation: A key of REPRESENTATIONS: whether that is a "tanh"
            layer, or a linear one. With "unit", its outputs, or the features if
            it has no size, are divided by their length.
        num_classes: Outputs of the head; 0 for a model without a head.
        class_names: Names of the classes, if the model itself knows them, as
            that of a run and of `keras_vit.zero_shot`.
        classifier_activation: Activation of the head; None for logits.
        probabilities: What makes probabilities of these logits, "softmax" or
            "sigmoid", if the model itself knows, as that of a run.
        head_bias: Initial bias of the head. The sigmoid recipes start at -10,
            so that the first loss is small.
        dropout_rate: Dropout rate after the positions, the attention and both
            MLP layers.
        attention_dropout_rate: Dropout rate of the attention probabilities.
        stochastic_depth_rate: Rate of the last block. The rates of the blocks
            grow linearly from 0 in the first block.
        patch_dropout_rate: Share of the patches that training leaves out of
            each image, see `PatchDropout`.
        merged_tokens: Number of patches that each block merges with similar
            ones, see `merge_tokens`; 0 for none.
        layer_norm_epsilon: Added to the variance of every norm.
        use_remat: Whether training keeps only the input of each block and
            computes the rest again in the backward pass, which needs less
            memory and more time.

    Raises:
        ValueError: If a value is invalid or two values contradict each other.

    Example:
        >>> VARIANTS["B/16"].config.grid_size
        (14, 14)
    """

    width: int
    depth: int
    mlp_dim: int
    num_heads: int
    patch_size: int
    image_size: tuple[int, int] | int = 224
    use_dynamic_image_size: bool = False
    channels: int = 3
    preprocessing: Preprocessing = Preprocessing()
    stem_stages: tuple[int, ...] | None = None
    stem_epsilons: str = "official"
    ignore_border: bool = False
    use_patch_bias: bool = True
    use_patch_norm: bool = False
    use_class_token: bool = True
    use_distillation_token: bool = False
    num_registers: int = 0
    position_embedding: str = "learned"
    position_resize: str = "official"
    position_placement: str = "stem"
    use_prefix_positions: bool = True
    use_embedding_norm: bool = False
    rotary_positions: str = "none"
    rotary_temperature: float = 100.0
    rotary_axes: str = "yx"
    rotary_reference_size: tuple[int, int] | None = None
    rotary_offset: float = 0.0
    relative_positions: str = "none"
    relative_hidden_dim: int | None = None
    use_shared_relative_positions: bool = False
    norm: str = "layer"
    norm_placement: str = "before"
    layer_scale_init: float | None = None
    layer_scale_branches: str = "both"
    qkv_bias: str = "all"
    use_block_bias: bool = True
    qk_norm: str = "none"
    use_attention_inner_norm: bool = False
    use_mlp_inner_norm: bool = False
    activation: str = "tanh"
    use_gated_mlp: bool = False
    use_final_norm: bool = True
    use_pooling_norm: bool = False
    pooling: str = "token"
    pooling_indices: tuple[int, ...] = (0,)
    pooling_heads: int | None = None
    pooling_mlp_dim: int | None = None
    representation_size: int | None = None
    representation: str = "tanh"
    num_classes: int = 1000
    class_names: tuple[str, ...] | None = None
    classifier_activation: str | None = None
    probabilities: str | None = None
    head_bias: float = 0.0
    dropout_rate: float = 0.0
    attention_dropout_rate: float = 0.0
    stochastic_depth_rate: float = 0.0
    patch_dropout_rate: float = 0.0
    merged_tokens: int = 0
    layer_norm_epsilon: float = 1e-6
    use_remat: bool = False

    def __post_init__(self):
        size = self.image_size
        size = as_size((size,) * 2 if is_whole(size) else size, "image_size")
        preprocessing = as_preprocessing(self.preprocessing)
        settle_fields(self, image_size=size, preprocessing=preprocessing)
        for rule, *names in find_problems(self):
            values = ", ".join(f"{n}={getattr(self, n)!r}" for n in names)
            raise ValueError(f"`{names[0]}` {rule}. Received: {values}")

    @property
    def feature_size(self) -> tuple[int, int]:
        """Height and width of the image, or of the feature map of the stem."""
        # SAME padding rounds up.
        return tuple(math.ceil(s / self.stem_stride) for s in self.image_size)

    @property
    def stem_stride(self) -> int:
        """Image pixels between neighbouring cells of the feature map."""
        if self.stem_stages is None:
            return 1
        # The first convolution, the pooling, and each stage except the first
        # halve the size.
        return 2 ** (2 + max(len(self.stem_stages) - 1, 0))

    @property
    def head_size(self) -> int:
        """Size of a token in one attention head."""
        return self.width // self.num_heads

    @property
    def num_prefix_tokens(self) -> int:
        """Number of tokens before the patches."""
        return (
            self.use_class_token
            + self.use_distillation_token
            + self.num_registers
        )

    @property
    def grid_size(self) -> tuple[int, int]:
        """Rows and columns of the grid of patches."""
        return tuple(size // self.patch_size for size in self.feature_size)


def check_fields(choices: dict, renamed: dict[str, str]):
    """Raise a ValueError unless all keyword arguments are fields of ViTConfig.

    Args:
        choices: The keyword arguments, by name.
        renamed: Names that are not accepted, each with the argument to use
            instead.
    """
    fields = [f.name for f in dataclasses.fields(ViTConfig)]
    fields = [name for name in fields if name not in renamed]
    for name, value in choices.items():
        if name in renamed:
            raise ValueError(
                f"Use `{renamed[name]}` in place of `{name}`. "
                f"Received: {name}={value!r}"
            )
        if name not in fields:
            known = dict.fromkeys([*renamed.values(), *fields])
            raise ValueError(
                f"There is no argument `{name}`, only {', '.join(known)}. "
                f"Received: {name}={value!r}{guess(name, known)}"
            )
