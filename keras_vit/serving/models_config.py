"""The file models.config, which lists the models that TF Serving serves."""

import os
import pathlib
import warnings

from keras_vit.files import atomic_write

MODELS_CONFIG = "models.config"
HEADER = (
    "# Each export overwrites this file. Remove this line to keep your own "
    "changes.\n"
)


def models_config(folder: str | os.PathLike, root: str = "/models") -> str:
    """Return a models.config for all models in a folder, with labels.

    All versions of each model are served. The label `canary` names the newest
    and `stable` the one before it; a model with one version has only
    `stable`. A later version is loaded as well, but gets no label until this
    file is written again.

    Args:
        folder: Folder with `<model>/<version>/saved_model.pb`. Names that
            begin with a dot, and versions that are not whole numbers, are
            ignored.
        root: The path of `folder` on the server.

    Raises:
        ValueError: If there is no model in `folder`.
    """
    from google.protobuf import text_format
    from tensorflow_serving.config.model_server_config_pb2 import (
        ModelServerConfig,
    )

    config = ModelServerConfig()
    for path in sorted(pathlib.Path(folder).glob("[!.]*")):
        if numbers := versions(path):
            row = config.model_config_list.config.add(
                name=path.name,
                base_path=f"{root.rstrip('/')}/{path.name}",
                model_platform="tensorflow",
                version_labels=labels(numbers),
            )
            # All versions, not just those with labels: a label may only name
            # a loaded version, so a new one must load before it gets one.
            row.model_version_policy.all.SetInParent()
    if not config.model_config_list.config:
        raise ValueError(
            "`folder` must hold a model as <model>/<version>/saved_model.pb. "
            f"Received: folder={os.fspath(folder)!r}"
        )
    return text_format.MessageToString(config)


def write_models_config(folder: pathlib.Path):
    """Write models.config, unless the user has written one.

    Args:
        folder: See `models_config`.
    """
    path = folder / MODELS_CONFIG
    if path.exists() and not path.read_bytes().startswith(HEADER.encode()):
        warnings.warn(
            f"{path} was not written by an export, so it stays as it is.",
            stacklevel=3,
        )
        return
    try:
        with atomic_write(path) as draft:
            draft.write_text(HEADER + models_config(folder), encoding="utf-8")
    except OSError as error:  # The exports are in place all the same.
        warnings.warn(f"{path} could not be written: {error}", stacklevel=3)


def versions(folder: pathlib.Path) -> list[int]:
    """Return the versions in the folder of a model, the newest last."""
    return sorted(
        int(path.parent.name)
        for path in folder.glob("*/saved_model.pb")
        if path.parent.name.isdecimal() and path.parent.name.isascii()
    )


def labels(numbers: list[int]) -> dict[str, int]:
    """Return the version that each label names.

    Example:
        >>> labels([1, 2, 3]), labels([7])
        ({'stable': 2, 'canary': 3}, {'stable': 7})
    """
    return dict(zip(("stable", "canary"), numbers[-2:]))
