"""Check that a server answers as the export that it serves.

What the export answered when it was written is in its warm-up file.

Example:
    python -m trainers.serve_check --url=http://localhost:8501 \
        --export=saved_models/digits/export/saved_model/digits/1
"""

import concurrent.futures
import dataclasses
import json
import os
import pathlib
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping

import numpy as np
import tensorflow as tf
from absl import flags
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import DecodeError
from tensorflow.core.protobuf import saved_model_pb2

from keras_vit.export.warmup import WARMUP_FILE, WarmupRecord, read_warmup
from keras_vit.serving import (
    Client,
    ServingError,
    Signature,
    UnavailableError,
    connect,
    read_signatures,
)
from trainers.paths import as_path, write_atomically
from trainers.runs.command_line import refuse_arguments, start, user_errors

FLAGS = flags.FLAGS
# Of the rows of a request; none here is cut into several.
BATCH_SIZE = 1024
NO_IMAGE = b"\x89PNG\r\n\x1a\n and then nothing"


@dataclasses.dataclass(frozen=True)
class Export:
    """What a server is compared with.

    Args:
        name: The folder's name, by which a server usually knows the model.
        version: The number that is the name of the folder in it.
        signatures: By name.
        records: A request to each signature, with the answer.
    """

    name: str
    version: int
    signatures: Mapping[str, Signature]
    records: tuple[WarmupRecord, ...]


@dataclasses.dataclass(frozen=True)
class Check:
    """What was found when something was checked.

    Args:
        what: What was checked.
        signature: Of which signature, if it was one.
        difference: Largest difference from what was expected.
        fault: What is wrong, or nothing.
    """

    what: str
    signature: str = ""
    difference: float | None = None
    fault: str = ""


@dataclasses.dataclass(frozen=True)
class Latency:
    """How long a signature takes to answer.

    Args:
        signature: Its name.
        p50: Milliseconds in which half of the requests were answered.
        p90: In which nine of ten were.
        p99: In which ninety-nine of a hundred were.
        requests_per_second: Of all threads together.
    """

    signature: str
    p50: float
    p90: float
    p99: float
    requests_per_second: float


def read_export(path: str | os.PathLike) -> Export:
    """Return what is in `<name>/<version>/` of an export.

    Raises:
        ValueError: If it is no version of an export, or has no warm-up file.
        OSError: If it cannot be read.
    """
    path = pathlib.Path(path).absolute()
    if not path.name.isdecimal():
        raise ValueError(
            "`export` must be the folder of a version, .../NAME/NUMBER. "
            f"Received: export={str(path)!r}"
        )
    proto = saved_model_pb2.SavedModel()
    try:
        proto.ParseFromString((path / "saved_model.pb").read_bytes())
        graph = next(
            g for g in proto.meta_graphs if "serve" in g.meta_info_def.tags
        )
    except (DecodeError, StopIteration):
        raise ValueError(
            f"No SavedModel with the tag `serve` is in {path}"
        ) from None
    defs = {
        name: MessageToDict(x, preserving_proto_field_name=True)
        for name, x in graph.signature_def.items()
    }
    return Export(
        path.parent.name,
        int(path.name),
        read_signatures(defs),
        read_warmup(path / WARMUP_FILE),
    )


def check_server(
    client: Client, export: Export, tolerance: float
) -> Iterator[Check]:
    """Yield what is right and what is wrong, one thing after the other.

    Args:
        client: Asks for the version of the export.
        export: What is expected.
        tolerance: How far a number may be from what the export answered.

    Raises:
        UnavailableError: If the server is not reached.
    """
    for what, check in (("status", check_status), ("metadata", check_metadata)):
        found = look(check, client, export)
        yield Check(what, "", *found)
        if found[1]:
            return
    records = {record.signature: record for record in export.records}
    for name in export.signatures:
        if name not in records:
            fault = "the warm-up file has no answer to compare with"
            yield Check("answer", name, fault=fault)
            continue
        record = records[name]
        for what, check in CHECKS.items():
            if what == "answer" or images_of(record) is not None:
                found = look(check, client, record, tolerance)
                yield Check(what, name, *found)


def look(check: Callable, *arguments) -> tuple[float | None, str]:
    """Return what a check finds: a difference, and what is wrong.

    An error of the server is wrong too, unless there is no server.
    """
    try:
        return check(*arguments)
    except UnavailableError:
        raise
    except ServingError as error:
        return None, str(error)


def check_status(client, export):
    """Return whether the version is there."""
    states = {row.version: row for row in client.status()}
    row = states.get(export.version)
    if row is None:
        return None, f"there is no version {export.version}"
    if row.state != "AVAILABLE":
        return None, f"version {row.version} is {row.state} {row.message}"
    return None, ""


def check_metadata(client, export):
    """Return whether the server offers the signatures of the export."""
    found = client.metadata()
    names = sorted({*found, *export.signatures})
    wrong = [n for n in names if found.get(n) != export.signatures.get(n)]
    return None, f"not as in the export: {', '.join(wrong)}" * bool(wrong)


def check_answer(client, record, tolerance):
    """Return how far the answer is from the one in the warm-up file."""
    found = client.predict(record.inputs, record.signature)
    return compare(record.outputs, found, tolerance)


def check_batch(client, record, tolerance):
    """Return how far answers in a batch are from those to its images alone.

    An image, its mirror image and the image again are answered in order, and
    none depends on its neighbours. Twice again: so it is another order the
    other way round.
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
    """Return whether a wrong image is refused, and a right one then answered.

    An image of another size with as many numbers would pass for another one
    in a model that only counts them.
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
    return None, f"an input that is wrong was answered: {what}"


def images_of(record: WarmupRecord) -> np.ndarray | None:
    """Return the images or image files that are the input, if they are."""
    if len(record.inputs) != 1:
        return None
    [array] = record.inputs.values()
    is_files = array.ndim == 1 and array.dtype == object
    return array if array.ndim == 4 or is_files else None


def mirror(images: np.ndarray) -> np.ndarray:
    """Return images or image files with left and right exchanged."""
    if images.dtype != object:
        return images[:, :, ::-1]
    files = [
        tf.io.encode_png(
            tf.io.decode_image(file, expand_animations=False)[:, ::-1]
        ).numpy()
        for file in images
    ]
    return np.array(files, object)


def spoil(image: np.ndarray) -> np.ndarray:
    """Return what should be refused in the place of an image or image file.

    Two images of half the size, if it can be halved.
    """
    if image.dtype == object:
        return np.array([NO_IMAGE], object)
    for axis in (1, 2):
        if image.shape[axis] % 2 == 0:
            return np.concatenate(np.split(image, 2, axis))
    return np.concatenate([image, image[:, :1]], 1)


def compare(
    expected: Mapping[str, np.ndarray],
    found: Mapping[str, np.ndarray],
    tolerance: float,
) -> tuple[float, str]:
    """Return the largest difference of two answers, and what is wrong.

    Labels may differ where their probabilities do not.

    Args:
        expected: Outputs by name.
        found: Outputs by name.
        tolerance: How far two numbers may be apart.
    """
    largest, faults = 0.0, []
    for name, want in sorted(expected.items()):
        array = found.get(name)
        if array is None or array.shape != want.shape:
            shape = "none" if array is None else array.shape
            faults.append(f"{name}: expected {want.shape}, got {shape}")
        elif want.dtype == object:
            numbers = expected.get("probabilities", np.zeros(want.shape))
            if not same_labels(want, array, numbers, tolerance):
                index = np.argmax(want != array)
                faults.append(
                    f"{name}: {array.flat[index]} for {want.flat[index]}"
                )
        elif want.size:
            want, array = (x.astype("float64") for x in (want, array))
            difference = float(np.max(np.abs(want - array)))
            largest = max(largest, difference)
            # A comparison with nan is false.
            if not difference <= tolerance:
                largest = difference
                faults.append(f"{name}: {difference:.1e} apart")
    return largest, "; ".join(faults)


def same_labels(
    expected: np.ndarray,
    found: np.ndarray,
    probabilities: np.ndarray,
    tolerance: float,
) -> bool:
    """Return whether labels are those expected, but for ties.

    Shapes:
        expected, found, probabilities: (B, k).

    Args:
        expected: The likeliest first.
        found: The likeliest first.
        probabilities: Of `expected`. A label that is not among them can only
            have taken the place of one that is as unlikely as the last.
        tolerance: Probabilities that are closer are a tie.
    """
    for labels, others, numbers in zip(expected, found, probabilities):
        known = dict(zip(labels, numbers))
        for label, other, number in zip(labels, others, numbers):
            tie = abs(known.get(other, numbers[-1]) - number) <= tolerance
            if label != other and not tie:
                return False
    return True


def measure(
    client: Client, record: WarmupRecord, num_requests: int, concurrency: int
) -> Latency:
    """Return how long a server takes to answer a request of the warm-up file.

    Args:
        client: Asks for the version of the export.
        record: The request.
        num_requests: How often it is made.
        concurrency: How many are under way at any time.

    Raises:
        ServingError: If one is refused.
    """

    def ask(_):
        began = time.perf_counter()
        client.predict(record.inputs, record.signature)
        return time.perf_counter() - began

    with concurrent.futures.ThreadPoolExecutor(concurrency) as threads:
        began = time.perf_counter()
        seconds = list(threads.map(ask, range(num_requests)))
        whole = time.perf_counter() - began
    percentiles = np.percentile(seconds, (50, 90, 99)) * 1000
    return Latency(
        record.signature, *percentiles.tolist(), num_requests / whole
    )


def format_checks(checks: Iterable[Check]) -> str:
    """Return the table of what was checked."""
    rows = [("check", "signature", "difference", "verdict")]
    for check in checks:
        number = check.difference
        rows.append(
            (
                check.what,
                check.signature,
                "" if number is None else f"{number:.1e}",
                check.fault or "right",
            )
        )
    return format_table(rows)


def format_latencies(latencies: Iterable[Latency]) -> str:
    """Return the table of how long answers took."""
    rows = [("signature", "p50 ms", "p90 ms", "p99 ms", "requests/s")]
    for latency in latencies:
        name, *numbers = dataclasses.astuple(latency)
        rows.append((name, *(f"{number:.1f}" for number in numbers)))
    return format_table(rows)


def format_table(rows: list[tuple[str, ...]]) -> str:
    r"""Return rows of text, a line each, in columns.

    Example:
        >>> print(format_table([("a", "b"), ("long", "c")]))
        a     b
        long  c
    """
    widths = [max(map(len, column)) for column in zip(*rows)]
    return "\n".join(
        "  ".join(x.ljust(width) for x, width in zip(row, widths)).rstrip()
        for row in rows
    )


def to_json(check: Check) -> dict:
    """Return a check as JSON has it, which knows no nan.

    Example:
        >>> to_json(Check("answer", "features", np.nan))["difference"]
        'nan'
    """
    number = check.difference
    if number is not None and not np.isfinite(number):
        number = str(number)
    return vars(check) | {"difference": number}


def say(text: str):
    """Print what is being done."""
    print(text, file=sys.stderr, flush=True)


def main(arguments):
    """Run the command."""
    with user_errors():
        refuse_arguments(arguments)
        export = read_export(FLAGS.export)
        try:
            client = connect(
                FLAGS.url,
                grpc=FLAGS.grpc,
                model=FLAGS.model_name or export.name,
                version=export.version,
                batch_size=BATCH_SIZE,
                concurrency=FLAGS.concurrency,
            )
        except ModuleNotFoundError as error:
            sys.exit(f"Error: {error}")
    checks, latencies = [], []
    try:
        with client:
            for check in check_server(client, export, FLAGS.tolerance):
                checks.append(check)
                say(f"{check.what} {check.signature}".strip())
            right = {
                check.signature
                for check in checks
                if check.what == "answer" and not check.fault
            }
            for record in export.records:
                if record.signature in right and FLAGS.requests:
                    say(f"{FLAGS.requests} requests {record.signature}")
                    latencies.append(
                        measure(
                            client, record, FLAGS.requests, FLAGS.concurrency
                        )
                    )
    except UnavailableError as error:
        if checks:
            print(format_checks(checks))
        say(f"Error: {error}")
        sys.exit(os.EX_UNAVAILABLE)
    except ServingError as error:
        checks.append(Check("load", fault=str(error)))
    passed = not any(check.fault for check in checks)
    print(format_checks(checks))
    if latencies:
        print(f"\n{format_latencies(latencies)}")
    if FLAGS.json:
        report = {
            "server": FLAGS.url or FLAGS.grpc,
            "model": FLAGS.model_name or export.name,
            "version": export.version,
            "tolerance": FLAGS.tolerance,
            "concurrency": FLAGS.concurrency,
            "requests": FLAGS.requests,
            "passed": passed,
            "checks": [to_json(check) for check in checks],
            "latencies": [vars(latency) for latency in latencies],
        }
        write_atomically(as_path(FLAGS.json), json.dumps(report, indent=2))
    sys.exit(0 if passed else 1)


def define_flags():
    """Define the flags of this command."""
    flags.DEFINE_string("url", None, "Of the REST interface, http://HOST:8501.")
    flags.DEFINE_string("grpc", None, "Of the gRPC interface, HOST:8500.")
    flags.DEFINE_string(
        "export", None, "Folder of the version, .../NAME/NUMBER.", required=True
    )
    flags.DEFINE_string(
        "model_name", None, "On the server. Default: NAME of the export."
    )
    flags.DEFINE_float(
        "tolerance",
        1e-4,
        "How far a number may be from what the export answered.",
        lower_bound=0,
    )
    flags.DEFINE_integer(
        "requests",
        100,
        "How many to measure for each signature; 0 for none.",
        lower_bound=0,
    )
    flags.DEFINE_integer(
        "concurrency", 4, "How many are under way at a time.", lower_bound=1
    )
    flags.DEFINE_string("json", None, "File to write what was found to.")


# What is checked of each signature; all but the first if it takes images.
CHECKS = {
    "answer": check_answer,
    "batch": check_batch,
    "refusal": check_refusal,
}


if __name__ == "__main__":
    define_flags()
    start(main)
