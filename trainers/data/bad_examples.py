"""Unreadable images of a data set: recorded by name, and limited in number."""

import contextlib
import re
import threading

import tensorflow as tf

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

    def report(self, name: str):
        """Record that the image `name` cannot be read.

        Raises:
            BadExampleError: If more images are unreadable than allowed.
        """
        with self._lock:
            self._names[name] = None
        self.check()

    def check(self):
        """Raise a BadExampleError if more are unreadable than allowed."""
        names = self.names
        if len(names) > self.limit:
            listed = ", ".join(f"`{name}`" for name in names[:10])
            more = f" and {len(names) - 10} more" if len(names) > 10 else ""
            what = "an image" if len(names) == 1 else "images"
            raise BadExampleError(
                f"{listed}{more} cannot be read as {what}; to skip such files, "
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
