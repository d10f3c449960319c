"""The REST interface: URLs, and the order of the checks of a request."""

import asyncio
import concurrent.futures
import functools
import re
import time
from collections.abc import Mapping
from urllib.parse import unquote

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from keras_vit.serving.server.answers import dump_json
from keras_vit.serving.server.batching import Batcher, Task
from keras_vit.serving.server.guard import answer_refusal
from keras_vit.serving.server.metrics import Metrics
from keras_vit.serving.server.preparing import (
    read_request,
    too_large,
    unzip_body,
)
from keras_vit.serving.server.refusals import (
    Limits,
    Refusal,
    invalid,
    server_logger,
)
from keras_vit.serving.server.versions import (
    ServedModel,
    no_status,
    not_found,
)

PLACE = r"(?:/versions/(?P<version>\d+)|/labels/(?P<label>[^/:]+))?"
POST_PATTERN = re.compile(
    rf"/v1/models/(?P<name>[^/:]+){PLACE}:(?P<verb>classify|regress|predict)",
    re.IGNORECASE | re.ASCII,
)
GET_PATTERN = re.compile(
    rf"/v1/models(?:/(?P<name>[^/:]+))?{PLACE}(?P<verb>/metadata)?",
    re.IGNORECASE | re.ASCII,
)
# Requests of the largest size that are held at a time.
MOST_LARGE_BODIES = 8
# JSON of 32 MB takes several hundred MB while it is read.
NUM_READERS = 2
FULL = Refusal(
    "UNAVAILABLE",
    "The batch scheduling queue to which this task was submitted is full",
)


class RestInterface:
    """Answers requests about models; an ASGI application.

    Args:
        models: By name.
        batcher: Computes what is asked for.
        limits: What is accepted at most.
        metrics: Told about each request.
    """

    def __init__(
        self,
        models: Mapping[str, ServedModel],
        batcher: Batcher,
        limits: Limits,
        metrics: Metrics,
    ):
        self._models = models
        self._batcher = batcher
        self._limits = limits
        self._metrics = metrics
        self._readers = concurrent.futures.ThreadPoolExecutor(NUM_READERS)
        self._num_requests = 0
        self._num_bytes = 0

    async def __call__(self, scope, receive, send):
        """Answer a request."""
        request = Request(scope, receive)
        try:
            response = await self._answer(request)
        except ClientDisconnect:
            return
        except Refusal as refusal:
            response = answer_refusal(refusal)
        except Exception as error:
            server_logger.exception("A request failed")
            response = answer_refusal(
                Refusal("INTERNAL", f"Internal error: {type(error).__name__}")
            )
        await response(scope, receive, send)

    async def _answer(self, request: Request) -> Response:
        method = request.method
        path = request.scope["raw_path"].decode("latin-1")
        if query := request.scope["query_string"]:
            path += f"?{query.decode('latin-1')}"
        if method == "OPTIONS":
            return Response(
                status_code=200 if "origin" in request.headers else 400
            )
        patterns = {"POST": POST_PATTERN, "GET": GET_PATTERN}
        found = method in patterns and patterns[method].fullmatch(path)
        verb = found and found["verb"]
        # As in TF Serving, the pattern ignores the case, the handler does not.
        if not found or (method == "POST" and verb != verb.lower()):
            raise invalid(f"Malformed request: {method} {path}")
        version = found["version"] and int(found["version"])
        if version is not None and version >= 2**63:
            return Response(status_code=400, media_type="application/json")
        name = unquote(found["name"] or "")
        place = version, found["label"] and unquote(found["label"])
        if method == "GET":
            answer = self._describe(name, *place, bool(verb))
            return Response(dump_json(answer), media_type="application/json")
        return await self._post(request, verb, name, place)

    def _describe(self, name, version, label, is_metadata):
        """Return the status or the metadata of a model."""
        if not name:
            raise invalid("Missing model name in request.")
        if not is_metadata:
            # As in TF Serving, a label changes nothing here.
            if name not in self._models:
                raise no_status(name, version)
            return self._models[name].status(version)
        version, model = self._find(name, version, label)
        return {
            "model_spec": {
                "name": name,
                "signature_name": "",
                "version": str(version),
            },
            "metadata": {
                "signature_def": {"signature_def": model.signature_defs}
            },
        }

    def _find(self, name, version, label):
        if name not in self._models:
            if label is not None:
                raise invalid(f"Unrecognized servable version label: {label}")
            raise not_found(name, version)
        return self._models[name].find(version, label)

    def _find_model(self, *place):
        return self._find(*place)[1]

    async def _post(self, request, verb, name, place):
        """Answer a request for an inference, and count it."""
        began, code = time.perf_counter(), "CANCELLED"
        self._num_requests += 1
        request.state.num_bytes = 0
        try:
            if self._num_requests > self._limits.max_waiting:
                raise FULL
            body = await self._receive(request)
            content = await self._infer(request, body, verb, name, place)
            code = "OK"
            return Response(content, media_type="application/json")
        except Exception as error:
            code = getattr(error, "code", "INTERNAL")
            raise
        finally:
            self._num_requests -= 1
            self._num_bytes -= request.state.num_bytes
            # Clients must not be able to make up any number of names.
            known = name if name in self._models else "unknown"
            seconds = time.perf_counter() - began
            self._metrics.count_request(known, verb, code, seconds)

    async def _receive(self, request) -> bytes:
        """Return the body of a request."""
        largest, parts = self._limits.max_body_bytes, []
        try:
            async with asyncio.timeout(self._limits.receive_timeout):
                async for part in request.stream():
                    parts.append(part)
                    request.state.num_bytes += len(part)
                    self._num_bytes += len(part)
                    if request.state.num_bytes > largest:
                        raise too_large(largest)
                    if self._num_bytes > MOST_LARGE_BODIES * largest:
                        raise FULL
        except TimeoutError:
            raise Refusal(
                "SLOW_BODY",
                "The request did not arrive within "
                f"{self._limits.receive_timeout:g} s",
            ) from None
        return b"".join(parts)

    async def _infer(self, request, body, verb, name, place) -> bytes:
        """Return the answer to a request for an inference."""
        loop = asyncio.get_running_loop()
        if request.headers.get("content-encoding") == "gzip":
            body = unzip_body(body, self._limits.max_body_bytes)
        find = functools.partial(self._find_model, name, *place)
        prepared = await loop.run_in_executor(
            self._readers, read_request, verb, body, find, self._limits
        )
        task = Task(
            prepared.model,
            name,
            prepared.signature,
            prepared.inputs,
            prepared.num_pixels,
            loop.create_future(),
        )
        outputs = await self._batcher.compute(task)
        return await loop.run_in_executor(
            self._readers, prepared.write, outputs
        )
