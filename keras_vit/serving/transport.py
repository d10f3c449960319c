"""The common interface of the transports over REST and gRPC."""

import dataclasses
from collections.abc import Mapping
from typing import Protocol

import numpy as np

from keras_vit.serving.signatures import Signature

# The statuses, by gRPC's names, after which the same request may succeed.
PASSING_CODES = ("UNAVAILABLE", "DEADLINE_EXCEEDED")


@dataclasses.dataclass(frozen=True)
class Target:
    """The model that requests address.

    Args:
        model: Name of the model on the server.
        version: Number of a version; None for the newest, or that of `label`.
        label: A label, such as "stable".
    """

    model: str
    version: int | None = None
    label: str | None = None


@dataclasses.dataclass(frozen=True)
class VersionStatus:
    """The state of a version of a model.

    Args:
        version: Number of the version.
        state: START, LOADING, AVAILABLE, UNLOADING or END.
        message: The error, if the version failed.
    """

    version: int
    state: str
    message: str = ""


class Transport(Protocol):
    """A connection to a server. Requests are retried by its library.

    All methods raise an UnavailableError if there is no response after all
    attempts, and another ServingError if the response is an error.
    """

    def status(self) -> list[VersionStatus]:
        """Return the known versions."""

    def metadata(self) -> dict[str, Signature]:
        """Return the signatures."""

    def predict(
        self, name: str, signature: Signature, inputs: Mapping[str, np.ndarray]
    ) -> dict[str, np.ndarray]:
        """Return the outputs of a signature, in the dtypes it declares."""

    def close(self):
        """Close the connections."""


def count_attempts(retries: int) -> str:
    """Return the number of attempts as text, for the end of a message.

    Example:
        >>> count_attempts(0), count_attempts(2)
        ('', ' (3 attempts)')
    """
    return f" ({retries + 1} attempts)" if retries else ""
