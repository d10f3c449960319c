"""The gRPC interface of TF Serving."""

import json
from collections.abc import Mapping

import grpc
import numpy as np
import tensorflow as tf
from google.protobuf.json_format import MessageToDict
from tensorflow_serving.apis import (
    get_model_metadata_pb2,
    get_model_status_pb2,
    model_pb2,
    model_service_pb2_grpc,
    predict_pb2,
    prediction_service_pb2_grpc,
)

from keras_vit.serving.errors import ServingError, UnavailableError
from keras_vit.serving.signatures import Signature, read_signatures
from keras_vit.serving.transport import (
    PASSING_CODES,
    Target,
    VersionStatus,
    count_attempts,
)

MOST_RETRIES = 4  # gRPC makes five attempts at most.


class GrpcTransport:
    """A channel without encryption.

    Args:
        address: The server, such as localhost:8500.
        target: The model.
        timeout: The deadline of a call in seconds, with all its attempts.
        retries: Attempts after the first.
        max_message_bytes: Largest size of a request or a response.
    """

    def __init__(
        self,
        address: str,
        target: Target,
        timeout: float,
        retries: int,
        max_message_bytes: int,
    ):
        self._address = address
        self._spec = model_pb2.ModelSpec(
            name=target.model, version_label=target.label
        )
        if target.version is not None:
            self._spec.version.value = target.version
        self._timeout = timeout
        self._attempts = count_attempts(retries)
        self._channel = grpc.insecure_channel(
            address,
            options=[
                ("grpc.max_send_message_length", max_message_bytes),
                ("grpc.max_receive_message_length", max_message_bytes),
                ("grpc.service_config", json.dumps(retry_policy(retries))),
                # Reconnect as often as the retries ask for.
                ("grpc.initial_reconnect_backoff_ms", 100),
                ("grpc.min_reconnect_backoff_ms", 100),
                ("grpc.max_reconnect_backoff_ms", 1000),
            ],
        )
        self._models = model_service_pb2_grpc.ModelServiceStub(self._channel)
        self._predictions = prediction_service_pb2_grpc.PredictionServiceStub(
            self._channel
        )

    def status(self) -> list[VersionStatus]:
        """Return the known versions."""
        request = get_model_status_pb2.GetModelStatusRequest(
            model_spec=self._spec
        )
        response = self._ask(self._models.GetModelStatus, request)
        states = get_model_status_pb2.ModelVersionStatus.State
        return [
            VersionStatus(
                row.version, states.Name(row.state), row.status.error_message
            )
            for row in response.model_version_status
        ]

    def metadata(self) -> dict[str, Signature]:
        """Return the signatures."""
        request = get_model_metadata_pb2.GetModelMetadataRequest(
            model_spec=self._spec, metadata_field=["signature_def"]
        )
        response = self._ask(self._predictions.GetModelMetadata, request)
        found = get_model_metadata_pb2.SignatureDefMap()
        response.metadata["signature_def"].Unpack(found)
        found = MessageToDict(found, preserving_proto_field_name=True)
        return read_signatures(found.get("signature_def", {}))

    def predict(
        self, name: str, signature: Signature, inputs: Mapping[str, np.ndarray]
    ) -> dict[str, np.ndarray]:
        """Return the outputs of a signature, in the dtypes it declares."""
        request = predict_pb2.PredictRequest(model_spec=self._spec)
        request.model_spec.signature_name = name
        for key, array in inputs.items():
            # Arrays of numbers go as their bytes, in `tensor_content`.
            request.inputs[key].CopyFrom(tf.make_tensor_proto(array))
        response = self._ask(self._predictions.Predict, request)
        missing = set(signature.outputs) - set(response.outputs)
        if missing:
            raise ServingError(
                f"{self._address} omitted {', '.join(sorted(missing))}"
            )
        try:
            return {
                key: tf.make_ndarray(response.outputs[key])
                for key in signature.outputs
            }
        except (TypeError, ValueError) as error:
            raise ServingError(
                f"{self._address} sent a damaged tensor: {error}"
            ) from None

    def close(self):
        """Close the channel."""
        self._channel.close()

    def _ask(self, method, request):
        try:
            return method(request, timeout=self._timeout)
        except grpc.RpcError as error:
            code = error.code().name
            passing = code in PASSING_CODES
            # A call that has reached its deadline is not retried.
            attempts = self._attempts * (code == "UNAVAILABLE")
            raise (UnavailableError if passing else ServingError)(
                f"{self._address}: {code}: {error.details()}{attempts}", code
            ) from None


def retry_policy(retries: int) -> dict:
    """Return gRPC's service config with so many retries.

    gRPC itself varies the pauses by a fifth.
    """
    if not retries:
        return {}
    policy = {
        "maxAttempts": retries + 1,
        "initialBackoff": "0.2s",
        "maxBackoff": "10s",
        "backoffMultiplier": 2,
        "retryableStatusCodes": ["UNAVAILABLE"],
    }
    return {"methodConfig": [{"name": [{}], "retryPolicy": policy}]}
