"""Pre- and post-processing: from images to pixels, from scores to class names.

The functions need no network.
"""

from keras_vit.preprocessing.description import (
    INTERPOLATIONS,
    NORMALIZATIONS,
    Preprocessing,
)
from keras_vit.preprocessing.image_files import read_image
from keras_vit.preprocessing.inputs import preprocess_input
from keras_vit.preprocessing.predictions import (
    decode_predictions,
    imagenet_classes,
)

__all__ = [
    "INTERPOLATIONS",
    "NORMALIZATIONS",
    "Preprocessing",
    "decode_predictions",
    "imagenet_classes",
    "preprocess_input",
    "read_image",
]
