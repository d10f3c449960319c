"""How uvicorn runs the server."""

import uvicorn
from starlette.applications import Starlette
from uvicorn.protocols.http.h11_impl import H11Protocol

from keras_vit.serving.server.guard import HEADERS
from keras_vit.serving.server.limits import Limits

MOST_CONNECTIONS = 512


class Protocol(H11Protocol):
    """HTTP that closes connections that do not send the head of a request.

    uvicorn itself only limits the time until its first byte.
    """

    def connection_made(self, transport):
        """Start the time of the first request."""
        super().connection_made(transport)
        self._watch()

    def on_response_complete(self):
        """Start the time of the next request."""
        super().on_response_complete()
        self._watch()

    def _watch(self):
        cycle = self.cycle  # Of the last request whose head has arrived.
        if cycle is None or cycle.response_complete:
            self.loop.call_later(
                self.timeout_keep_alive,
                lambda: self.cycle is cycle and self.transport.close(),
            )


def make_server(app: Starlette, limits: Limits) -> uvicorn.Server:
    """Return the server of an application; its `run` takes the sockets.

    SIGINT and SIGTERM end it when it has answered what it has received.

    Args:
        app: The application.
        limits: What is accepted at most.
    """
    return uvicorn.Server(
        uvicorn.Config(
            app,
            http=Protocol,
            ws="none",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            headers=[*HEADERS.items()],
            limit_concurrency=MOST_CONNECTIONS,
            timeout_keep_alive=limits.receive_timeout,
            timeout_graceful_shutdown=round(limits.timeout) + 1,
        )
    )
