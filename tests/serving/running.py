"""The server on a thread of the tests, and requests to it."""

import base64
import contextlib
import json
import threading
import time

import numpy as np
import urllib3

from keras_vit.command_line import make_serve_parser
from keras_vit.serve import listen
from keras_vit.serving.models import LoadedModel, ServedModel
from keras_vit.serving.server import make_server

POOL = urllib3.PoolManager(maxsize=64, retries=False, timeout=20)


class Address(str):
    """The address of a server, and ways to ask it."""

    def ask(self, path, body=None, method=None, **headers):
        """Return the status, the headers and the body of an answer."""
        method = method or ("GET" if body is None else "POST")
        if isinstance(body, dict):
            body = json.dumps(body)
        response = POOL.request(
            method,
            f"{self}{path}",
            body=body,
            headers={n.replace("_", "-"): x for n, x in headers.items()},
        )
        return response.status, response.headers, response.data

    def get(self, path):
        status, _, data = self.ask(path)
        return status, json.loads(data)

    def post(self, path, body):
        status, _, data = self.ask(path, body)
        return status, json.loads(data)


def of_files(*contents):
    """Return the body of a request for the classes of image files."""
    rows = [{"b64": base64.b64encode(x).decode()} for x in contents]
    return {"signature_name": "serve_bytes", "instances": rows}


@contextlib.contextmanager
def run_server(models, *flags, poll_seconds=1.0):
    """Yield the address of a server of models."""
    options = make_serve_parser().parse_args(["FOLDER", *flags])
    server = make_server(models, options, poll_seconds)
    with listen("127.0.0.1", 0) as listener:
        address = Address(f"http://127.0.0.1:{listener.getsockname()[1]}")
        thread = threading.Thread(target=server.run, args=([listener],))
        thread.start()
        try:
            wait_until(lambda: server.started)
            yield address
        finally:
            server.should_exit = True
            thread.join(20)
            assert not thread.is_alive()


def in_threads(*calls):
    """Return the results of functions that are called at the same time."""
    results = [None] * len(calls)

    def call(index):
        results[index] = calls[index]()

    threads = [
        threading.Thread(target=call, args=(i,)) for i in range(len(calls))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def serve_functions(folder, signatures, name="m"):
    """Return a model of Python functions, as if it were a version on disk."""
    (folder / "7").mkdir()
    return ServedModel(name, folder, lambda path: make_model(signatures))


def wait_until(check, seconds=10):
    """Wait until something is true."""
    end = time.monotonic() + seconds
    while not check():
        assert time.monotonic() < end, check
        time.sleep(0.01)


def spec(dtype, *sizes):
    """Return a TensorInfo in its JSON form."""
    sizes = [{"size": str(size), "name": ""} for size in sizes]
    shape = {"dim": sizes, "unknown_rank": False}
    return {"name": "x:0", "dtype": dtype, "tensor_shape": shape}


def make_model(signatures):
    """Return a model of Python functions.

    Args:
        signatures: By name: (inputs, outputs, function), the TensorInfos by
            name, and a function of the inputs.
    """
    defs = {
        name: {
            "inputs": inputs,
            "outputs": outputs,
            "method_name": "tensorflow/serving/predict",
            "defaults": {},
        }
        for name, (inputs, outputs, _) in signatures.items()
    }

    def call(name, inputs):
        outputs = signatures[name][2](**inputs)
        return {key: np.asarray(value) for key, value in outputs.items()}

    return LoadedModel(defs, call)
