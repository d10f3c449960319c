"""Checking that a server gives the outputs of the export that it serves."""

import concurrent.futures
import dataclasses
import sys
import time
from collections.abc import Iterator

import numpy as np

from keras_vit.export.agreement import Tolerance, compare_outputs
from keras_vit.serving import Client, ServingError, UnavailableError
from keras_vit.serving.tf_serving import ExportedVersion, WarmupRecord
from keras_vit.tables import format_table

NOT_AN_IMAGE = b"\x89PNG\r\n\x1a\n and then nothing"


@dataclasses.dataclass(frozen=True)
class Check:
    """The result of a check.

    Args:
        what: What was checked.
        signature: The signature, if it was about one.
        difference: Largest difference from what was expected.
        fault: What is wrong; empty if nothing is.
    """

    what: str
    signature: str = ""
    difference: float | None = None
    fault: str = ""


@dataclasses.dataclass(frozen=True)
class ResponseTimes:
    """The response times of a signature.

    Args:
        signature: Name of the signature.
        p50: Median in milliseconds; `p90` and `p99` are other percentiles.
        requests_per_second: Rate of all threads together.
    """

    signature: str
    p50: float
    p90: float
    p99: float
    requests_per_second: float


@dataclasses.dataclass
class ServerReport:
    """The results of checking a server, collected step by step.

    Args:
        checks: The results of all checks so far.
        times: The response times of each signature that passed.
    """

    checks: list[Check] = dataclasses.field(default_factory=list)
    times: list[ResponseTimes] = dataclasses.field(default_factory=list)

    @property
    def passed(self) -> bool:
        """Whether all checks so far passed."""
        return not any(check.fault for check in self.checks)

    def __str__(self):
        """Return the tables as Markdown."""
        tables = []
        if self.checks:
            rows = []
            for x in self.checks:
                difference = (
                    "" if x.difference is None else f"{x.difference:.1e}"
                )
                rows.append(
                    (x.what, x.signature, difference, x.fault or "right")
                )
            heads = ("check", "signature", "difference", "verdict")
            tables.append(format_table(heads, rows))
        if self.times:
            rows = []
            for times in self.times:
                name, *numbers = dataclasses.astuple(times)
                rows.append((name, *(f"{number:.1f}" for number in numbers)))
            heads = ("signature", "p50 ms", "p90 ms", "p99 ms", "requests/s")
            tables.append(format_table(heads, rows))
        return "\n\n".join(tables)

    def to_json(self) -> dict:
        """Return the report for JSON, with nan as a string."""
        checks = []
        for check in self.checks:
            number = check.difference
            if number is not None and not np.isfinite(number):
                number = str(number)
            checks.append(vars(check) | {"difference": number})
        times = [vars(row) for row in self.times]
        return {"passed": self.passed, "checks": checks, "latencies": times}


def fill_report(
    report: ServerReport,
    client: Client,
    export: ExportedVersion,
    *,
    tolerance: float,
    num_requests: int,
    concurrency: int,
):
    """Check a server and measure the signatures that pass.

    Args:
        report: Filled step by step, so that it can be shown after an error.
        client: A client of the version of the export.
        export: The export with the expected outputs.
        tolerance: Largest allowed difference from the expected outputs.
        num_requests: Number of timed requests per signature; 0 for none.
        concurrency: Number of concurrent requests.

    Raises:
        UnavailableError: If the server cannot be reached.
    """
    for check in check_server(client, export, tolerance):
        report.checks.append(check)
        say(f"{check.what} {check.signature}".strip())
    right = {
        check.signature
        for check in report.checks
        if check.what == "answer" and not check.fault
    }
    try:
        for record in export.records:
            if num_requests and record.signature in right:
                say(f"{num_requests} requests {record.signature}")
                times = measure_response_times(
                    client, record, num_requests, concurrency
                )
                report.times.append(times)
    except UnavailableError:
        raise
    except ServingError as error:
        report.checks.append(Check("load", fault=str(error)))


def check_server(
    client: Client, export: ExportedVersion, tolerance: float
) -> Iterator[Check]:
    """Yield the results of all checks, one after the other.

    Raises:
        UnavailableError: If the server cannot be reached.
    """
    for what, check in (("status", check_status), ("metadata", check_metadata)):
        difference, fault = attempt(check, client, export)
        yield Check(what, "", difference, fault)
        if fault:
            return
    records = {record.signature: record for record in export.records}
    for name in export.signatures:
        if name not in records:
            fault = "the warm-up file has no response to compare with"
            yield Check("answer", name, fault=fault)
            continue
        record = records[name]
        for what, check in CHECKS.items():
            if what == "answer" or images_of(record) is not None:
                found = attempt(check, client, record, tolerance)
                yield Check(what, name, *found)


def attempt(check, *arguments) -> tuple[float | None, str]:
    """Return the difference and the fault that a check finds.

    An error of the server is a fault, unless the server is not there.
    """
    try:
        return check(*arguments)
    except UnavailableError:
        raise
    except ServingError as error:
        return None, str(error)


def check_status(client, export):
    """Check that the version is available."""
    states = {row.version: row for row in client.status()}
    row = states.get(export.version)
    if row is None:
        return None, f"there is no version {export.version}"
    if row.state != "AVAILABLE":
        return None, f"version {row.version} is {row.state} {row.message}"
    return None, ""


def check_metadata(client, export):
    """Check that the server has the signatures of the export."""
    found = client.metadata()
    names = sorted({*found, *export.signatures})
    wrong = [n for n in names if found.get(n) != export.signatures.get(n)]
    return None, f"not as in the export: {', '.join(wrong)}" * bool(wrong)


def check_answer(client, record, tolerance):
    """Compare a response with the one in the warm-up file."""
    found = client.predict(record.inputs, record.signature)
    return compare(record.outputs, found, tolerance)


def check_batch(client, record, tolerance):
    """Check that the outputs for a batch are in order and independent.

    The batch is an image, its mirror image, and the image twice again, so
    that the reversed order differs from the right one. The outputs must be
    those for each image alone.
    """
    [name] = record.inputs
    image = images_of(record)[:1]
    mirrored = mirror(image)
    alone, other = (
        client.predict({name: x}, record.signature) for x in (image, mirrored)
    )
    batch = np.concatenate([image, mirrored, image, image])
    together = client.predict({name: batch}, record.signature)
    expected = {
        key: np.concatenate([alone[key], other[key], alone[key], alone[key]])
        for key in alone
    }
    return compare(expected, together, tolerance)


def check_refusal(client, record, tolerance):
    """Check that a wrong image is refused, and a right one accepted after it.

    A model that only counts numbers would accept images of another size with
    as many pixels in all.
    """
    [name] = record.inputs
    wrong = spoil(images_of(record)[:1])
    try:
        client.predict({name: wrong}, record.signature)
    except UnavailableError:
        raise
    except ServingError as error:
        if error.code:
            difference, fault = check_answer(client, record, tolerance)
            return difference, fault and f"after the refusal: {fault}"
    what = "no image" if wrong.dtype == object else f"the shape {wrong.shape}"
    return None, f"a wrong input was accepted: {what}"


# The checks of each signature; all but the first need images as inputs.
CHECKS = {
    "answer": check_answer,
    "batch": check_batch,
    "refusal": check_refusal,
}


LEAST_IOU = 0.99  # Of class maps: rounding turns single pixels.


def compare(expected, found, tolerance) -> tuple[float, str]:
    """Return the largest difference, and the faults."""
    bound = Tolerance(max_difference=tolerance, mean_iou=LEAST_IOU)
    agreement = compare_outputs(expected, found, bound)
    return agreement.max_difference, "; ".join(agreement.faults)


def images_of(record: WarmupRecord) -> np.ndarray | None:
    """Return the images or image files of a request, if it has any."""
    if len(record.inputs) != 1:
        return None
    [array] = record.inputs.values()
    is_files = array.ndim == 1 and array.dtype == object
    return array if array.ndim == 4 or is_files else None


def mirror(images: np.ndarray) -> np.ndarray:
    """Return images or image files with left and right exchanged."""
    if images.dtype != object:
        return images[:, :, ::-1]
    import tensorflow as tf

    files = [
        tf.io.encode_png(
            tf.io.decode_image(file, expand_animations=False)[:, ::-1]
        ).numpy()
        for file in images
    ]
    return np.array(files, object)


def spoil(image: np.ndarray) -> np.ndarray:
    """Return an input that must be refused instead of an image or file.

    Two images of half the size, if a side is even.
    """
    if image.dtype == object:
        return np.array([NOT_AN_IMAGE], object)
    for axis in (1, 2):
        if image.shape[axis] % 2 == 0:
            return np.concatenate(np.split(image, 2, axis))
    return np.concatenate([image, image[:, :1]], 1)


def measure_response_times(
    client: Client, record: WarmupRecord, num_requests: int, concurrency: int
) -> ResponseTimes:
    """Send a request of the warm-up file many times, and time the responses.

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


def say(text: str):
    """Print progress to the standard error."""
    print(text, file=sys.stderr, flush=True)
