"""Load on the small server: requests a second, and 10,000 with faults.

Writes a model with new weights, serves it in a process of its own, and sends
requests of one JPEG file each. Every answer is compared with what Keras
computes for the same file.

Example:
    python -m benchmarks.serve_load
"""

import base64
import collections
import concurrent.futures
import contextlib
import dataclasses
import json
import pathlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator

import keras
import numpy as np
import urllib3

from benchmarks.harness import describe_machine, make_parser, split_numbers
from keras_vit import VARIANTS, VisionTransformer
from keras_vit.export import Serving, export_file
from keras_vit.export.formats.saved_model import decode_inputs, name_classes
from keras_vit.models.features import name_output
from keras_vit.tables import format_table

NUM_FILES = 20
PATH = "/v1/models/model:predict"
RESPONSE_TOLERANCE = 1e-4
# Requests after which the memory counts.
WARM_UP_REQUESTS = 1000


def make_jpegs(num_files: int) -> list[bytes]:
    """Return JPEG files of 320 x 240 pixels, smooth as photos are."""
    import tensorflow as tf

    random = np.random.default_rng(0)
    coarse = random.uniform(0, 255, (num_files, 15, 20, 3))
    pixels = tf.cast(tf.image.resize(coarse, (240, 320), "bicubic"), tf.uint8)
    return [tf.io.encode_jpeg(image).numpy() for image in pixels]


def make_model(variant: str, image_size: int) -> keras.Model:
    """Return a model with new weights whose classes differ."""
    config = dataclasses.replace(
        VARIANTS[variant].config, image_size=image_size, num_classes=10
    )
    model = VisionTransformer(config)
    head = model.get_layer("predictions").kernel
    head.assign(np.random.default_rng(0).normal(size=head.shape, scale=0.5))
    return model


def expect(model: keras.Model, files: list[bytes]) -> list[dict]:
    """Return the expected response to each file, computed by Keras."""
    serving = Serving().for_model(model)
    images = decode_inputs(
        np.array(files, object), model.input_shape[1:], serving
    )
    name = name_output(model, None)
    found = name_classes({name: model(images)}, name, serving)
    return [
        {
            "labels": [label.decode() for label in labels],
            "probabilities": numbers.tolist(),
        }
        for labels, numbers in zip(
            found["labels"].numpy(), found["probabilities"].numpy()
        )
    ]


@contextlib.contextmanager
def served(folder: pathlib.Path) -> Iterator[tuple[str, int]]:
    """Yield the address and the process of a server of a folder."""
    command = [sys.executable, "-m", "keras_vit.serve", str(folder), "--port=0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as child:
        try:
            for line in child.stderr:
                if line.startswith("Page: "):
                    break
            else:
                raise RuntimeError("The server did not start")
            yield line.removeprefix("Page: ").strip().rstrip("/"), child.pid
        finally:
            child.terminate()
            child.communicate()


def make_body(content: bytes) -> bytes:
    """Return the request for the classes of a file."""
    text = base64.b64encode(content).decode("ascii")
    return json.dumps(
        {"signature_name": "serve_bytes", "instances": [{"b64": text}]}
    ).encode()


def make_faults(content: bytes) -> list[bytes]:
    """Return requests that must be refused."""
    body = make_body(content)
    return [
        make_body(content[: len(content) // 2]),  # Decoding finds it.
        make_body(content[:200]),
        make_body(b"no image"),
        make_body(b"\x89PNG\r\n\x1a\n and then nothing"),
        body.replace(b'"b64": "', b'"b64": "?'),
        body[: len(body) // 2],
        b"",
        b"[" * 100_000,
        b'{"instances": [[1, 2], [3]]}',
        b'{"instances": [NaN]}',
        body.replace(b"serve_bytes", b"no_such"),
    ]


def is_right(data: bytes, expected: dict) -> bool:
    """Return whether a response has the probabilities of Keras."""
    [found] = json.loads(data)["predictions"]
    return found["labels"] == expected["labels"] and np.allclose(
        found["probabilities"],
        expected["probabilities"],
        atol=RESPONSE_TOLERANCE,
    )


def send_all(
    address: str,
    requests: list[tuple[bytes, dict | None]],
    concurrency: int,
) -> tuple[collections.Counter, float]:
    """Send requests; return the outcomes and the seconds that they took.

    A request is a body and the expected answer; None for a fault.
    """
    pool = urllib3.PoolManager(maxsize=concurrency, retries=False)

    def send(request):
        body, expected = request
        response = pool.request("POST", address + PATH, body=body)
        if expected is None:
            is_refused = 400 <= response.status < 500
            return "refused" if is_refused else f"fault {response.status}"
        if response.status != 200:
            return f"good {response.status}"
        return "right" if is_right(response.data, expected) else "wrong"

    began = time.perf_counter()
    with concurrent.futures.ThreadPoolExecutor(concurrency) as threads:
        outcomes = collections.Counter(threads.map(send, requests))
    return outcomes, time.perf_counter() - began


def read_memory(pid: int) -> float:
    """Return the resident memory of a process, in MB."""
    text = pathlib.Path(f"/proc/{pid}/status").read_text()
    [line] = [x for x in text.splitlines() if x.startswith("VmRSS")]
    return int(line.split()[1]) / 1024


def measure_keras(model: keras.Model, batch_size: int, seconds=5.0) -> float:
    """Return the images a second of `predict_on_batch`."""
    images = np.zeros((batch_size, *model.input_shape[1:]), "float32")
    model.predict_on_batch(images)
    began, count = time.perf_counter(), 0
    while time.perf_counter() - began < seconds:
        model.predict_on_batch(images)
        count += batch_size
    return count / (time.perf_counter() - began)


@contextlib.contextmanager
def served_model(variant: str, image_size: int, folder: pathlib.Path):
    """Yield a model, its good requests, and the server of its export."""
    model = make_model(variant, image_size)
    files = make_jpegs(NUM_FILES)
    path = folder / "model" / "1"
    shape = (2, *model.input_shape[1:])
    images = np.random.default_rng(0).uniform(-1, 1, shape)
    export_file(model, path, images.astype("float32"))
    good = list(zip(map(make_body, files), expect(model, files)))
    with served(path.parents[1]) as (address, pid):
        yield model, good, make_faults(files[0]), address, pid


def measure_load(options, folder: pathlib.Path) -> str:
    """Return the table of requests a second."""
    size = options.image_size
    rows = []
    with served_model(options.variant, size, folder) as found:
        model, good, _, address, _ = found
        for size in (1, 32):
            name = f"predict_on_batch, batch of {size}"
            rows.append((name, f"{measure_keras(model, size):.1f}"))
        send_all(address, good * 2, 4)
        for concurrency in options.concurrency:
            repeated = good * -(-options.requests // NUM_FILES)
            outcomes, seconds = send_all(address, repeated, concurrency)
            check_outcomes(outcomes, {"right"})
            rate = f"{len(repeated) / seconds:.1f}"
            rows.append((f"server, {concurrency} requests at a time", rate))
    return format_table(("what", "images/s"), rows)


def measure_faults(options, folder: pathlib.Path) -> str:
    """Return the table of the run with faults."""
    size = options.fault_image_size
    with served_model(options.variant, size, folder) as found:
        _, good, faults, address, pid = found
        requests = [
            (faults[i // 10 % len(faults)], None)
            if i % 10 == 9
            else good[i % NUM_FILES]
            for i in range(options.faulty_requests)
        ]
        outcomes, _ = send_all(address, requests[:WARM_UP_REQUESTS], 16)
        before = read_memory(pid)
        more, seconds = send_all(address, requests[WARM_UP_REQUESTS:], 16)
        after = read_memory(pid)
    outcomes += more
    check_outcomes(outcomes, {"right", "refused"})
    return format_table(
        ("what", "number"),
        [
            ("good requests, answered rightly", f"{outcomes['right']:,}"),
            ("corrupt requests, refused", f"{outcomes['refused']:,}"),
            ("requests/s", f"{more.total() / seconds:.0f}"),
            (f"MB after {WARM_UP_REQUESTS:,} requests", f"{before:.0f}"),
            (f"MB after {outcomes.total():,} requests", f"{after:.0f}"),
        ],
    )


def check_outcomes(outcomes: collections.Counter, allowed: set[str]):
    """Raise a RuntimeError if a request had another outcome."""
    if set(outcomes) - allowed:
        raise RuntimeError(f"Not all is well: {dict(outcomes)}")


OPTIONS = [
    ("--variant", str, "Ti/16", "a key of VARIANTS"),
    ("--image_size", int, 224, "for the load"),
    ("--requests", int, 400, "for each row of the load"),
    ("--concurrency", split_numbers, "1,8,32", "requests at a time"),
    ("--fault_image_size", int, 64, "for the faults"),
    ("--faulty_requests", int, 10_000, "a tenth corrupt"),
]


def main():
    """Print both tables."""
    options = make_parser(__doc__, OPTIONS).parse_args()
    print("\n".join(describe_machine({"keras": keras.__version__})))
    with tempfile.TemporaryDirectory() as folder:
        print(measure_load(options, pathlib.Path(folder, "load")), flush=True)
        print(measure_faults(options, pathlib.Path(folder, "faults")))


if __name__ == "__main__":
    main()
