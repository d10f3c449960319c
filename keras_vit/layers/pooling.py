"""Poolings, which turn the tokens of an image into one vector."""

import keras
from keras import ops

from keras_vit.arguments import as_whole
from keras_vit.layers.attention_pooling import AttentionPooling
from keras_vit.layers.distilled_head import DistilledHead
from keras_vit.layers.patch_attention_pooling import PatchAttentionPooling
from keras_vit.layers.pooling_layer import PoolingLayer
from keras_vit.layers.probe_pooling import ProbePooling


@keras.saving.register_keras_serializable(package="keras_vit")
class TokenPooling(PoolingLayer):
    """Take the class token.

    Shapes:
        tokens: (B, T, D).
        mask: (B, T), without an effect.
        returns: (B, D).

    Reference: Dosovitskiy et al. 2021, arXiv:2010.11929, eq. 4.
    """

    read_tokens = (0,)
    reads_first_alone = True
    needed_token = "class"

    def call(self, tokens, mask=None):
        # TFLite delegates run a slice and a reshape, but not the strided
        # slice of `tokens[:, 0]`.
        return ops.reshape(tokens[:, :1], (-1, tokens.shape[-1]))


class PatchPooling(PoolingLayer):
    """Reduce the patch tokens to one vector; prefix tokens are ignored.

    Shapes:
        tokens: (B, T, D).
        mask: (B, T), True for the tokens to pool; None for all tokens.
        returns: (B, D).

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

    def call(self, tokens, mask=None):
        tokens = tokens[:, self.num_prefix_tokens :]
        if mask is not None:
            mask = ops.cast(mask, "bool")[:, self.num_prefix_tokens :, None]
        return self.pool(tokens, mask)

    def pool(self, tokens, mask):
        """Return (B, D) from the patches (B, N, D), mask (B, N, 1) or None."""
        raise NotImplementedError

    def get_config(self):
        return {
            **super().get_config(),
            "num_prefix_tokens": self.num_prefix_tokens,
        }


@keras.saving.register_keras_serializable(package="keras_vit")
class AveragePooling(PatchPooling):
    """Average the patch tokens in float32, as `gap` of the official code."""

    def pool(self, tokens, mask):
        x = ops.cast(tokens, "float32")
        if mask is None:
            x = ops.mean(x, axis=1)
        else:
            mask = ops.cast(mask, x.dtype)
            x = ops.sum(x * mask, axis=1) / ops.maximum(
                ops.sum(mask, axis=1), 1
            )
        return ops.cast(x, tokens.dtype)


@keras.saving.register_keras_serializable(package="keras_vit")
class MaxPooling(PatchPooling):
    """Take the largest value of each feature over the patch tokens."""

    def pool(self, tokens, mask):
        if mask is not None:
            # The lowest finite number of float16 keeps the result finite.
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

    def call(self, tokens, mask=None):
        token = ops.reshape(tokens[:, :1], (-1, tokens.shape[-1]))
        return ops.concatenate([token, super().call(tokens, mask)], axis=-1)

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
        return ops.reshape(ops.concatenate(chosen, axis=1), (-1, size))

    def compute_output_shape(self, input_shape):
        return (input_shape[0], len(self.indices) * input_shape[-1])

    def get_config(self):
        return {**super().get_config(), "indices": list(self.indices)}


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

    def get_config(self):
        return {**super().get_config(), "num_classes": self.num_classes}


def needs_distillation_token(pooling: str | None) -> bool:
    """Return whether no model without the distillation token has a pooling.

    Args:
        pooling: A key of POOLINGS, or None for no choice.
    """
    layer_class = POOLINGS.get(pooling)
    return bool(layer_class) and layer_class.needed_token == "distillation"


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
