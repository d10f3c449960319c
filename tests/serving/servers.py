"""Stand-ins for TF Serving on this machine, over REST and over gRPC.

They answer from SavedModels that TensorFlow has loaded. What they take and
give follows the rules of the real server: see the class RestServer.
"""

import base64
import collections
import concurrent.futures
import contextlib
import http.server
import json
import pathlib
import re
import threading
import time

import grpc
import numpy as np
import tensorflow as tf
from google.protobuf.json_format import MessageToDict
from tensorflow.core.protobuf import saved_model_pb2
from tensorflow_serving.apis import (
    get_model_metadata_pb2,
    get_model_status_pb2,
    model_service_pb2_grpc,
    predict_pb2,
    prediction_service_pb2_grpc,
)


class Refusal(Exception):
    """An answer that is an error: its status in HTTP, its words."""

    def __init__(self, status, message):
        super().__init__(message)
        self.status = status


class Models:
    """The models of `<folder>/<model>/<version>/`, loaded.

    Args:
        folder: Holds the models.
        labels: By model, which version each label names.
    """

    def __init__(self, folder, labels=None):
        self.labels = labels or {}
        self.loaded = {}
        self.signatures = {}
        for path in pathlib.Path(folder).glob("*/[0-9]*"):
            key = path.parent.name, int(path.name)
            self.loaded[key] = tf.saved_model.load(str(path))
            proto = saved_model_pb2.SavedModel()
            proto.ParseFromString((path / "saved_model.pb").read_bytes())
            [graph] = proto.meta_graphs
            self.signatures[key] = dict(graph.signature_def)

    def find(self, name, version=None, label=None):
        """Return the key of a version."""
        if label is not None:
            version = self.labels.get(name, {}).get(label)
            if version is None:
                raise Refusal(
                    400, f"Unrecognized servable version label: {label}"
                )
        known = [v for n, v in self.loaded if n == name]
        if not known or version not in (None, *known):
            asked = "any versions" if version is None else f"version {version}"
            raise Refusal(404, f"Could not find {asked} of model {name}")
        return name, max(known) if version is None else version

    def versions(self, name, version=None, label=None):
        """Return the numbers of the versions whose status is asked."""
        _, found = self.find(name, version, label)
        known = [v for n, v in sorted(self.loaded, reverse=True) if n == name]
        return known if version is None else [found]

    def signature_map(self, key):
        """Return the SignatureDefs as a message."""
        defs = get_model_metadata_pb2.SignatureDefMap()
        for name, spec in self.signatures[key].items():
            defs.signature_def[name].CopyFrom(spec)
        return defs

    def inputs(self, key, signature):
        """Return the TensorInfos of the inputs of a signature."""
        if signature not in self.signatures[key]:
            raise Refusal(
                400, f'Serving signature name: "{signature}" not found'
            )
        return self.signatures[key][signature].inputs

    def answer(self, key, signature, inputs):
        """Return the outputs, arrays by name."""
        specs = self.inputs(key, signature)
        if set(inputs) != set(specs):
            raise Refusal(400, f"inputs {set(inputs)}, expected {set(specs)}")
        try:
            tensors = {
                name: tf.constant(x, specs[name].dtype)
                for name, x in inputs.items()
            }
            outputs = self.loaded[key].signatures[signature](**tensors)
        except (tf.errors.InvalidArgumentError, ValueError, TypeError) as error:
            raise Refusal(400, str(error)) from None
        return {name: x.numpy() for name, x in outputs.items()}


class Faults:
    """The faults of the next prediction requests: names, or seconds."""

    def __init__(self):
        self._next = collections.deque()
        self.num_requests = 0
        self.most_at_once = 0
        self._at_once = 0
        self._lock = threading.Lock()

    def plan(self, *faults):
        """Set the faults of the next requests; later ones have none."""
        self._next.extend(faults)

    @contextlib.contextmanager
    def request(self):
        """Yield the fault of this request, if any."""
        with self._lock:
            self.num_requests += 1
            self._at_once += 1
            self.most_at_once = max(self.most_at_once, self._at_once)
            fault = self._next.popleft() if self._next else None
        try:
            if isinstance(fault, float):
                time.sleep(fault)
            yield fault
        finally:
            with self._lock:
                self._at_once -= 1


# ---------------------------------------------------------------------- REST


class RestServer:
    """The JSON rules of TF Serving.

    - `instances` are rows, answered by `predictions`; `inputs` are columns,
      answered by `outputs`.
    - One input may go without its name; a single output has none: its values
      stand alone.
    - {"b64": ...} is bytes. Any other string is its own text.
    - Outputs whose name ends in `_bytes` are {"b64": ...}.
    - Whole numbers are taken for floats.
    - bfloat16 cannot be written.
    - Errors are {"error": ...} with 400 or 404.
    """

    def __init__(self, models, port=0):
        self.models = models
        self.faults = Faults()
        self.requests = []  # (method, path, body)
        self.connections = set()
        owner = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True  # 40 ms an answer.

            def setup(self):
                super().setup()
                owner.connections.add(self.client_address)

            def do_GET(self):
                owner.requests.append((self.command, self.path, b""))
                self.send(*owner.reply(owner.get, self.path))

            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                owner.requests.append((self.command, self.path, body))
                with owner.faults.request() as fault:
                    status, answer = owner.reply(owner.post, self.path, body)
                    if fault == "close":
                        self.close_connection = True
                        return
                    if fault == "busy":
                        status, answer = 503, {"error": "the queue is full"}
                    elif fault == "proxy":
                        status = 502
                    elif fault == "garbage":
                        answer = "Please log in"
                    elif fault == "fewer":
                        answer["outputs"] = answer["outputs"][1:]
                    self.send(status, answer)

            def send(self, status, answer):
                text = json.dumps(answer, indent=4).encode()
                if status == 502:
                    text = b"<h1>Bad Gateway</h1>"
                with contextlib.suppress(ConnectionError):  # Nobody waits.
                    self.send_response(status)
                    self.send_header("Content-Length", str(len(text)))
                    self.end_headers()
                    self.wfile.write(text)

            def log_message(self, *words):
                pass

        class Server(http.server.ThreadingHTTPServer):
            request_queue_size = 64

            def handle_error(self, *request):
                pass  # A client that has gone.

        self._server = Server(("127.0.0.1", port), Handler)
        self.address = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.02,), daemon=True
        )
        self._thread.start()

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self._server.shutdown()
        self._server.server_close()

    def reply(self, do, *request):
        try:
            return 200, do(*request)
        except Refusal as refusal:
            return refusal.status, {"error": str(refusal)}

    def parse(self, path, end):
        """Return the name, the version and the label in a path."""
        place = r"/v1/models/([^/:]+)(?:/versions/(\d+)|/labels/([^/:]+))?"
        found = re.fullmatch(place + end, path)
        if not found:
            raise Refusal(404, f"Malformed request: {path}")
        name, version, label = found.groups()
        return name, version and int(version), label

    def get(self, path):
        if path.endswith("/metadata"):
            name, version = key = self.models.find(
                *self.parse(path, "/metadata")
            )
            defs = MessageToDict(
                self.models.signature_map(key),
                preserving_proto_field_name=True,
                always_print_fields_with_no_presence=True,
            )
            spec = {"name": name, "signature_name": "", "version": str(version)}
            return {"model_spec": spec, "metadata": {"signature_def": defs}}
        return {
            "model_version_status": [
                {
                    "version": str(version),
                    "state": "AVAILABLE",
                    "status": {"error_code": "OK", "error_message": ""},
                }
                for version in self.models.versions(*self.parse(path, ""))
            ]
        }

    def post(self, path, body):
        key = self.models.find(*self.parse(path, ":predict"))
        request = decode(json.loads(body))
        name = request.get("signature_name", "serving_default")
        rows = request.get("instances")
        inputs = request.get("inputs", rows)
        if rows and isinstance(rows[0], dict):
            inputs = {n: [row[n] for row in rows] for n in rows[0]}
        if not isinstance(inputs, dict):
            [single] = self.models.inputs(key, name)
            inputs = {single: inputs}
        outputs = self.models.answer(key, name, inputs)
        columns = {n: encode(n, x) for n, x in outputs.items()}
        [*others, last] = columns.values()
        if not rows:
            return {"outputs": columns if others else last}
        rows = [dict(zip(columns, row)) for row in zip(*columns.values())]
        return {"predictions": rows if others else last}


def decode(value):
    """Return a JSON value with bytes in the place of {"b64": ...}."""
    if isinstance(value, list):
        return [decode(x) for x in value]
    if isinstance(value, dict) and set(value) == {"b64"}:
        return base64.b64decode(value["b64"])
    if isinstance(value, dict):
        return {name: decode(x) for name, x in value.items()}
    return value


def encode(name, array):
    """Return an output as JSON."""
    if array.dtype.name == "bfloat16":
        raise Refusal(400, "Failed to write JSON value for type: bfloat16")
    if array.dtype != object:
        return array.tolist()

    def write(text):
        if name.endswith("_bytes"):
            return {"b64": base64.b64encode(text).decode()}
        return text.decode()

    return np.frompyfunc(write, 1, 1)(array).tolist()


# ---------------------------------------------------------------------- gRPC

CODES = {400: grpc.StatusCode.INVALID_ARGUMENT, 404: grpc.StatusCode.NOT_FOUND}


class GrpcServer:
    """The services of tensorflow-serving-api."""

    def __init__(self, models, port=0):
        self.models = models
        self.faults = Faults()
        self.requests = []  # PredictRequest
        owner = self

        def read(spec):
            version = spec.version.value if spec.HasField("version") else None
            return spec.name, version, spec.version_label or None

        def refusing(method):
            def answer(self, request, context):
                try:
                    return method(request, context)
                except Refusal as refusal:
                    context.abort(CODES[refusal.status], str(refusal))

            return answer

        @refusing
        def get_status(request, context):
            answer = get_model_status_pb2.GetModelStatusResponse()
            for version in models.versions(*read(request.model_spec)):
                answer.model_version_status.add(version=version, state=30)
            return answer

        @refusing
        def get_metadata(request, context):
            key = models.find(*read(request.model_spec))
            answer = get_model_metadata_pb2.GetModelMetadataResponse()
            answer.metadata["signature_def"].Pack(models.signature_map(key))
            return answer

        @refusing
        def predict(request, context):
            owner.requests.append(request)
            with owner.faults.request() as fault:
                if fault in ("busy", "close"):
                    code = grpc.StatusCode.UNAVAILABLE
                    context.abort(code, "the queue is full")
                outputs = models.answer(
                    models.find(*read(request.model_spec)),
                    request.model_spec.signature_name,
                    {n: tf.make_ndarray(x) for n, x in request.inputs.items()},
                )
            answer = predict_pb2.PredictResponse()
            for name, array in outputs.items():
                if fault == "fewer":
                    array = array[1:]
                # As the real server does, in `float_val`.
                answer.outputs[name].CopyFrom(to_lists(array))
                if fault == "garbage":
                    answer.outputs[name].dtype = 0
            return answer

        predictions = type(
            "Predictions",
            (prediction_service_pb2_grpc.PredictionServiceServicer,),
            {"Predict": predict, "GetModelMetadata": get_metadata},
        )
        statuses = type(
            "Statuses",
            (model_service_pb2_grpc.ModelServiceServicer,),
            {"GetModelStatus": get_status},
        )
        self._server = grpc.server(
            concurrent.futures.ThreadPoolExecutor(16),
            options=[("grpc.max_receive_message_length", -1)],
        )
        prediction_service_pb2_grpc.add_PredictionServiceServicer_to_server(
            predictions(), self._server
        )
        model_service_pb2_grpc.add_ModelServiceServicer_to_server(
            statuses(), self._server
        )
        port = self._server.add_insecure_port(f"127.0.0.1:{port}")
        self.address = f"127.0.0.1:{port}"
        self._server.start()

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self._server.stop(None).wait()


def to_lists(array):
    """Return a TensorProto that stores its numbers one by one."""
    proto = tf.make_tensor_proto(array)
    if array.dtype == np.float32:
        proto.ClearField("tensor_content")
        proto.float_val[:] = array.ravel()
    return proto


SERVERS = {"url": RestServer, "grpc": GrpcServer}
