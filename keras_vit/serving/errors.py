"""The errors of requests, in the client and in the small server."""


class ServingError(RuntimeError):
    """A server refused a request, or sent an invalid response.

    Args:
        message: The error, with the message of the server.
        code: The status as named by gRPC, also over REST, such as
            "INVALID_ARGUMENT"; empty if the request succeeded.
    """

    def __init__(self, message: str, code: str = ""):
        super().__init__(message)
        self.code = code


class UnavailableError(ServingError):
    """A server cannot be reached, or is busy.

    The same request may succeed later.
    """


def invalid_request(message: str) -> ServingError:
    """Return the error for a request that no server could answer."""
    return ServingError(message, "INVALID_ARGUMENT")


# The statuses of HTTP, by gRPC's names, as TF Serving maps them.
HTTP_STATUSES = {
    "INVALID_ARGUMENT": 400,
    "UNAUTHENTICATED": 401,
    "PERMISSION_DENIED": 403,
    "NOT_FOUND": 404,
    "RESOURCE_EXHAUSTED": 429,
    "INTERNAL": 500,
    "UNIMPLEMENTED": 501,
    "UNAVAILABLE": 503,
    "DEADLINE_EXCEEDED": 504,
}
# gRPC's names, by statuses of HTTP; the last ones are of proxies, and of the
# small server.
CODES = {status: code for code, status in HTTP_STATUSES.items()} | {
    408: "DEADLINE_EXCEEDED",
    413: "RESOURCE_EXHAUSTED",
    499: "CANCELLED",
    502: "UNAVAILABLE",
}
