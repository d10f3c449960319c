"""LAYOUTS: the families of checkpoints; the first that fits a file counts."""

from keras_vit.weights.families.big_vision import BigVision
from keras_vit.weights.families.family import Family
from keras_vit.weights.families.flax import Flax
from keras_vit.weights.families.huggingface import CLIP_NAMES, VIT_NAMES
from keras_vit.weights.families.keras import KerasHub, VitKeras, VitKerasH5
from keras_vit.weights.families.open_clip import OpenClip
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
