"""Unreadable images of a data set: counted, named, and at last an error."""

import contextlib
import re
import threading

import tensorflow as tf

# What TensorFlow raises for files that do not hold what they should.
FILE_ERRORS = (
    tf.errors.DataLossError,
    tf.errors.FailedPreconditionError,
    tf.errors.InvalidArgumentError,
    tf.errors.NotFoundError,
    tf.errors.PermissionDeniedError,
)


class DataError(ValueError):
    """The files of a data set do not hold what they should."""


class BadExampleError(DataError):
    """There are more unreadable images than allowed."""


class BadExamples:
    """The names of the images that could not be read. Threads may share it.

    Args:
        limit: How many images may be left out before the pipeline stops.
    """

    def __init__(self, limit: int = 0):
        self.limit = limit
        self._names = {}  # In the order in which they were met.
        self._lock = threading.Lock()

    @property
    def names(self) -> list[str]:
        """The distinct names so far."""
        with self._lock:
            return list(self._names)

    def report(self, name: str):
        """Note that the image `name` cannot be read.

        Raises:
            BadExampleError: If that is one too many.
        """
        with self._lock:
            self._names[name] = None
        self.check()

    def check(self):
        """Raise a BadExampleError if there are more than allowed."""
        names = self.names
        if len(names) > self.limit:
            listed = ", ".join(f"`{name}`" for name in names[:10])
            more = f" and {len(names) - 10} more" if len(names) > 10 else ""
            what = "is not a readable image"
            what = what if len(names) == 1 else "are not readable images"
            raise BadExampleError(
                f"{listed}{more} {what} of the data set; "
                f"--max_bad_examples={self.limit}"
            )

    @contextlib.contextmanager
    def named_errors(self):
        """Raise a DataError for an error of TensorFlow that files caused.

        Wraps the code that iterates over the batches. Errors from elsewhere,
        such as the computation of a training step, pass.
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
    """Return the message of an error of TensorFlow, without node names."""
    text = re.sub(r"^\{\{.*?\}\} ", "", error.message).splitlines()[0]
    text = re.sub(r"^Error in user-defined .*? iterator: \S+: ", "", text)
    text = re.sub(r"\s*\[(\[\{\{node .*?\}\}\]|Op:\w+)\].*", "", text)
    found = re.fullmatch(r"assertion failed: \[(.*)\]", text)
    return found[1].replace("] [", " ") if found else text
