"""The warm-up file of a SavedModel: requests that TF Serving runs by itself.

TF Serving runs the requests before a version receives traffic, and does not
load a version that fails. The file also contains the expected responses. The
server ignores them; `trainers.serve_check` compares them with its responses.
"""

import dataclasses
import os
from collections.abc import Iterable, Mapping

import numpy as np

from keras_vit.errors import first_line
from keras_vit.files import atomic_write

# Inside the folder of a version.
WARMUP_FILE = "assets.extra/tf_serving_warmup_requests"
# TF Serving refuses a longer file.
MOST_RECORDS = 1000


@dataclasses.dataclass(frozen=True, eq=False)
class WarmupRecord:
    """A request and its response.

    Args:
        signature: The name of the signature.
        inputs: Arrays by name, (B, ...); strings as object arrays of bytes.
        outputs: Arrays by name, as computed by the model.
    """

    signature: str
    inputs: Mapping[str, np.ndarray]
    outputs: Mapping[str, np.ndarray]


def write_warmup(
    path: str | os.PathLike,
    records: Iterable[WarmupRecord],
    model_name: str = "default",
):
    """Write a warm-up file, or replace it.

    Args:
        path: The file, `assets.extra/tf_serving_warmup_requests` in the
            folder of a version. Its folder is created.
        records: The records; one for each signature is enough.
        model_name: Name of the model in the requests. The server ignores it
            and runs them on the model of the folder.

    Raises:
        ValueError: If there are no records, or more than TF Serving reads.
    """
    import tensorflow as tf

    contents = [_to_bytes(record, model_name) for record in records]
    if not 1 <= len(contents) <= MOST_RECORDS:
        raise ValueError(
            f"`records` must be 1 to {MOST_RECORDS:,}, which TF Serving reads. "
            f"Received: {len(contents):,}"
        )
    with atomic_write(path) as draft:
        with tf.io.TFRecordWriter(str(draft)) as writer:
            for content in contents:
                writer.write(content)


def read_warmup(path: str | os.PathLike) -> tuple[WarmupRecord, ...]:
    """Return the records of a warm-up file of any origin.

    Raises:
        ValueError: If it is damaged, or contains requests other than Predict.
        OSError: If it cannot be read.
    """
    import tensorflow as tf

    path = os.fspath(path)
    size = os.path.getsize(path)  # Python's error if it is missing.
    try:
        contents = list(tf.data.TFRecordDataset(path).as_numpy_iterator())
        # TensorFlow accepts a file that ends after a record's length. Length
        # and checksums of a record are 16 bytes.
        if sum(len(content) + 16 for content in contents) != size:
            raise ValueError("it ends inside a record")
        return tuple(map(_from_bytes, contents))
    except (tf.errors.DataLossError, ValueError) as error:
        raise ValueError(
            "Not a warm-up file, which is a TFRecord file of PredictionLog: "
            f"{path}: {first_line(error)}"
        ) from None


def _to_bytes(record, model_name):
    import tensorflow as tf
    from tensorflow_serving.apis.prediction_log_pb2 import PredictionLog

    log = PredictionLog()
    request, response = log.predict_log.request, log.predict_log.response
    for message, tensors, arrays in (
        (request, request.inputs, record.inputs),
        (response, response.outputs, record.outputs),
    ):
        message.model_spec.name = model_name
        message.model_spec.signature_name = record.signature
        for name, array in arrays.items():
            tensors[name].CopyFrom(tf.make_tensor_proto(array))
    return log.SerializeToString(deterministic=True)


def _from_bytes(content):
    import tensorflow as tf
    from google.protobuf.message import DecodeError
    from tensorflow_serving.apis.prediction_log_pb2 import PredictionLog

    try:
        log = PredictionLog.FromString(content)
        if not log.HasField("predict_log"):
            raise ValueError("a record is not a Predict request")
        request, response = log.predict_log.request, log.predict_log.response
        inputs, outputs = (
            {name: tf.make_ndarray(tensor) for name, tensor in tensors.items()}
            for tensors in (request.inputs, response.outputs)
        )
    except (DecodeError, TypeError) as error:
        raise ValueError(f"a record is damaged: {error}") from None
    name = request.model_spec.signature_name
    return WarmupRecord(name or "serving_default", inputs, outputs)
