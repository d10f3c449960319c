"""A client of TF Serving over REST or gRPC, and the files that it reads.

REST needs the package urllib3, gRPC the package tensorflow-serving-api.
"""

from keras_vit.serving.client import Client, connect
from keras_vit.serving.errors import ServingError, UnavailableError
from keras_vit.serving.signatures import Signature, TensorSpec, read_signatures
from keras_vit.serving.transport import VersionStatus

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
