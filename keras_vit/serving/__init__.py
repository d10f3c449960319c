"""A client of TF Serving over REST or gRPC, and the files that it reads.

REST needs the package urllib3, gRPC the package tensorflow-serving-api.
"""

from keras_vit.serving.client import (
    Client,
    ServingError,
    Signature,
    TensorSpec,
    UnavailableError,
    VersionStatus,
    connect,
    read_signatures,
)

__all__ = [
    "Client",
    "ServingError",
    "Signature",
    "TensorSpec",
    "UnavailableError",
    "VersionStatus",
    "connect",
    "read_signatures",
]
