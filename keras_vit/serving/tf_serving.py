"""The files of an export for TF Serving: warm-up requests and models.config.

TF Serving runs the warm-up requests before a version receives traffic, and does
not load a version that fails. The file also contains the expected responses.
The server ignores them; `trainers.serve_check` compares them with its own.
"""

import dataclasses
import os
import pathlib
import warnings
from collections.abc import Iterable, Mapping

import numpy as np

from keras_vit.errors import first_line
from keras_vit.files import atomic_write
from keras_vit.serving.client import Signature, read_signatures

# Inside the folder of a version.
WARMUP_FILE = "assets.extra/tf_serving_warmup_requests"
DESCRIPTION_FILE = "assets.extra/keras_vit.json"  # TF Serving ignores it.
MODELS_CONFIG = "models.config"
HEADER = (
    "# Each export overwrites this file. Remove this line to keep your own "
    "changes.\n"
)


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


def write_warmup(path: str | os.PathLike, records: Iterable[WarmupRecord]):
    """Write a warm-up file, or replace it.

    Args:
        path: The file, `assets.extra/tf_serving_warmup_requests` in the
            folder of a version. Its folder is created.
        records: From 1 to 1,000, which TF Serving reads; one for each
            signature is enough.
    """
    import tensorflow as tf
    from tensorflow_serving.apis.prediction_log_pb2 import PredictionLog

    contents = []
    for record in records:
        log = PredictionLog()
        request, response = log.predict_log.request, log.predict_log.response
        for message, tensors, arrays in (
            (request, request.inputs, record.inputs),
            (response, response.outputs, record.outputs),
        ):
            # The server runs them on the model of the folder.
            message.model_spec.name = "default"
            message.model_spec.signature_name = record.signature
            for name, array in arrays.items():
                tensors[name].CopyFrom(tf.make_tensor_proto(array))
        contents.append(log.SerializeToString(deterministic=True))
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
    from google.protobuf.message import DecodeError

    path = os.fspath(path)
    size = os.path.getsize(path)  # Python's error if it is missing.
    try:
        contents = list(tf.data.TFRecordDataset(path).as_numpy_iterator())
        # TensorFlow accepts a file that ends after a record's length. Length
        # and checksums of a record are 16 bytes.
        if sum(len(content) + 16 for content in contents) != size:
            raise ValueError("it ends inside a record")
        return tuple(map(_read_record, contents))
    except (tf.errors.DataLossError, DecodeError, TypeError, ValueError) as e:
        raise ValueError(
            "Not a warm-up file, which is a TFRecord file of PredictionLog: "
            f"{path}: {first_line(e)}"
        ) from None


def _read_record(content):
    import tensorflow as tf
    from tensorflow_serving.apis.prediction_log_pb2 import PredictionLog

    log = PredictionLog.FromString(content)
    if not log.HasField("predict_log"):
        raise ValueError("a record is not a Predict request")
    request, response = log.predict_log.request, log.predict_log.response
    inputs, outputs = (
        {name: tf.make_ndarray(tensor) for name, tensor in tensors.items()}
        for tensors in (request.inputs, response.outputs)
    )
    name = request.model_spec.signature_name
    return WarmupRecord(name or "serving_default", inputs, outputs)


@dataclasses.dataclass(frozen=True)
class ExportedVersion:
    """What a server should answer.

    Args:
        name: The name of the model, from its folder.
        version: The version, from the folder inside it.
        signatures: By name.
        records: A request and its response for each signature.
    """

    name: str
    version: int
    signatures: Mapping[str, Signature]
    records: tuple[WarmupRecord, ...]


def read_version(path: str | os.PathLike) -> ExportedVersion:
    """Read the folder `<name>/<version>/` of an export.

    Raises:
        ValueError: If it is not a version of an export, or its warm-up file
            is damaged.
        OSError: If it cannot be read.
    """
    path = pathlib.Path(path).absolute()
    if not path.name.isdecimal():
        raise ValueError(
            "`export` must be the folder of a version, .../NAME/NUMBER. "
            f"Received: export={str(path)!r}"
        )
    return ExportedVersion(
        path.parent.name,
        int(path.name),
        read_signatures(read_signature_defs(path)),
        read_warmup(path / WARMUP_FILE),
    )


def read_signature_defs(path: pathlib.Path) -> dict[str, dict]:
    """Return the SignatureDefs of a SavedModel, by name, in their JSON form.

    Raises:
        ValueError: If it is not a SavedModel.
        OSError: If it cannot be read.
    """
    file = path / "saved_model.pb"
    if path.is_dir() and not file.exists():
        raise ValueError(
            "`export` must be a version of a SavedModel, whose answers are "
            "recorded: .../saved_model/NAME/NUMBER, with a saved_model.pb in "
            f"it. Received: export={str(path)!r}"
        )
    from google.protobuf.json_format import MessageToDict
    from google.protobuf.message import DecodeError
    from tensorflow.core.protobuf.saved_model_pb2 import SavedModel

    try:
        graph = next(
            graph
            for graph in SavedModel.FromString(file.read_bytes()).meta_graphs
            if "serve" in graph.meta_info_def.tags
        )
    except (DecodeError, StopIteration):
        raise ValueError(
            f"No SavedModel with the tag `serve` is in {path}"
        ) from None
    return {
        name: MessageToDict(
            signature_def,
            preserving_proto_field_name=True,
            always_print_fields_with_no_presence=True,
        )
        for name, signature_def in graph.signature_def.items()
    }


def find_versions(folder: pathlib.Path) -> dict[int, pathlib.Path]:
    """Return the folders of the versions of a model, by number."""
    return {
        int(path.name): path
        for path in folder.glob("[0-9]*")
        if path.name.isdecimal() and path.name.isascii() and path.is_dir()
    }


def models_config(folder: str | os.PathLike) -> str:
    """Return a models.config for all models in a folder, with labels.

    On the server, the folder is at /models.

    All versions of each model are served. The label `canary` names the newest
    and `stable` the one before it; a model with one version has only
    `stable`. A later version is loaded as well, but gets no label until this
    file is written again.

    Args:
        folder: Folder with `<model>/<version>/saved_model.pb`. Names that
            begin with a dot, and versions that are not whole numbers, are
            ignored.

    Raises:
        ValueError: If there is no model in `folder`.
    """
    from google.protobuf import text_format
    from tensorflow_serving.config.model_server_config_pb2 import (
        ModelServerConfig,
    )

    config = ModelServerConfig()
    for path in sorted(pathlib.Path(folder).glob("[!.]*")):
        versions = sorted(
            number
            for number, version in find_versions(path).items()
            if (version / "saved_model.pb").exists()
        )
        if not versions:
            continue
        row = config.model_config_list.config.add(
            name=path.name,
            base_path=f"/models/{path.name}",
            model_platform="tensorflow",
            version_labels=dict(zip(("stable", "canary"), versions[-2:])),
        )
        # All versions, not just those with labels: a label may only name a
        # loaded version, so a new one must load before it gets one.
        row.model_version_policy.all.SetInParent()
    if not config.model_config_list.config:
        raise ValueError(
            "`folder` must hold a model as <model>/<version>/saved_model.pb. "
            f"Received: folder={os.fspath(folder)!r}"
        )
    return text_format.MessageToString(config)


def write_models_config(folder: pathlib.Path):
    """Write models.config, unless the user has written one."""
    path = folder / MODELS_CONFIG
    if path.exists() and not path.read_bytes().startswith(HEADER.encode()):
        warnings.warn(
            f"{path} was not written by an export, so it stays as it is.",
            stacklevel=3,
        )
        return
    with atomic_write(path) as draft:
        draft.write_text(HEADER + models_config(folder), encoding="utf-8")
