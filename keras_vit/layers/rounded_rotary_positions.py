"""RoundedRotaryPositions: centred angles with periods of low precision."""

import keras
import ml_dtypes
import numpy as np
from keras import ops

from keras_vit.layers.centered_rotary_positions import CenteredRotaryPositions


@keras.saving.register_keras_serializable(package="keras_vit")
class RoundedRotaryPositions(CenteredRotaryPositions):
    """Angles of `CenteredRotaryPositions`, with periods rounded to bfloat16.

    The files of the code of DINOv3 hold such periods, temperature^(j / q);
    those of timm and Hugging Face hold none, and their code does not round.
    """

    def frequencies(self, temperature: float):
        periods = rotary_periods(self.head_size, temperature)
        periods = periods.astype(ml_dtypes.bfloat16).astype("float32")
        return ops.convert_to_tensor(1 / periods)


def rotary_periods(head_size: int, temperature: float) -> np.ndarray:
    """Return temperature^(j / q) for j = 0 ... q - 1, q = head_size / 4.

    Args:
        head_size: Size of a head, a multiple of 4.
        temperature: The base.
    """
    steps = np.arange(head_size // 4) * 4 / head_size
    return np.float32(temperature**steps)
