"""Maps: what is known of each pixel of an image, its class or its depth.

A map is an array (H, W), float32, with NaN where nothing is known. Needs no
TensorFlow.
"""

import io
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from keras_vit.preprocessing.image_files import NUMPY_START
from trainers.data.labels import SEGMENT

# In files of 8 and of 16 bits, the class of pixels that do not count.
IGNORED, IGNORED_16 = 255, 65535
MILLIMETRE = 0.001
LARGEST = float(np.finfo("float32").max)
SMALL = range(1, IGNORED + 1)  # Numbers of classes that 8 bits can hold.
MOST_PIXELS = 2**28  # More are no map.


class MapRule(NamedTuple):
    """How the numbers in a file become a map.

    Args:
        kind: One of MAPS.
        num_classes: Number of classes; None as long as it is not known.
        depth_unit, max_depth: See `LabelOptions`.
        classes: The class of each number in the file, -1 for pixels that do
            not count; None for the number itself.
    """

    kind: str
    num_classes: int | None = None
    depth_unit: float | None = None
    max_depth: float | None = None
    classes: Sequence[int] | None = None

    def read(self, encoded: bytes) -> np.ndarray:
        """Return the map in a file.

        Shapes:
            returns: (H, W), float32; NaN where nothing is known.

        Args:
            encoded: The bytes of a file of grey levels or of colours of a
                palette, whose indices count; or of a NumPy array (H, W).

        Raises:
            ValueError: Says what is wrong, in words that follow the name of
                the file.
        """
        return self.interpret(read_numbers(encoded))

    def interpret(self, numbers: np.ndarray) -> np.ndarray:
        """Return the map of the numbers in a file, see `read`."""
        if self.kind == SEGMENT:
            return self._classes(numbers)
        unit = self.depth_unit
        if unit is None and numbers.dtype.kind in "iu":
            bits = 8 * numbers.dtype.itemsize
            if bits != 16:
                raise ValueError(
                    f"has depths of {bits} bits, whose unit --depth_unit must "
                    "say"
                )
            unit = MILLIMETRE
        depths = numbers.astype("float32") * np.float32(unit or 1)
        is_known = (depths > 0) & (depths <= (self.max_depth or LARGEST))
        return np.where(is_known, depths, np.nan).astype("float32")

    def _classes(self, numbers):
        if numbers.dtype.kind not in "iu":
            raise ValueError("has no whole numbers, which classes are")
        if self.classes is not None:
            table = np.asarray([*self.classes, -1])
            last = len(table) - 1  # Of numbers without a class.
            is_listed = (numbers >= 0) & (numbers < last)
            classes = table[np.where(is_listed, numbers, last)]
            return np.where(classes < 0, np.nan, classes).astype("float32")
        is_small = numbers.dtype == np.uint8 or self.num_classes in SMALL
        is_known = numbers != (IGNORED if is_small else IGNORED_16)
        known = numbers[is_known]
        if known.size and known.min() < 0:
            raise ValueError(f"has the class {known.min()}")
        if self.num_classes and known.size and known.max() >= self.num_classes:
            raise ValueError(
                f"has the class {known.max()}, but the {self.num_classes} "
                "classes are numbered from 0"
            )
        return np.where(is_known, numbers, np.nan).astype("float32")


def read_numbers(encoded: bytes, is_first_channel: bool = False) -> np.ndarray:
    """Return the numbers of a file, one for each pixel.

    Shapes:
        returns: (H, W).

    Args:
        encoded: The bytes of the file, see `MapRule.read`.
        is_first_channel: Whether to read the first channel of an image of
            colours.

    Raises:
        ValueError: See `MapRule.read`.
    """
    from PIL import Image

    if encoded.startswith(NUMPY_START):
        numbers = np.load(io.BytesIO(encoded), allow_pickle=False)
        if numbers.ndim == 3 and numbers.shape[-1] == 1:
            numbers = numbers[..., 0]
        if numbers.dtype == bool:
            numbers = numbers.astype(np.uint8)
        if numbers.ndim != 2 or numbers.dtype.kind not in "iuf":
            raise ValueError(
                f"has numbers of the shape {numbers.shape} and the type "
                f"{numbers.dtype}, not one number a pixel"
            )
        return numbers
    try:
        with Image.open(io.BytesIO(encoded)) as image:
            if image.width * image.height > MOST_PIXELS:
                raise ValueError("has too many pixels")
            if image.format in ("JPEG", "MPO"):
                raise ValueError(
                    "is a JPEG, which does not keep the numbers of its pixels; "
                    "save maps as PNG"
                )
            mode, numbers = image.mode, np.asarray(image)
    except ValueError:
        raise
    except Exception:  # Pillow raises any kind.
        raise ValueError("cannot be read as an image") from None
    if numbers.dtype == bool:
        return numbers.astype(np.uint8)
    if numbers.ndim == 3 and mode == "RGB":
        is_grey = (numbers == numbers[..., :1]).all()
        if is_first_channel or is_grey:
            return numbers[..., 0]
    if numbers.ndim != 2:
        raise ValueError(
            "has colours; a map has grey levels or the indices of a palette"
        )
    # Pillow widens those of 16 bits.
    is_wide = numbers.dtype == np.int32 and numbers.size
    if is_wide and numbers.min() >= 0 and numbers.max() <= IGNORED_16:
        numbers = numbers.astype(np.uint16)
    return numbers


def check_size(found: np.ndarray, size: tuple[int, int]):
    """Raise a ValueError unless a map has the size of its image."""
    if found.shape != tuple(size):
        raise ValueError(
            f"the map has {found.shape[0]} x {found.shape[1]} pixels, the "
            f"image {size[0]} x {size[1]}"
        )


def find_classes(arrays: Iterable[np.ndarray]) -> np.ndarray:
    """Return the classes that occur in the numbers of some maps, ascending."""
    found = np.zeros(IGNORED_16 + 1, bool)
    for numbers in arrays:
        if numbers.dtype.kind in "iu":
            inside = numbers[(numbers >= 0) & (numbers <= IGNORED_16)]
            found |= np.bincount(inside.ravel(), minlength=len(found)) > 0
    found[IGNORED_16] = False
    if not found[IGNORED + 1 :].any():
        found[IGNORED] = False
    return np.flatnonzero(found)
