"""A client of TF Serving."""

import concurrent.futures
import os
import pathlib
from collections.abc import Mapping, Sequence

import numpy as np

from keras_vit.packages import missing_packages
from keras_vit.serving.errors import ServingError
from keras_vit.serving.inputs import check_lengths, to_arrays
from keras_vit.serving.signatures import Signature, TensorSpec
from keras_vit.serving.transport import Target, Transport, VersionStatus
from keras_vit.tables import pick


def connect(
    url: str | None = None,
    *,
    grpc: str | None = None,
    model: str,
    version: int | None = None,
    label: str | None = None,
    timeout: float = 30.0,
    retries: int = 3,
    batch_size: int = 32,
    concurrency: int = 4,
    max_message_bytes: int = 2**31 - 1,
) -> "Client":
    """Return a client of one model on a server. Nothing is sent yet.

    Args:
        url: The REST interface, such as http://localhost:8501.
        grpc: The gRPC interface, such as localhost:8500; instead of `url`.
        model: The name of the model.
        version: Number of a version. Default: the newest.
        label: A label such as "stable", instead of a version.
        timeout: Seconds to wait. Over REST, for a connection, and for each
            piece of the response, in each attempt. Over gRPC, for the whole
            call including all attempts.
        retries: Number of retries if the connection fails or the server is
            busy; over REST, also after a timeout. gRPC allows at most 4.
        batch_size: Largest number of rows in a request.
        concurrency: Largest number of concurrent requests.
        max_message_bytes: Largest message over gRPC. The default of gRPC is
            4 MiB.

    Raises:
        ValueError: If an argument is out of range.
        ModuleNotFoundError: If a package is missing.

    Example:
        with connect("http://localhost:8501", model="digits") as client:
            [[(label, probability), *_]] = client.classify(["digit.png"])
    """
    check_addresses(url, grpc)
    if version is not None and label is not None:
        raise ValueError(
            "Give one of `version` and `label`. "
            f"Received: version={version}, label={label!r}"
        )
    check_numbers(timeout, retries, batch_size, concurrency)
    target = Target(model, version, label)
    try:
        if url is not None:
            from keras_vit.serving.rest import RestTransport

            transport = RestTransport(
                url, target, timeout, retries, concurrency
            )
        else:
            from keras_vit.serving.grpc import MOST_RETRIES, GrpcTransport

            if retries > MOST_RETRIES:
                raise ValueError(
                    f"`retries` must be {MOST_RETRIES} or fewer over gRPC. "
                    f"Received: retries={retries}"
                )
            transport = GrpcTransport(
                grpc, target, timeout, retries, max_message_bytes
            )
    except ModuleNotFoundError as error:
        module = error.name.partition(".")[0]
        raise missing_packages("This client of TF Serving", [module]) from None
    return Client(transport, batch_size, concurrency)


def check_addresses(url: str | None, grpc: str | None):
    """Raise a ValueError unless exactly one valid address is given."""
    if (url is None) == (grpc is None):
        raise ValueError(
            "Give one of `url` and `grpc`. "
            f"Received: url={url!r}, grpc={grpc!r}"
        )
    if url is not None and not url.startswith(("http://", "https://")):
        raise ValueError(
            f"`url` must begin with http:// or https://. Received: url={url!r}"
        )
    if grpc is not None and ("//" in grpc or ":" not in grpc):
        raise ValueError(f"`grpc` must be HOST:PORT. Received: grpc={grpc!r}")


def check_numbers(timeout, retries, batch_size, concurrency):
    """Raise a ValueError unless these arguments of `connect` are in range."""
    for name, value, least in (
        ("retries", retries, 0),
        ("batch_size", batch_size, 1),
        ("concurrency", concurrency, 1),
    ):
        if value < least:
            raise ValueError(
                f"`{name}` must be {least} or more. Received: {name}={value}"
            )
    if not timeout > 0:
        raise ValueError(
            f"`timeout` must be positive. Received: timeout={timeout}"
        )


class Client:
    """Sends requests to a server; see `connect`. It is thread-safe.

    All methods raise a ServingError with the server's message if the server
    refuses, and its subclass UnavailableError if the server cannot be reached
    or is busy in all attempts.

    Args:
        transport: The connection to the server.
        batch_size: See `connect`.
        concurrency: See `connect`.
    """

    def __init__(self, transport: Transport, batch_size: int, concurrency: int):
        self._transport = transport
        self._batch_size = batch_size
        self._threads = concurrent.futures.ThreadPoolExecutor(concurrency)
        self._signatures = {}

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.close()

    def close(self):
        """Close the connections."""
        self._threads.shutdown(cancel_futures=True)
        self._transport.close()

    def status(self) -> list[VersionStatus]:
        """Return the state of each version of the model."""
        return self._transport.status()

    def metadata(self) -> dict[str, Signature]:
        """Return the signatures of the model, by name."""
        self._signatures = self._transport.metadata()
        return dict(self._signatures)

    def predict(
        self,
        inputs: Mapping[str, np.ndarray],
        signature: str = "serving_default",
    ) -> dict[str, np.ndarray]:
        """Return the outputs of a signature.

        Inputs with more than `batch_size` rows are sent in parts, several at a
        time, and the outputs are concatenated in order. If no version is
        given, different versions may compute the parts while one replaces
        another.

        Shapes:
            All inputs and outputs: (B, ...).

        Args:
            inputs: Arrays by name. Strings are bytes, or text that is sent as
                UTF-8.
            signature: The name of the signature.

        Returns:
            Arrays by name, in the dtypes of the signature; strings as object
            arrays of bytes.

        Raises:
            ValueError: If inputs are missing, unknown, of different lengths,
                or of another type than the signature declares.
            ServingError: If the server does not respond, or refuses.
        """
        if signature not in self._signatures:
            self.metadata()
        row = pick(self._signatures, signature, "signature")
        arrays = to_arrays(inputs, row)
        parts = [
            {n: x[i : i + self._batch_size] for n, x in arrays.items()}
            for i in range(0, check_lengths(arrays), self._batch_size)
        ]

        def send(part):
            outputs = self._transport.predict(signature, row, part)
            check_outputs(outputs, row.outputs, check_lengths(part))
            return outputs

        if len(parts) == 1:
            return send(parts[0])
        outputs = list(self._threads.map(send, parts))
        return {
            name: np.concatenate([part[name] for part in outputs])
            for name in row.outputs
        }

    def classify(
        self, images: Sequence[str | os.PathLike | bytes]
    ) -> list[list[tuple[str, float]]]:
        """Return the top classes of images with their probabilities.

        Uses the signature `serve_bytes`.

        Args:
            images: Paths of JPEG or PNG files, or their contents.

        Returns:
            For each image, a list of (label, probability), highest first.

        Raises:
            ValueError: If the model has no classes.
            ServingError: If the server does not respond, or refuses.
        """
        contents = [
            image
            if isinstance(image, bytes)
            else pathlib.Path(image).read_bytes()
            for image in images
        ]
        if not contents:
            return []
        outputs = self.predict({"image_bytes": contents}, "serve_bytes")
        if "labels" not in outputs:
            raise ValueError(
                "`classify` needs a model with classes. Received: one whose "
                f"outputs are {', '.join(outputs)}"
            )
        probabilities = outputs["probabilities"].tolist()
        return [
            [(label.decode("utf-8"), p) for label, p in zip(labels, row)]
            for labels, row in zip(outputs["labels"], probabilities)
        ]


def check_outputs(
    outputs: Mapping[str, np.ndarray],
    specs: Mapping[str, TensorSpec],
    length: int,
):
    """Raise a ServingError unless the outputs have a row for each input."""
    for name, spec in specs.items():
        is_batch = spec.shape is None or spec.shape[:1] == (None,)
        if is_batch and outputs[name].shape[:1] != (length,):
            raise ServingError(
                f"The server sent {name} of shape {outputs[name].shape} "
                f"for {length} rows"
            )
