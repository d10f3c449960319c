"""A small server with the REST interface of TF Serving, for one machine.

uvicorn and Starlette do what is HTTP. Here are the JSON of requests, what they
may take, the batches of those that wait, and the refusal of other sites.

Reference: https://www.tensorflow.org/tfx/serving/api_rest
"""

import argparse
import asyncio
import bisect
import collections
import concurrent.futures
import contextlib
import dataclasses
import datetime
import io
import ipaddress
import itertools
import json
import re
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from urllib.parse import quote

import numpy as np
import uvicorn
from PIL import Image, TiffImagePlugin
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from keras_vit.preprocessing.image_files import read_image
from keras_vit.serving.client import (
    CODES,
    ServingError,
    TensorSpec,
    from_json,
    is_base64,
    to_json,
)
from keras_vit.serving.models import LoadedModel, ServedModel, not_found

# The names of this machine, with which requests of its own come.
LOOPBACK = ("127.0.0.1", "::1", "localhost")
IMAGE_INPUT = "image_bytes"  # Of the signatures that take image files.
FILES_SIGNATURE = "serve_bytes"
# TensorFlow reads all but TIFF, which becomes a PNG of the same pixels.
FILE_KINDS = ("JPEG", "PNG", "GIF", "BMP", "WEBP", "TIFF")
# The files of the page, and those that it shares with the web export.
PAGE_FOLDERS = [("keras_vit", "data/serve"), ("keras_vit", "data/web")]
METRICS_PATH = "/monitoring/prometheus/metrics"
# More are answered with 503.
MOST_CONNECTIONS = 128
# JSON of 32 MB takes several hundred MB while it is read.
NUM_READERS = 2
# Until open connections are closed: idle ones, and all when the server ends.
TIMEOUT = 30
# The headers of each response.
HEADERS = {
    "Cache-Control": "no-cache",  # So that an update is seen.
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; "
        "img-src 'self' blob: data:; media-src 'self' blob:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'"
    ),
    "Cross-Origin-Resource-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
}


def make_server(
    models: Mapping[str, ServedModel],
    options: argparse.Namespace,
    poll_seconds: float = 1.0,
) -> uvicorn.Server:
    """Return the server of models; its `run` takes the sockets.

    SIGINT and SIGTERM end it when it has answered what it has received.

    Args:
        models: By name.
        options: The command line; see `make_serve_parser`.
        poll_seconds: Time between two looks for new versions.
    """
    rest = _RestInterface(models, options)

    async def list_models(request):
        served = {name: x.served for name, x in models.items() if x.served}
        return answer_json({n: x.description for n, (_, x) in served.items()})

    async def tell_health(request):
        if all(model.served for model in models.values()):
            return answer_json({"status": "ok"})
        return answer_json({"status": "unavailable"}, 503)

    async def tell_metrics(request):
        return PlainTextResponse(str(rest.metrics))

    async def poll():
        while True:
            await asyncio.sleep(poll_seconds)
            for model in models.values():
                with contextlib.suppress(OSError):  # Files that just vanish.
                    await asyncio.to_thread(model.poll)

    @contextlib.asynccontextmanager
    async def keep_polling(app):
        task = asyncio.create_task(poll())
        yield
        task.cancel()

    has_log = options.access_log != "none"
    errors = (ServingError, HTTPException, ClientDisconnect, Exception)
    app = Starlette(
        routes=[
            *rest.routes(),
            Route("/models.json", list_models),
            Route("/healthz", tell_health),
            Route(METRICS_PATH, tell_metrics),
            Mount("/", StaticFiles(packages=PAGE_FOLDERS, html=True)),
        ],
        exception_handlers=dict.fromkeys(errors, answer_error),
        middleware=[
            *([Middleware(log_access, options, models)] if has_log else []),
            Middleware(guard, options),
        ],
        lifespan=keep_polling,
    )
    return uvicorn.Server(
        uvicorn.Config(
            app,
            http="h11",
            ws="none",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            headers=[*HEADERS.items()],
            limit_concurrency=MOST_CONNECTIONS,
            timeout_keep_alive=TIMEOUT,
            timeout_graceful_shutdown=TIMEOUT,
        )
    )


class _RestInterface:
    """Answers requests about models below /v1/, and counts them."""

    def __init__(self, models, options):
        self._models = models
        self._options = options
        self._batcher = _Batcher(options)
        self._readers = concurrent.futures.ThreadPoolExecutor(NUM_READERS)
        self.metrics = _Metrics()

    def routes(self) -> list[Route | Mount]:
        async def refuse(scope, receive, send):
            raise malformed_address(Request(scope))

        routes = [
            Route(f"/v1/models/{{name}}{place}{end}", answer, methods=[method])
            for place in ("", "/versions/{version:int}")
            for end, method, answer in (
                ("", "GET", self._status),
                ("/metadata", "GET", self._metadata),
                (":predict", "POST", self._predict),
            )
        ]
        return [*routes, Mount("/v1", refuse)]

    def _model(self, request):
        """Return the model and the version that a URL names."""
        name, version = map(request.path_params.get, ("name", "version"))
        if ":" in name:
            raise malformed_address(request)
        if name not in self._models:
            raise not_found(name, version)
        return self._models[name], version

    async def _status(self, request):
        model, version = self._model(request)
        return answer_json(model.status(version))

    async def _metadata(self, request):
        served, version = self._model(request)
        version, model = served.find(version)
        spec = {"name": served.name, "signature_name": ""}
        spec["version"] = str(version)
        defs = {"signature_def": model.signature_defs}
        return answer_json(
            {"model_spec": spec, "metadata": {"signature_def": defs}}
        )

    async def _predict(self, request):
        """Answer a request for an inference, and count it."""
        watch = _Stopwatch()
        try:
            body = await self._receive(request)
            watch.end_stage()
            task = await self._in_reader(self._read, request, body)
            task.watch = watch
            watch.end_stage()
            outputs = await self._batcher.compute(task)
            watch.end_stage()
            answer = await self._in_reader(write_answer, outputs, task.is_rows)
        except Exception as error:
            code = CODES.get(fault_of(error)[0], "UNKNOWN")
            await self._count(request, code, watch)
            raise
        # As a client sees it: until the answer is sent.
        answer.background = BackgroundTask(self._count, request, "OK", watch)
        return answer

    async def _count(self, request, code, watch):
        watch.end_stage()
        # Clients must not be able to make up any number of names.
        name = request.path_params["name"]
        name = name if name in self._models else "unknown"
        self.metrics.add(name, code, watch.seconds)

    async def _in_reader(self, function, *arguments):
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._readers, function, *arguments)

    async def _receive(self, request):
        """Return the body of a request."""
        body, limit = bytearray(), self._options.max_body_bytes
        # Starlette's RequestBodyLimitMiddleware does not answer with JSON.
        async for part in request.stream():
            body += part
            if len(body) > limit:
                raise too_large(limit)
        return body

    def _read(self, request, body):
        """Return the task of a body.

        The checks are in the order of TF Serving: JSON, model, signature,
        inputs.
        """
        if "content-encoding" in request.headers:
            body = inflate(body, self._options.max_body_bytes)
        try:
            document = json.loads(body)
        except (ValueError, RecursionError) as error:
            raise invalid(f"JSON Parse error: {error}") from None
        if not isinstance(document, dict):
            raise invalid("A request must be a JSON object")
        served, version = self._model(request)
        _, model = served.find(version)
        name = document.get("signature_name") or "serving_default"
        if not isinstance(name, str) or name not in model.signatures:
            raise invalid(f"No signature {name!r} found")
        try:
            inputs = read_inputs(document, model.signatures[name].inputs)
        except ServingError as error:
            is_file = name != FILES_SIGNATURE and b'"b64"' in body
            if not (is_file and FILES_SIGNATURE in model.signatures):
                raise
            hint = f'Image files need "signature_name": "{FILES_SIGNATURE}"'
            raise invalid(f"{error}. {hint}") from None
        files = inputs.get(IMAGE_INPUT, np.array([]))
        num_pixels = count_pixels(
            files, model.image_side, self._options.max_pixels
        )
        for place, content in np.ndenumerate(files):
            if content.startswith(tuple(TiffImagePlugin.PREFIXES)):
                files[place] = tiff_to_png(
                    content, model.channels, model.pixel_range
                )
        return _Task(model, name, inputs, num_pixels, "instances" in document)


def inflate(body: bytes, limit: int) -> bytes:
    """Return the content of a body that is compressed with gzip.

    Raises:
        HTTPException: If it has more bytes than the limit.
        ServingError: If it is not one whole stream of gzip.
    """
    try:
        stream = zlib.decompressobj(16 + zlib.MAX_WBITS)  # Of gzip.
        content = stream.decompress(body, limit + 1)
    except zlib.error as error:
        raise invalid(f"Content-Encoding must be gzip: {error}") from None
    if len(content) > limit:
        raise too_large(limit)
    if not stream.eof or stream.unused_data:
        rest = "has bytes behind its end" if stream.eof else "ends too early"
        raise invalid(f"Content-Encoding must be gzip: the body {rest}")
    return content


def answer_json(value, status: int = 200) -> Response:
    """Return a JSON response, with NaN and Infinity as TF Serving has them."""
    text = json.dumps(value, ensure_ascii=False)
    return Response(text, status, media_type="application/json")


async def answer_error(request: Request, error: Exception) -> Response:
    """Return the response to a request that failed: {"error": ...}."""
    status, text = fault_of(error)
    return answer_json({"error": text}, status)


def fault_of(error: Exception) -> tuple[int, str]:
    """Return the HTTP status and the message for an error.

    For a fault of the server or of the model, the message is only its type.
    """
    if isinstance(error, ServingError):
        return 404 if error.code == "NOT_FOUND" else 400, str(error)
    if isinstance(error, HTTPException):
        return error.status_code, error.detail
    if isinstance(error, ClientDisconnect):
        return 499, "The client has gone"
    return 500, f"Internal error: {type(error).__name__}"


def invalid(message: str) -> ServingError:
    """Return the error for a request that no server could answer."""
    return ServingError(message, "INVALID_ARGUMENT")


def malformed_address(request: Request) -> ServingError:
    """Return the error for a path, or a method on it, that does not exist."""
    return invalid(f"Malformed request: {request.method} {request.url.path}")


def too_large(limit: int) -> HTTPException:
    """Return the error for a body of more bytes than the limit."""
    return HTTPException(413, f"A request may have at most {limit:,} bytes")


def guard(app, options: argparse.Namespace):
    """Return the application behind a refusal of requests of other sites.

    Any page in a browser can send requests to 127.0.0.1, and a name of its own
    may lead there (DNS rebinding). So the host of a request must be one of the
    server's names, or an IP address where the server listens for other
    machines, and its origin, if it has one, the server itself.
    """
    names = {*LOOPBACK, *map(str.lower, options.allow_host)}
    any_address = options.host not in LOOPBACK

    def is_known(host):
        found = re.fullmatch(r"\[?([\w.:-]+?)\]?(:\d+)?", host)
        if found and any_address:
            with contextlib.suppress(ValueError):
                return bool(ipaddress.ip_address(found[1]))
        return bool(found) and found[1] in names

    async def answer(scope, receive, send):
        fault = None
        if scope["type"] == "http":
            headers = Headers(scope=scope)
            host = headers.get("host", "").lower()
            origin = headers.get("origin", f"//{host}")
            if not is_known(host):
                fault = f"Unknown host: {host[:200]!r}. --allow_host adds names"
            elif origin.lower().partition("//")[2] != host:
                fault = f"Requests of other sites are refused: {origin[:200]!r}"
        refuse = fault and answer_json({"error": fault}, 403)
        await (refuse or app)(scope, receive, send)

    return answer


# --------------------------------------------------- JSON of requests, answers


def read_inputs(
    document: dict, specs: Mapping[str, TensorSpec]
) -> dict[str, np.ndarray]:
    """Return the inputs of a request, arrays by name.

    Args:
        document: The request, with `instances` (rows) or `inputs` (columns).
        specs: The inputs of the signature.

    Raises:
        ServingError: If they are not inputs of the signature.
    """
    if len(document.keys() & {"instances", "inputs"}) != 1:
        raise invalid(
            "A request must have one of the keys 'instances' and 'inputs'"
        )
    columns = document.get("inputs")
    if "instances" in document:
        columns = document["instances"]
        if not isinstance(columns, list) or not columns:
            raise invalid("'instances' must be a list with values")
        if all(map(is_object, columns)):
            keys = set.intersection(*map(set, columns))
            columns = {name: [row[name] for row in columns] for name in keys}
    if not is_object(columns) and len(specs) == 1:
        columns = dict.fromkeys(specs, columns)
    if not is_object(columns) or not columns.keys() >= specs.keys():
        raise invalid(
            f"The inputs must be an object with the keys {', '.join(specs)}"
        )
    arrays = {}
    for name, spec in specs.items():
        try:
            arrays[name] = from_json(columns[name], spec.dtype)
        except ValueError as error:
            raise invalid(f"Wrong values for {name}: {error}") from None
        if not spec.accepts(arrays[name].shape):
            raise invalid(
                f"Shape of tensor {name} {arrays[name].shape} is not "
                f"compatible with expected shape {spec.shape}"
            )
    lengths = {x.shape[:1] for x in arrays.values()}
    if len(lengths) != 1 or lengths & {(), (0,)}:
        raise invalid("The inputs must have as many rows each, 1 or more")
    return arrays


def is_object(value) -> bool:
    """Return whether a JSON value holds named inputs, and is not bytes."""
    return isinstance(value, dict) and not is_base64(value)


def write_answer(outputs: Mapping[str, np.ndarray], is_rows: bool) -> Response:
    """Return the answer to a request, in the form of its inputs.

    Raises:
        ServingError: If JSON has no numbers of their types.
    """
    columns = {name: write_output(name, x) for name, x in outputs.items()}
    is_single = len(columns) == 1
    if not is_rows:
        [*_, last] = columns.values()
        return answer_json({"outputs": last if is_single else columns})
    rows = [
        row[0] if is_single else dict(zip(columns, row))
        for row in zip(*columns.values())
    ]
    return answer_json({"predictions": rows})


def write_output(name: str, array: np.ndarray) -> list:
    """Return an output as nested lists.

    A float32 becomes the shortest number that reads as the same float32.

    Raises:
        ServingError: If JSON has no numbers of its dtype.

    Example:
        >>> write_output("x", np.array([0.1, np.nan], "float32"))
        [0.1, nan]
    """
    if array.dtype == object and not name.endswith("_bytes"):
        decode = np.frompyfunc(lambda text: text.decode(errors="replace"), 1, 1)
        return np.array(decode(array), object).tolist()
    if array.dtype.kind not in "Obiuf":
        kind = array.dtype.name
        raise invalid(f"JSON has no numbers of type {kind} for {name}")
    if array.dtype == "float32":
        array = array.astype("U").astype("float64")
    return to_json(array)


def count_pixels(files: np.ndarray, image_side: int, max_pixels: int) -> int:
    """Return the number of pixels of image files, from their headers.

    TensorFlow decodes an image of any size, and a small file may hold
    thousands of megapixels. A long thin image is small, but becomes large
    where its short side is resized to that of the model.

    Raises:
        ServingError: If there are more, or a file cannot be decoded.
    """
    count = 0
    for content in files.flat:
        try:
            with Image.open(io.BytesIO(content), formats=FILE_KINDS) as image:
                short, long = sorted(image.size)
        except (Image.DecompressionBombError, Image.DecompressionBombWarning):
            short, long = 1, max_pixels + 1
        except (OSError, SyntaxError, ValueError):
            kinds = ", ".join(FILE_KINDS)
            text = f"Unknown image file format. One of {kinds} required."
            raise invalid(text) from None
        # Floats of four bytes; no more than the usual up to 4:1.
        resized = 4 * image_side**2 * (long // max(short, 1) - 4)
        count += max(short * long, resized)
        if count > max_pixels:
            raise invalid(
                "The images have too many pixels, as files or resized for the "
                f"model: {max_pixels:,} are allowed."
            )
    return count


def tiff_to_png(
    content: bytes,
    channels: int,
    pixel_range: tuple[float, float] | None = None,
) -> bytes:
    """Return a PNG of the pixels that `read_image` returns of a TIFF file.

    The models of an export read image files in their graph, and TensorFlow
    has no TIFF.

    Raises:
        ServingError: If `read_image` refuses the file.
    """
    file, png = io.BytesIO(content), io.BytesIO()
    file.name = "a TIFF file"
    try:
        pixels = read_image(file, channels, pixel_range=pixel_range)
    except ValueError as error:
        raise invalid(str(error)) from None
    image = Image.fromarray(pixels[..., 0] if channels == 1 else pixels)
    image.save(png, "PNG", compress_level=1)  # It is read at once.
    return png.getvalue()


# ------------------------------------------------------------------- batches


@dataclasses.dataclass(eq=False)
class _Task:
    """An inference that a request waits for."""

    model: LoadedModel
    signature: str
    inputs: dict[str, np.ndarray]
    num_pixels: int  # Of the image files among them.
    is_rows: bool  # The form of the request.

    def __post_init__(self):
        self.answer = None  # A future of the outputs, or of an error.
        self.watch = None  # Of the request.
        self.num_rows = len(next(iter(self.inputs.values())))
        # Equal for tasks that one inference can compute.
        shapes = [x.shape[1:] for _, x in sorted(self.inputs.items())]
        self.kind = (self.model, self.signature, *shapes)


class _Batcher:
    """Computes one batch at a time, of tasks that came meanwhile.

    A task never waits for others to come.
    """

    def __init__(self, options):
        self._options = options
        self._waiting = []
        self._worker = None  # Runs while tasks wait.

    async def compute(self, task: _Task) -> dict[str, np.ndarray]:
        """Return the outputs for a task."""
        task.answer = asyncio.get_running_loop().create_future()
        self._waiting.append(task)
        if self._worker is None or self._worker.done():
            self._worker = asyncio.create_task(self._work())
        return await task.answer

    async def _work(self):
        while self._waiting:
            batch = self._take()
            for task in batch:
                task.watch.end_stage()
            answers = await asyncio.to_thread(self._attempt, batch)
            for task, answer in zip(batch, answers):
                if isinstance(answer, Exception):
                    task.answer.set_exception(answer)
                else:
                    task.answer.set_result(answer)

    def _take(self):
        """Take the first task out of the queue, and all that can join it."""
        [first, *others] = self._waiting
        batch, self._waiting = [first], []
        for task in others:
            tasks = [*batch, task]
            if (
                task.kind == first.kind
                and sum(x.num_rows for x in tasks)
                <= self._options.max_batch_size
                and sum(x.num_pixels for x in tasks) <= self._options.max_pixels
            ):
                batch = tasks
            else:
                self._waiting.append(task)
        return batch

    def _attempt(self, batch):
        """Return the outputs of each task, or its error."""
        try:
            return self._compute(batch)
        except Exception as error:
            if len(batch) == 1:
                return [error]
            # One wrong request must not spoil the others.
            return [self._attempt([task])[0] for task in batch]

    def _compute(self, batch):
        """Return the outputs of each task, computed together."""
        first, size = batch[0], self._options.max_batch_size
        inputs = {
            name: np.concatenate([task.inputs[name] for task in batch])
            for name in first.inputs
        }
        ends = np.cumsum([task.num_rows for task in batch])
        parts = [
            first.model.call(
                first.signature,
                {name: x[i : i + size] for name, x in inputs.items()},
            )
            for i in range(0, ends[-1], size)
        ]
        answers = [{} for _ in batch]
        for name in parts[0]:
            output = np.concatenate([part[name] for part in parts])
            if len(output) != ends[-1]:
                raise ValueError(f"{name} has {len(output)} rows of {ends[-1]}")
            for answer, rows in zip(answers, np.split(output, ends[:-1])):
                answer[name] = rows
        return answers


# ------------------------------------------------------- metrics, access log

# Of a request for an inference, in their order.
STAGES = ("read", "decode", "queue", "model", "answer")


class _Stopwatch:
    """The seconds of the stages of a request, as far as it came."""

    def __init__(self):
        self.seconds = []
        self._began = time.perf_counter()

    def end_stage(self):
        now = time.perf_counter()
        self.seconds.append(now - self._began)
        self._began = now


class _Histogram:
    """How many values are at most as large as each bound, and their sum."""

    def __init__(self, bounds):
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def add(self, value: float):
        self._counts[bisect.bisect_left(self._bounds, value)] += 1
        self._sum += value

    def lines(self, name: str, labels: str) -> Iterator[str]:
        """Yield the lines that Prometheus reads."""
        sums = [*itertools.accumulate(self._counts)]
        ends = [*(f"{bound:g}" for bound in self._bounds), "+Inf"]
        for end, number in zip(ends, sums):
            yield f'{name}_bucket{{{labels},le="{end}"}} {number}'
        yield f"{name}_sum{{{labels}}} {self._sum}"
        yield f"{name}_count{{{labels}}} {sums[-1]}"


class _Metrics:
    """The requests of each model by status, and how long they took.

    The first two have the names, the labels and the buckets of TF Serving;
    the third, of the stages, those that Prometheus advises.

    Reference: https://prometheus.io/docs/practices/naming
    """

    # Microseconds: 33 buckets from 10 us, each 1.8 times as long.
    ENDS = [10 * 1.8**i for i in range(33)]
    # Seconds: 1 ms to 30 s.
    STAGE_ENDS = [a * 10.0**b for b in (-3, -2, -1, 0, 1) for a in (1, 3)]

    def __init__(self):
        self._requests = collections.Counter()
        self._times = {}  # By model.
        self._stages = {}  # By model, status and stage.

    def add(self, model: str, status: str, seconds: Sequence[float]):
        """Count a request with the times of its stages.

        The last one of an error is the stage that failed.
        """
        self._requests[model, status] += 1
        if status == "OK":
            times = self._times.setdefault(model, _Histogram(self.ENDS))
            times.add(sum(seconds) * 1e6)
        for stage, value in zip(STAGES, seconds):
            self._stages.setdefault(
                (model, status, stage), _Histogram(self.STAGE_ENDS)
            ).add(value)

    def __str__(self):
        """Return the text that Prometheus reads."""

        def escape(text):
            return json.dumps(text, ensure_ascii=False)

        name = ":tensorflow:serving:request_count"
        lines = [f"# TYPE {name} counter"]
        for (model, status), number in self._requests.items():
            labels = f'model_name={escape(model)},status="{status}"'
            lines.append(f"{name}{{{labels}}} {number}")
        name = ":tensorflow:serving:request_latency"
        lines.append(f"# TYPE {name} histogram")
        for model, times in self._times.items():
            labels = f'model_name={escape(model)},API="predict"'
            lines += times.lines(name, f'{labels},entrypoint="REST"')
        name = "keras_vit_request_stage_seconds"
        lines.append(f"# HELP {name} Time of a stage of a request.")
        lines.append(f"# TYPE {name} histogram")
        for (model, status, stage), times in self._stages.items():
            labels = f'model_name={escape(model)},status="{status}"'
            lines += times.lines(name, f'{labels},stage="{stage}"')
        return "\n".join([*lines, ""])


def log_access(
    app, options: argparse.Namespace, models: Mapping[str, ServedModel]
):
    """Return the application with a line on the standard output a request."""

    async def answer(scope, receive, send):
        if scope["type"] != "http":
            await app(scope, receive, send)
            return
        began, status, size = time.perf_counter(), None, 0

        async def count_and_send(message):
            nonlocal status, size
            status = message.get("status", status)
            size += len(message.get("body", b""))
            await send(message)

        now = datetime.datetime.now(datetime.UTC)
        try:
            await app(scope, receive, count_and_send)
        finally:
            client, *_ = scope["client"] or [None]
            # With its escapes, a path has no line breaks and no spaces.
            path = scope["raw_path"].decode("ascii")
            model = scope.get("path_params", {}).get("name")
            row = {
                "time": now.isoformat(timespec="milliseconds"),
                "client": client,
                "method": scope["method"],
                "path": path,
                "status": status,
                "bytes": size,
                "milliseconds": round(1e3 * (time.perf_counter() - began), 3),
                "model": model if model in models else None,
                "request_id": Headers(scope=scope).get("x-request-id"),
            }
            if options.access_log == "json":
                line = json.dumps(row)
            else:
                line = " ".join(
                    "-" if x is None else quote(str(x), "/:+%")
                    for x in row.values()
                )
            print(line, flush=True)

    return answer
