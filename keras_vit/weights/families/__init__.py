"""LAYOUTS: the families of checkpoints; the first that fits a file counts.

TEXT_LAYOUTS are those of the text towers beside image towers.
"""

from keras_vit.weights.families.big_vision import BigVision
from keras_vit.weights.families.family import Family, TextFamily
from keras_vit.weights.families.flax import Flax
from keras_vit.weights.families.huggingface import (
    CLIP_NAMES,
    VIT_NAMES,
    HuggingFaceText,
)
from keras_vit.weights.families.keras import KerasHub, VitKeras, VitKerasH5
from keras_vit.weights.families.open_clip import OpenClip, OpenClipText
from keras_vit.weights.families.timm import Timm

LAYOUTS: dict[str, Family] = {
    "official": Flax(),
    "big_vision": BigVision(),
    "timm": Timm(),
    "huggingface": VIT_NAMES,
    "huggingface_clip": CLIP_NAMES,
    "open_clip": OpenClip(),
    "keras_hub": KerasHub(),
    "vit_keras": VitKeras(),
    "vit_keras_h5": VitKerasH5(),
}
TEXT_LAYOUTS: dict[str, TextFamily] = {
    "huggingface_clip": HuggingFaceText(),
    "open_clip": OpenClipText(),
}
