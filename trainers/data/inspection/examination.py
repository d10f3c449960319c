"""Examining an image file: whether it can be read, and its properties."""

import concurrent.futures
import hashlib
import io
import os
import warnings
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from keras_vit.progress import ProgressBar
from trainers.data.bad_examples import FILE_ERRORS
from trainers.data.datasets import ImageDataset
from trainers.data.decoding import decode_file
from trainers.data.readers.image_paths import can_read_heif, printable

SIDE = 32  # Pixels of the grey image that a look is computed from.
KEPT = 8  # Lowest frequencies in each direction.
LEAST_CONTRAST = 4.0  # Standard deviation of grey levels; less looks alike.
ORIENTATION = 0x0112  # Tag of Exif.
THUMBNAIL_SIDE = 96


class Examined(NamedTuple):
    """The properties of an image.

    Args:
        name: The path of the file, or its place in a file of records.
        split: The split that contains it.
        label: Its class, or a list of classes.
        digest: SHA-256 of the file.
        fault: Why it cannot be read; empty if it can.
        look: 64 bits that hardly change when the image is stored anew; None
            for images without contrast.
        size: (width, height) as it is stored, in pixels.
        kind: Format and colours, such as "JPEG RGB".
        is_turned: Whether Exif data say that it must be turned.
        num_frames: Number of frames.
        is_transparent: Whether a pixel is not opaque.
        thumbnail: A small JPEG of it.
    """

    name: str
    split: str
    label: str
    digest: str
    fault: str = ""
    look: int | None = None
    size: tuple[int, int] = (0, 0)
    kind: str = ""
    is_turned: bool = False
    num_frames: int = 1
    is_transparent: bool = False
    thumbnail: bytes = b""


def examine(name: str, split: str, label: str, encoded: bytes) -> Examined:
    """Return the properties of an image.

    Args:
        name: The path of the file, or its place in a file of records.
        split: The split that contains it.
        label: Its class.
        encoded: The bytes of the file.
    """
    digest = hashlib.sha256(encoded).hexdigest()
    try:
        pixels = decode_file(encoded)
    except ValueError as error:
        fault = describe_fault(encoded, error)
        return Examined(name, split, label, digest, fault)
    height, width = pixels.shape[:2]
    return Examined(
        name,
        split,
        label,
        digest,
        look=compute_look(pixels),
        thumbnail=make_thumbnail(pixels),
        **({"size": (width, height)} | read_facts(encoded)),
    )


def read_facts(encoded: bytes) -> dict:
    """Return what Pillow tells of an image, fields of `Examined`."""
    from PIL import Image

    try:
        with Image.open(io.BytesIO(encoded)) as image:
            return {
                "size": image.size,
                "kind": f"{image.format} {image.mode}",
                "is_turned": image.getexif().get(ORIENTATION, 1) != 1,
                "num_frames": getattr(image, "n_frames", 1),
                "is_transparent": is_transparent(image),
            }
    except Exception:  # It raises any kind; the pixels could be read.
        return {}


def is_transparent(image) -> bool:
    """Return whether an image of Pillow has a pixel that is not opaque."""
    if not image.has_transparency_data:
        return False
    return image.convert("RGBA").getchannel("A").getextrema()[0] < 255


def describe_fault(encoded: bytes, error: Exception) -> str:
    """Return why a file cannot be read, in a few words."""
    if not encoded:
        return "the file is empty"
    is_heif = encoded[4:8] == b"ftyp" and encoded[8:12] in HEIF_BRANDS
    if is_heif and not can_read_heif():
        return "a HEIC image, which needs the package pi-heif"
    text = str(error)
    if "truncated" in text:
        return "the file is cut off"
    if "exceeds limit" in text:
        return "too many pixels"
    if "identify" in text or "Not an image" in text:
        return "not an image"
    return text or type(error).__name__


def compute_look(pixels: np.ndarray) -> int | None:
    """Return 64 bits that images of the same content have in common.

    They say which of the lowest frequencies of the grey image are above their
    median.

    Shapes:
        pixels: (H, W, 3), uint8.

    Reference: The hash of phash.org, with the median taken without the mean.
    """
    from PIL import Image

    grey = Image.fromarray(pixels).convert("L")
    grey = grey.resize((SIDE, SIDE), Image.Resampling.BOX)
    grey = np.asarray(grey, "float64")
    if grey.std() < LEAST_CONTRAST:
        return None
    places = np.arange(SIDE)
    waves = np.cos(np.pi / SIDE * np.outer(places[:KEPT], places + 0.5))
    low = (waves @ grey @ waves.T).ravel()
    bits = low > np.median(low[1:])
    return int.from_bytes(np.packbits(bits).tobytes())


def make_thumbnail(pixels: np.ndarray) -> bytes:
    """Return a JPEG of at most THUMBNAIL_SIDE pixels a side.

    Shapes:
        pixels: (H, W, 3), uint8.
    """
    from PIL import Image

    image = Image.fromarray(pixels)
    image.thumbnail((THUMBNAIL_SIDE, THUMBNAIL_SIDE))
    stream = io.BytesIO()
    image.save(stream, "JPEG", quality=80)
    return stream.getvalue()


HEIF_BRANDS = (b"heic", b"heix", b"hevc", b"mif1", b"msf1")


def inspect_images(dataset: ImageDataset) -> list[Examined]:
    """Read each image of the training and the evaluation split.

    Shows a progress bar.

    Args:
        dataset: The data set.

    Returns:
        What is known of each image, in the order of the splits.
    """
    splits = [s for s in (dataset.train_split, dataset.eval_split) if s]
    total = sum(dataset.num_examples(split) for split in splits)
    found = []
    with (
        warnings.catch_warnings(),
        concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool,
        ProgressBar("Reading", "images", total) as bar,
    ):
        warnings.simplefilter("ignore")  # Pillow's, about damaged Exif data.
        waiting = []
        for split in splits:
            for name, label, encoded in read_files(dataset, split):
                waiting.append(
                    pool.submit(examine, name, split, label, encoded)
                )
                # The files that wait are in memory.
                if len(waiting) == 4 * os.cpu_count():
                    found += [task.result() for task in waiting]
                    waiting = []
                    bar.update(len(found))
        found += [task.result() for task in waiting]
        bar.update(len(found))
    return found


def read_files(
    dataset: ImageDataset, split: str
) -> Iterator[tuple[str, str, bytes]]:
    """Yield the name, the class and the bytes of the images of a split.

    Several classes are joined by commas. A file that is missing has no bytes.
    """
    names, reader = dataset.class_names, dataset.reader
    for stored, label, name in reader.read(dataset.ranges(split)):
        classes = np.atleast_1d(label.numpy())
        try:
            encoded = reader.fetch(stored).numpy()
        except FILE_ERRORS:
            encoded = b""
        text = ", ".join(names[int(index)] for index in classes)
        yield printable(name.numpy()), text, encoded
