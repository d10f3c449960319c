"""JSON responses, also to requests that fail."""

import json

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from keras_vit.serving.errors import HTTP_STATUSES, ServingError


def answer_json(value, status: int = 200) -> Response:
    """Return a JSON response, with NaN and Infinity as TF Serving has them.

    Args:
        value: The value to write as JSON.
        status: The HTTP status.
    """
    text = json.dumps(value, ensure_ascii=False)
    content = text.encode("utf-8", "surrogateescape")
    return Response(content, status, media_type="application/json")


async def answer_error(request: Request, error: Exception) -> Response:
    """Return the response to a request that failed: {"error": ...}."""
    status, text = name_fault(error)
    answer = answer_json({"error": text}, status)
    # The rest of the body may not have been read.
    answer.headers["Connection"] = "close"
    if status == 503:
        answer.headers["Retry-After"] = "1"
    return answer


def name_fault(error: Exception) -> tuple[int, str]:
    """Return the HTTP status and the message for an error.

    For a fault of the server or of the model, the message is only its type.
    """
    if isinstance(error, ServingError):
        return HTTP_STATUSES[error.code], str(error)
    if isinstance(error, HTTPException):
        return error.status_code, error.detail
    if isinstance(error, ClientDisconnect):
        return 499, "The client has gone"
    return 500, f"Internal error: {type(error).__name__}"
