"""The kinds of rotary positions, by name."""

from keras_vit.layers.axial_rotary_positions import AxialRotaryPositions
from keras_vit.layers.centered_rotary_positions import CenteredRotaryPositions
from keras_vit.layers.class_rotary_positions import ClassRotaryPositions
from keras_vit.layers.mixed_rotary_positions import MixedRotaryPositions
from keras_vit.layers.rounded_rotary_positions import RoundedRotaryPositions

# Kind -> a layer of `RotaryPositions`.
ROTARY_POSITIONS = {
    "none": None,
    "axial": AxialRotaryPositions,
    "axial_class": ClassRotaryPositions,
    "centered": CenteredRotaryPositions,
    "centered_bfloat16": RoundedRotaryPositions,
    "mixed": MixedRotaryPositions,
}
