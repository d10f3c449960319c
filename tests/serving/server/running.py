"""The server on a thread of the tests, and requests to it."""

import contextlib
import json
import threading
import time

import numpy as np
import urllib3

from keras_vit.serve import LOOPBACK, listen
from keras_vit.serving.server.app import make_app
from keras_vit.serving.server.limits import Limits
from keras_vit.serving.server.loaded_model import LoadedModel
from keras_vit.serving.server.served_models import load_version
from keras_vit.serving.server.uvicorn_server import make_server
from keras_vit.serving.server.versions import ServedModel

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


@contextlib.contextmanager
def run_server(models, limits=None, any_address=False, **options):
    """Yield the address of a server of models that have been polled."""
    limits = limits or Limits()
    app = make_app(models, LOOPBACK, any_address, limits, **options)
    server = make_server(app, limits)
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


def poll_model(name, folder, load=load_version):
    """Return a model of which the newest version is loaded."""
    model = ServedModel(name, folder, load)
    model.poll()
    return model


def serve_functions(folder, signatures, name="m"):
    """Return a model of Python functions, as if it were a version on disk."""
    (folder / "7").mkdir()
    return poll_model(name, folder, lambda path: make_model(signatures))


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
