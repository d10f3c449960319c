"""Adapting the first layer to images of another normalisation.

For pixels p as fractions of 255, the source reads (p - m) / d and the model
(p - m') / d' =: u. So p = u d' + m', and the source computes

    sum_c W_c (u_c d'_c + m'_c - m_c) / d_c + b,

which is a projection of u with other kernels and another bias.
"""

import numpy as np

from keras_vit.models.config import ViTConfig
from keras_vit.preprocessing.settings import Preprocessing


def can_renormalize(
    theirs: Preprocessing | None, source: ViTConfig, model: ViTConfig
) -> bool:
    """Return whether a model reads other numbers than its source, exactly.

    A stem pads its images with zeros and standardises its kernels, and a
    projection without a bias cannot add a constant, so these models cannot be
    adapted. A source may lack the bias.

    Args:
        theirs: Settings of the source; None if they are not known.
        source: Configuration of the source.
        model: Configuration of the model.
    """
    ours = model.preprocessing
    return (
        theirs is not None
        and theirs.normalization != ours.normalization
        and model.stem_stages is None
        and model.use_patch_bias
        and len(ours.mean) in (1, source.channels)
    )


def renormalize_kernel(
    kernel: np.ndarray, theirs: Preprocessing, ours: Preprocessing
) -> np.ndarray:
    """Return the kernel for images of another normalisation.

    Shapes:
        kernel: (P, P, C, D). returns: the same.

    Args:
        kernel: The kernel of the source.
        theirs: Settings of the source.
        ours: Settings of the model.
    """
    scale = np.divide(ours.deviation, theirs.deviation)
    return kernel * np.reshape(scale, (-1, 1)).astype(kernel.dtype)


def constant_of(
    kernel: np.ndarray, theirs: Preprocessing, ours: Preprocessing
) -> np.ndarray:
    """Return the change of the bias for images of another normalisation.

    Shapes:
        kernel: (P, P, C, D). returns: (D,).

    Args:
        kernel: The kernel of the source.
        theirs: Settings of the source.
        ours: Settings of the model.
    """
    offset = np.subtract(ours.mean, theirs.mean) / theirs.deviation
    offset = np.broadcast_to(offset, kernel.shape[2:3])
    sums = kernel.sum(axis=(0, 1), dtype="float64")  # (C, D)
    return (offset @ sums).astype(kernel.dtype)
