"""PoolingLayer: what all poolings have in common."""

import keras


class PoolingLayer(keras.layers.Layer):
    """Turn the tokens of an image into one vector.

    The class attribute `needs` lists the fields of ViTConfig that the
    constructor takes, and `head_class` is the layer of the classifier, with
    the arguments of `DistilledHead`; None for a dense layer. `read_tokens` are
    the places of the tokens before the patches that are read, if the patches
    are not; `reads_first_alone` states whether the first token is all that is
    read. `needed_token` is the token, "class" or "distillation", without which
    no model has the pooling.

    Shapes:
        tokens: (B, T, D).
        mask: (B, T), True for the tokens to pool; None for all tokens.
        returns: (B, D), unless `compute_output_shape` states another size.
    """

    needs = ()
    head_class = None
    read_tokens = ()
    reads_first_alone = False
    needed_token = None

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.supports_masking = True

    def compute_mask(self, tokens, mask=None):
        return None

    def compute_output_shape(self, input_shape):
        return (input_shape[0], input_shape[-1])

    def get_config(self):
        # Keras' automatic config does not support a dtype policy.
        return super().get_config()
