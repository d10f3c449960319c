"""A small server with the REST interface of TF Serving, for one machine.

uvicorn and Starlette do what is HTTP. Here are the JSON of requests, what they
may take, the batches of those that wait, and the refusal of other sites.

Reference: https://www.tensorflow.org/tfx/serving/api_rest
"""

import asyncio
import bisect
import collections
import contextlib
import dataclasses
import functools
import gzip
import io
import ipaddress
import itertools
import json
import re
import time
import zlib
from collections.abc import Mapping, Sequence

import numpy as np
import uvicorn
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from keras_vit.serving.client import (
    CODES,
    ServingError,
    TensorSpec,
    from_json,
    is_base64,
    to_json,
)
from keras_vit.serving.limits import Limits
from keras_vit.serving.models import (
    IMAGE_INPUT,
    LoadedModel,
    ServedModel,
    not_found,
)

# Of the errors that the server raises itself.
STATUSES = {
    "INVALID_ARGUMENT": 400,
    "NOT_FOUND": 404,
    "UNAVAILABLE": 503,
    "DEADLINE_EXCEEDED": 504,
}
FILES_SIGNATURE = "serve_bytes"
FILE_KINDS = ("JPEG", "PNG", "GIF", "BMP", "WEBP")
# The files of the page, and those that it shares with the web export.
PAGE_FOLDERS = [("keras_vit", "data/serve"), ("keras_vit", "data/web")]
METRICS_PATH = "/monitoring/prometheus/metrics"
# JSON of 32 MB takes several hundred MB while it is read.
NUM_READERS = 2
# The headers of each response.
HEADERS = {
    "Cache-Control": "no-cache",  # So that an update is seen.
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; "
        "img-src 'self' blob: data:; media-src 'self' blob:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'"
    ),
    "Cross-Origin-Embedder-Policy": "require-corp",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(self), microphone=(), geolocation=()",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


def make_server(
    models: Mapping[str, ServedModel],
    limits: Limits,
    names: Sequence[str],
    any_address: bool = False,
    poll_seconds: float = 1.0,
) -> uvicorn.Server:
    """Return the server of models; its `run` takes the sockets.

    SIGINT and SIGTERM end it when it has answered what it has received.

    Args:
        models: By name.
        limits: What is accepted at most.
        names: The host names that requests may use.
        any_address: Whether they may also use any IP address.
        poll_seconds: Time between two looks for new versions.
    """
    rest = _RestInterface(models, limits)

    async def list_models(request):
        served = [model for model in models.values() if model.is_available]
        return answer_json({x.name: x.find()[1].description for x in served})

    async def tell_health(request):
        if all(model.is_available for model in models.values()):
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
        middleware=[Middleware(_Guard, names, any_address)],
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
            timeout_keep_alive=limits.receive_timeout,
            timeout_graceful_shutdown=round(limits.timeout) + 1,
        )
    )


# ------------------------------------------------------------ REST interface


class _RestInterface:
    """Answers requests about models below /v1/, and counts them."""

    def __init__(self, models: Mapping[str, ServedModel], limits: Limits):
        self._models = models
        self._batcher = _Batcher(limits)
        self._limits = limits
        self.metrics = _Metrics()
        self._readers = asyncio.Semaphore(NUM_READERS)
        self._in_progress = 0

    def routes(self) -> list[Route | Mount]:
        async def refuse(scope, receive, send):
            raise malformed_address(Request(scope))

        routes = [
            Route(f"/v1/models/{{name}}{place}{end}", answer, methods=[method])
            for place in ("", "/versions/{version}")
            for end, method, answer in (
                ("", "GET", self._status),
                ("/metadata", "GET", self._metadata),
                (":predict", "POST", self._predict),
            )
        ]
        return [*routes, Mount("/v1", refuse)]

    def _model(self, request):
        """Return the model that a URL names."""
        name, version = map(request.path_params.get, ("name", "version"))
        is_version = version is None or version.isdecimal()
        if name in self._models and is_version:
            return self._models[name]
        if ":" in name or not is_version:
            raise malformed_address(request)
        raise not_found(name, version)

    async def _status(self, request):
        version = request.path_params.get("version")
        return answer_json(self._model(request).status(version))

    async def _metadata(self, request):
        place = request.path_params
        version, model = self._model(request).find(place.get("version"))
        defs = {"signature_def": model.signature_defs}
        spec = {"name": place["name"], "signature_name": ""}
        spec["version"] = str(version)
        return answer_json(
            {"model_spec": spec, "metadata": {"signature_def": defs}}
        )

    async def _predict(self, request):
        """Answer a request for an inference, and count it."""
        began = time.perf_counter()
        self._in_progress += 1
        try:
            body = await self._receive(request)
            async with self._readers:
                task, is_rows = await asyncio.to_thread(
                    self._read, request, body
                )
            del body
            outputs = await self._batcher.compute(task)
            async with self._readers:
                answer = await asyncio.to_thread(
                    lambda: answer_json(write_answer(outputs, is_rows))
                )
        except Exception as error:
            code = CODES.get(name_fault(error)[0], "UNKNOWN")
            await self._count(request, code, began)
            raise
        finally:
            self._in_progress -= 1
        # As a client sees it: until the answer is sent.
        answer.background = BackgroundTask(self._count, request, "OK", began)
        return answer

    async def _count(self, request, code, began):
        # Clients must not be able to make up any number of names.
        name = request.path_params["name"]
        name = name if name in self._models else "unknown"
        self.metrics.add(name, code, time.perf_counter() - began)

    async def _receive(self, request):
        """Return the body of a request, as it is sent."""
        limits = self._limits
        encoding = request.headers.get("content-encoding", "identity")
        if encoding.lower() not in ("identity", "gzip", "x-gzip"):
            text = "Content-Encoding must be gzip, or none"
            text = f"{text}. Received: {encoding[:99]!r}"
            raise HTTPException(415, text, {"Accept-Encoding": "gzip"})
        body = bytearray()
        try:
            async with asyncio.timeout(limits.receive_timeout):
                async for part in request.stream():
                    body += part
                    if len(body) > limits.max_body_bytes:
                        raise self._too_large()
                    if self._in_progress > limits.max_waiting:
                        text = "The queue of requests is full"
                        raise ServingError(text, "UNAVAILABLE")
        except TimeoutError:
            text = f"within {limits.receive_timeout:g} s"
            raise HTTPException(408, f"No request arrived {text}") from None
        return body

    def _too_large(self):
        text = f"at most {self._limits.max_body_bytes:,} bytes"
        return HTTPException(413, f"A request may have {text}")

    def _inflate(self, body):
        """Return the content of a gzip file, up to the limit of a body."""
        try:
            with gzip.GzipFile(fileobj=io.BytesIO(body)) as file:
                content = file.read(self._limits.max_body_bytes + 1)
        except (OSError, EOFError, zlib.error) as error:
            raise invalid(f"The body is not gzip: {error}") from None
        if len(content) > self._limits.max_body_bytes:
            raise self._too_large()
        return content

    def _read(self, request, body):
        """Return the task of a request, and whether its form is that of rows.

        The checks are in the order of TF Serving: JSON, model, signature,
        inputs.
        """
        limits = self._limits
        if "gzip" in request.headers.get("content-encoding", "").lower():
            body = self._inflate(body)
        try:
            document = json.loads(body)
        except (ValueError, RecursionError) as error:
            raise invalid(f"JSON Parse error: {error}") from None
        if not isinstance(document, dict):
            raise invalid("A request must be a JSON object")
        version = request.path_params.get("version")
        _, model = self._model(request).find(version)
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
        num_rows = {len(x) if x.ndim else 1 for x in inputs.values()}
        if not 1 <= min(num_rows) <= max(num_rows) <= limits.max_instances:
            text = f"1 to {limits.max_instances:,} instances"
            raise invalid(f"A request must hold {text}")
        files, num_pixels = inputs.get(IMAGE_INPUT), 0
        if files is not None:
            steps = model.image_steps
            num_pixels = count_pixels(files, steps, limits.max_pixels)
        task = _Task(model, name, inputs, num_pixels)
        return task, "instances" in document


def answer_json(value, status: int = 200) -> Response:
    """Return a JSON response, with NaN and Infinity as TF Serving has them."""
    text = json.dumps(value, ensure_ascii=False)
    content = text.encode("utf-8", "surrogateescape")
    return Response(content, status, media_type="application/json")


async def answer_error(request: Request, error: Exception) -> Response:
    """Return the response to a request that failed: {"error": ...}."""
    status, text = name_fault(error)
    answer = answer_json({"error": text}, status)
    answer.headers.update(getattr(error, "headers", None) or {})
    if status == 503:
        answer.headers["Retry-After"] = "1"
    return answer


def name_fault(error: Exception) -> tuple[int, str]:
    """Return the HTTP status and the message for an error.

    For a fault of the server or of the model, the message is only its type.
    """
    if isinstance(error, ServingError):
        return STATUSES[error.code], str(error)
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


class _Guard:
    """Middleware that refuses requests of other sites.

    Any page in a browser can send requests to 127.0.0.1, and a name of its own
    may lead there (DNS rebinding). So the host of a request must be one of the
    server's names, or an IP address where any is accepted, and its origin, if
    it has one, the server itself.
    """

    def __init__(self, app, names: Sequence[str], any_address: bool):
        self._app = app
        self._names = {name.lower() for name in names}
        self._any_address = any_address

    async def __call__(self, scope, receive, send):
        answer = self._app
        if scope["type"] == "http":
            headers = Headers(scope=scope)
            if fault := self._find_fault(headers, scope["method"]):
                answer = answer_json({"error": fault[:300]}, 403)
        await answer(scope, receive, send)

    def _find_fault(self, headers, method):
        host = headers.get("host", "").lower()
        found = re.fullmatch(r"\[?([\w.:-]+?)\]?(:\d+)?", host)
        name = found[1] if found else ""
        is_known = name in self._names
        if self._any_address and not is_known:
            with contextlib.suppress(ValueError):
                is_known = bool(ipaddress.ip_address(name))
        if not is_known:
            return f"Unknown host: {host[:200]!r}. --allow_host adds names"
        origin = headers.get("origin")
        site = headers.get("sec-fetch-site", "none")
        # Following a link to the page is not a request of another page.
        is_link = headers.get("sec-fetch-mode") == "navigate"
        is_own = site in ("same-origin", "none")
        is_own = is_own or (is_link and method == "GET")
        if origin is not None:
            is_own = is_own and origin.lower().partition("://")[2] == host
        if not is_own:
            return f"Requests of other sites are refused: {origin or site!r}"


# ----------------------------------------------------------- JSON of requests


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
        if any(map(is_object, columns)):
            for index, row in enumerate(columns):
                if not is_object(row) or row.keys() != specs.keys():
                    raise invalid(
                        f"Item {index} of 'instances' must be an object with "
                        f"the keys {', '.join(specs)}"
                    )
            columns = {name: [row[name] for row in columns] for name in specs}
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
    return arrays


def is_object(value) -> bool:
    """Return whether a JSON value holds named inputs, and is not bytes."""
    return isinstance(value, dict) and not is_base64(value)


def write_answer(outputs: Mapping[str, np.ndarray], is_rows: bool) -> dict:
    """Return the answer to a request, in the form of its inputs.

    Raises:
        ServingError: If the outputs have no rows, or different numbers of them.
    """
    columns = {name: write_output(name, x) for name, x in outputs.items()}
    is_single = len(columns) == 1
    if not is_rows:
        return {"outputs": [*columns.values()][0] if is_single else columns}
    lengths = {x.shape[:1] for x in outputs.values()}
    if len(lengths) != 1 or () in lengths:
        shapes = {name: x.shape for name, x in outputs.items()}
        raise invalid(f"The outputs are not rows; use 'inputs': {shapes}")
    rows = zip(*columns.values())
    return {
        "predictions": [
            row[0] if is_single else dict(zip(columns, row)) for row in rows
        ]
    }


def write_output(name: str, array: np.ndarray):
    """Return an output as nested lists.

    A float32 becomes the shortest number that reads as the same float32.

    Raises:
        ServingError: If JSON has no numbers of its dtype.

    Example:
        >>> write_output("x", np.array([0.1, np.nan], "float32"))
        [0.1, nan]
    """
    if array.dtype == object and not name.endswith("_bytes"):
        decode = np.frompyfunc(
            lambda text: text.decode("utf-8", "surrogateescape"), 1, 1
        )
        return np.array(decode(array), object).tolist()
    if array.dtype.kind not in "Obiuf":
        kind = array.dtype.name
        raise invalid(f"JSON has no numbers of type {kind} for {name}")
    if array.dtype == "float32":
        array = array.astype("U").astype("float64")
    return to_json(array)


def count_pixels(
    files: np.ndarray, steps: Sequence[Mapping], max_pixels: int
) -> int:
    """Return the number of pixels of image files, from their headers.

    TensorFlow decodes an image of any size, and a small file may hold
    thousands of megapixels. A long thin image is small, but becomes large
    where it is resized; it counts as the memory that this takes.

    Args:
        files: The contents of the files.
        steps: What the model does with them; see
            `keras_vit.preprocessing.description`.
        max_pixels: Largest number of all together.

    Raises:
        ServingError: If there are more, or a file cannot be decoded.
    """
    from PIL import Image

    count = 0
    for content in files.flat:
        is_moving_webp = False
        try:
            with Image.open(io.BytesIO(content), formats=FILE_KINDS) as image:
                width, height = image.size
                if image.format == "WEBP":  # TensorFlow decodes GIF alone.
                    is_moving_webp = image.is_animated
        except (Image.DecompressionBombError, Image.DecompressionBombWarning):
            width, height = max_pixels, 2
        except (OSError, SyntaxError, ValueError):
            kinds = ", ".join(FILE_KINDS)
            text = f"Unknown image file format. One of {kinds} required."
            raise invalid(text) from None
        if is_moving_webp:
            text = "An animated WebP file cannot be decoded"
            raise invalid(f"{text}. Send one of its images.")
        if not width * height:
            raise invalid("An image file has no pixels.")
        count += max(
            height * width,
            count_resized(height, width, steps),
            count_resized(width, height, steps),  # If it is turned upright.
        )
        if count > max_pixels:
            raise invalid(
                "The images have too many pixels, as files or resized for the "
                f"model: {max_pixels:,} are allowed."
            )
    return count


def count_resized(height: float, width: float, steps: Sequence[Mapping]) -> int:
    """Return how many pixels of a file take the memory of resizing an image.

    Zero or less for images of a usual shape, which take no more than four
    times the floats of the model's input.
    """
    most = 0
    for step in steps:
        rows, columns = step.get("height"), step.get("width")
        if step["kind"] == "resize_small":
            scale = step["size"] / min(height, width)
            rows, columns = height * scale, width * scale
        elif step["kind"] == "resize_to_cover":
            scale = max(rows / height, columns / width)
            rows, columns = height * scale, width * scale
        most = max(most, rows * max(width, columns))  # Rows come first.
        height, width = rows, columns
    # A float has as many bytes as four levels of a file.
    return round(4 * (most - 4 * height * width))


# ------------------------------------------------------------------- batches


@dataclasses.dataclass(eq=False)
class _Task:
    """An inference that a request waits for."""

    model: LoadedModel
    signature: str
    inputs: dict[str, np.ndarray]
    num_pixels: int  # Of the image files among them.

    def __post_init__(self):
        self.answer = None  # A future of the outputs, or of an error.
        self.num_rows = None  # If the instances cannot be told apart.
        self.kind = (self,)  # Equal for tasks that one inference can compute.
        lengths = {x.shape[:1] for x in self.inputs.values()}
        if len(lengths) == 1 and self.model.has_rows(self.signature):
            [(self.num_rows,)] = lengths
            shapes = [x.shape[1:] for _, x in sorted(self.inputs.items())]
            self.kind = (self.model, self.signature, *shapes)


class _Batcher:
    """Computes one batch at a time, of tasks that came meanwhile.

    A task never waits for others to come.
    """

    def __init__(self, limits: Limits):
        self._limits = limits
        self._waiting = []
        self._worker = None  # Runs while tasks wait.

    async def compute(self, task: _Task) -> dict[str, np.ndarray]:
        """Return the outputs for a task."""
        task.answer = asyncio.get_running_loop().create_future()
        self._waiting.append(task)
        if self._worker is None or self._worker.done():
            self._worker = asyncio.create_task(self._work())
        try:
            return await asyncio.wait_for(task.answer, self._limits.timeout)
        except TimeoutError:
            text = f"No answer within {self._limits.timeout:g} s"
            raise ServingError(text, "DEADLINE_EXCEEDED") from None

    async def _work(self):
        while batch := self._take():
            answers = await asyncio.to_thread(self._attempt, batch)
            for task, answer in zip(batch, answers):
                if task.answer.done():  # Its time is over.
                    continue
                if isinstance(answer, Exception):
                    task.answer.set_exception(answer)
                else:
                    task.answer.set_result(answer)

    def _take(self):
        """Take the first task out of the queue, and all that can join it."""
        waiting = [task for task in self._waiting if not task.answer.done()]
        batch, self._waiting = waiting[:1], []
        for task in waiting[1:]:
            tasks, limits = [*batch, task], self._limits
            if (
                task.kind == batch[0].kind
                and sum(x.num_rows for x in tasks) <= limits.max_batch_size
                and sum(x.num_pixels for x in tasks) <= limits.max_pixels
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
        first, size = batch[0], self._limits.max_batch_size
        call = functools.partial(first.model.call, first.signature)
        if len(batch) == 1 and (first.num_rows or 0) <= size:
            return [call(first.inputs)]
        inputs = {
            name: np.concatenate([task.inputs[name] for task in batch])
            for name in first.inputs
        }
        ends = np.cumsum([task.num_rows for task in batch])
        parts = [
            call({name: x[i : i + size] for name, x in inputs.items()})
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


# ------------------------------------------------------------------- metrics


class _Metrics:
    """The requests of each model by status, and how long answers took."""

    # Microseconds: 33 buckets from 10 us, each 1.8 times as long.
    ENDS = [10 * 1.8**i for i in range(33)]

    def __init__(self):
        self._requests = collections.Counter()
        self._times = {}  # (counts in the buckets, sum), by model.

    def add(self, name: str, code: str, seconds: float):
        """Count a request; of answers that are no errors, also the time."""
        self._requests[name, code] += 1
        if code == "OK":
            counts, total = self._times.get(name, ([0] * 34, 0.0))
            counts[bisect.bisect_left(self.ENDS, seconds * 1e6)] += 1
            self._times[name] = counts, total + seconds * 1e6

    def __str__(self):
        """Return the text that Prometheus reads, with TF Serving's names."""
        name = ":tensorflow:serving:request_count"
        lines = [f"# TYPE {name} counter"]
        for (model, code), number in self._requests.items():
            labels = f'model_name={json.dumps(model)},status="{code}"'
            lines.append(f"{name}{{{labels}}} {number}")
        name = ":tensorflow:serving:request_latency"
        lines.append(f"# TYPE {name} histogram")
        for model, (counts, total) in self._times.items():
            labels = f"model_name={json.dumps(model)}"
            labels += ',API="predict",entrypoint="REST"'
            sums = [*itertools.accumulate(counts)]
            ends = [*(f"{end:g}" for end in self.ENDS), "+Inf"]
            for end, number in zip(ends, sums):
                lines.append(f'{name}_bucket{{{labels},le="{end}"}} {number}')
            lines.append(f"{name}_sum{{{labels}}} {total}")
            lines.append(f"{name}_count{{{labels}}} {sums[-1]}")
        return "\n".join(lines)
