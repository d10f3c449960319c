"""LAYOUTS: the families of checkpoints that are known, one file each."""

from keras_vit.weights.families import (
    big_vision,
    huggingface,
    keras_hub,
    official,
    timm,
    vit_keras,
)

# The order matters: of several families whose names a file has, the first one
# is taken.
LAYOUTS = {
    "official": official.LAYOUT,
    "big_vision": big_vision.LAYOUT,
    "timm": timm.LAYOUT,
    "huggingface": huggingface.LAYOUT,
    "keras_hub": keras_hub.LAYOUT,
    "vit_keras": vit_keras.LAYOUT,
    "vit_keras_h5": vit_keras.LAYOUT_H5,
}
