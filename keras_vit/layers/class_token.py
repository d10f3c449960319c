"""ClassToken: the learned token that represents the whole image."""

import keras

from keras_vit.layers.prefix_tokens import PrefixTokens


@keras.saving.register_keras_serializable(package="keras_vit")
class ClassToken(PrefixTokens):
    """Prepend a learned token to the patch tokens.

    Shapes:
        tokens: (B, N, D).
        returns: (B, 1 + N, D); the class token has index 0.

    Example:
        >>> tuple(ClassToken()(np.ones((2, 16, 24))).shape)
        (2, 17, 24)

    Reference: Dosovitskiy et al. 2021, arXiv:2010.11929, section 3.1, eq. 1;
        zero-initialised as in the official code.
    """

    def __init__(self, **kwargs):
        super().__init__(num_tokens=1, **kwargs)

    def make_initializer(self):
        return "zeros"

    def get_config(self):
        config = super().get_config()
        del config["num_tokens"]
        return config
