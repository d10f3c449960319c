"""The kinds of rotary positions, by name."""

from keras_vit.layers.axial_rotary_positions import AxialRotaryPositions
from keras_vit.layers.centered_rotary_positions import CenteredRotaryPositions
from keras_vit.layers.choosing import make_chosen
from keras_vit.layers.class_rotary_positions import ClassRotaryPositions
from keras_vit.layers.mixed_rotary_positions import MixedRotaryPositions
from keras_vit.layers.rounded_rotary_positions import RoundedRotaryPositions


def make_rotary_positions(kind: str, choices: dict, **kwargs):
    """Return the layer of `kind`, or None for "none".

    Args:
        kind: A key of ROTARY_POSITIONS.
        choices: The fields of ViTConfig; the layer gets those that its `needs`
            lists, without "rotary_".
        **kwargs: Arguments of `RotaryPositions`.
    """
    return make_chosen(
        ROTARY_POSITIONS, kind, "rotary_positions", choices, **kwargs
    )


# Kind -> layer. The `needs` of a layer lists the fields of ViTConfig that its
# constructor takes.
ROTARY_POSITIONS = {
    "none": None,
    "axial": AxialRotaryPositions,
    "axial_class": ClassRotaryPositions,
    "centered": CenteredRotaryPositions,
    "centered_bfloat16": RoundedRotaryPositions,
    "mixed": MixedRotaryPositions,
}
