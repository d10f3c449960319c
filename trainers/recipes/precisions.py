"""PRECISIONS: the dtypes of computation in training."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Precision:
    """A row of PRECISIONS.

    Args:
        policy: Keras' type policy of the layers.
        peak_dtype: Type of the products by which the peak of a device is
            measured.
        scales_loss: Whether small gradients need a loss scale.
    """

    policy: str
    peak_dtype: str
    scales_loss: bool = False


PRECISIONS = {
    "float32": Precision("float32", "float32"),
    "bfloat16": Precision("mixed_bfloat16", "bfloat16"),
    "float16": Precision("mixed_float16", "bfloat16", scales_loss=True),
}
