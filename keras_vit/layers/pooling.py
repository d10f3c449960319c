"""Poolings, which turn the tokens of an image into one vector."""

import keras
from keras import ops

from keras_vit.arguments import as_number, as_whole
from keras_vit.layers import kernels
from keras_vit.layers.attention import attend, projection
from keras_vit.layers.base import Composite, wide
from keras_vit.layers.fewer_tokens import size_bias
from keras_vit.layers.mlp import MlpBlock
from keras_vit.layers.norms import LayerNorm


class PoolingLayer(Composite):
    """Turn the tokens of an image into one vector.

    The class attribute `needs` lists the fields of ViTConfig that the
    constructor takes, and `head_class` is the layer of the classifier, with
    the arguments of `DistilledHead`; None for a dense layer. `read_tokens` are
    the places of the tokens before the patches that are read, if the patches
    are not; `reads_first_alone` states whether the first token is all that is
    read. `needed_token` is the token, "class" or "distillation", without which
    no model has the pooling. `weighs_tokens` states whether `call` takes the
    sizes (B, T, 1) of merged tokens, as `sizes`.

    Shapes:
        tokens: (B, T, D).
        mask: (B, T), True for the tokens to pool; None for all tokens.
        returns: (B, D), unless the layer states another size.
    """

    needs = ()
    head_class = None
    read_tokens = ()
    reads_first_alone = False
    weighs_tokens = False
    needed_token = None

    def compute_mask(self, tokens, mask=None):
        return None

    def compute_output_shape(self, input_shape):
        return (input_shape[0], input_shape[-1])


@keras.saving.register_keras_serializable(package="keras_vit")
class ProbePooling(PoolingLayer):
    """Let a learned query attend to all tokens.

    Unlike in `AttentionPooling`, the query is not projected, keys and values
    have no biases, and no MLP follows.

    Args:
        num_heads: Number of attention heads. Must divide D.

    Reference: Fini et al. 2024, arXiv:2411.14402 (AIMv2); Hugging Face's
        Aimv2AttentionPoolingHead.
    """

    needs = ("num_heads",)
    weighs_tokens = True
    projects_query = False
    uses_key_value_bias = False

    def __init__(self, num_heads: int, **kwargs):
        super().__init__(**kwargs)
        self.num_heads = as_whole(num_heads, "num_heads")

    def build(self, input_shape):
        width = input_shape[-1]
        self.probe = self.add_weight(
            name="probe", shape=(1, width), initializer="glorot_uniform"
        )
        if self.projects_query:
            self.query = projection(self, "query", width, 1)
        use_bias = self.uses_key_value_bias
        self.key_value = projection(self, "key_value", width, 2, use_bias)
        self.out = projection(self, "out", width, 1)
        self.input_spec = keras.InputSpec(ndim=3, axes={-1: width})

    def call(self, tokens, mask=None, sizes=None):
        length, width = ops.shape(tokens)[1:]
        query = ops.cast(self.probe, self.compute_dtype)
        query = (self.query(query) if self.projects_query else query)[None]
        key_value = self.key_value(kernels.reshape(tokens, (-1, width)))
        key_value = kernels.reshape(key_value, (-1, length, 2 * width))
        key, value = ops.split(key_value, 2, axis=-1)
        options = {"num_heads": self.num_heads, "mask": mask}
        if sizes is not None:
            options["bias"] = size_bias(sizes)
        x = attend(query, key, value, **options)
        return self.out(kernels.reshape(x, (-1, width)))  # (B, D)


@keras.saving.register_keras_serializable(package="keras_vit")
class AttentionPooling(ProbePooling):
    """Let a learned probe attend to all tokens, then add an MLP (MAP head).

    z = MHA(probe, tokens, tokens), returns z + MLP(LN(z)).

    Args:
        num_heads: Number of attention heads. Must divide D.
        mlp_dim: Hidden size of the MLP.
        activation: A key of ACTIVATIONS, see `MlpBlock`.
        layer_norm_epsilon: Added to the variance.

    Reference: Zhai et al. 2022, arXiv:2106.04560, section 3.2; Lee et al.
        2019, arXiv:1810.00825; big_vision's MAPHead.
    """

    needs = ("num_heads", "mlp_dim", "activation", "layer_norm_epsilon")
    projects_query = True
    uses_key_value_bias = True

    def __init__(
        self,
        num_heads: int,
        mlp_dim: int,
        activation: str = "tanh",
        layer_norm_epsilon: float = 1e-6,
        **kwargs,
    ):
        super().__init__(num_heads, **kwargs)
        self.mlp_dim = as_whole(mlp_dim, "mlp_dim")
        self.activation = activation
        self.layer_norm_epsilon = layer_norm_epsilon
        self.norm = self.inner(LayerNorm, "norm", layer_norm_epsilon)
        self.mlp = self.inner(MlpBlock, "mlp", mlp_dim, activation=activation)

    def build(self, input_shape):
        super().build(input_shape)
        self.norm.build((None, 1, input_shape[-1]))
        self.mlp.build((None, 1, input_shape[-1]))

    def call(self, tokens, mask=None, sizes=None):
        x = super().call(tokens, mask, sizes)
        residual = self.mlp(self.norm(x)[:, None])  # (B, 1, D)
        return x + kernels.reshape(residual, (-1, x.shape[-1]))


@keras.saving.register_keras_serializable(package="keras_vit")
class DistilledHead(Composite):
    """Average the logits of two classifiers, each of its own token.

    `class_head` is trained to predict the label of an image, and
    `teacher_head` the class that a teacher predicts.

    Shapes:
        tokens: (B, 2, D), the class token and the distillation token.
        returns: (B, num_classes).

    Args:
        num_classes: Number of classes.
        activation: Applied to the average; None for logits.
        head_bias: Initial bias of both classifiers.

    Example:
        >>> tuple(DistilledHead(num_classes=5)(np.ones((3, 2, 24))).shape)
        (3, 5)

    Reference: Touvron et al. 2021, arXiv:2012.12877, section 4.
    """

    def __init__(
        self,
        num_classes: int,
        activation: str | None = None,
        head_bias: float = 0.0,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.num_classes = as_whole(num_classes, "num_classes")
        self.activation = keras.activations.get(activation)
        self.head_bias = as_number(head_bias, "head_bias")

    def build(self, input_shape):
        bias = keras.initializers.Constant(self.head_bias)
        options = {"kernel_initializer": "zeros", "bias_initializer": bias}
        self.class_head, self.teacher_head = (
            self.inner(keras.layers.Dense, name, self.num_classes, **options)
            for name in ("class_head", "teacher_head")
        )
        self.class_head.build((None, input_shape[-1]))
        self.teacher_head.build((None, input_shape[-1]))

    def call(self, tokens):
        by_class, by_teacher = self.both_logits(tokens)
        return self.activation((by_class + by_teacher) / 2)

    def both_logits(self, tokens) -> tuple:
        """Return the logits (B, num_classes) of each classifier."""
        # See `TokenPooling` on the slices.
        parts = (tokens[:, :1], tokens[:, 1:])
        by_class, by_teacher = (
            kernels.reshape(part, (-1, tokens.shape[-1])) for part in parts
        )
        return self.class_head(by_class), self.teacher_head(by_teacher)

    def compute_output_shape(self, input_shape):
        return (input_shape[0], self.num_classes)

    def get_config(self):
        activation = keras.activations.serialize(self.activation)
        return {**super().get_config(), "activation": activation}


@keras.saving.register_keras_serializable(package="keras_vit")
class TokenPooling(PoolingLayer):
    """Take the class token; a mask has no effect.

    Reference: Dosovitskiy et al. 2021, arXiv:2010.11929, eq. 4.
    """

    read_tokens = (0,)
    reads_first_alone = True
    needed_token = "class"

    def call(self, tokens, mask=None):
        # TFLite delegates run a slice and a reshape, but not the strided
        # slice of `tokens[:, 0]`.
        return kernels.reshape(tokens[:, :1], (-1, tokens.shape[-1]))


class PatchPooling(PoolingLayer):
    """Reduce the patch tokens to one vector; prefix tokens are ignored.

    Args:
        num_prefix_tokens: Number of tokens before the patches, 1 with a class
            token.
    """

    needs = ("num_prefix_tokens",)

    def __init__(self, num_prefix_tokens: int = 0, **kwargs):
        super().__init__(**kwargs)
        self.num_prefix_tokens = as_whole(
            num_prefix_tokens, "num_prefix_tokens", least=0
        )

    def call(self, tokens, mask=None, sizes=None):
        parts = (tokens, mask, sizes)
        count = self.num_prefix_tokens
        return self.pool(*(x if x is None else x[:, count:] for x in parts))

    def pool(self, tokens, mask, sizes):
        """Return (B, D) from what `call` takes, of the patches alone."""
        raise NotImplementedError


@keras.saving.register_keras_serializable(package="keras_vit")
class PatchAttentionPooling(PatchPooling, AttentionPooling):
    """Pool as `AttentionPooling` does, but only the patches.

    Reference: timm's AttentionPoolLatent, with `pool_include_prefix=False`.
    """

    needs = ("num_prefix_tokens", *AttentionPooling.needs)

    def pool(self, tokens, mask, sizes):
        return AttentionPooling.call(self, tokens, mask, sizes)


@keras.saving.register_keras_serializable(package="keras_vit")
class AveragePooling(PatchPooling):
    """Average the patch tokens in float32, as `gap` of the official code."""

    weighs_tokens = True

    def pool(self, tokens, mask, sizes):
        x = ops.cast(tokens, wide(tokens.dtype))
        if mask is None and sizes is None:
            return ops.cast(ops.mean(x, axis=1), tokens.dtype)
        counts = 1 if sizes is None else ops.cast(sizes, x.dtype)
        if mask is not None:
            counts = counts * ops.cast(mask, x.dtype)[..., None]
        total = ops.maximum(ops.sum(counts, axis=1), 1)
        return ops.cast(ops.sum(x * counts, axis=1) / total, tokens.dtype)


@keras.saving.register_keras_serializable(package="keras_vit")
class MaxPooling(PatchPooling):
    """Take the largest value of each feature over the patch tokens."""

    def pool(self, tokens, mask, sizes):
        if mask is not None:
            # The lowest finite number of float16 keeps the result finite.
            mask = ops.cast(mask, "bool")[..., None]
            tokens = ops.where(mask, tokens, -65504.0)
        return ops.max(tokens, axis=1)


@keras.saving.register_keras_serializable(package="keras_vit")
class TokenAndAveragePooling(AveragePooling):
    """Join the class token and the average of the patch tokens.

    Shapes:
        tokens: (B, T, D). returns: (B, 2D); the class token comes first.

    Reference: Oquab et al. 2023, arXiv:2304.07193, section 7; Hugging Face's
        Dinov2ForImageClassification.
    """

    read_tokens = (0,)  # Analyses follow the class token alone.
    needed_token = "class"

    def call(self, tokens, mask=None, sizes=None):
        token = kernels.reshape(tokens[:, :1], (-1, tokens.shape[-1]))
        average = super().call(tokens, mask, sizes)
        return ops.concatenate([token, average], axis=-1)

    def compute_output_shape(self, input_shape):
        return (input_shape[0], 2 * input_shape[-1])


@keras.saving.register_keras_serializable(package="keras_vit")
class PrefixPooling(PoolingLayer):
    """Join some of the tokens before the patches.

    Shapes:
        tokens: (B, T, D). returns: (B, len(indices) * D).

    Args:
        indices: Which tokens.

    Reference: Heinrich et al. 2024, arXiv:2412.07679 (RADIO), whose class
        tokens imitate several teachers.
    """

    needs = ("pooling_indices",)

    def __init__(self, indices: tuple[int, ...] = (0,), **kwargs):
        super().__init__(**kwargs)
        self.indices = tuple(indices)

    @property
    def read_tokens(self):
        return self.indices

    def call(self, tokens, mask=None):
        chosen = [tokens[:, i : i + 1] for i in self.indices]
        size = len(chosen) * tokens.shape[-1]
        return kernels.reshape(ops.concatenate(chosen, axis=1), (-1, size))

    def compute_output_shape(self, input_shape):
        return (input_shape[0], len(self.indices) * input_shape[-1])


@keras.saving.register_keras_serializable(package="keras_vit")
class DistilledPooling(PoolingLayer):
    """Take the class token and the distillation token.

    Shapes:
        tokens: (B, T, D).
        returns: (B, 2, D) for the two classifiers of `DistilledHead`; without
            a head (B, D), the average.

    Args:
        num_classes: Outputs of the head; 0 without one.

    Reference: Touvron et al. 2021, arXiv:2012.12877, section 4.
    """

    needs = ("num_classes",)
    head_class = DistilledHead
    read_tokens = (0, 1)
    needed_token = "distillation"

    def __init__(self, num_classes: int = 0, **kwargs):
        super().__init__(**kwargs)
        self.num_classes = as_whole(num_classes, "num_classes", least=0)

    def call(self, tokens, mask=None):
        pair = tokens[:, :2]
        return pair if self.num_classes else ops.mean(pair, axis=1)

    def compute_output_shape(self, input_shape):
        batch, _, width = input_shape
        return (batch, 2, width) if self.num_classes else (batch, width)


# Name -> a `PoolingLayer`, or None to return all tokens.
POOLINGS = {
    "token": TokenPooling,
    "avg": AveragePooling,
    "max": MaxPooling,
    "token_and_avg": TokenAndAveragePooling,
    "distilled": DistilledPooling,
    "prefix": PrefixPooling,
    "map": AttentionPooling,
    "map_patches": PatchAttentionPooling,
    "probe": ProbePooling,
    "none": None,
}
