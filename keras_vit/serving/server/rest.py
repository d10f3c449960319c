"""The REST interface: the routes, and the limits that requests must keep."""

import asyncio
import functools
import gzip
import io
import time
import zlib
from collections.abc import Mapping

from starlette.background import BackgroundTask
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.routing import Mount, Route

from keras_vit.serving.errors import CODES, ServingError, invalid_request
from keras_vit.serving.server.answers import answer_json, name_fault
from keras_vit.serving.server.batching import Batcher, Task
from keras_vit.serving.server.image_files import IMAGE_INPUT, count_pixels
from keras_vit.serving.server.limits import Limits
from keras_vit.serving.server.prometheus import Metrics
from keras_vit.serving.server.requests import read_document, read_predict
from keras_vit.serving.server.tf_examples import read_classify
from keras_vit.serving.server.versions import ServedModel, not_found

# Requests of the largest size that are held at a time.
MOST_LARGE_BODIES = 8
# JSON of 32 MB takes several hundred MB while it is read.
NUM_READERS = 2
FILES_SIGNATURE = "serve_bytes"
VERBS = {"predict": read_predict, "classify": read_classify}


class RestInterface:
    """Answers requests about models.

    Args:
        models: By name.
        limits: What is accepted at most.

    Attributes:
        metrics: The counts and times of the requests.
    """

    def __init__(self, models: Mapping[str, ServedModel], limits: Limits):
        self._models = models
        self._batcher = Batcher(limits)
        self._limits = limits
        self.metrics = Metrics()
        self._readers = asyncio.Semaphore(NUM_READERS)
        self._bodies = {}  # Those in progress, by request.

    def routes(self) -> list[Route | Mount]:
        """Return the routes of all URLs below /v1/."""
        routes = [
            Route(f"/v1/models/{{name}}{place}{end}", answer, methods=[method])
            for place in ("", "/versions/{version}")
            for end, method, answer in (
                ("", "GET", self._status),
                ("/metadata", "GET", self._metadata),
                (":{verb}", "POST", self._infer),
            )
        ]
        return [*routes, Mount("/v1", refuse_address)]

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

    async def _infer(self, request):
        """Answer a request for an inference, and count it."""
        if request.path_params["verb"] not in VERBS:
            raise malformed_address(request)
        began = time.perf_counter()
        done = functools.partial(self._count, **request.path_params)
        self._bodies[request] = bytearray()
        try:
            await self._receive(request, self._bodies[request])
            async with self._readers:
                task, write = await asyncio.to_thread(self._read, request)
            outputs = await self._batcher.compute(task)
            async with self._readers:
                answer = await asyncio.to_thread(
                    lambda: answer_json(write(outputs))
                )
            answer.background = BackgroundTask(done, code="OK", began=began)
            return answer
        except Exception as error:
            # The error refers to the body until the client has sent the rest.
            self._bodies[request].clear()
            await done(
                code=CODES.get(name_fault(error)[0], "UNKNOWN"), began=began
            )
            raise
        finally:
            del self._bodies[request]

    async def _count(self, name, verb, code, began, version=None):
        # Clients must not be able to make up any number of names.
        name = name if name in self._models else "unknown"
        self.metrics.count("request_count", model_name=name, status=code)
        if code == "OK":
            # As a client sees it: from the head of the request until its
            # answer is sent.
            seconds = time.perf_counter() - began
            labels = {"model_name": name, "API": verb, "entrypoint": "REST"}
            self.metrics.time("request_latency", seconds, **labels)

    async def _receive(self, request, body):
        """Receive the body of a request."""
        limits = self._limits
        is_gzip(request)
        is_full = len(self._bodies) > limits.max_waiting
        try:
            async with asyncio.timeout(limits.receive_timeout):
                async for part in request.stream():
                    body += part
                    if len(body) > limits.max_body_bytes:
                        raise too_large(limits.max_body_bytes)
                    size = sum(map(len, self._bodies.values()))
                    if (
                        is_full
                        or size > MOST_LARGE_BODIES * limits.max_body_bytes
                    ):
                        text = "The queue of requests is full"
                        raise ServingError(text, "UNAVAILABLE")
        except TimeoutError:
            text = f"within {limits.receive_timeout:g} s"
            raise HTTPException(408, f"No request arrived {text}") from None

    def _read(self, request):
        """Return the task of a request, and a function that writes the result.

        The checks are in the order of TF Serving: JSON, model, signature,
        inputs.
        """
        place, limits = request.path_params, self._limits
        body, verb = self._bodies[request], place["verb"]
        if is_gzip(request):
            body = inflate(body, limits.max_body_bytes)
        document = read_document(body)
        _, model = self._model(request).find(place.get("version"))
        name = document.get("signature_name") or "serving_default"
        if not model.has_signature(name, verb):
            raise invalid_request(f"No signature {name!r} for {verb} found")
        try:
            inputs, write = VERBS[verb](document, model.signatures[name].inputs)
        except ServingError as error:
            is_file = name != FILES_SIGNATURE and b'"b64"' in body
            if not (is_file and model.has_signature(FILES_SIGNATURE, verb)):
                raise
            hint = f'Image files need "signature_name": "{FILES_SIGNATURE}"'
            raise invalid_request(f"{error}. {hint}") from None
        num_rows = {len(x) if x.ndim else 1 for x in inputs.values()}
        if not 1 <= min(num_rows) <= max(num_rows) <= limits.max_instances:
            text = f"1 to {limits.max_instances:,} instances"
            raise invalid_request(f"A request must hold {text}")
        num_pixels = 0
        if IMAGE_INPUT in inputs:
            num_pixels = count_pixels(
                inputs[IMAGE_INPUT], limits.max_pixels, model.image_steps
            )
        return Task(model, name, inputs, num_pixels), write


def is_gzip(request: Request) -> bool:
    """Return whether a body is compressed with gzip.

    Raises:
        HTTPException: If it is in another way.
    """
    encoding = request.headers.get("content-encoding", "identity").lower()
    if encoding not in ("identity", "gzip", "x-gzip"):
        text = f"Content-Encoding must be gzip or none. Received: {encoding!r}"
        raise HTTPException(415, text, {"Accept-Encoding": "gzip"})
    return encoding != "identity"


def inflate(body: bytes, max_bytes: int) -> bytes:
    """Return the content of a gzip file, of which no more is decompressed.

    Raises:
        HTTPException: If it is longer than `max_bytes`.
        ServingError: If it is no gzip file.
    """
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(body)) as file:
            content = file.read(max_bytes + 1)
    except (OSError, EOFError, zlib.error) as error:
        text = f"The body is not gzip, as its Content-Encoding says: {error}"
        raise invalid_request(text) from None
    if len(content) > max_bytes:
        raise too_large(max_bytes)
    return content


def too_large(max_bytes: int) -> HTTPException:
    """Return the error for a body that is too large."""
    return HTTPException(413, f"A request may have at most {max_bytes:,} bytes")


async def refuse_address(scope, receive, send):
    """Refuse a request below /v1/ that has no route, as TF Serving does."""
    raise malformed_address(Request(scope))


def malformed_address(request: Request) -> ServingError:
    """Return the error for a path, or a method on it, that does not exist."""
    text = f"Malformed request: {request.method} {request.url.path}"
    return invalid_request(text)
