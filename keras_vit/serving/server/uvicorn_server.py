"""Running the server with uvicorn."""

import uvicorn
from starlette.applications import Starlette
from uvicorn.protocols.http.h11_impl import H11Protocol

from keras_vit.serving.server.guard import HEADERS
from keras_vit.serving.server.limits import Limits

MOST_CONNECTIONS = 512


class Protocol(H11Protocol):
    """HTTP that closes connections that do not send the head of a request.

    The time of uvicorn only limits how long such a connection sends nothing.
    """

    def connection_made(self, transport):
        """Start the time of the first request."""
        super().connection_made(transport)
        self.timeout_keep_alive_task = self.loop.call_later(
            self.timeout_keep_alive, self.timeout_keep_alive_handler
        )

    def data_received(self, data):
        """End the time once the head of a request is complete."""
        self.conn.receive_data(data)
        self.handle_events()
        if self.cycle is not None and not self.cycle.response_complete:
            self._unset_keepalive_if_required()


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
