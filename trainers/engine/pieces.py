"""Checkpoints in pieces: the part of each array that a process has.

Each process writes one file, `state-00000.safetensors` and so on, with its
pieces, where in the whole array each begins, and a checksum of each. Any
engine, with any number of devices, reads what it needs of them. Arrays have
the same names in the checkpoints of both engines, see `name_variables` and
`find_arrays`; one that lacks an array of the training is not read.
"""

import collections
import functools
import json
import math
import zlib
from collections.abc import Mapping, Sequence

import numpy as np
import safetensors.numpy
import tensorflow as tf

from keras_vit.tables import list_first
from trainers.engine.update import is_seed


def name_variables(model, optimizer, loss_scale) -> dict:
    """Return the variables of a training by their names in a checkpoint.

    By number, because Keras counts the models of a process in their paths.
    """
    found = {f"model/{i}": v for i, v in enumerate(model.variables)}
    for i, parameter in enumerate(optimizer.parameters):
        for name, slot in parameter.slots.items():
            found[f"optimizer/{i}/{name}"] = slot
    found["optimizer/iterations"] = optimizer.iterations
    if loss_scale:
        names = ("loss_scale/factor", "loss_scale/finite_steps")
        found.update(zip(names, loss_scale.state))
    return found


def check_arrays(found: dict, wanted: dict):
    """Raise a ValueError unless a checkpoint has the arrays of a training.

    Args:
        found: The shape of each array of the checkpoint, by name.
        wanted: The shape of each array of the training.
    """
    faults = {
        "it lacks": [n for n in wanted if n not in found],
        "it also has": [n for n in found if n not in wanted],
        "of other shapes are": [
            n for n in wanted if n in found and [*found[n]] != [*wanted[n]]
        ],
    }
    texts = [
        f"{text} {list_first(sorted(names), 3)}"
        for text, names in faults.items()
        if names
    ]
    if texts:
        raise ValueError("; ".join(texts).replace("numbers/", ""))


def find_arrays(reader, variables: dict, numbers: dict, parts: dict) -> dict:
    """Return {name: key} of a checkpoint of the TensorFlow engine.

    There, the key of an array is the way to its variable by attributes.

    Args:
        reader: A `NewCheckpointReader` of TensorFlow.
        variables: The variables of the training, see `name_variables`.
        numbers: Its arrays on the host, by name.
        parts: The objects from which the ways begin, by name.

    Raises:
        ValueError: If an array is missing, or has another shape.
    """
    names = {id(variable): name for name, variable in variables.items()}
    keys, shapes = {}, {}
    for key, shape in reader.get_variable_to_shape_map().items():
        way, is_variable, _ = key.partition("/.ATTRIBUTES/")
        first, *rest = way.split("/")
        if not is_variable:
            continue
        name = way if first in parts else f"numbers/{way}"
        try:
            place = functools.reduce(_go_on, rest, parts.get(first))
            name = names.get(id(place), name)
        except (AttributeError, LookupError, ValueError):
            pass  # The training has no such place.
        keys[name], shapes[name] = key, shape
    wanted = {
        name: variable.shape
        for name, variable in variables.items()
        # TensorFlow does not save the seeds, which each update sets.
        if name in keys or not is_seed(variable)
    }
    wanted |= {f"numbers/{name}": np.shape(x) for name, x in numbers.items()}
    check_arrays(shapes, wanted)
    return keys


def _go_on(place, name: str):
    """Return what a list, a dictionary or an object has under a name."""
    if isinstance(place, Sequence):
        return place[int(name)]
    return place[name] if isinstance(place, Mapping) else getattr(place, name)


def write_pieces(path: str, index: int, pieces: dict, shapes: dict):
    """Write the file of a process.

    Args:
        path: The names of all files begin with it.
        index: Number of the process.
        pieces: Arrays by (name, where it begins in the whole array).
        shapes: The shape of each whole array, given by one of the processes.
    """
    pieces = {
        f"{name}@{','.join(map(str, begin))}": np.array(x, order="C")
        for (name, begin), x in pieces.items()
    }
    sums = {key: zlib.crc32(x.tobytes()) for key, x in pieces.items()}
    metadata = {"shapes": json.dumps(shapes), "crc32": json.dumps(sums)}
    with tf.io.gfile.GFile(f"{path}-{index:05d}.safetensors", "wb") as file:
        file.write(safetensors.numpy.save(pieces, metadata))


OF_THE_OTHER_ENGINE = (
    "The checkpoint is of another engine: the run goes on from its weights, "
    "the state of its optimizer and its update, but not to the bit."
)


def are_pieces(path: str) -> bool:
    """Return whether a checkpoint consists of pieces."""
    return bool(tf.io.gfile.glob(f"{path}-*.safetensors"))


class Pieces:
    """The pieces of all processes, read when they are needed.

    Args:
        path: The names of all files begin with it.

    Attributes:
        shapes: The shape of each array, by name.
    """

    def __init__(self, path: str):
        self.shapes = {}
        # By name: the file, the key and its entry in the header, its begin.
        self._found = collections.defaultdict(list)
        for name in sorted(tf.io.gfile.glob(f"{path}-*.safetensors")):
            with tf.io.gfile.GFile(name, "rb") as file:
                size = int.from_bytes(file.read(8), "little")
                header = json.loads(file.read(size))
            metadata = header.pop("__metadata__")
            self.shapes |= json.loads(metadata["shapes"])
            sums = json.loads(metadata["crc32"])
            for key, entry in header.items():
                array, _, begin = key.rpartition("@")
                begin = tuple(int(x) for x in begin.split(",") if x)
                place = (name, 8 + size, sums[key])
                self._found[array].append((place, key, entry, begin))

    def read(self, name: str, part: tuple[slice, ...] | None = None):
        """Return a part of an array; None for all of it.

        Raises:
            ValueError: If a piece of it is damaged or missing.
        """
        pieces = self._found.get(name, [])
        shape = self.shapes.get(name, ())
        bounds = [
            (s.start or 0, n if s.stop is None else s.stop)
            for s, n in zip(part or [slice(None)] * len(shape), shape)
        ]
        whole, count = None, 0
        for place, key, entry, begin in pieces:
            ends = [b + n for b, n in zip(begin, entry["shape"])]
            low = [max(a, b) for (a, _), b in zip(bounds, begin)]
            high = [min(a, b) for (_, a), b in zip(bounds, ends)]
            if any(a >= b for a, b in zip(low, high)):
                continue
            piece = _read_piece(place, key, entry)
            if whole is None:
                whole = np.empty([b - a for a, b in bounds], piece.dtype)
            target = [
                slice(a - b, c - b) for a, c, (b, _) in zip(low, high, bounds)
            ]
            source = [slice(a - b, c - b) for a, c, b in zip(low, high, begin)]
            whole[tuple(target)] = piece[tuple(source)]
            count += math.prod(b - a for a, b in zip(low, high))
        if whole is None or count != whole.size:
            raise ValueError(f"pieces of {name} are missing")
        return whole


def _read_piece(place, key, entry):
    name, offset, checksum = place
    begin, end = entry["data_offsets"]
    with tf.io.gfile.GFile(name, "rb") as file:
        file.seek(offset + begin)
        content = file.read(end - begin)
    if zlib.crc32(content) != checksum:
        raise ValueError(f"the checksum of {key} in {name} differs")
    # A file of this piece alone, which knows all types.
    header = {key: {**entry, "data_offsets": [0, end - begin]}}
    header = json.dumps(header).encode()
    size = len(header).to_bytes(8, "little")
    return safetensors.numpy.load(size + header + content)[key]
