"""A client of TF Serving, over REST (urllib3) or gRPC.

The errors, the types of signatures and the form of tensors in JSON are those
of the small server as well.

Reference: https://www.tensorflow.org/tfx/serving/api_rest
"""

import base64
import concurrent.futures
import dataclasses
import json
import math
import os
import pathlib
import reprlib
from collections.abc import Mapping, Sequence
from urllib.parse import quote

import numpy as np

from keras_vit.errors import missing_packages
from keras_vit.tables import pick

# ------------------------------------------------------------------- errors


class ServingError(RuntimeError):
    """A server refused a request, or sent an invalid response.

    Its `code` is the status as named by gRPC, also over REST, such as
    "INVALID_ARGUMENT"; empty if the request succeeded.
    """

    def __init__(self, message: str, code: str = ""):
        super().__init__(message)
        self.code = code


class UnavailableError(ServingError):
    """A server cannot be reached, or is busy.

    The same request may succeed later.
    """


# gRPC's names, by the statuses of HTTP that TF Serving maps them to; also of
# proxies and of the small server.
CODES = {
    400: "INVALID_ARGUMENT",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    413: "RESOURCE_EXHAUSTED",
    499: "CANCELLED",
    500: "INTERNAL",
    502: "UNAVAILABLE",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}
# After these the same request may succeed: a proxy without its server, a full
# queue, a deadline.
PASSING_STATUSES = (502, 503, 504)

# --------------------------------------------------------------- signatures


@dataclasses.dataclass(frozen=True)
class TensorSpec:
    """The type of an input or an output.

    Args:
        dtype: NumPy's name, or "string". Types without data keep
            TensorFlow's name, such as DT_RESOURCE.
        shape: The sizes, None for any size; None for any number of axes.
    """

    dtype: str
    shape: tuple[int | None, ...] | None

    def accepts(self, shape: Sequence[int]) -> bool:
        """Return whether an array of this shape fits.

        Example:
            >>> TensorSpec("float32", (None, 3)).accepts((8, 3))
            True
        """
        return self.shape is None or (
            len(shape) == len(self.shape)
            and all(m in (None, n) for m, n in zip(self.shape, shape))
        )


@dataclasses.dataclass(frozen=True)
class Signature:
    """A function of a served model.

    Args:
        inputs: Types by name.
        outputs: Types by name.
    """

    inputs: Mapping[str, TensorSpec]
    outputs: Mapping[str, TensorSpec]


@dataclasses.dataclass(frozen=True)
class VersionStatus:
    """The state of a version of a model.

    Args:
        version: Number of the version.
        state: START, LOADING, AVAILABLE, UNLOADING or END.
        message: The error, if the version failed.
    """

    version: int
    state: str
    message: str = ""


def read_signatures(signature_defs: Mapping) -> dict[str, Signature]:
    """Parse SignatureDefs in their JSON form.

    Args:
        signature_defs: SignatureDefs by name, from the REST interface or from
            `MessageToDict(..., preserving_proto_field_name=True)` of
            google.protobuf. TensorFlow's internal ones, whose names begin
            with `__`, are left out.
    """

    def read(infos):
        return {key: _read_spec(x) for key, x in sorted(infos.items())}

    return {
        name: Signature(
            read(row.get("inputs", {})), read(row.get("outputs", {}))
        )
        for name, row in sorted(signature_defs.items())
        if not name.startswith("__")
    }


def _read_spec(info):
    dtype = SIGNATURE_DTYPES.get(info["dtype"], info["dtype"])
    shape = info.get("tensor_shape", {})
    if shape.get("unknown_rank"):
        return TensorSpec(dtype, None)
    sizes = [int(axis.get("size", 0)) for axis in shape.get("dim", ())]
    return TensorSpec(dtype, tuple(None if n < 0 else n for n in sizes))


def _read_status(document):
    """Return the states in a response about a model."""
    return [
        VersionStatus(
            int(row["version"]),
            row["state"],
            row.get("status", {}).get("error_message", ""),
        )
        for row in document.get("model_version_status", [])
    ]


WHOLE_DTYPES = [f"{sign}int{n}" for sign in ("", "u") for n in (8, 16, 32, 64)]
# By TensorFlow's names.
SIGNATURE_DTYPES = {
    "DT_FLOAT": "float32",
    "DT_DOUBLE": "float64",
    "DT_HALF": "float16",
    "DT_BFLOAT16": "bfloat16",
    "DT_BOOL": "bool",
    "DT_STRING": "string",
    **{f"DT_{name.upper()}": name for name in WHOLE_DTYPES},
}
FLOATS = ("float16", "bfloat16", "float32", "float64")

# ----------------------------------------------------------- tensors in JSON


def to_json(array: np.ndarray) -> list:
    """Convert an array to nested lists for JSON.

    Bytes become {"b64": ...}; the server would treat plain base64 as text.

    Example:
        >>> to_json(np.array([[0.5, 2]])), to_json(np.array([b"a"], object))
        ([[0.5, 2.0]], [{'b64': 'YQ=='}])
    """
    if array.dtype == object:
        encode = np.frompyfunc(
            lambda text: {"b64": base64.b64encode(text).decode("ascii")}, 1, 1
        )
        return np.array(encode(array), object).tolist()
    return array.tolist()


def from_json(value, dtype: str) -> np.ndarray:
    r"""Convert nested lists to an array.

    Args:
        value: A JSON value. A string stands for its UTF-8 text.
        dtype: NumPy's name, or "string".

    Raises:
        ValueError: If the lists are ragged, or hold values of another type.

    Example:
        >>> from_json(["a", {"b64": "/w"}], "string")
        array([b'a', b'\xff'], dtype=object)
    """
    if dtype == "string":
        decode = np.frompyfunc(_decode, 1, 1)
        return np.array(decode(np.array(value, object)), object)
    try:
        array = np.array(value)
    except ValueError:
        raise ValueError("the lists are of different lengths") from None
    if array.size and array.dtype.kind not in JSON_KINDS.get(dtype, ""):
        raise ValueError(f"{reprlib.repr(value)} is not of type {dtype}")
    with np.errstate(over="ignore"):  # Becomes infinite.
        numbers = array.astype(dtype)
    if dtype in WHOLE_DTYPES and not np.array_equal(numbers, array):
        raise ValueError(f"a number is out of the range of {dtype}")
    return numbers


def _decode(value):
    if isinstance(value, str):
        return value.encode("utf-8")
    if not is_base64(value):
        raise ValueError(f'{reprlib.repr(value)} is not {{"b64": TEXT}}')
    # As in TF Serving, there may be white space and no padding; and the
    # alphabet may be that of URLs.
    text = "".join(value["b64"].split()).translate(FROM_URL_ALPHABET)
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
    except ValueError as error:
        text = reprlib.repr(value["b64"])
        raise ValueError(f"{text} is not base64: {error}") from None


def is_base64(value) -> bool:
    """Return whether a JSON value stands for bytes."""
    return (
        isinstance(value, dict)
        and value.keys() == {"b64"}
        and isinstance(value["b64"], str)
    )


FROM_URL_ALPHABET = str.maketrans("-_", "+/")
# The kinds of arrays of JSON values, by the dtype of the tensor.
JSON_KINDS = {
    "bool": "b",
    **dict.fromkeys(("float16", "float32", "float64"), "iuf"),
    **dict.fromkeys(WHOLE_DTYPES, "iu"),
}

# --------------------------------------------------------------- the client


def connect(
    url: str | None = None,
    *,
    grpc: str | None = None,
    model: str,
    version: int | None = None,
    label: str | None = None,
    timeout: float = 30.0,
    retries: int = 3,
    batch_size: int = 32,
    concurrency: int = 4,
) -> "Client":
    """Return a client of one model on a server. Nothing is sent yet.

    Args:
        url: The REST interface, such as http://localhost:8501.
        grpc: The gRPC interface, such as localhost:8500; instead of `url`.
        model: The name of the model.
        version: Number of a version. Default: the newest.
        label: A label such as "stable", instead of a version.
        timeout: Seconds to wait. Over REST, for a connection, and for each
            piece of the response, in each attempt. Over gRPC, for the whole
            call including all attempts.
        retries: Number of retries if the connection fails or the server is
            busy; over REST, also after a timeout. gRPC allows at most 4.
        batch_size: Largest number of rows in a request.
        concurrency: Largest number of concurrent requests.

    Raises:
        ValueError: If an argument is out of range.
        ModuleNotFoundError: If a package is missing.

    Example:
        with connect("http://localhost:8501", model="digits") as client:
            [[(label, probability), *_]] = client.classify(["digit.png"])
    """
    most = math.inf if grpc is None else MOST_GRPC_RETRIES
    is_one = (url is None) != (grpc is None)
    is_http = (url or "http://").startswith(("http://", "https://"))
    is_pair = grpc is None or ("//" not in grpc and ":" in grpc)
    for name, value, is_right, rule in (
        ("url", url, is_one, "given without `grpc`, and None with it"),
        ("url", url, is_http, "http://... or https://..."),
        ("grpc", grpc, is_pair, "HOST:PORT"),
        ("label", label, None in (version, label), "None with a `version`"),
        ("timeout", timeout, timeout > 0, "positive"),
        ("retries", retries, 0 <= retries <= most, f"from 0 to {most}"),
        ("batch_size", batch_size, batch_size >= 1, "1 or more"),
        ("concurrency", concurrency, concurrency >= 1, "1 or more"),
    ):
        if not is_right:
            raise ValueError(
                f"`{name}` must be {rule}. Received: {name}={value!r}"
            )
    arguments = (model, version, label, timeout, retries)
    try:
        if url is not None:
            transport = _Rest(url, *arguments, concurrency)
        else:
            transport = _Grpc(grpc, *arguments)
    except ModuleNotFoundError as error:
        module = error.name.partition(".")[0]
        raise missing_packages("This client of TF Serving", [module]) from None
    return Client(transport, batch_size, concurrency)


class Client:
    """Sends requests to a server; see `connect`. It is thread-safe.

    All methods raise a ServingError with the server's message if the server
    refuses, and its subclass UnavailableError if the server cannot be reached
    or is busy in all attempts.
    """

    def __init__(self, transport, batch_size: int, concurrency: int):
        self._transport = transport
        self._batch_size = batch_size
        self._threads = concurrent.futures.ThreadPoolExecutor(concurrency)
        self._signatures = {}

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.close()

    def close(self):
        """Close the connections."""
        self._threads.shutdown(cancel_futures=True)
        self._transport.close()

    def status(self) -> list[VersionStatus]:
        """Return the state of each version of the model."""
        return self._transport.status()

    def metadata(self) -> dict[str, Signature]:
        """Return the signatures of the model, by name."""
        self._signatures = self._transport.metadata()
        return dict(self._signatures)

    def predict(
        self,
        inputs: Mapping[str, np.ndarray],
        signature: str = "serving_default",
    ) -> dict[str, np.ndarray]:
        """Return the outputs of a signature.

        Inputs with more than `batch_size` rows are sent in parts, several at a
        time, and the outputs are concatenated in order. If no version is
        given, different versions may compute the parts while one replaces
        another.

        Shapes:
            All inputs and outputs: (B, ...).

        Args:
            inputs: Arrays by name. Strings are bytes, or text that is sent as
                UTF-8.
            signature: The name of the signature.

        Returns:
            Arrays by name, in the dtypes of the signature; strings as object
            arrays of bytes.

        Raises:
            ValueError: If inputs are missing, unknown, of different lengths,
                or of another type than the signature declares.
            ServingError: If the server does not respond, or refuses.
        """
        if signature not in self._signatures:
            self.metadata()
        row = pick(self._signatures, signature, "signature")
        arrays = {
            name: _to_array(value, pick(row.inputs, name, "inputs"), name)
            for name, value in inputs.items()
        }
        lengths = {len(x) if x.ndim else 0 for x in arrays.values()}
        has_rows = len(lengths) == 1 and 0 not in lengths
        if arrays.keys() != row.inputs.keys() or not has_rows:
            shapes = {name: x.shape for name, x in arrays.items()}
            raise ValueError(
                f"`inputs` must be {', '.join(row.inputs)}, all with the same "
                f"number of rows, 1 or more. Received: shapes {shapes}"
            )

        def send(start):
            part = {
                name: array[start : start + self._batch_size]
                for name, array in arrays.items()
            }
            outputs = self._transport.predict(signature, row, part)
            length = len(next(iter(part.values())))
            for name, spec in row.outputs.items():
                is_batch = spec.shape is None or spec.shape[:1] == (None,)
                if is_batch and outputs[name].shape[:1] != (length,):
                    raise ServingError(
                        f"The server sent {name} of shape "
                        f"{outputs[name].shape} for {length} rows"
                    )
            return outputs

        [length] = lengths
        if length <= self._batch_size:
            return send(0)
        outputs = [*self._threads.map(send, range(0, length, self._batch_size))]
        return {
            name: np.concatenate([part[name] for part in outputs])
            for name in row.outputs
        }

    def classify(
        self, images: Sequence[str | os.PathLike | bytes]
    ) -> list[list[tuple[str, float]]]:
        """Return the top classes of images with their probabilities.

        Uses the signature `serve_bytes`. If an image may have several labels,
        these are the ones whose probabilities reach their thresholds; there
        may be none. There are none either if the export tells that an image
        shows nothing that the model has learned.

        Args:
            images: Paths of JPEG or PNG files, or their contents.

        Returns:
            For each image, a list of (label, probability), highest first.

        Raises:
            ValueError: If the model has no classes.
            ServingError: If the server does not respond, or refuses.
        """
        if not len(images):
            return []
        outputs = self._ask_files(images, "classify", "labels")
        probabilities = outputs["probabilities"]
        below = probabilities < outputs.get("thresholds", -math.inf)
        if "is_known" in outputs:
            below |= ~outputs["is_known"][:, None]
        return [
            [
                (x.decode("utf-8"), float(p))
                for x, p, is_out in row
                if not is_out
            ]
            for row in map(zip, outputs["labels"], probabilities, below)
        ]

    def segment(
        self, images: Sequence[str | os.PathLike | bytes]
    ) -> tuple[np.ndarray, list[str]]:
        """Return the class of each pixel of images, and the names of classes.

        Uses the signature `serve_bytes`. The maps have the size of the images
        that the model reads, to which the server resizes the files.

        Shapes:
            returns: (B, H, W), uint8, or int32 of more than 256 classes, and
                a name for each class.

        Args:
            images: Paths of image files, or their contents; one or more.

        Raises:
            ValueError: If the model does not name the classes of pixels.
            ServingError: If the server does not respond, or refuses.
        """
        outputs = self._ask_files(images, "segment", "classes")
        names = [name.decode("utf-8") for name in outputs["class_names"][0]]
        return outputs["classes"], names

    def estimate_depth(
        self, images: Sequence[str | os.PathLike | bytes]
    ) -> np.ndarray:
        """Return the depth of each pixel of images.

        Uses the signature `serve_bytes`. The maps have the size of the images
        that the model reads, to which the server resizes the files; the model
        decides their unit, and whether larger numbers are nearer.

        Shapes:
            returns: (B, H, W), float32.

        Args:
            images: Paths of image files, or their contents; one or more.

        Raises:
            ValueError: If the model does not estimate depths.
            ServingError: If the server does not respond, or refuses.
        """
        outputs = self._ask_files(images, "estimate_depth", "depths")
        return outputs["depths"][..., 0]

    def _ask_files(self, images, method, output):
        """Return the outputs for image files, among them a certain one."""
        contents = [
            x if isinstance(x, bytes) else pathlib.Path(x).read_bytes()
            for x in images
        ]
        outputs = self.predict({"image_bytes": contents}, "serve_bytes")
        if output not in outputs:
            raise ValueError(
                f"`{method}` needs a model with the output `{output}`. "
                f"Received: one whose outputs are {', '.join(outputs)}"
            )
        return outputs


def _to_array(value, spec, name):
    """Return an input in its dtype, if that changes no number.

    Integers are refused for a float input: pixels from 0 to 255 are not in
    the range of the model.
    """
    if spec.dtype == "string":
        encode = np.frompyfunc(lambda x: _to_bytes(x, name), 1, 1)
        return np.array(encode(np.array(value, object)), object)
    array = np.asarray(value)
    if spec.dtype in FLOATS:
        fits = array.dtype.name in FLOATS
    else:
        fits = array.dtype.kind in "biu" and np.array_equal(
            array.astype(spec.dtype), array
        )
    if array.size and not fits:
        raise ValueError(
            f"`{name}` must be {spec.dtype}; `metadata()` lists the inputs of "
            f"each signature. Received: {array.dtype.name}, such as "
            f"{array.flat[0]}"
        )
    return array.astype(spec.dtype)


def _to_bytes(value, name):
    if isinstance(value, str):
        return value.encode("utf-8")
    if not isinstance(value, bytes):
        raise ValueError(
            f"`{name}` must be bytes or text. Received: {type(value).__name__}"
        )
    return value


# --------------------------------------------------------------------- REST


class _Rest:
    """A pool of HTTP connections that are kept open; see `connect`."""

    def __init__(
        self, url, model, version, label, timeout, retries, max_connections
    ):
        import urllib3

        self._address = f"{url.rstrip('/')}/v1/models/{quote(model, safe='')}"
        if version is not None:
            self._address += f"/versions/{version}"
        if label is not None:
            self._address += f"/labels/{quote(label, safe='')}"
        self._timeout = timeout
        self._attempts = _count_attempts(retries)
        self._pool = urllib3.PoolManager(
            maxsize=max_connections,
            timeout=timeout,
            retries=urllib3.Retry(
                retries,
                allowed_methods=None,  # A prediction may be repeated.
                status_forcelist=PASSING_STATUSES,
                raise_on_status=False,
                backoff_factor=0.2,
                backoff_max=10,
                # Jitter, so that clients do not all retry at the same time.
                backoff_jitter=0.1,
            ),
        )

    def status(self):
        return self._ask("GET", "", _read_status)

    def metadata(self):
        def read(response):
            defs = response["metadata"]["signature_def"]["signature_def"]
            return read_signatures(defs)

        return self._ask("GET", "/metadata", read)

    def predict(self, name, signature, inputs):
        def read(response):
            values = response["outputs"]
            if len(signature.outputs) == 1:  # A single output has no name.
                values = dict.fromkeys(signature.outputs, values)
            return {
                key: from_json(values[key], spec.dtype)
                for key, spec in signature.outputs.items()
            }

        columns = {key: to_json(x) for key, x in inputs.items()}
        body = {"signature_name": name, "inputs": columns}
        return self._ask("POST", ":predict", read, json=body)

    def close(self):
        self._pool.clear()

    def _ask(self, method, path, read, **options):
        """Send a request; return its JSON response, converted by `read`."""
        from urllib3 import exceptions

        address = self._address + path
        try:
            response = self._pool.request(method, address, **options)
        except exceptions.MaxRetryError as error:
            reason = error.reason
            # A NewConnectionError is a TimeoutError, too.
            is_late = isinstance(reason, exceptions.TimeoutError)
            is_new = isinstance(reason, exceptions.NewConnectionError)
            text = str(reason).rpartition(": ")[-1]
            raise UnavailableError(
                f"No response from {address}: {text}{self._attempts}",
                "DEADLINE_EXCEEDED"
                if is_late and not is_new
                else "UNAVAILABLE",
            ) from None
        except exceptions.HTTPError as error:
            raise ServingError(f"{address}: {error}") from None
        if not 200 <= response.status < 400:
            passing = response.status in PASSING_STATUSES
            raise (UnavailableError if passing else ServingError)(
                f"{address} responded {response.status}: "
                f"{_read_error(response)}{self._attempts * passing}",
                CODES.get(response.status, "UNKNOWN"),
            )
        try:
            return read(response.json())
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ServingError(
                f"{address} sent a response that is not TF Serving's: "
                f"{response.data[:200]!r} ({type(error).__name__}: {error})"
            ) from None


def _read_error(response):
    """Return the server's message."""
    try:
        return response.json()["error"]
    except (KeyError, TypeError, ValueError):
        text = response.data.decode("utf-8", "replace")
        return text[:500].strip() or response.reason


def _count_attempts(retries):
    """Return the number of attempts as text, for the end of a message."""
    return f" ({retries + 1} attempts)" if retries else ""


# --------------------------------------------------------------------- gRPC

MOST_GRPC_RETRIES = 4  # gRPC makes five attempts at most.


class _Grpc:
    """A channel without encryption; see `connect`."""

    def __init__(self, address, model, version, label, timeout, retries):
        import grpc
        from tensorflow_serving.apis import (
            model_pb2,
            model_service_pb2_grpc,
            prediction_service_pb2_grpc,
        )

        self._address = address
        self._spec = model_pb2.ModelSpec(name=model, version_label=label)
        if version is not None:
            self._spec.version.value = version
        self._timeout = timeout
        self._attempts = _count_attempts(retries)
        policy = {  # gRPC itself varies the pauses by a fifth.
            "maxAttempts": retries + 1,
            "initialBackoff": "0.2s",
            "maxBackoff": "10s",
            "backoffMultiplier": 2,
            "retryableStatusCodes": ["UNAVAILABLE"],
        }
        method = {"name": [{}], "retryPolicy": policy}
        service = {"methodConfig": [method]} if retries else {}
        self._channel = grpc.insecure_channel(
            address,
            options=[
                # gRPC itself would receive 4 MiB.
                ("grpc.max_send_message_length", -1),
                ("grpc.max_receive_message_length", -1),
                ("grpc.service_config", json.dumps(service)),
                # Reconnect as often as the retries ask for.
                ("grpc.initial_reconnect_backoff_ms", 100),
                ("grpc.min_reconnect_backoff_ms", 100),
                ("grpc.max_reconnect_backoff_ms", 1000),
            ],
        )
        self._models = model_service_pb2_grpc.ModelServiceStub(self._channel)
        self._predictions = prediction_service_pb2_grpc.PredictionServiceStub(
            self._channel
        )

    def status(self):
        from google.protobuf.json_format import MessageToDict
        from tensorflow_serving.apis import get_model_status_pb2

        request = get_model_status_pb2.GetModelStatusRequest(
            model_spec=self._spec
        )
        response = self._ask(self._models.GetModelStatus, request)
        return _read_status(
            MessageToDict(response, preserving_proto_field_name=True)
        )

    def metadata(self):
        from google.protobuf.json_format import MessageToDict
        from tensorflow_serving.apis import get_model_metadata_pb2

        request = get_model_metadata_pb2.GetModelMetadataRequest(
            model_spec=self._spec, metadata_field=["signature_def"]
        )
        response = self._ask(self._predictions.GetModelMetadata, request)
        found = get_model_metadata_pb2.SignatureDefMap()
        response.metadata["signature_def"].Unpack(found)
        found = MessageToDict(found, preserving_proto_field_name=True)
        return read_signatures(found.get("signature_def", {}))

    def predict(self, name, signature, inputs):
        import tensorflow as tf
        from tensorflow_serving.apis import predict_pb2

        request = predict_pb2.PredictRequest(model_spec=self._spec)
        request.model_spec.signature_name = name
        for key, array in inputs.items():
            # Arrays of numbers go as their bytes, in `tensor_content`.
            request.inputs[key].CopyFrom(tf.make_tensor_proto(array))
        response = self._ask(self._predictions.Predict, request)
        try:
            outputs = dict(response.outputs)
            return {x: tf.make_ndarray(outputs[x]) for x in signature.outputs}
        except (KeyError, TypeError, ValueError) as error:
            raise ServingError(
                f"{self._address} sent a response that is not TF Serving's "
                f"({type(error).__name__}: {error})"
            ) from None

    def close(self):
        self._channel.close()

    def _ask(self, method, request):
        import grpc

        try:
            return method(request, timeout=self._timeout)
        except grpc.RpcError as error:
            code = error.code().name
            passing = code in ("UNAVAILABLE", "DEADLINE_EXCEEDED")
            # A call that has reached its deadline is not retried.
            attempts = self._attempts * (code == "UNAVAILABLE")
            raise (UnavailableError if passing else ServingError)(
                f"{self._address}: {code}: {error.details()}{attempts}", code
            ) from None
