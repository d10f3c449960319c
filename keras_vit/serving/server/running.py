"""Running the server until a signal ends it."""

import asyncio
import contextlib
import signal
import socket
import time
from collections.abc import Mapping

import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.routing import Mount

from keras_vit.serving.server.batching import Batcher
from keras_vit.serving.server.guard import Guard
from keras_vit.serving.server.metrics import Metrics
from keras_vit.serving.server.page import Site
from keras_vit.serving.server.refusals import Limits
from keras_vit.serving.server.rest import RestInterface
from keras_vit.serving.server.versions import ServedModel

POLL_SECONDS = 1.0  # As TF Serving does.
MOST_CONNECTIONS = 512


class ModelServer:
    """A server of models.

    Args:
        models: By name, polled once.
        names: The host names that requests may use.
        any_address: See `Guard`.
        limits: What is accepted at most.
        poll_seconds: Time between two looks for new versions.
    """

    def __init__(
        self,
        models: Mapping[str, ServedModel],
        names: tuple[str, ...],
        any_address: bool = False,
        limits: Limits | None = None,
        poll_seconds: float = POLL_SECONDS,
    ):
        self._models = models
        self._limits = limits or Limits()
        self._poll_seconds = poll_seconds
        metrics = Metrics()
        self._batcher = Batcher(self._limits, metrics)
        rest = RestInterface(models, self._batcher, self._limits, metrics)
        app = Starlette(
            routes=[Mount("/", Site(rest, models, metrics))],
            middleware=[
                Middleware(Guard, names=names, any_address=any_address)
            ],
            lifespan=self._live,
        )
        self._server = uvicorn.Server(
            uvicorn.Config(
                app,
                http="h11",
                ws="none",
                lifespan="on",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                limit_concurrency=MOST_CONNECTIONS,
                timeout_graceful_shutdown=round(self._limits.timeout) + 1,
            )
        )

    def run(self, listener: socket.socket):
        """Serve until SIGINT or SIGTERM; finish what has been received."""
        kept = {}
        # uvicorn raises the signals anew at its end, for these handlers.
        for number in (signal.SIGINT, signal.SIGTERM):
            with contextlib.suppress(ValueError):  # Not in the main thread.
                kept[number] = signal.signal(number, lambda *_: None)
        try:
            self._server.run([listener])
        finally:
            for number, handler in kept.items():
                signal.signal(number, handler)

    @property
    def is_running(self) -> bool:
        """Whether requests are answered."""
        return self._server.started

    def stop(self):
        """Let `run` return, from another thread."""
        self._server.should_exit = True

    @contextlib.asynccontextmanager
    async def _live(self, app):
        """Run what runs beside the requests."""
        tasks = [
            asyncio.create_task(work)
            for work in (self._batcher.work(), self._poll(), self._sweep())
        ]
        yield
        for task in tasks:
            task.cancel()

    async def _poll(self):
        """Look for new versions, again and again."""
        while True:
            await asyncio.sleep(self._poll_seconds)
            for model in self._models.values():
                await asyncio.to_thread(model.poll)

    async def _sweep(self):
        """Close connections that do not send the head of a request.

        uvicorn has no limit of time for it.
        """
        since = {}
        while True:
            now = time.monotonic()
            connections = self._server.server_state.connections
            idle = {
                connection: connection.cycle
                for connection in connections
                if connection.cycle is None
                or connection.cycle.response_complete
            }
            since = {
                (connection, cycle): since.get((connection, cycle), now)
                for connection, cycle in idle.items()
            }
            for (connection, _), start in since.items():
                if now - start > self._limits.receive_timeout:
                    connection.transport.close()
            await asyncio.sleep(min(1.0, self._limits.receive_timeout))


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens at an address.

    Args:
        host: A name or an IP address.
        port: The port; 0 for any free one.

    Raises:
        OSError: If the address is in use or not of this machine.
    """
    family, *_, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(MOST_CONNECTIONS)
    except OSError:
        listener.close()
        raise
    return listener
