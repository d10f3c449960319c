"""Reading an exported version, to compare a server with it."""

import dataclasses
import os
import pathlib
from collections.abc import Mapping

from keras_vit.serving.signatures import Signature, read_signatures
from keras_vit.serving.warmup import WARMUP_FILE, WarmupRecord, read_warmup


@dataclasses.dataclass(frozen=True)
class ExportedVersion:
    """The content of an exported version.

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
