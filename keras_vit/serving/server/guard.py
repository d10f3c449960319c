"""Protection of a server on this machine from pages of other sites.

Any page in a browser can send requests to 127.0.0.1, and a name of its own may
lead there (DNS rebinding). So the host of a request must be one of the
server's names, and its origin, if it has one, the server itself.
"""

import ipaddress
import re
from collections.abc import Mapping

from starlette.datastructures import Headers

from keras_vit.serving.errors import ServingError

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


class Guard:
    """An ASGI application that refuses requests of other sites.

    Args:
        app: The application that answers all other requests.
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
        headers = Headers(scope=scope)
        self._check_host(headers.get("host", ""))
        check_origin(headers, scope["method"])
        await self._app(scope, receive, send)

    def _check_host(self, host):
        found = re.fullmatch(r"\[?([\w.:-]+?)\]?(:\d+)?", host.lower())
        name = found[1] if found else ""
        is_known = self._any_address and is_ip_address(name)
        if name not in self._names and not is_known:
            text = f"Unknown host: {host[:200]!r}. --allow_host adds names"
            raise ServingError(text, "PERMISSION_DENIED")


def check_origin(headers: Mapping[str, str], method: str):
    """Raise a ServingError if a request is of another site.

    Args:
        headers: The headers.
        method: The method.
    """
    origin = headers.get("origin")
    site = headers.get("sec-fetch-site", "none")
    # Following a link to the page is not a request of another page.
    is_link = headers.get("sec-fetch-mode") == "navigate" and method == "GET"
    is_own = site in ("same-origin", "none") or is_link
    if origin is not None:
        host = headers["host"].lower()
        is_own = is_own and origin.lower().partition("://")[2] == host
    if not is_own:
        text = f"Requests of other sites are refused: {origin or site!r}"
        raise ServingError(text[:200], "PERMISSION_DENIED")


def is_ip_address(name: str) -> bool:
    """Return whether a host is an IP address.

    Example:
        >>> is_ip_address("192.168.0.2"), is_ip_address("a.b")
        (True, False)
    """
    try:
        return bool(ipaddress.ip_address(name))
    except ValueError:
        return False
