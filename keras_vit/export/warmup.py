"""The warm-up file of a SavedModel: requests that a server makes of itself.

TF Serving answers them before a version takes traffic, and a version that
cannot does not load. The answers are stored too: the server passes over them,
and `trainers.serve_check` compares those that it gives with them.
"""

import dataclasses
import functools
import os
from collections.abc import Iterable, Mapping

import numpy as np

from keras_vit.files import atomic_write

# Inside the folder of a version.
WARMUP_FILE = "assets.extra/tf_serving_warmup_requests"
# TF Serving refuses a file of more.
MOST_RECORDS = 1000


@dataclasses.dataclass(frozen=True, eq=False)
class WarmupRecord:
    """A request and the answer to it.

    Args:
        signature: The signature that is asked.
        inputs: By name, (B, ...); strings as object arrays of bytes.
        outputs: By name, as the model gave them.
    """

    signature: str
    inputs: Mapping[str, np.ndarray]
    outputs: Mapping[str, np.ndarray]


def write_warmup(
    path: str | os.PathLike,
    records: Iterable[WarmupRecord],
    model_name: str = "default",
):
    """Write a warm-up file, in the place of what is there.

    Args:
        path: The file, `assets.extra/tf_serving_warmup_requests` in the
            folder of a version. Its folder is made.
        records: One for each signature is enough.
        model_name: Whom the requests are addressed to; the server that reads
            them asks the model they came with.

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
    with (
        atomic_write(path) as draft,
        tf.io.TFRecordWriter(str(draft)) as writer,
    ):
        for content in contents:
            writer.write(content)


def read_warmup(path: str | os.PathLike) -> tuple[WarmupRecord, ...]:
    """Return what is in a warm-up file, whoever wrote it.

    Raises:
        ValueError: If it is damaged, or asks for something else than Predict.
        OSError: If it cannot be read.
    """
    import tensorflow as tf

    path = os.fspath(path)
    size = os.path.getsize(path)  # Python's error if it is not there.
    try:
        contents = list(tf.data.TFRecordDataset(path).as_numpy_iterator())
        # TensorFlow takes a file that ends in a record's length for a whole
        # one. Length and checksums are 16 bytes.
        if sum(len(content) + 16 for content in contents) != size:
            raise ValueError("it ends inside a record")
        return tuple(map(_from_bytes, contents))
    except (tf.errors.DataLossError, ValueError) as error:
        reason = str(getattr(error, "message", error)).splitlines()[0]
        raise ValueError(
            "Not a warm-up file, which is a TFRecord file of PredictionLog: "
            f"{path}: {reason}"
        ) from None


def _to_bytes(record, model_name):
    import tensorflow as tf

    log = _messages()["PredictionLog"]()
    for part, arrays in (
        (log.predict_log.request, record.inputs),
        (log.predict_log.response, record.outputs),
    ):
        part.model_spec.name = model_name
        part.model_spec.signature_name = record.signature
        for name, array in sorted(arrays.items()):
            tensor = tf.make_tensor_proto(array)
            part.tensors.add(name=name, content=tensor.SerializeToString())
    return log.SerializeToString()


def _from_bytes(content):
    import tensorflow as tf
    from google.protobuf.message import DecodeError

    read = type(tf.make_tensor_proto(0)).FromString
    try:
        log = _messages()["PredictionLog"].FromString(content)
        if not log.HasField("predict_log"):
            raise ValueError("a record is no request of the kind Predict")
        inputs, outputs = (
            {x.name: tf.make_ndarray(read(x.content)) for x in part.tensors}
            for part in (log.predict_log.request, log.predict_log.response)
        )
    except (DecodeError, TypeError) as error:
        raise ValueError(f"a record is damaged: {error}") from None
    name = log.predict_log.request.model_spec.signature_name
    return WarmupRecord(name or "serving_default", inputs, outputs)


@functools.cache
def _messages():
    """Return the classes of MESSAGES, by name.

    They are on disk what those of tensorflow-serving-api are, which need not
    be installed: a map is a list of keys and values, and a message in a
    message, here a tensor, is its bytes.
    """
    from google.protobuf import (
        descriptor_pb2,
        descriptor_pool,
        message_factory,
    )

    kinds = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(
        name="keras_vit/warmup.proto", package="keras_vit", syntax="proto3"
    )
    for message, fields in MESSAGES.items():
        described = file.message_type.add(name=message)
        for number, (name, kind) in fields.items():
            field = described.field.add(name=name, number=number)
            is_list = name == "tensors"
            field.label = (
                kinds.LABEL_REPEATED if is_list else kinds.LABEL_OPTIONAL
            )
            if kind in MESSAGES:
                field.type = kinds.TYPE_MESSAGE
                field.type_name = f".keras_vit.{kind}"
            else:
                field.type = kinds.Type.Value(f"TYPE_{kind.upper()}")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(
            pool.FindMessageTypeByName(f"keras_vit.{name}")
        )
        for name in MESSAGES
    }


# The fields of tensorflow_serving/apis/*.proto that are used here, by number.
MESSAGES = {
    "ModelSpec": {1: ("name", "string"), 3: ("signature_name", "string")},
    "Tensor": {1: ("name", "string"), 2: ("content", "bytes")},
    "Request": {1: ("model_spec", "ModelSpec"), 2: ("tensors", "Tensor")},
    "Response": {1: ("tensors", "Tensor"), 2: ("model_spec", "ModelSpec")},
    "PredictLog": {1: ("request", "Request"), 2: ("response", "Response")},
    "PredictionLog": {6: ("predict_log", "PredictLog")},
}
