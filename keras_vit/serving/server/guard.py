"""What a page of another site must not do to a server on this machine.

Any page in a browser can send requests to 127.0.0.1, and a name of its own may
lead there (DNS rebinding). So the host of a request must be one of the
server's names, and its origin, if it has one, the server itself.
"""

import ipaddress
import re

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response

from keras_vit.serving.server.answers import dump_json
from keras_vit.serving.server.refusals import HTTP_STATUSES, Refusal

LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")
HEADERS = {
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


class Guard:
    """Refuses requests of other sites, and adds the headers of safety.

    Args:
        app: What answers the others.
        names: The host names of the server.
        any_address: Whether addresses are accepted as well as names; a
            rebound name is never an address.
    """

    def __init__(self, app, names: tuple[str, ...], any_address: bool = False):
        self._app = app
        self._names = {name.lower() for name in names}
        self._any_address = any_address

    async def __call__(self, scope, receive, send):
        """Answer a request."""
        if scope["type"] != "http":
            return await self._app(scope, receive, send)

        async def send_safely(message):
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        try:
            self._check(Headers(scope=scope), scope["method"])
        except Refusal as refusal:
            answer = answer_refusal(refusal)
            return await answer(scope, receive, send_safely)
        await self._app(scope, receive, send_safely)

    def _check(self, headers, method):
        host = headers.get("host", "")
        found = re.fullmatch(
            r"(?:\[([0-9a-f:.]+)\]|([\w.-]+))(?::\d+)?", host.lower()
        )
        name = found and (found[1] or found[2])
        if name not in self._names and not (
            self._any_address and is_ip_address(name)
        ):
            raise Refusal(
                "WRONG_HOST",
                f"Invalid host header: {host[:200]!r}. Known: "
                f"{', '.join(sorted(self._names))}",
            )
        origin = headers.get("origin")
        if (
            origin is not None
            and origin.lower().partition("://")[2] != host.lower()
        ):
            raise Refusal(
                "PERMISSION_DENIED",
                f"Requests of another origin are refused: {origin[:200]!r}",
            )
        site = headers.get("sec-fetch-site", "none")
        # A link to the page is no request of another page.
        follows_link = headers.get("sec-fetch-mode") == "navigate"
        if site not in ("same-origin", "none") and not (
            follows_link and method == "GET"
        ):
            raise Refusal(
                "PERMISSION_DENIED",
                f"Requests of another site are refused: {site[:200]!r}",
            )


def is_ip_address(name: str | None) -> bool:
    """Return whether a host is an IP address.

    Example:
        >>> is_ip_address("192.168.0.2"), is_ip_address("a.b")
        (True, False)
    """
    try:
        return bool(ipaddress.ip_address(name or ""))
    except ValueError:
        return False


def answer_refusal(refusal: Refusal) -> Response:
    """Return the answer to a request that is refused."""
    headers = {}
    if refusal.code == "UNAVAILABLE":
        headers["Retry-After"] = "1"
    if refusal.code in ("SLOW_BODY", "LARGE_BODY", "UNAVAILABLE"):
        headers["Connection"] = "close"  # The rest of the body is not read.
    return Response(
        dump_json({"error": str(refusal)}),
        HTTP_STATUSES[refusal.code],
        headers,
        "application/json",
    )
