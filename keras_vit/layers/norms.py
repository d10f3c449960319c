"""NORMS: the normalisations of tokens."""

import keras

from keras_vit.layers.layer_norm import LayerNorm
from keras_vit.layers.rms_norm import RmsNorm
from keras_vit.tables import pick

# Kind -> layer.
NORMS = {"layer": LayerNorm, "rms": RmsNorm}


def make_norm(kind: str, epsilon: float, **kwargs) -> keras.layers.Layer:
    """Return the layer of `kind`.

    Args:
        kind: A key of NORMS.
        epsilon: Added to the variance or to the mean square.
        **kwargs: Further arguments of the layer, such as `name`.
    """
    return pick(NORMS, kind, "norm")(epsilon, **kwargs)
