"""The files of the page, from a fixed table."""

import importlib.resources
from collections.abc import Mapping

from starlette.requests import Request
from starlette.responses import Response

from keras_vit.serving.server.answers import dump_json
from keras_vit.serving.server.guard import answer_refusal
from keras_vit.serving.server.metrics import METRICS_PATH, Metrics
from keras_vit.serving.server.refusals import Refusal
from keras_vit.serving.server.rest import RestInterface
from keras_vit.serving.server.versions import ServedModel

# Files in keras_vit/data/serve, and their types, by path.
SITE_FILES = {
    "/": ("index.html", "text/html"),
    "/page.js": ("page.js", "text/javascript"),
    "/style.css": ("style.css", "text/css"),
}


class Site:
    """All that the server answers; an ASGI application.

    Besides the REST interface: the page, the list of models that it reads, the
    health of the server and its metrics.

    Args:
        rest: Answers what begins with /v1/.
        models: By name.
        metrics: The metrics.
    """

    def __init__(
        self,
        rest: RestInterface,
        models: Mapping[str, ServedModel],
        metrics: Metrics,
    ):
        self._rest = rest
        self._models = models
        self._metrics = metrics
        folder = importlib.resources.files("keras_vit") / "data" / "serve"
        self._files = {
            path: ((folder / name).read_bytes(), kind)
            for path, (name, kind) in SITE_FILES.items()
        }

    async def __call__(self, scope, receive, send):
        """Answer a request."""
        if scope["path"].lower().startswith("/v1/"):
            return await self._rest(scope, receive, send)
        request = Request(scope, receive)
        try:
            response = self._answer(request)
        except Refusal as refusal:
            response = answer_refusal(refusal)
        await response(scope, receive, send)

    def _answer(self, request: Request) -> Response:
        path = request.scope["path"]
        if request.method not in ("GET", "HEAD"):
            path = None
        if path in self._files:
            content, kind = self._files[path]
            # A browser asks each time, so that an update is seen.
            return Response(
                content, headers={"Cache-Control": "no-cache"}, media_type=kind
            )
        if path == "/models.json":
            names = [n for n, x in self._models.items() if x.is_available]
            return Response(
                dump_json(sorted(names)), media_type="application/json"
            )
        if path == METRICS_PATH:
            return Response(str(self._metrics), media_type="text/plain")
        if path == "/healthz":
            are_well = all(x.is_available for x in self._models.values())
            return Response(
                dump_json({"status": "ok" if are_well else "unavailable"}),
                200 if are_well else 503,
                media_type="application/json",
            )
        raise Refusal("NOT_FOUND", f"There is no {request.url.path[:200]}")
