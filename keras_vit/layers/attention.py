"""MultiHeadSelfAttention, and `attend`, the same without weights."""

import math
from collections.abc import Callable

import keras
from keras import ops

from keras_vit.arguments import as_rate, as_whole
from keras_vit.layers import kernels
from keras_vit.layers.base import Composite, wide
from keras_vit.layers.norms import NORMS
from keras_vit.layers.rotary import rotate_pairs
from keras_vit.tables import check_name, pick

# The parts of a token that get a bias, by the name of the choice.
QKV_BIASES = {
    "all": ("query", "key", "value"),
    "query_value": ("query", "value"),
    "none": (),
}
# The features over which queries and keys are normalised: none, those of each
# head, or all.
QK_NORMS = ("none", "head", "width")


def attend(
    query, key, value, *, num_heads, mask=None, bias=None, training=False
):
    """Return scaled dot-product attention in several heads.

    softmax(query key^T / sqrt(D / K) + bias) value, for each of K slices of D.
    Uses the fused kernel of the backend if there is one, else two products.
    `keras.config.disable_flash_attention()` turns these kernels off.

    Shapes:
        query: (B, S, D). key, value: (B, T, D).
        mask: (B, T) or (B, S, T), True where a key may be attended to. If no
            key is allowed, the attention is uniform.
        bias: (1, K, S, T) or (B, 1, 1, T).
        returns: (B, S, D).

    Args:
        query: Projected tokens that attend to the others.
        key: Projected tokens that the queries are compared with.
        value: Projected tokens that are averaged.
        num_heads: Number K of heads.
        mask: See above; None attends to all keys.
        bias: Added to the scaled products; None for none.
        training: Whether a gradient will be computed.
    """
    if keras.config.is_flash_attention_enabled() is not False:
        in_heads = mask if mask is None else _for_heads(mask)
        x = kernels.attend(query, key, value, num_heads, in_heads, bias)
        if x is not None:
            return x
    options = {"mask": mask, "bias": bias, "training": training}
    x, _ = attend_by_products(query, key, value, num_heads=num_heads, **options)
    return x


def attend_by_products(
    query,
    key,
    value,
    *,
    num_heads,
    mask=None,
    bias=None,
    change_scores: Callable | None = None,
    training=False,
):
    """Return `attend(...)` and the attention probabilities (B, K, S, T).

    `change_scores` maps these probabilities to those that weigh the values.
    Those returned are the original ones.
    """
    width = query.shape[-1]
    size = width // num_heads
    query = query * size**-0.5
    query, key, value = (
        kernels.reshape(x, (-1, ops.shape(x)[1], num_heads, size))
        for x in (query, key, value)
    )
    query = ops.transpose(query, (0, 2, 1, 3))  # (B, K, S, D/K)
    key = ops.transpose(key, (0, 2, 3, 1))  # (B, K, D/K, T)
    value = ops.transpose(value, (0, 2, 1, 3))  # (B, K, T, D/K)
    dtype = keras.backend.standardize_dtype(query.dtype)
    kind = wide(dtype)
    logits = ops.cast(ops.matmul(query, key), kind)  # (B, K, S, T)
    if dtype == "float16":
        # Products above 65504 overflow to infinity, whose softmax is nan.
        logits = ops.clip(logits, -65504.0, 65504.0)
    if bias is not None:
        logits = logits + ops.cast(bias, kind)
    if mask is not None:
        logits = ops.where(_for_heads(mask), logits, -1e9)
    if training:
        scores = kernels.softmax(_softmax, _pull_back, logits, dtype)
    else:
        scores = _softmax(logits, dtype)
    weights = scores if change_scores is None else change_scores(scores)
    x = ops.matmul(weights, value)  # (B, K, S, D/K)
    x = ops.transpose(x, (0, 2, 1, 3))  # (B, S, K, D/K)
    return kernels.reshape(x, (-1, ops.shape(x)[1], width)), scores


def _softmax(logits, dtype):
    return ops.cast(ops.softmax(logits, axis=-1), dtype)


def _pull_back(scores, upstream):
    """Return the gradient of the logits for the softmax and its gradient."""
    kind = wide(scores.dtype)
    scores = ops.cast(scores, kind)
    products = scores * ops.cast(upstream, kind)
    mean = ops.sum(products, axis=-1, keepdims=True)
    return products - mean * scores


def projection(layer, name: str, width: int, count: int, use_bias=True):
    """Return one Dense layer, inside of a layer of heads, of projections.

    Each of them is initialised Glorot-uniform by itself, with the limit of a
    (D, D) matrix. Keras would compute the limit of the fused (D, count * D)
    kernel, which is too small.
    """
    if width % layer.num_heads:
        raise ValueError(
            "`num_heads` must divide the width of the tokens. "
            f"Received: num_heads={layer.num_heads}, width={width}"
        )
    limit = math.sqrt(6 / (width + width))
    dense = layer.inner(
        keras.layers.Dense,
        name,
        count * width,
        use_bias=use_bias,
        kernel_initializer=keras.initializers.RandomUniform(-limit, limit),
    )
    dense.build((None, width))
    return dense


def _for_heads(mask):
    """Return a mask (B, T) or (B, S, T) as (B, 1, 1 or S, T)."""
    mask = ops.cast(mask, "bool")
    return mask[:, None, None] if len(mask.shape) == 2 else mask[:, None]


@keras.saving.register_keras_serializable(package="keras_vit")
class MultiHeadSelfAttention(Composite):
    """Let every token attend to every token, in several heads.

    One matrix product computes queries, keys and values. The softmax is
    computed in float32 with every compute dtype. To get the attention
    probabilities, call `keras_vit.models.features.run_with_scores`.

    Shapes:
        tokens: (B, T, D).
        mask: (B, T) or (B, T, T), True where a key may be attended to.
        rotation: (2, T, 1, E) or (2, T, K, E), see `RotaryPositions`.
        bias: (1, K, T, T) or (B, 1, 1, T), added to the scaled products.
        relative_keys: (T, T, E), see `RelativePositionKeys`.
        returns: (B, T, D); with `num_queries` (B, S, D).

    `call` has three more arguments: `change_scores` and `num_queries`, see
    `TransformerBlock`, and `note_keys`, a function that is called with the
    keys (B, T, D).

    Args:
        num_heads: Number K of heads. Must divide D.
        dropout_rate: Dropout rate of the attention probabilities.
        qkv_bias: A key of QKV_BIASES: "all", "query_value" or "none".
        use_out_bias: Whether the last projection has a bias.
        qk_norm: "none", or whether to normalise queries and keys in each
            "head" or over the "width".
        use_inner_norm: Whether a norm precedes the last projection.
        norm: The kind of these norms, a key of NORMS.
        norm_epsilon: Their epsilon.
        rotary_pairs: A key of PAIRS: the features that a rotation pairs.

    Raises:
        ValueError: If `num_heads` does not divide the width D.

    Example:
        >>> layer = MultiHeadSelfAttention(num_heads=3)
        >>> tuple(layer(np.ones((2, 5, 24))).shape)
        (2, 5, 24)

    Reference: Dosovitskiy et al. 2021, arXiv:2010.11929, appendix A.
    """

    handed_down = ("dropout_rate", "norm", "norm_epsilon")

    def __init__(
        self,
        num_heads: int,
        dropout_rate: float = 0.0,
        qkv_bias: str = "all",
        use_out_bias: bool = True,
        qk_norm: str = "none",
        use_inner_norm: bool = False,
        norm: str = "layer",
        norm_epsilon: float = 1e-6,
        rotary_pairs: str = "halves",
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.num_heads = as_whole(num_heads, "num_heads")
        self.dropout_rate = as_rate(dropout_rate, "dropout_rate")
        check_name(QKV_BIASES, qkv_bias, "qkv_bias")
        check_name(QK_NORMS, qk_norm, "qk_norm")
        self.qkv_bias = qkv_bias
        self.use_out_bias = use_out_bias
        self.qk_norm = qk_norm
        self.use_inner_norm = use_inner_norm
        self.norm = norm
        self.norm_epsilon = norm_epsilon
        self.rotary_pairs = rotary_pairs
        self.dropout = self.inner(keras.layers.Dropout, "dropout", dropout_rate)
        # In the order of the weights of saved models.
        has_norms = qk_norm != "none"
        self.inner_norm, self.query_norm, self.key_norm = (
            self.inner(pick(NORMS, norm, "norm"), name, norm_epsilon)
            if is_used
            else None
            for name, is_used in (
                ("inner_norm", use_inner_norm),
                ("query_norm", has_norms),
                ("key_norm", has_norms),
            )
        )

    def build(self, input_shape):
        width = input_shape[-1]
        self.qkv = projection(self, "qkv", width, 3, self.qkv_bias == "all")
        self.out = projection(self, "out", width, 1, self.use_out_bias)
        if self.qkv_bias == "query_value":
            self.query_bias, self.value_bias = (
                self.add_weight(
                    name=f"{name}_bias", shape=(width,), initializer="zeros"
                )
                for name in QKV_BIASES["query_value"]
            )
        if self.query_norm:
            size = width // self.num_heads if self.qk_norm == "head" else width
            self.query_norm.build((None, size))
            self.key_norm.build((None, size))
        if self.inner_norm:
            self.inner_norm.build((None, None, width))
        self.input_spec = keras.InputSpec(ndim=3, axes={-1: width})

    def call(
        self,
        tokens,
        mask=None,
        rotation=None,
        bias=None,
        relative_keys=None,
        training=None,
        change_scores=None,
        num_queries=None,
        note_keys=None,
    ):
        length, width = ops.shape(tokens)[1:]
        flat = kernels.reshape(tokens, (-1, width))
        qkv = kernels.dense(self.qkv, flat)  # (B*T, 3D)
        if self.qkv_bias == "query_value":
            # A key bias would add the same to all products of a query.
            query_bias = ops.cast(self.query_bias, qkv.dtype)
            value_bias = ops.cast(self.value_bias, qkv.dtype)
            biases = (query_bias, ops.zeros_like(query_bias), value_bias)
            qkv = qkv + ops.concatenate(biases)
        qkv = kernels.reshape(qkv, (-1, length, 3 * width))  # (B, T, 3D)
        query, key, value = ops.split(qkv, 3, axis=-1)  # (B, T, D) each
        query = self._place(query, self.query_norm, rotation)
        key = self._place(key, self.key_norm, rotation)
        if note_keys is not None:
            note_keys(key)
        if relative_keys is not None:
            size = width // self.num_heads
            heads = kernels.reshape(query, (-1, length, self.num_heads, size))
            products = ops.einsum("btke,tse->bkts", heads, relative_keys)
            products = products * size**-0.5  # As the products with the keys.
            bias = products if bias is None else products + bias
        if num_queries is not None:
            query = query[:, :num_queries]
            bias = bias if bias is None else bias[:, :, :num_queries]
            if mask is not None and len(mask.shape) == 3:
                mask = mask[:, :num_queries]
        if training and self.dropout.rate:
            change_scores = self._with_dropout(change_scores)
        options = {"num_heads": self.num_heads, "mask": mask, "bias": bias}
        options["training"] = training
        if change_scores is None:
            x = attend(query, key, value, **options)
        else:
            options["change_scores"] = change_scores
            x, _ = attend_by_products(query, key, value, **options)
        if self.inner_norm:
            x = kernels.call(self.inner_norm, x)
        length = ops.shape(x)[1]
        x = kernels.reshape(x, (-1, width))  # (B*S, D)
        x = kernels.dense(self.out, x)
        return kernels.reshape(x, (-1, length, width))  # (B, S, D)

    def _with_dropout(self, change_scores):
        """Return a function that changes the scores and drops some."""

        def change(scores):
            if change_scores is not None:
                scores = change_scores(scores)
            return self.dropout(scores, training=True)

        return change

    def _place(self, x, norm, rotation):
        """Return queries or keys (B, T, D) after their norm and rotation."""
        if norm and self.qk_norm == "width":
            x = kernels.call(norm, x)
        in_heads = norm and self.qk_norm == "head"
        if not in_heads and rotation is None:
            return x
        length, width = ops.shape(x)[1:]
        heads = (-1, length, self.num_heads, width // self.num_heads)
        x = kernels.reshape(x, heads)  # (B, T, K, E)
        if in_heads:
            x = kernels.call(norm, x)
        if rotation is not None:
            x = rotate_pairs(x, rotation, self.rotary_pairs)
        return kernels.reshape(x, (-1, length, width))  # (B, T, D)

    def compute_mask(self, tokens, mask=None):
        return mask if mask is not None and len(mask.shape) == 2 else None
