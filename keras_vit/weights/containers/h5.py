"""The `.h5` container: weights or whole models that Keras saved."""

import json
import math
import mmap
import os
import pathlib
from collections.abc import Iterator

import ml_dtypes
import numpy as np

from keras_vit.weights.containers import limits
from keras_vit.weights.containers.checkpoint import (
    Checkpoint,
    Entry,
    read_through,
    refuse_text,
)

MAX_NESTING = 32
# The first key of the description of a model, in Keras 3 and in Keras 2.
MODEL_CONFIG_KEYS = (b"module", b"class_name")
MAX_MODEL_CONFIG = 2**21


def open_h5(path: pathlib.Path) -> Checkpoint:
    """Return the arrays of an `.h5` file, without reading them.

    Raises:
        ValueError: If an array is stored outside the file, or the arrays
            expand to more than a checkpoint can contain.
    """
    import h5py  # Keras needs it as well.

    refuse_text(path)
    file = h5py.File(path, "r")
    try:
        entries, sizes = {}, []
        for name, dataset in _datasets(file, h5py):
            shape = limits.check_array_shape(name, dataset.shape)
            dtype = dataset.dtype
            # Keras stores bfloat16 as two bytes without a type.
            is_bfloat16 = dtype.str == "|V2"
            entries[name] = Entry(
                name,
                shape,
                "bfloat16" if is_bfloat16 else dtype.str,
                _load(dataset, is_bfloat16),
            )
            # Reading any part of a chunk decompresses the whole chunk.
            count = max(math.prod(shape), math.prod(dataset.chunks or ()))
            sizes.append(count * dtype.itemsize)
        limits.check_budget(sizes, os.path.getsize(path))
        config = _model_config(path) if "model_config" in file.attrs else {}
    except BaseException:
        file.close()
        raise
    return Checkpoint(path, entries, config, read_through(entries), file.close)


def _datasets(group, h5py, prefix="", seen=None) -> Iterator[tuple]:
    """Yield the arrays below `group`; refuse links out of the file."""
    seen = set() if seen is None else seen
    address = h5py.h5o.get_info(group.id).addr
    if address in seen:
        raise ValueError("its groups are linked in more than one place")
    seen.add(address)
    limits.check_count(len(seen), "arrays and groups")
    if prefix.count("/") > MAX_NESTING:
        raise ValueError("its groups are nested too deep")
    for key in group:
        name = limits.check_array_name(prefix + key)
        link = group.get(key, getlink=True)
        if not isinstance(link, h5py.HardLink):
            raise ValueError(f"{name} is a link to elsewhere")
        item = group[key]
        if isinstance(item, h5py.Group):
            yield from _datasets(item, h5py, name + "/", seen)
        elif isinstance(item, h5py.Dataset):
            if item.is_virtual or item.external:
                raise ValueError(f"{name} is stored outside the file")
            # Strings and the like are never weights.
            is_number = item.dtype.kind in "fiub" or item.dtype.str == "|V2"
            if is_number and item.shape is not None:
                yield name, item


def _load(dataset, is_bfloat16):
    def load(index=None):
        array = np.asarray(dataset[() if index is None else index])
        return array.view(ml_dtypes.bfloat16) if is_bfloat16 else array

    return load


def _model_config(path) -> dict:
    """Return the configuration of a whole Keras model saved as `.h5`.

    The configuration is an attribute of the file, but in a damaged file,
    libhdf5 may never return from reading an attribute. Instead, this function
    searches the bytes of the file for the text.
    """
    with (
        open(path, "rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data,
    ):
        starts = [data.find(b'{"%s": "' % key) for key in MODEL_CONFIG_KEYS]
        starts = [start for start in starts if start >= 0]
        if not starts:
            return {}
        start = min(starts)
        text = data[start : start + MAX_MODEL_CONFIG].decode("utf-8", "replace")
    try:
        config, _ = json.JSONDecoder().raw_decode(text)
    except (ValueError, RecursionError):
        return {}
    return config
