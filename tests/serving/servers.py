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
    """An answer that is an error: its status in HTTP and in gRPC, its words."""

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

    def find(self, name, version=None, label=None, for_status=False):
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
            message = f"Could not find {asked} of model {name}"
            if not for_status:
                asked = (
                    "Latest(" if version is None else f"Specific({version}, "
                )
                message = f"Servable not found for request: {asked}{name})"
            raise Refusal(404, message)
        return name, max(known) if version is None else version

    def spec(self, key, signature):
        """Return the SignatureDef."""
        found = self.signatures[key].get(signature or "serving_default")
        if found is None:
            raise Refusal(
                400, f'Serving signature name: "{signature}" not found'
            )
        return found

    def answer(self, key, signature, inputs):
        """Return the outputs, arrays by name."""
        spec = self.spec(key, signature)
        if set(inputs) != set(spec.inputs):
            raise Refusal(
                400, f"input keys {set(inputs)}, expected {set(spec.inputs)}"
            )
        call = self.loaded[key].signatures[signature or "serving_default"]
        try:
            tensors = {
                name: tf.constant(x, spec.inputs[name].dtype)
                for name, x in inputs.items()
            }
            outputs = call(**tensors)
        except (tf.errors.InvalidArgumentError, ValueError, TypeError) as error:
            raise Refusal(400, str(error)) from None
        return {name: x.numpy() for name, x in outputs.items()}


class Faults:
    """The faults of the next prediction requests."""

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
      answered by `outputs`; exactly one of them is given.
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
                self.answer(owner.get)

            def do_POST(self):
                self.answer(owner.post)

            def answer(self, do):
                length = int(self.headers.get("Content-Length", 0))
                body = self.rfile.read(length)
                owner.requests.append((self.command, self.path, body))
                if do == owner.get:
                    return self.send(*owner.reply(do, self.path))
                with owner.faults.request() as fault:
                    if fault == "close":
                        self.close_connection = True
                    elif fault == "busy":
                        self.send(503, {"error": "the queue is full"})
                    elif fault == "proxy":
                        self.send(502, None, b"<h1>Bad Gateway</h1>")
                    elif fault == "garbage":
                        self.send(200, None, b"<html>Please log in</html>")
                    elif fault == "cut":
                        status, answer = owner.reply(do, self.path, body)
                        text = json.dumps(answer).encode()
                        self.send(status, None, text[:-9], len(text))
                        self.close_connection = True
                    elif fault == "fewer":
                        status, answer = owner.reply(do, self.path, body)
                        answer["outputs"] = answer["outputs"][1:]
                        self.send(status, answer)
                    elif fault == "ragged":
                        self.send(200, {"outputs": [[1, 2], [3]]})
                    elif fault == "null":
                        self.send(200, {"outputs": [[None] * 5] * 2})
                    else:
                        self.send(*owner.reply(do, self.path, body))

            def send(self, status, answer, text=None, length=None):
                text = text or json.dumps(answer, indent=4).encode()
                try:
                    self.send_response(status)
                    self.send_header("Content-Type", "application/json")
                    self.send_header("Content-Length", str(length or len(text)))
                    self.end_headers()
                    self.wfile.write(text)
                except (BrokenPipeError, ConnectionResetError):
                    self.close_connection = True  # Nobody waits any more.

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

    def parse(self, path, pattern):
        found = re.fullmatch(
            r"/v1/models/([^/:]+)(?:/versions/(\d+)|/labels/([^/:]+))?"
            + pattern,
            path,
        )
        if not found:
            raise Refusal(404, f"Malformed request: {path}")
        name, version, label = found.groups()[:3]
        return name, version and int(version), label

    def get(self, path):
        if path.endswith("/metadata"):
            asked = self.parse(path, "/metadata")
            key = self.models.find(*asked)
            defs = get_model_metadata_pb2.SignatureDefMap()
            for name, spec in self.models.signatures[key].items():
                defs.signature_def[name].CopyFrom(spec)
            defs = MessageToDict(
                defs,
                preserving_proto_field_name=True,
                always_print_fields_with_no_presence=True,
            )
            return {
                "model_spec": {
                    "name": key[0],
                    "signature_name": "",
                    "version": str(key[1]),
                },
                "metadata": {"signature_def": defs},
            }
        name, version, label = self.parse(path, "")
        self.models.find(name, version, label, for_status=True)
        return {
            "model_version_status": [
                {
                    "version": str(v),
                    "state": "AVAILABLE",
                    "status": {"error_code": "OK", "error_message": ""},
                }
                for n, v in sorted(self.models.loaded, reverse=True)
                if n == name and version in (None, v)
            ]
        }

    def post(self, path, body):
        asked = self.parse(path, ":predict")
        try:
            request = json.loads(body)
        except ValueError:
            raise Refusal(400, f"JSON Parse error: {body[:40]!r}") from None
        forms = [key for key in ("instances", "inputs") if key in request]
        if len(forms) != 1:
            raise Refusal(400, "Give one of 'instances' and 'inputs'")
        key = self.models.find(*asked)
        signature = request.get("signature_name", "serving_default")
        specs = self.models.spec(key, signature).inputs
        read = read_rows if forms == ["instances"] else read_columns
        outputs = self.models.answer(
            key, signature, read(request[forms[0]], specs)
        )
        columns = {n: write_json(n, x) for n, x in outputs.items()}
        if forms == ["inputs"]:
            [*others, last] = columns.values()
            return {"outputs": columns if others else last}
        rows = [
            dict(zip(columns, row)) if len(columns) > 1 else row[0]
            for row in zip(*columns.values())
        ]
        return {"predictions": rows}


def read_rows(rows, specs):
    if not isinstance(rows, list) or not rows:
        raise Refusal(400, "'instances' is no list of values")
    if all(isinstance(row, dict) and set(row) != {"b64"} for row in rows):
        names = set().union(*rows)
        if any(set(row) != names for row in rows):
            raise Refusal(400, "not every instance has the same inputs")
        return {n: read_tensor(n, [r[n] for r in rows], specs) for n in names}
    if len(specs) != 1:
        raise Refusal(400, "several inputs need their names")
    [name] = specs
    return {name: read_tensor(name, rows, specs)}


def read_columns(columns, specs):
    if isinstance(columns, dict) and set(columns) != {"b64"}:
        return {n: read_tensor(n, x, specs) for n, x in columns.items()}
    if len(specs) != 1:
        raise Refusal(400, "several inputs need their names")
    [name] = specs
    return {name: read_tensor(name, columns, specs)}


def read_tensor(name, value, specs):
    if name not in specs:
        raise Refusal(400, f"unknown input {name}")
    dtype = tf.as_dtype(specs[name].dtype)

    def read(value):
        if isinstance(value, list):
            return [read(x) for x in value]
        if isinstance(value, dict):
            if set(value) != {"b64"}:
                raise Refusal(400, f"JSON object is no tensor of {name}")
            value = base64.b64decode(value["b64"])
        if isinstance(value, str):
            value = value.encode()
        if isinstance(value, bytes) != (dtype == tf.string):
            raise Refusal(400, f"JSON Value is not of type {dtype.name}")
        if isinstance(value, float) and dtype.is_integer:
            raise Refusal(400, f"JSON Value is not of type {dtype.name}")
        return value

    value = read(value)
    try:
        return np.array(value, object if dtype == tf.string else None)
    except ValueError:
        raise Refusal(400, f"{name} is not rectangular") from None


def write_json(name, array):
    if array.dtype.name == "bfloat16":
        raise Refusal(
            400, "Failed to write JSON value for tensor type: bfloat16"
        )
    if array.dtype != object:
        return array.tolist()

    def write(text):
        if name.endswith("_bytes"):
            return {"b64": base64.b64encode(text).decode()}
        return text.decode()

    return np.frompyfunc(write, 1, 1)(array).tolist()


# ---------------------------------------------------------------------- gRPC

CODES = {
    400: grpc.StatusCode.INVALID_ARGUMENT,
    404: grpc.StatusCode.NOT_FOUND,
}


class GrpcServer:
    """The services of tensorflow-serving-api."""

    def __init__(self, models, port=0):
        self.models = models
        self.faults = Faults()
        self.requests = []  # PredictRequest
        owner = self

        def find(spec, **options):
            version = spec.version.value if spec.HasField("version") else None
            label = spec.version_label or None
            return models.find(spec.name, version, label, **options)

        def refusing(method):
            def answer(self, request, context):
                try:
                    return method(request, context)
                except Refusal as refusal:
                    context.abort(CODES[refusal.status], str(refusal))

            return answer

        @refusing
        def get_status(request, context):
            spec = request.model_spec
            _, found = find(spec, for_status=True)
            answer = get_model_status_pb2.GetModelStatusResponse()
            for name, version in sorted(models.loaded, reverse=True):
                if name != spec.name:
                    continue
                if spec.HasField("version") and version != found:
                    continue
                answer.model_version_status.add(version=version, state=30)
            return answer

        @refusing
        def get_metadata(request, context):
            key = find(request.model_spec)
            defs = get_model_metadata_pb2.SignatureDefMap()
            for name, spec in models.signatures[key].items():
                defs.signature_def[name].CopyFrom(spec)
            answer = get_model_metadata_pb2.GetModelMetadataResponse()
            answer.metadata["signature_def"].Pack(defs)
            return answer

        @refusing
        def predict(request, context):
            owner.requests.append(request)
            unavailable = grpc.StatusCode.UNAVAILABLE
            with owner.faults.request() as fault:
                if fault in ("busy", "close", "proxy", "cut"):
                    context.abort(unavailable, "the queue is full")
                outputs = models.answer(
                    find(request.model_spec),
                    request.model_spec.signature_name,
                    {n: tf.make_ndarray(x) for n, x in request.inputs.items()},
                )
            answer = predict_pb2.PredictResponse()
            for name, array in outputs.items():
                if fault == "fewer":
                    array = array[1:]
                if fault != "null":
                    # As the real server does, in `float_val`.
                    answer.outputs[name].CopyFrom(to_lists(array))
                if fault in ("garbage", "ragged"):
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
