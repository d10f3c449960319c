"""TransformerBlock: the encoder block."""

import keras
from keras import ops

from keras_vit.arguments import as_number, as_rate, as_whole
from keras_vit.layers import kernels
from keras_vit.layers.attention import MultiHeadSelfAttention
from keras_vit.layers.base import Composite, Layer
from keras_vit.layers.fewer_tokens import (
    count_merged,
    merge_tokens,
    size_bias,
)
from keras_vit.layers.mlp import MlpBlock
from keras_vit.layers.norms import NORMS
from keras_vit.tables import check_name, pick


@keras.saving.register_keras_serializable(package="keras_vit")
class LayerScale(Layer):
    """Multiply each feature by a learned number.

    A block with small factors begins near the identity, so deep models train
    more steadily.

    Shapes:
        tokens: (..., D). returns: the same.

    Args:
        initial_value: The factors of a new layer.

    Example:
        >>> float(layers.LayerScale(initial_value=0.5)(np.ones((1, 3)))[0, 0])
        0.5

    Reference: Touvron et al. 2021, arXiv:2103.17239, section 2.
    """

    def __init__(self, initial_value: float = 1e-5, **kwargs):
        super().__init__(**kwargs)
        self.initial_value = as_number(initial_value, "initial_value")
        self.supports_masking = True

    def build(self, input_shape):
        self.scale = self.add_weight(
            name="scale",
            shape=(input_shape[-1],),
            initializer=keras.initializers.Constant(self.initial_value),
        )

    def call(self, tokens):
        return tokens * ops.cast(self.scale, tokens.dtype)


@keras.saving.register_keras_serializable(package="keras_vit")
class StochasticDepth(Layer):
    """Zero a residual branch for each image with probability `rate`.

    The kept branches are divided by 1 - rate, so inference needs no scaling.

    Shapes:
        residual: (B, ...). returns: the same.

    Args:
        rate: Probability in [0, 1) of dropping the branch.
        seed: Random seed, an integer or None.

    Reference: Huang et al. 2016, arXiv:1603.09382.
    Differs: big_vision's Mixer does not divide by 1 - rate.
    """

    def __init__(self, rate: float, seed: int | None = None, **kwargs):
        super().__init__(**kwargs)
        self.rate = as_rate(rate, "rate")
        self.seed = seed
        self.supports_masking = True
        self.seed_generator = (
            keras.random.SeedGenerator(seed) if rate > 0 else None
        )
        self.built = True

    def call(self, residual, training=None):
        if not training or self.rate == 0:
            return residual
        return keras.random.dropout(
            residual,
            self.rate,
            noise_shape=(None,) + (1,) * (len(residual.shape) - 1),
            seed=self.seed_generator,
        )


NORM_PLACEMENTS = ("before", "after")
# Layers of a block whose branches a LayerScale may end, by the name of the
# choice.
LAYER_SCALE_BRANCHES = {
    "both": ("attention", "mlp"),
    "attention": ("attention",),
}


@keras.saving.register_keras_serializable(package="keras_vit")
class TransformerBlock(Composite):
    """Add self-attention, then an MLP, each applied to normalised tokens.

    z' = z + MSA(LN(z)), z'' = z' + MLP(LN(z')).

    Shapes:
        tokens: (B, T, D).
        mask: (B, T) or (B, T, T), True where a key may be attended to.
        rotation, bias, relative_keys: See `MultiHeadSelfAttention`.
        position_rows: (1, T, D), added to the tokens first.
        sizes: (B, T, 1), how many patches each token stands for. Larger ones
            get more attention, and `merged_tokens` are merged.
        returns: (B, T, D); with `num_queries` (B, S, D); with sizes a pair,
            the tokens that are left and their sizes.

    All results of a block come from its `call`, which has two more arguments
    for reading a model: `change_scores` is called with the attention
    probabilities (B, K, S, T) and returns those that weigh the values;
    `num_queries` is the number S of the first tokens that are computed, from
    the keys and values of all.

    Args:
        num_heads: Number K of attention heads. Must divide D.
        mlp_dim: Hidden size of the MLP.
        dropout_rate: Dropout rate after the attention and in the MLP.
        attention_dropout_rate: Dropout rate of the attention probabilities.
        stochastic_depth_rate: Probability of dropping each branch.
        activation: A key of ACTIVATIONS, see `MlpBlock`.
        layer_norm_epsilon: Added to the variance. Keras' own default is 1e-3.
        use_remat: Whether training keeps only the input of the block and
            computes the rest again in the backward pass.
        norm: The kind of all norms, a key of NORMS.
        norm_placement: "before" as above, or "after": z' = z + LN(MSA(z)),
            z'' = z' + LN(MLP(z')).
        layer_scale_init: Initial factors of a `LayerScale` at the end of each
            branch; None for none.
        layer_scale_branches: A key of LAYER_SCALE_BRANCHES: whether "both"
            branches have one, or the "attention" alone.
        attention_options: Further arguments of `MultiHeadSelfAttention`.
        mlp_options: Further arguments of `MlpBlock`.
        merged_tokens: Number of patches to merge between the attention and the
            MLP, if the sizes of the tokens are given, see `merge_tokens`.
        num_prefix_tokens: Number of tokens before the patches, which are not
            merged.

    Example:
        >>> block = TransformerBlock(num_heads=3, mlp_dim=48)
        >>> tuple(block(np.ones((2, 17, 24))).shape)
        (2, 17, 24)

    Reference: Dosovitskiy et al. 2021, arXiv:2010.11929, eqs. 2 and 3; Bolya
        et al. 2023, arXiv:2210.09461, for merged tokens.
    """

    handed_down = (
        *("num_heads", "mlp_dim", "activation", "layer_norm_epsilon", "norm"),
        *("dropout_rate", "attention_dropout_rate", "stochastic_depth_rate"),
    )

    def __init__(
        self,
        num_heads: int,
        mlp_dim: int,
        dropout_rate: float = 0.0,
        attention_dropout_rate: float = 0.0,
        stochastic_depth_rate: float = 0.0,
        activation: str = "tanh",
        layer_norm_epsilon: float = 1e-6,
        use_remat: bool = False,
        norm: str = "layer",
        norm_placement: str = "before",
        layer_scale_init: float | None = None,
        layer_scale_branches: str = "both",
        attention_options: dict | None = None,
        mlp_options: dict | None = None,
        merged_tokens: int = 0,
        num_prefix_tokens: int = 1,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.num_heads = as_whole(num_heads, "num_heads")
        self.mlp_dim = as_whole(mlp_dim, "mlp_dim")
        self.dropout_rate = as_rate(dropout_rate, "dropout_rate")
        self.attention_dropout_rate = as_rate(
            attention_dropout_rate, "attention_dropout_rate"
        )
        self.stochastic_depth_rate = as_rate(
            stochastic_depth_rate, "stochastic_depth_rate"
        )
        self.activation = activation
        self.layer_norm_epsilon = epsilon = layer_norm_epsilon
        self.use_remat = use_remat
        self.norm = norm
        check_name(NORM_PLACEMENTS, norm_placement, "norm_placement")
        self.norm_placement = norm_placement
        self.layer_scale_init = layer_scale_init
        scaled = pick(
            LAYER_SCALE_BRANCHES, layer_scale_branches, "layer_scale_branches"
        )
        self.layer_scale_branches = layer_scale_branches
        self.attention_options = dict(attention_options or {})
        self.mlp_options = dict(mlp_options or {})
        self.merged_tokens = as_whole(merged_tokens, "merged_tokens", least=0)
        self.num_prefix_tokens = as_whole(
            num_prefix_tokens, "num_prefix_tokens", least=0
        )
        # In the order of the weights of saved models.
        norm_class = pick(NORMS, norm, "norm")
        self.attention_norm = self.inner(norm_class, "attention_norm", epsilon)
        self.attention = self.inner(
            MultiHeadSelfAttention,
            "attention",
            num_heads,
            attention_dropout_rate,
            **{"norm_epsilon": epsilon, **self.attention_options},
        )
        self.attention_scale = self.mlp_scale = None
        if layer_scale_init is not None:
            name = "attention_scale"
            self.attention_scale = self.inner(
                LayerScale, name, layer_scale_init
            )
        self.dropout = self.inner(keras.layers.Dropout, "dropout", dropout_rate)
        self.mlp_norm = self.inner(norm_class, "mlp_norm", epsilon)
        self.mlp = self.inner(
            MlpBlock,
            "mlp",
            mlp_dim,
            dropout_rate,
            activation,
            **{"norm_epsilon": epsilon, **self.mlp_options},
        )
        if layer_scale_init is not None and "mlp" in scaled:
            self.mlp_scale = self.inner(
                LayerScale, "mlp_scale", layer_scale_init
            )
        self.stochastic_depth = self.inner(
            StochasticDepth, "stochastic_depth", stochastic_depth_rate
        )

    def build(self, input_shape):
        for layer in (
            *(self.attention_norm, self.attention, self.attention_scale),
            *(self.mlp_norm, self.mlp, self.mlp_scale),
        ):
            if layer is not None:
                layer.build(input_shape)
        self.input_spec = keras.InputSpec(ndim=3, axes={-1: input_shape[-1]})

    def call(
        self,
        tokens,
        mask=None,
        rotation=None,
        bias=None,
        relative_keys=None,
        position_rows=None,
        sizes=None,
        training=None,
        change_scores=None,
        num_queries=None,
    ):
        tensors = {
            "rotation": rotation,
            "bias": bias,
            "relative_keys": relative_keys,
            "position_rows": position_rows,
            "sizes": sizes,
        }
        tensors = {key: x for key, x in tensors.items() if x is not None}
        options = {
            "training": training,
            "change_scores": change_scores,
            "num_queries": num_queries,
        }
        if self.use_remat and training and not kernels.is_rematerializing():

            def run(tokens, *values):
                inputs = dict(zip(tensors, values))
                return self.call(tokens, mask, **inputs, **options)

            return kernels.rematerialize(self, run, tokens, *tensors.values())
        if position_rows is not None:
            tokens = tokens + tensors.pop("position_rows")
        keys = []
        if sizes is not None:
            shift = size_bias(tensors.pop("sizes"))  # (B, 1, 1, T)
            tensors["bias"] = shift if bias is None else bias + shift
            options["note_keys"] = keys.append

        def add(tokens, branch, *layers):
            for layer in layers:
                if layer is self.dropout:
                    branch = kernels.call(layer, branch, training=training)
                elif layer is not None:
                    branch = kernels.call(layer, branch)
            depth = self.stochastic_depth
            return tokens + kernels.call(depth, branch, training=training)

        is_before = self.norm_placement == "before"
        norm = self.attention_norm
        # No variable holds the attended tokens: the MLP can reuse their memory.
        tokens = add(
            tokens if num_queries is None else tokens[:, :num_queries],
            kernels.call(
                self.attention,
                kernels.call(norm, tokens) if is_before else tokens,
                mask=mask,
                **tensors,
                **options,
            ),
            *(None if is_before else norm, self.dropout, self.attention_scale),
        )
        is_merged = sizes is not None and num_queries is None
        if is_merged:
            length, width = ops.shape(tokens)[1:]
            heads = (-1, length, self.num_heads, width // self.num_heads)
            means = ops.mean(kernels.reshape(keys[0], heads), axis=2)
            tokens, sizes = merge_tokens(
                *(tokens, sizes, means),
                *(self.merged_tokens, self.num_prefix_tokens),
            )
        norm = self.mlp_norm
        tokens = add(
            tokens,
            kernels.call(
                self.mlp,
                kernels.call(norm, tokens) if is_before else tokens,
                training=training,
            ),
            *(None if is_before else norm, self.mlp_scale),
        )
        return (tokens, sizes) if is_merged else tokens

    def compute_output_shape(self, tokens_shape, sizes_shape=None):
        batch, length, width = tokens_shape
        if sizes_shape is None:
            return tuple(tokens_shape)
        length -= count_merged(
            length, self.merged_tokens, self.num_prefix_tokens
        )
        return (batch, length, width), (batch, length, 1)

    # A mask of pairs of tokens ends here.
    compute_mask = MultiHeadSelfAttention.compute_mask
