"""Where a run comes from: versions, commit, date, and a digest of its data."""

import dataclasses
import datetime
import hashlib
import json
import os
import subprocess

import keras
import numpy as np

from keras_vit.models import VisionTransformer
from keras_vit.version import find_versions
from trainers.data.datasets import ImageDataset
from trainers.data.readers.image_files import ImageFiles
from trainers.plugins import LOADED

MOST_SIZES = 100_000


def describe_origin(dataset: ImageDataset) -> dict:
    """Return what recipe.json records of a training that starts.

    Returns:
        versions: Of the package, Keras and the backends, see `find_versions`.
        backend: The backend of Keras.
        commit: The commit of the working directory, if it is in a repository;
            with "+changes" behind it if files of the commit are changed.
        date: The time in UTC, ISO 8601.
        data_digest: See `digest_data`.
        plugins: The plug-ins that were loaded.
    """
    now = datetime.datetime.now(datetime.UTC)
    return {
        "versions": find_versions(),
        "backend": keras.backend.backend(),
        "commit": find_commit(),
        "date": now.isoformat(timespec="seconds"),
        "data_digest": digest_data(dataset),
        "plugins": list(LOADED),
    }


def find_commit() -> str | None:
    """Return the commit of the working directory, None if there is none."""

    def ask(*words):
        return subprocess.run(
            ["git", *words], capture_output=True, text=True, timeout=10
        )

    try:
        head = ask("rev-parse", "HEAD")
        if head.returncode:
            return None
        changed = ask("status", "--porcelain", "--untracked-files=no")
    except (OSError, subprocess.TimeoutExpired):
        return None
    return head.stdout.strip() + ("+changes" if changed.stdout else "")


def digest_data(dataset: ImageDataset) -> str:
    """Return a checksum of the images of a data set, 16 hexadecimal digits.

    It is that of the classes, the splits, and the names, sizes and labels of
    image files, wherever their folder is; of the sizes only for up to
    MOST_SIZES files of a split, as others may take minutes to ask. Pixels are
    not read, so it does not see a file that was replaced by one of its size.
    """
    reader = dataset.reader

    def identify(path, label, is_sized):
        size = os.path.getsize(path) if is_sized else None
        if dataset.maps:  # Then it is the path of a map.
            label = os.path.basename(label)
        return os.path.basename(path), size, str(label)

    facts = [dataset.class_names]
    for split in (dataset.train_split, dataset.eval_split):
        if split is None:
            continue
        ranges = dataset.ranges(split)
        facts.append(ranges)
        if isinstance(reader, ImageFiles):
            is_sized = dataset.num_examples(split) <= MOST_SIZES
            facts += [
                identify(*row, is_sized)
                for name, first, last in ranges
                for row in reader.files[name][first:last]
            ]
        else:
            infos = [reader.splits[name] for name, _, _ in ranges]
            facts += [(x.name, x.num_examples, x.num_bytes) for x in infos]
    digest = hashlib.sha256()
    for fact in facts:
        digest.update(json.dumps(fact).encode(errors="surrogateescape"))
    return digest.hexdigest()[:16]


def digest_model(model: keras.Model) -> str:
    """Return a checksum of what a model computes, 16 hexadecimal digits.

    It is that of its configuration and its weights, in any file and on any
    backend. Of a VisionTransformer, fields with their defaults do not count,
    so that it stays when later versions have more of them.
    """
    if isinstance(model, VisionTransformer):
        defaults = {x.name: x.default for x in dataclasses.fields(model.config)}
        fields = {
            name: value
            for name, value in vars(model.config).items()
            if value != defaults[name]
        }
        described = model.get_config() | {"config": fields}
        for name in ("name", "trainable", "frozen", "frozen_weights"):
            described.pop(name, None)
        text = json.dumps(described, default=str, sort_keys=True)
    else:
        text = model.to_json()
    digest = hashlib.sha256(text.encode())
    for weight in model.weights:
        numbers = np.ascontiguousarray(keras.ops.convert_to_numpy(weight))
        digest.update(f"{numbers.shape} {numbers.dtype}".encode())
        digest.update(numbers.view("uint8").data)
    return digest.hexdigest()[:16]
