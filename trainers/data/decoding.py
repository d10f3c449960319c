"""Decoding the images of a data set in its pipeline, and its bad examples."""

import contextlib
import functools
import io
import math
import re
import threading
import warnings
from collections.abc import Callable

import numpy as np
import tensorflow as tf

from keras_vit.preprocessing import read_image
from keras_vit.preprocessing.decoding import (
    JPEG_END,
    JPEG_START,
    cut_window,
    decode_image,
    decode_window,
    turn_upright,
    upright_decoder,
)
from keras_vit.tables import list_first
from trainers.data.maps import check_size
from trainers.data.pixels import USUAL, PixelOptions
from trainers.data.readers.image_paths import printable

# The errors that TensorFlow raises for invalid files.
FILE_ERRORS = (
    tf.errors.DataLossError,
    tf.errors.FailedPreconditionError,
    tf.errors.InvalidArgumentError,
    tf.errors.NotFoundError,
    tf.errors.PermissionDeniedError,
)


class DataError(ValueError):
    """A file of a data set is missing, damaged or invalid."""


class BadExampleError(DataError):
    """More images are unreadable than allowed."""


class BadExamples:
    """The names of the images that could not be read. It is thread-safe.

    Args:
        limit: Number of images that may be skipped before the pipeline stops.
    """

    def __init__(self, limit: int = 0):
        self.limit = limit
        self._names = {}  # In the order in which they were reported.
        self._lock = threading.Lock()

    @property
    def names(self) -> list[str]:
        """The distinct names so far."""
        with self._lock:
            return list(self._names)

    def report(self, name: str, reason: str = ""):
        """Record that the image `name` cannot be read.

        Args:
            name: The name of the image.
            reason: What else is wrong, as words, if it is not the image.

        Raises:
            BadExampleError: If more images are unreadable than allowed.
        """
        with self._lock:
            self._names[name] = reason
        self.check()

    def check(self):
        """Raise a BadExampleError if more are unreadable than allowed."""
        with self._lock:
            reasons = dict(self._names)
        if len(reasons) > self.limit:
            listed = list_first(
                [
                    f"`{name}`" + (f" ({reason})" if reason else "")
                    for name, reason in reasons.items()
                ],
                10,
            )
            what = "an image" if len(reasons) == 1 else "images"
            if any(reasons.values()):
                what += " with a map"
            raise BadExampleError(
                f"{listed} cannot be read as {what}; to skip such files, "
                "raise --max_bad_examples. "
                f"Received: max_bad_examples={self.limit}"
            )

    @contextlib.contextmanager
    def named_errors(self):
        """Turn an error of TensorFlow that a file causes into a DataError.

        Wraps the code that iterates over the batches. Other errors, such as
        those of a training step, pass unchanged.
        """
        try:
            yield
        except tf.errors.OpError as error:
            self.check()
            is_of_pipeline = "IteratorGetNext" in str(error)
            if is_of_pipeline and isinstance(error, FILE_ERRORS):
                raise DataError(
                    f"The data set cannot be read: {describe_error(error)}"
                ) from None
            raise


def describe_error(error: tf.errors.OpError) -> str:
    """Return the message of a TensorFlow error without node names."""
    text = re.sub(r"^\{\{.*?\}\} ", "", error.message).partition("\n")[0]
    text = re.sub(r"^Error in user-defined .*? iterator: \S+: ", "", text)
    text = re.sub(r"\s*\[(\[\{\{node .*?\}\}\]|Op:\w+)\].*", "", text)
    found = re.fullmatch(r"assertion failed: \[(.*)\]", text)
    return found[1].replace("] [", " ") if found else text


# Largest size of a decoded split that is cached in memory, in bytes.
CACHE_BYTES = 2**28

# The functions of the pipeline have no Python control flow over tensors.
# Letting Autograph search for it would dominate the time to build a pipeline.
as_written = tf.autograph.experimental.do_not_convert


# What the functions of `keras_vit.preprocessing.decoding` take.
FILE = tf.TensorSpec((), tf.string)
COLOURS = tf.TensorSpec((None, None, 3), tf.uint8)


@functools.cache
def traced(function: Callable) -> Callable:
    """Return `decode_image` or `turn_upright` as a graph, traced only once.

    They are long. Each pipeline would trace them several times, half a second
    in all.
    """
    arguments = {decode_image: [FILE], turn_upright: [COLOURS, FILE]}
    with tf.init_scope():  # Not within the graph of the pipeline.
        graph = tf.function(function, autograph=False)
        return graph.get_concrete_function(*arguments[function])


def fits_into_memory(dataset) -> bool:
    """Return whether the decoded train split is small enough to cache."""
    shape = dataset.reader.image_shape
    if None in shape:
        return False  # The sizes are unknown, and usually too large.
    num_examples = dataset.num_examples(dataset.train_split)
    return num_examples * math.prod(shape) <= CACHE_BYTES


def make_decode(dataset, bad_examples: BadExamples | None = None) -> Callable:
    """Return a function that decodes an example, even if it is unreadable.

    Shapes:
        The function takes (stored, label, name, pick_window=None). It returns
        the image (H, W, C) or its picked window, the label, and 1.0. For an
        unreadable image, it returns zeros, the label, and 0.0. With maps, the
        label is that of the image, (H, W, 1), floats, see `maps.py`; one that
        cannot be read makes the image unreadable.

    Args:
        dataset: The data set of the examples.
        bad_examples: Records the unreadable images; None raises the errors.
    """
    shape = dataset.reader.image_shape
    attempt = _run if bad_examples is None else _attempt

    def report(name, reason=""):
        try:
            bad_examples.report(printable(name), reason)
        except BadExampleError:
            return False  # If it were raised here, TensorFlow would log it.
        return True

    def load_map(label, name, size):
        """Return the map, an empty one if it cannot be read, and a status."""
        try:
            found = dataset.reader.load_map(label)
            check_size(found, size)
        except ValueError as error:
            if bad_examples is None:
                raise
            empty = np.zeros((0, 0, 1), np.float32)
            return empty, report(name, str(error))
        return found[..., None].astype("float32"), True

    def decode_map(label, name, image, is_good):
        def load():
            found, is_allowed = tf.numpy_function(
                load_map,
                [label, name, tf.shape(image)[:2]],
                (tf.float32, tf.bool),
            )
            check = tf.debugging.Assert(is_allowed, [name, "cannot be read"])
            with tf.control_dependencies([check]):
                return tf.ensure_shape(found, (None, None, 1))

        found = tf.cond(is_good > 0, load, lambda: tf.zeros((0, 0, 1)))
        return found, tf.cast(tf.size(found) > 0, tf.float32)

    def replace(name):
        is_allowed = tf.numpy_function(report, [name], tf.bool)
        check = tf.debugging.Assert(is_allowed, [name, "cannot be read"])
        with tf.control_dependencies([check]):
            return tf.zeros([size or 1 for size in shape], tf.uint8)

    def decode(stored, label, name, pick_window=None):
        if pick_window is None:
            image = _decode_whole(dataset.reader, stored, attempt)
        else:
            image = _decode_window(dataset.reader, stored, attempt, pick_window)
        is_good = tf.ones(())
        if bad_examples is not None:
            is_good = tf.size(image) > 0
            image = tf.cond(is_good, lambda: image, lambda: replace(name))
            if pick_window is None:
                image = tf.ensure_shape(image, shape)
            is_good = tf.cast(is_good, tf.float32)
        if dataset.maps:
            label, is_good = decode_map(label, name, image, is_good)
        return image, label, is_good

    return decode


def _decode_whole(reader, stored, attempt):
    """Return the upright image (H, W, C) of a stored example."""

    def decode(stored):
        encoded = reader.fetch(stored)
        return reader.decode(encoded), encoded

    if not reader.has_exif:
        return attempt(decode, stored, reader.image_shape[-1])[0]
    if attempt is _run:
        return traced(turn_upright)(*decode(stored))
    image, encoded = _attempt(decode, stored, reader.image_shape[-1])
    return tf.cond(
        tf.size(image) > 0,
        lambda: traced(turn_upright)(image, encoded),
        lambda: _decode_by_pillow(reader, stored),
    )


def _decode_by_pillow(reader, stored):
    """Return the upright image of a file that TensorFlow cannot read."""
    channels = reader.image_shape[-1]

    def read(encoded):
        try:
            return read_file(encoded, channels)
        except ValueError:
            return np.zeros((0, 0, channels), np.uint8)

    def fetch(stored):
        return tf.zeros((0, 0, channels), tf.uint8), reader.fetch(stored)

    _, encoded = _attempt(fetch, stored, channels)
    image = tf.numpy_function(read, [encoded], tf.uint8)
    return tf.ensure_shape(image, (None, None, channels))


def _decode_window(reader, stored, attempt, pick_window):
    """Return the upright window of an image, decoding only it if possible."""
    channels = reader.image_shape[-1]

    def decode_part(stored):
        encoded = reader.fetch(stored)
        return decode_window(encoded, pick_window, channels), encoded

    def cut():
        image = _decode_whole(reader, stored, attempt)
        return tf.cond(
            tf.size(image) > 0,
            lambda: cut_window(image, pick_window(tf.shape(image))),
            lambda: image,
        )

    if getattr(reader, "pixels", USUAL) != USUAL:
        return cut()
    upright = traced(turn_upright)
    # Decoding a window does not detect a truncated file. So a file that does
    # not end as a JPEG does is decoded completely.
    image, encoded = _attempt(decode_part, stored, channels)
    return tf.cond(
        tf.strings.substr(encoded, -2, 2) == JPEG_END,
        lambda: upright(image, encoded) if reader.has_exif else image,
        cut,
    )


def _attempt(function, stored, channels):
    """Return the result of `function`, or an empty image if it fails.

    Inside a graph, only a tf.data dataset can catch an error. It costs about
    0.1 ms, and more with each operation in `function`.
    """
    nothing = tf.zeros((0, 0, channels), tf.uint8), tf.constant(b"none")
    good = tf.data.Dataset.from_tensors(stored).map(as_written(function))
    both = good.ignore_errors().concatenate(
        tf.data.Dataset.from_tensors(nothing)
    )
    return both.take(1).get_single_element()


def _run(function, stored, channels):
    return function(stored)


def decode_pixels(encoded: tf.Tensor, pixels: PixelOptions) -> tf.Tensor:
    """Return the pixels (H, W, C) of an image file, in a graph.

    They are upright unless the options are the usual ones.
    """
    if pixels == USUAL:
        return traced(decode_image)(encoded)

    def read(encoded):
        # As an array of bytes, it would lose zeros at its end.
        return decode_file(np.asarray(encoded, object).item(), pixels)

    image = tf.numpy_function(read, [encoded], tf.uint8)
    return tf.ensure_shape(image, (None, None, pixels.channels or 3))


def decode_file(
    encoded: bytes, pixels: PixelOptions = USUAL, name: str = "the file"
) -> np.ndarray:
    """Return the upright pixels of an image file, as a pipeline does.

    Shapes:
        returns: (H, W, C), uint8.

    Args:
        encoded: The bytes of the file.
        pixels: How they are read.
        name: Its name in the error.

    Raises:
        ValueError: If neither TensorFlow nor Pillow can read it.
    """
    channels = pixels.channels or 3
    if encoded.startswith(STARTS) and channels in (1, 3):
        decode = upright_decoder(channels, pixels.pixel_range)
        try:
            return decode(tf.constant(encoded)).numpy()
        except tf.errors.OpError:
            pass  # Pillow may read it, or says better what is wrong.
    return read_file(encoded, channels, name, pixels.pixel_range)


def read_file(
    encoded: bytes,
    channels: int,
    name: str = "the file",
    pixel_range: tuple[float, float] | None = None,
) -> np.ndarray:
    """Return the upright pixels of an image file, read by Pillow.

    HEIC files are read if the package pi-heif is installed.
    """
    with contextlib.suppress(ModuleNotFoundError):
        import pi_heif

        pi_heif.register_heif_opener()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # About damaged Exif data.
        file = io.BytesIO(encoded)
        file.name = name
        return read_image(file, channels, pixel_range=pixel_range)


# The first bytes of the files that TensorFlow reads.
STARTS = (JPEG_START, b"\x89PNG", b"GIF8", b"BM", b"RIFF")
