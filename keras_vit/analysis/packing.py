"""Numbers in few bytes: what a page carries of attention and of images."""

import struct
import zlib

import numpy as np


def pack_rows(rows: np.ndarray, num_prefix_tokens: int, levels: int) -> bytes:
    """Pack what tokens give to tokens; `unpack_rows` undoes it.

    A number p in a row whose largest is s is stored as the whole number
    nearest to levels * sqrt(p / s): the root spends the levels on small
    numbers, of which attention has many. What comes back is off by at most
    s / levels: half a level on either side of sqrt(p / s), squared.

    What a token gives to itself or to the class token can be many times all
    the rest, and would leave no levels to it: these are stored as they are,
    and do not count for s.

    Shapes:
        rows: (M, Q, T), not negative. Where Q is T, row q is that of token q.

    Args:
        rows: M matrices, such as those of the heads of a block.
        num_prefix_tokens: Tokens before the patches: 1 with a class token.
        levels: The largest whole number, at most 255; fewer take less room.

    Raises:
        ValueError: If a number is negative or not finite.
    """
    rows = np.asarray(rows, "float32")
    if not (np.isfinite(rows).all() and (rows >= 0).all()):
        raise ValueError(
            "`rows` must be finite numbers from 0 on. Received: numbers from "
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
    # Rows that are alike are found by a search; in noise it finds what only
    # seems to be, and does worse than none.
    return min(
        (_deflate(data, zlib.Z_DEFAULT_STRATEGY), _deflate(data, zlib.Z_RLE)),
        key=len,
    )


def unpack_rows(
    data: bytes, shape: tuple, num_prefix_tokens: int, levels: int
) -> np.ndarray:
    """Return the rows that `pack_rows` packed, as a page shows them.

    Shapes:
        returns: (M, Q, T), float32.

    Args:
        data: What `pack_rows` returned.
        shape: (M, Q, T).
        num_prefix_tokens: As they were packed.
        levels: As they were packed.
    """
    m, q, t = shape
    data = zlib.decompress(data)
    num_own = m * q if q == t else 0
    sizes = [m * q, num_own, m * q * num_prefix_tokens]
    numbers = np.frombuffer(data, "<f4", sum(sizes))
    scale, own, prefix = np.split(numbers, np.cumsum(sizes)[:-1])
    codes = np.frombuffer(data, "u1", offset=numbers.nbytes)
    roots = codes.reshape(m, q, -1) / np.float32(levels)
    patches = roots**2 * scale.reshape(m, q, 1)
    rows = np.concatenate([prefix.reshape(m, q, -1), patches], axis=-1)
    if num_own:
        rows[:, np.arange(t), np.arange(t)] = own.reshape(m, q)
    return rows


def pack_cosines(cosines: np.ndarray) -> bytes:
    """Pack numbers from -1 to 1 on 255 levels, each off by 1 / 254 at most."""
    codes = np.rint((np.asarray(cosines, "float32") + 1) * 127)
    return zlib.compress(codes.astype("u1").tobytes(), 6)


def pack_floats(numbers: np.ndarray) -> bytes:
    """Pack float32 numbers as they are."""
    return zlib.compress(np.asarray(numbers, "<f4").tobytes(), 6)


def encode_png(pixels: np.ndarray) -> bytes:
    """Return an image as a PNG file.

    Shapes:
        pixels: (H, W, 1 or 3), uint8.

    Reference: W3C, Portable Network Graphics (third edition), 2025.
    """
    height, width, channels = pixels.shape
    # Filter 2: each line less the one above, modulo 256.
    differences = np.diff(pixels, axis=0, prepend=np.uint8(0))
    lines = np.insert(differences.reshape(height, -1), 0, 2, axis=1)
    colour_type = {1: 0, 3: 2}[channels]
    header = struct.pack(">IIBBBBB", width, height, 8, colour_type, 0, 0, 0)
    return b"".join(
        [
            b"\x89PNG\r\n\x1a\n",
            _png_chunk(b"IHDR", header),
            _png_chunk(b"IDAT", zlib.compress(lines.tobytes(), 9)),
            _png_chunk(b"IEND", b""),
        ]
    )


def _png_chunk(kind, content):
    checksum = zlib.crc32(kind + content)
    return (
        struct.pack(">I", len(content))
        + kind
        + content
        + struct.pack(">I", checksum)
    )


def _deflate(data, strategy):
    squeeze = zlib.compressobj(strategy=strategy)
    return squeeze.compress(data) + squeeze.flush()


def _diagonal(rows):
    """Return what tokens give to themselves, (M, T), or (M, 0) without them."""
    if rows.shape[1] != rows.shape[2]:
        return rows[:, :0, 0]
    return np.diagonal(rows, axis1=1, axis2=2)
