"""The models that the tests of analysis inspect."""

import functools

import keras

from keras_vit import VisionTransformer
from tests.tiny import LATER_KINDS, noise, randomize, tiny_config

# Most have 16 patches: JAX compiles every operation once for each shape.
CHOICES = {
    "token": {},
    "rectangle": {"image_size": (16, 64)},
    "average": {"pooling": "avg", "use_class_token": False},
    "average_beside_token": {"pooling": "avg", "use_pooling_norm": True},
    "map": {"pooling": "map", "use_class_token": False},
    "registers": {**LATER_KINDS["dinov2"], "layer_scale_init": 0.1},
    "distilled": LATER_KINDS["deit"],
    "every_token": {"pooling": "none", "position_embedding": "sincos_2d"},
    "open_size": {"use_dynamic_image_size": True},
    "hybrid": {"stem_stages": (1,), "patch_size": 2, "image_size": (64, 16)},
    "open_hybrid": {
        "stem_stages": (1, 1),
        "patch_size": 1,
        "use_dynamic_image_size": True,
    },
    "remat": {"use_remat": True, "dropout_rate": 0.5},
    "softmax": {"classifier_activation": "softmax", "depth": 3},
}
# On JAX the rest adds nothing but a minute of this.
if keras.backend.backend() == "jax":
    few = ("token", "rectangle", "average", "open_size", "softmax")
    CHOICES = {name: CHOICES[name] for name in few}
# What a model of an open size is given; the stem halves 61 pixels to 8 cells.
SIZES = {"open_size": (64, 16), "open_hybrid": (61, 16)}


@functools.cache
def model_of(name, dtype=None):
    """Return the model of a case; it must not be changed."""
    config = tiny_config(**CHOICES[name])
    return randomize(VisionTransformer(config, dtype=dtype))


def images_of(name, batch=2):
    """Return seeded images of a size that the model of a case reads."""
    size = SIZES.get(name) or model_of(name).config.image_size
    return noise(batch, *size, 3, seed=4)
