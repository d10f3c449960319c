"""Limits of the requests that the small server accepts, which are flags.

Without Starlette, so that the command can tell its flags.
"""

import dataclasses


def _limit(default, text):
    return dataclasses.field(default=default, metadata={"help": text})


@dataclasses.dataclass(frozen=True)
class Limits:
    """Limits of the requests; the command has a flag for each."""

    max_batch_size: int = _limit(32, "instances computed at a time")
    max_waiting: int = _limit(128, "requests in progress; else 503")
    max_body_bytes: int = _limit(32 * 2**20, "bytes of a request; else 413")
    max_instances: int = _limit(1024, "instances in a request")
    max_pixels: int = _limit(70_000_000, "pixels of the photos in a request")
    timeout: float = _limit(30.0, "seconds to wait for an answer; else 504")
    receive_timeout: float = _limit(30.0, "seconds to receive a request")

    def __post_init__(self):
        for name, value in vars(self).items():
            if not value > 0:
                raise ValueError(
                    f"`{name}` must be positive. Received: {name}={value}"
                )
