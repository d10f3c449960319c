"""Measurement of the response times of a server."""

import concurrent.futures
import dataclasses
import time

import numpy as np

from keras_vit.serving.client import Client
from keras_vit.serving.warmup import WarmupRecord


@dataclasses.dataclass(frozen=True)
class ResponseTimes:
    """The response times of a signature.

    Args:
        signature: Name of the signature.
        p50: Median in milliseconds.
        p90: 90th percentile in milliseconds.
        p99: 99th percentile in milliseconds.
        requests_per_second: Rate of all threads together.
    """

    signature: str
    p50: float
    p90: float
    p99: float
    requests_per_second: float


def measure_response_times(
    client: Client, record: WarmupRecord, num_requests: int, concurrency: int
) -> ResponseTimes:
    """Send a request of the warm-up file many times, and time the responses.

    Args:
        client: A client of the version of the export.
        record: The request.
        num_requests: Number of requests.
        concurrency: Number of concurrent requests.

    Raises:
        ServingError: If the server refuses a request.
    """

    def send(_):
        began = time.perf_counter()
        client.predict(record.inputs, record.signature)
        return time.perf_counter() - began

    with concurrent.futures.ThreadPoolExecutor(concurrency) as threads:
        began = time.perf_counter()
        seconds = list(threads.map(send, range(num_requests)))
        whole = time.perf_counter() - began
    percentiles = np.percentile(seconds, (50, 90, 99)) * 1000
    return ResponseTimes(
        record.signature, *percentiles.tolist(), num_requests / whole
    )
