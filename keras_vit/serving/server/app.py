"""The server application: its routes, and polling for new versions."""

import asyncio
import contextlib
from collections.abc import Mapping

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route, Router
from starlette.staticfiles import StaticFiles

from keras_vit.serving.errors import ServingError
from keras_vit.serving.server.answers import answer_error, answer_json
from keras_vit.serving.server.draining import Draining
from keras_vit.serving.server.guard import Guard
from keras_vit.serving.server.limits import Limits
from keras_vit.serving.server.rest import RestInterface
from keras_vit.serving.server.versions import ServedModel

METRICS_PATH = "/monitoring/prometheus/metrics"
# The files of the page, and those that it shares with the web export.
PAGE_FOLDERS = [("keras_vit", "data/serve"), ("keras_vit", "data/web")]
ERRORS = (ServingError, HTTPException, ClientDisconnect, Exception)


def make_app(
    models: Mapping[str, ServedModel],
    names: tuple[str, ...],
    any_address: bool,
    limits: Limits,
    poll_seconds: float = 1.0,
) -> Starlette:
    """Return the application.

    Args:
        models: By name, polled once.
        names: The host names that requests may use.
        any_address: See `Guard`.
        limits: The limits of the requests.
        poll_seconds: Time between two looks for new versions.
    """
    rest = RestInterface(models, limits)

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

    routes = [
        *rest.routes(),
        Route("/models.json", list_models),
        Route("/healthz", tell_health),
        Route(METRICS_PATH, tell_metrics),
        Mount("/", StaticFiles(packages=PAGE_FOLDERS, html=True)),
    ]
    return Starlette(
        routes=[Mount("/", Guard(Router(routes), names, any_address))],
        exception_handlers=dict.fromkeys(ERRORS, answer_error),
        middleware=[Middleware(Draining, limits)],
        lifespan=keep_polling,
    )
