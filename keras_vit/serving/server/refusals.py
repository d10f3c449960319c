"""Errors that the server answers, and its limits."""

import dataclasses
import logging

server_logger = logging.getLogger("keras_vit.serving.server")


class Refusal(Exception):
    """A request that is answered with an error.

    Args:
        code: The status as named by gRPC, a key of HTTP_STATUSES.
        message: The text of the answer.
    """

    def __init__(self, code: str, message: str):
        super().__init__(message)
        self.code = code


def invalid(message: str) -> Refusal:
    """Return the error for a request that no server could answer."""
    return Refusal("INVALID_ARGUMENT", message)


@dataclasses.dataclass(frozen=True)
class Limits:
    """What the server accepts at most.

    Args:
        max_batch_size: Instances that are computed at a time.
        max_waiting: Requests in progress; more are answered 503.
        max_body_bytes: Size of a request, after it is unpacked.
        max_instances: Instances in a request.
        max_pixels: Pixels of the images in a request, and in a batch.
        timeout: Seconds for the inference, from the moment it is requested.
        receive_timeout: Seconds to receive the head, and the body.
    """

    max_batch_size: int = 32
    max_waiting: int = 128
    max_body_bytes: int = 32 * 2**20
    max_instances: int = 1024
    max_pixels: int = 50_000_000
    timeout: float = 30.0
    receive_timeout: float = 30.0

    def __post_init__(self):
        for name, value in vars(self).items():
            if not value > 0:
                raise ValueError(
                    f"`{name}` must be positive. Received: {name}={value}"
                )


# As TF Serving maps the statuses, and four that it does not have.
HTTP_STATUSES = {
    "OK": 200,
    "INVALID_ARGUMENT": 400,
    "FAILED_PRECONDITION": 400,
    "OUT_OF_RANGE": 400,
    "UNAUTHENTICATED": 401,
    "PERMISSION_DENIED": 403,
    "NOT_FOUND": 404,
    "SLOW_BODY": 408,
    "ABORTED": 409,
    "ALREADY_EXISTS": 409,
    "LARGE_BODY": 413,
    "WRONG_HOST": 421,
    "RESOURCE_EXHAUSTED": 429,
    "CANCELLED": 499,
    "DATA_LOSS": 500,
    "INTERNAL": 500,
    "UNKNOWN": 500,
    "UNIMPLEMENTED": 501,
    "UNAVAILABLE": 503,
    "DEADLINE_EXCEEDED": 504,
}
