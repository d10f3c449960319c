"""The REST interface of TF Serving."""

from collections.abc import Mapping
from urllib.parse import quote

import numpy as np
import urllib3

from keras_vit.serving.errors import CODES, ServingError, UnavailableError
from keras_vit.serving.json_tensors import from_json, to_json
from keras_vit.serving.signatures import Signature, read_signatures
from keras_vit.serving.transport import (
    Target,
    VersionStatus,
    count_attempts,
)


class RestTransport:
    """A pool of HTTP connections that are kept open.

    Args:
        url: The server, such as http://localhost:8501.
        target: The model.
        timeout: Seconds to wait for a connection, and for each piece of the
            response, in each attempt.
        retries: Attempts after the first.
        max_connections: Connections to keep open.
    """

    def __init__(
        self,
        url: str,
        target: Target,
        timeout: float,
        retries: int,
        max_connections: int,
    ):
        path = f"/v1/models/{quote(target.model, safe='')}"
        if target.version is not None:
            path += f"/versions/{target.version}"
        if target.label is not None:
            path += f"/labels/{quote(target.label, safe='')}"
        self._address = url.rstrip("/") + path
        self._timeout = timeout
        self._attempts = count_attempts(retries)
        self._pool = urllib3.PoolManager(
            maxsize=max_connections,
            timeout=timeout,
            retries=urllib3.Retry(
                retries,
                allowed_methods=None,  # A prediction may be repeated.
                status_forcelist=PASSING_STATUSES,
                raise_on_status=False,
                backoff_factor=0.2,
                backoff_max=10,
                # Jitter, so that clients do not all retry at the same time.
                backoff_jitter=0.1,
            ),
        )

    def status(self) -> list[VersionStatus]:
        """Return the known versions."""
        return self._ask("GET", "", _read_status)

    def metadata(self) -> dict[str, Signature]:
        """Return the signatures."""
        return self._ask("GET", "/metadata", _read_metadata)

    def predict(
        self, name: str, signature: Signature, inputs: Mapping[str, np.ndarray]
    ) -> dict[str, np.ndarray]:
        """Return the outputs of a signature, in the dtypes it declares."""
        body = {
            "signature_name": name,
            "inputs": {key: to_json(x) for key, x in inputs.items()},
        }
        return self._ask(
            "POST",
            ":predict",
            lambda response: _read_outputs(response, signature.outputs),
            json=body,
        )

    def close(self):
        """Close the connections."""
        self._pool.clear()

    def _ask(self, method, path, read, **options):
        """Send a request; return its JSON response, converted by `read`."""
        address = self._address + path
        try:
            response = self._pool.request(method, address, **options)
        except urllib3.exceptions.MaxRetryError as error:
            raise self._unavailable(address, error.reason) from None
        except urllib3.exceptions.HTTPError as error:
            raise ServingError(f"{address}: {error}") from None
        if not 200 <= response.status < 400:
            passing = response.status in PASSING_STATUSES
            raise (UnavailableError if passing else ServingError)(
                f"{address} responded {response.status}: "
                f"{_read_error(response)}{self._attempts * passing}",
                CODES.get(response.status, "UNKNOWN"),
            )
        try:
            return read(response.json())
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ServingError(
                f"{address} sent a response that is not TF Serving's: "
                f"{response.data[:200]!r} ({type(error).__name__}: {error})"
            ) from None

    def _unavailable(self, address, reason):
        """Return the error for a request without a response."""
        no_connection = urllib3.exceptions.NewConnectionError  # A TimeoutError.
        if isinstance(
            reason, urllib3.exceptions.TimeoutError
        ) and not isinstance(reason, no_connection):
            return UnavailableError(
                f"No response from {address} within {self._timeout:g} s"
                f"{self._attempts}",
                "DEADLINE_EXCEEDED",
            )
        return UnavailableError(
            f"No connection to {address}: {str(reason).split(': ')[-1]}"
            f"{self._attempts}",
            "UNAVAILABLE",
        )


def _read_status(response):
    return [
        VersionStatus(
            int(row["version"]),
            row["state"],
            row.get("status", {}).get("error_message", ""),
        )
        for row in response["model_version_status"]
    ]


def _read_metadata(response):
    signature_defs = response["metadata"]["signature_def"]["signature_def"]
    return read_signatures(signature_defs)


def _read_outputs(response, specs):
    values = response["outputs"]
    if len(specs) == 1:  # The server omits the name of a single output.
        values = {name: values for name in specs}
    return {
        name: from_json(values[name], spec.dtype)
        for name, spec in specs.items()
    }


def _read_error(response):
    """Return the server's message."""
    try:
        return response.json()["error"]
    except (KeyError, TypeError, ValueError):
        text = response.data.decode("utf-8", "replace")
        return text[:500].strip() or response.reason


# After these the same request may succeed: a proxy without its server, a full
# queue, a deadline.
PASSING_STATUSES = (502, 503, 504)
