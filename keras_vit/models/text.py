"""TextTransformer: the text towers of CLIP, MetaCLIP 2, SigLIP and SigLIP 2.

They share their blocks with the VisionTransformer.
"""

import dataclasses

import keras
from keras import ops

from keras_vit.arguments import as_whole
from keras_vit.layers.base import (
    InnerLayers,
    Layer,
    nested_dtype_policy,
    wide_policy_at,
)
from keras_vit.layers.block import TransformerBlock
from keras_vit.layers.mlp import ACTIVATIONS
from keras_vit.layers.norms import LayerNorm
from keras_vit.models.config import settle_fields
from keras_vit.tables import check_name

# How the vector of a text is read from those of its tokens: that of the first
# or of the last token, of the token with the largest number, by which OpenAI's
# CLIP finds the end of a text, or of the first end token. Without an end token,
# the last reads the first token, as transformers and OpenCLIP do.
TEXT_POOLINGS = dict.fromkeys(("first", "last", "largest", "end"))


@dataclasses.dataclass(frozen=True)
class TextConfig:
    """The configuration of a TextTransformer.

    Args:
        vocabulary_size: Number of tokens that there are.
        context_length: Largest number L of tokens in a text.
        width: Size of a token.
        depth: Number of Transformer blocks.
        mlp_dim: Hidden size of the MLP of a block.
        num_heads: Number of attention heads. Must divide `width`.
        output_size: Size D of the projection at the end; None for none.
        use_output_bias: Whether it has a bias.
        use_causal_mask: Whether a token attends to no later one.
        pooling: A key of TEXT_POOLINGS.
        end_token: Number of the token that ends a text, for the pooling "end".
        activation: A key of ACTIVATIONS.
        layer_norm_epsilon: Added to the variance of every norm.
        layer_scale_init: As in `ViTConfig`.
        logit_scale: Factor of the cosine of an image and a text that makes it
            a logit, see `keras_vit.zero_shot`; None if it is not known.
        logit_bias: Added to it, in a model that was trained with a sigmoid for
            each pair; None in one with a softmax.

    Raises:
        ValueError: If a value is invalid or two values contradict each other.
    """

    vocabulary_size: int
    context_length: int
    width: int
    depth: int
    mlp_dim: int
    num_heads: int
    output_size: int | None = None
    use_output_bias: bool = False
    use_causal_mask: bool = True
    pooling: str = "end"
    end_token: int | None = None
    activation: str = "exact"
    layer_norm_epsilon: float = 1e-5
    layer_scale_init: float | None = None
    logit_scale: float | None = None
    logit_bias: float | None = None

    def __post_init__(self):
        settle_fields(self)
        for field in dataclasses.fields(self):
            name, value = field.name, getattr(self, field.name)
            if field.type in (int, int | None) and value is not None:
                as_whole(value, name, int(name != "end_token"))
        check_name(ACTIVATIONS, self.activation, "activation")
        check_name(TEXT_POOLINGS, self.pooling, "pooling")
        if self.width % self.num_heads:
            raise ValueError(
                "`num_heads` must divide `width`. Received: "
                f"num_heads={self.num_heads}, width={self.width}"
            )
        if self.pooling == "end" and self.end_token is None:
            raise ValueError(
                "`end_token` must be given with pooling='end'. Received: None"
            )

    @property
    def embedding_size(self) -> int:
        """Size D of the vector of a text."""
        return self.output_size or self.width


@keras.saving.register_keras_serializable(package="keras_vit")
class TextPositions(Layer):
    """Add a learned position embedding to the tokens of a text.

    Shapes:
        tokens: (B, T, D) with T <= L. returns: the same.

    Args:
        context_length: Number L of positions.

    Raises:
        ValueError: If a text has more tokens.
    """

    def __init__(self, context_length: int, **kwargs):
        super().__init__(**kwargs)
        self.context_length = as_whole(context_length, "context_length")

    def build(self, input_shape):
        self.embedding = self.add_weight(
            name="embedding",
            shape=(self.context_length, input_shape[-1]),
            initializer=keras.initializers.RandomNormal(stddev=0.01),
        )

    def call(self, tokens):
        length = tokens.shape[1]
        if length is not None and length > self.context_length:
            raise ValueError(
                f"`tokens` must be {self.context_length} or fewer for each "
                f"text. Received: {length}"
            )
        rows = self.embedding[: ops.shape(tokens)[1]]
        return tokens + ops.cast(rows, tokens.dtype)


@keras.saving.register_keras_serializable(package="keras_vit")
class CausalMask(Layer):
    """Return the mask with which no token attends to a later one.

    Shapes:
        tokens: (B, T, D). returns: (1, T, T), True where row i may attend to
            column j.
    """

    def call(self, tokens):
        places = ops.arange(ops.shape(tokens)[1])
        return (places[:, None] >= places)[None]

    def compute_output_spec(self, tokens):
        length = tokens.shape[1]
        return keras.KerasTensor((1, length, length), "bool")


@keras.saving.register_keras_serializable(package="keras_vit")
class TextPooling(Layer):
    """Read the vector of one token of each text.

    Shapes:
        tokens: (B, T, D). numbers: (B, T), the numbers of the tokens.
        returns: (B, D).

    Args:
        pooling: A key of TEXT_POOLINGS.
        end_token: See `TextConfig`.
    """

    def __init__(self, pooling: str, end_token: int | None = None, **kwargs):
        super().__init__(**kwargs)
        check_name(TEXT_POOLINGS, pooling, "pooling")
        self.pooling = pooling
        self.end_token = end_token

    def build(self, tokens_shape, numbers_shape=None):
        self.built = True

    def call(self, tokens, numbers):
        if self.pooling in ("first", "last"):
            return tokens[:, 0 if self.pooling == "first" else -1]
        if self.pooling == "end":
            numbers = ops.cast(ops.equal(numbers, self.end_token), "int32")
        places = ops.argmax(numbers, axis=-1)  # The first of equal ones.
        return ops.take_along_axis(tokens, places[:, None, None], axis=1)[:, 0]

    def compute_output_shape(self, tokens_shape, numbers_shape=None):
        return tokens_shape[0], tokens_shape[-1]


@keras.saving.register_keras_serializable(package="keras_vit")
class TextTransformer(keras.Model):
    """The text tower of a model of images and texts.

    Every step is a named layer, as in `VisionTransformer`: `token_embedding`,
    `positions`, `block_00`, ..., `final_norm`, `pooling`, `projection`. What
    makes tokens of a text is `keras_vit.tokenization.Tokenizer`.

    Shapes:
        tokens: (B, T), whole numbers, with T <= L.
        returns: (B, D), not normalised.

    Args:
        config: The configuration of the model.
        dtype: Dtype policy of the layers; None for Keras' global policy. Under
            mixed precision, the projection returns float32.
        name: Name of the model.
        trainable: Whether the weights are trained.

    Example:
        >>> config = models.TextConfig(
        ...     vocabulary_size=50, context_length=8, width=24, depth=2,
        ...     mlp_dim=48, num_heads=3, output_size=16, end_token=49,
        ... )
        >>> model = models.TextTransformer(config)
        >>> tuple(model(np.array([[7, 2, 49]])).shape)
        (1, 16)

    Reference: Radford et al. 2021, arXiv:2103.00020, section 2.4; Zhai et al.
        2023, arXiv:2303.15343.
    """

    def __init__(
        self,
        config: TextConfig,
        dtype=None,
        name: str = "text_transformer",
        trainable: bool = True,
    ):
        policy = keras.dtype_policies.get(dtype)
        tokens = keras.Input((None,), dtype="int32", name="tokens")
        super().__init__(
            inputs=tokens,
            outputs=_connect_layers(config, tokens, policy),
            name=name,
            trainable=trainable,
        )
        self.dtype_policy = policy
        self.config = config

    def get_config(self):
        return {
            "config": dataclasses.asdict(self.config),
            "dtype": nested_dtype_policy(self),
            "name": self.name,
            "trainable": self.trainable,
        }

    @classmethod
    def from_config(cls, config, custom_objects=None):
        return cls(**{**config, "config": TextConfig(**config["config"])})


def _connect_layers(config, tokens, policy):
    """Return the output of a new model of `config` for tokens (B, T)."""
    inner, epsilon = InnerLayers(policy), config.layer_norm_epsilon
    x = inner(
        keras.layers.Embedding,
        "token_embedding",
        config.vocabulary_size,
        config.width,
        embeddings_initializer=keras.initializers.RandomNormal(stddev=0.02),
    )(tokens)  # (B, T, width)
    x = inner(TextPositions, "positions", config.context_length)(x)
    mask = inner(CausalMask, "mask")(x) if config.use_causal_mask else None
    for index in range(config.depth):
        block = inner(
            TransformerBlock,
            f"block_{index:02d}",
            config.num_heads,
            config.mlp_dim,
            activation=config.activation,
            layer_norm_epsilon=epsilon,
            layer_scale_init=config.layer_scale_init,
        )
        x = block(x) if mask is None else block(x, mask=mask)
    x = inner(LayerNorm, "final_norm", epsilon)(x)
    pooling = inner(TextPooling, "pooling", config.pooling, config.end_token)
    x = pooling(x, tokens)  # (B, width)
    if not config.output_size:
        return x
    return inner(
        keras.layers.Dense,
        "projection",
        config.output_size,
        use_bias=config.use_output_bias,
        dtype=wide_policy_at(policy, "projection"),
    )(x)
