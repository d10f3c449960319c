"""The errors of the client."""


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
