"""Compact encodings of numbers and images for the page."""

import io
import zlib

import numpy as np


def pack_rows(rows: np.ndarray, num_prefix_tokens: int, levels: int) -> bytes:
    """Pack rows of attention; data/report/numbers.js unpacks them.

    A number p in a row with the largest number s is stored as the integer
    nearest to levels * sqrt(p / s). The square root assigns most levels to
    small numbers, which are frequent in attention. The error of an unpacked
    number is at most s / levels, because the error of sqrt(p / s) is at most
    half a level.

    The attention of a token to itself and to the class token can be many times
    larger than all other attention. It is stored exactly and excluded from s;
    otherwise, few levels would be left for the rest.

    Shapes:
        rows: (M, Q, T), not negative. If Q is T, row q is that of token q.

    Args:
        rows: M matrices, such as those of the heads of a block.
        num_prefix_tokens: Number of tokens before the patches, 1 with a class
            token.
        levels: The largest integer, at most 255; a smaller one takes fewer
            bytes.

    Raises:
        ValueError: If a number is negative or not finite.
    """
    rows = np.asarray(rows, "float32")
    if not (np.isfinite(rows).all() and (rows >= 0).all()):
        raise ValueError(
            "`rows` must be finite and not negative. Received: numbers from "
            f"{rows.min()} to {rows.max()}"
        )
    own = _diagonal(rows)  # (M, Q)
    patches = rows[:, :, num_prefix_tokens:].copy()  # (M, Q, N)
    if own.size:
        n = np.arange(patches.shape[-1])
        patches[:, num_prefix_tokens + n, n] = 0
    scale = patches.max(axis=-1, initial=0)  # (M, Q)
    roots = np.sqrt(patches / np.where(scale > 0, scale, 1)[..., None])
    parts = (
        scale.astype("<f4"),
        own.astype("<f4"),
        rows[:, :, :num_prefix_tokens].astype("<f4"),
        np.rint(levels * roots).astype("u1"),
    )
    data = b"".join(part.tobytes() for part in parts)
    # The default strategy finds repeated rows; for noise, run-length encoding
    # gives a shorter result.
    return min(
        (_deflate(data, zlib.Z_DEFAULT_STRATEGY), _deflate(data, zlib.Z_RLE)),
        key=len,
    )


def pack_cosines(cosines: np.ndarray) -> bytes:
    """Pack numbers from -1 to 1 on 255 levels, with errors up to 1 / 254."""
    codes = np.rint((np.asarray(cosines, "float32") + 1) * 127)
    return zlib.compress(codes.astype("u1").tobytes(), 6)


def pack_floats(numbers: np.ndarray) -> bytes:
    """Pack float32 numbers without loss."""
    return zlib.compress(np.asarray(numbers, "<f4").tobytes(), 6)


def encode_png(pixels: np.ndarray) -> bytes:
    """Return an image as a PNG file. Needs Pillow.

    Shapes:
        pixels: (H, W, 1 or 3), uint8.
    """
    try:
        from PIL import Image
    except ImportError as error:
        raise ImportError("A page needs Pillow: pip install Pillow") from error
    # Pillow's grey images have no channel axis.
    image = Image.fromarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels)
    file = io.BytesIO()
    image.save(file, "PNG", optimize=True)
    return file.getvalue()


def _deflate(data, strategy):
    squeeze = zlib.compressobj(strategy=strategy)
    return squeeze.compress(data) + squeeze.flush()


def _diagonal(rows):
    """Return the attention of tokens to themselves: (M, T), or (M, 0)."""
    if rows.shape[1] != rows.shape[2]:
        return rows[:, :0, 0]
    return np.diagonal(rows, axis1=1, axis2=2)
