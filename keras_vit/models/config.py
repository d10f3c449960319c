"""ViTConfig: the configuration of a VisionTransformer."""

import dataclasses
import math
import numbers

from keras_vit.layers.mlp_block import GELUS
from keras_vit.layers.pooling import POOLINGS
from keras_vit.layers.position_embedding import POSITION_EMBEDDINGS
from keras_vit.layers.stem_epsilons import STEM_EPSILONS
from keras_vit.tables import pick


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
        stem_stages: Number of units in each stage of the ResNet stem of a
            hybrid; None for no stem; () for only its first convolution and
            pooling.
        stem_epsilons: A key of STEM_EPSILONS: the constants that the stem
            adds to its divisors, "official" or "timm".
        use_class_token: Whether to prepend the class token.
        position_embedding: A key of POSITION_EMBEDDINGS.
        pooling: A key of POOLINGS; "none" returns an output for every token.
        use_pooling_norm: Whether the last layer norm follows the pooling, as
            `fc_norm` does in timm, instead of the last block.
        representation_size: Size of a tanh layer before the head, or None.
        num_classes: Outputs of the head; 0 for a model without a head.
        classifier_activation: Activation of the head; None for logits.
        head_bias: Initial bias of the head. The sigmoid recipes start at -10,
            so that the first loss is small.
        dropout_rate: Dropout rate after the positions, the attention and both
            MLP layers.
        attention_dropout_rate: Dropout rate of the attention probabilities.
        stochastic_depth_rate: Rate of the last block. The rates of the blocks
            grow linearly from 0 in the first block.
        gelu: "tanh" as in the official code, or "exact" as in timm and
            Hugging Face.
        layer_norm_epsilon: Added to the variance of every layer norm.
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
    stem_stages: tuple[int, ...] | None = None
    stem_epsilons: str = "official"
    use_class_token: bool = True
    position_embedding: str = "learned"
    pooling: str = "token"
    use_pooling_norm: bool = False
    representation_size: int | None = None
    num_classes: int = 1000
    classifier_activation: str | None = None
    head_bias: float = 0.0
    dropout_rate: float = 0.0
    attention_dropout_rate: float = 0.0
    stochastic_depth_rate: float = 0.0
    gelu: str = "tanh"
    layer_norm_epsilon: float = 1e-6
    use_remat: bool = False

    def __post_init__(self):
        size = self.image_size
        if isinstance(size, numbers.Number):
            size = (size, size)
        if isinstance(size, str) or any(side != int(side) for side in size):
            raise ValueError(
                "`image_size` must be a whole number of pixels or (height, "
                f"width). Received: image_size={self.image_size!r}"
            )
        size = tuple(int(side) for side in size)
        object.__setattr__(self, "image_size", size)
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if isinstance(value, numbers.Integral) and type(value) is not bool:
                # Keras and JSON do not accept NumPy's integers.
                object.__setattr__(self, field.name, int(value))
        if self.stem_stages is not None:
            object.__setattr__(self, "stem_stages", tuple(self.stem_stages))
        self._check_numbers()
        self._check_sizes()
        pick(GELUS, self.gelu, "gelu")
        pick(POSITION_EMBEDDINGS, self.position_embedding, "position_embedding")
        pick(POOLINGS, self.pooling, "pooling")
        pick(STEM_EPSILONS, self.stem_epsilons, "stem_epsilons")
        if self.pooling == "token" and not self.use_class_token:
            raise ValueError(
                "`pooling='token'` needs the class token. "
                "Received: use_class_token=False"
            )

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
    def grid_size(self) -> tuple[int, int]:
        """Rows and columns of the grid of patches."""
        return tuple(size // self.patch_size for size in self.feature_size)

    def _check_numbers(self):
        for name in ("width", "depth", "mlp_dim", "num_heads", "patch_size"):
            if getattr(self, name) < 1:
                raise ValueError(
                    f"`{name}` must be positive. "
                    f"Received: {name}={getattr(self, name)}"
                )
        for name in (
            "dropout_rate",
            "attention_dropout_rate",
            "stochastic_depth_rate",
        ):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(
                    f"`{name}` must be in [0, 1). "
                    f"Received: {name}={getattr(self, name)}"
                )
        if self.num_classes < 0:
            raise ValueError(
                "`num_classes` must be 0 (no head) or more. "
                f"Received: num_classes={self.num_classes}"
            )
        if self.width % self.num_heads:
            raise ValueError(
                "`num_heads` must divide `width`. Received: "
                f"num_heads={self.num_heads}, width={self.width}"
            )

    def _check_sizes(self):
        if len(self.image_size) != 2 or min(self.image_size) < 1:
            raise ValueError(
                "`image_size` must be one number or (height, width). "
                f"Received: image_size={self.image_size}"
            )
        if any(size % self.patch_size for size in self.feature_size):
            what = "image" if self.stem_stages is None else "feature map"
            raise ValueError(
                f"`patch_size` must divide the {what}, "
                f"{self.feature_size[0]}x{self.feature_size[1]}. Received: "
                f"patch_size={self.patch_size}, image_size={self.image_size}"
            )


def check_fields(choices: dict, renamed: dict[str, str]):
    """Raise a ValueError unless all keyword arguments are fields of ViTConfig.

    Args:
        choices: The keyword arguments, by name.
        renamed: Names that are not accepted, each with the argument to use
            instead.
    """
    fields = [f.name for f in dataclasses.fields(ViTConfig)]
    fields = dict.fromkeys(name for name in fields if name not in renamed)
    for name, value in choices.items():
        if name in renamed:
            raise ValueError(
                f"Use `{renamed[name]}` in place of `{name}`. "
                f"Received: {name}={value!r}"
            )
        pick(fields, name, "keyword argument")
