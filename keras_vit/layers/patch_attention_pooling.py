"""PatchAttentionPooling: a learned probe that attends to the patches."""

import keras

from keras_vit.arguments import as_whole
from keras_vit.layers.attention_pooling import AttentionPooling


@keras.saving.register_keras_serializable(package="keras_vit")
class PatchAttentionPooling(AttentionPooling):
    """Pool as `AttentionPooling` does, but only the patches.

    Args:
        num_prefix_tokens: Number of tokens before the patches.

    Reference: timm's AttentionPoolLatent, with `pool_include_prefix=False`.
    """

    needs = ("num_prefix_tokens", *AttentionPooling.needs)

    def __init__(self, num_prefix_tokens: int = 0, **kwargs):
        super().__init__(**kwargs)
        self.num_prefix_tokens = as_whole(
            num_prefix_tokens, "num_prefix_tokens", least=0
        )

    def call(self, tokens, mask=None):
        if mask is not None:
            mask = mask[:, self.num_prefix_tokens :]
        return super().call(tokens[:, self.num_prefix_tokens :], mask)

    def get_config(self):
        return {
            **super().get_config(),
            "num_prefix_tokens": self.num_prefix_tokens,
        }
