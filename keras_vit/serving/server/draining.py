"""Reading the rest of a refused request, so that the response arrives."""

import asyncio
import contextlib

from keras_vit.serving.server.limits import Limits

MOST_DROPPED_BYTES = 2**28  # Of a request.


class Draining:
    """An ASGI application that drops the rest of a body after the response.

    To close a connection with unread bytes resets it, and the client may lose
    a response that it has not read.

    Args:
        app: The application that answers the requests.
        limits: The time to receive a request ends the dropping as well.

    Reference: RFC 9112, section 9.6.
    """

    def __init__(self, app, limits: Limits):
        self._app = app
        self._limits = limits

    async def __call__(self, scope, receive, send):
        """Answer a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        end = asyncio.get_running_loop().time() + self._limits.receive_timeout
        names = {name for name, _ in scope["headers"]}
        is_received = not names & {b"content-length", b"transfer-encoding"}

        async def receive_part():
            nonlocal is_received
            message = await receive()
            is_received = not message.get("more_body", False)
            return message

        async def drop_rest():
            rest = MOST_DROPPED_BYTES
            while rest > 0 and not is_received:
                rest -= len((await receive_part()).get("body", b""))

        async def send_part(message):
            is_head = message["type"] == "http.response.start"
            if is_head or message.get("more_body", False) or is_received:
                await send(message)
                return
            # The client gets the content of the response now, and its end
            # after the rest of the request was read.
            await send({**message, "more_body": True})
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(end):
                    await drop_rest()
            await send({"type": "http.response.body", "body": b""})

        await self._app(scope, receive_part, send_part)
