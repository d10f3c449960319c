"""Checkpoint files as named arrays: .npz, .safetensors and .h5, both ways.

A file from elsewhere is not trusted. Names, types and shapes are read and
checked first; they bound what is allocated later. Nothing is ever unpickled.
Whatever is wrong with a file ends in a ValueError that names it.
"""

import contextlib
import json
import math
import mmap
import os
import pathlib
import re
import struct
import zipfile
from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np

from keras_vit.files import atomic_write

# Arrays may unfold to this many times the size of the file, beyond an
# allowance for small files. Trained float weights hardly compress at all.
EXPANSION = 16
ALLOWANCE = 2**28
MAX_ENTRIES = 100_000
MAX_RANK = 8
MAX_NAME = 1000
# The first key of the description of a model, in Keras 3 and in Keras 2.
MODEL_CONFIG_KEYS = (b"module", b"class_name")
MAX_JSON = 2**24
CHUNK = 2**20

# Names of the types in .safetensors, and how NumPy reads them. bfloat16 is the
# upper half of a float32; NumPy has no such type and stores two plain bytes.
SAFETENSORS_TYPES = {
    "F64": "<f8",
    "F32": "<f4",
    "F16": "<f2",
    "BF16": "bfloat16",
    "I64": "<i8",
    "I32": "<i4",
    "I16": "<i2",
    "I8": "|i1",
    "U64": "<u8",
    "U32": "<u4",
    "U16": "<u2",
    "U8": "|u1",
    "BOOL": "|b1",
}
FLOATS = ("f2", "f4", "f8", "bfloat16")
WRITTEN_BY = "keras_vit"


class Entry(NamedTuple):
    """One array of a file: what is known of it without reading it.

    Args:
        name: Its name in the file.
        shape: Its shape.
        dtype: Its type in NumPy's notation, or "bfloat16".
        load: Reads it, or one slice of its first axis.
        can_slice: Whether a slice is read without the rest.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    load: Callable[[int | None], np.ndarray]
    can_slice: bool = True

    @property
    def is_float(self) -> bool:
        """Whether the entry can be a weight."""
        return self.dtype.lstrip("<>|=") in FLOATS

    def read(self, index: int | None = None) -> np.ndarray:
        """Return the array as float32, in the byte order of this machine.

        Args:
            index: Of the slice to read; None for all.
        """
        array = self.load(index)
        if self.dtype == "bfloat16":
            array = (array.astype("<u4") << 16).view("<f4")
        with np.errstate(over="raise"):
            return np.asarray(array, "float32")


class Checkpoint:
    """The arrays of a file or folder, and what it says of itself.

    Args:
        path: Where it is.
        entries: The arrays by name.
        config: What lies beside or inside the arrays: the parsed
            `config.json` and the like.
        verify: Reads the given entries through once, without keeping them,
            and raises if one is damaged.
        close: Closes the files.
    """

    def __init__(self, path, entries, config=None, verify=None, close=None):
        self.path = str(path)
        self.entries = entries
        self.config = config or {}
        self._verify = verify
        self._close = close

    def verify(self, names: Iterable[str]):
        """Raise a ValueError unless the entries `names` can all be read."""
        with errors_name(self.path):
            if self._verify is not None:
                self._verify(names)
            for name in names:
                if self.entries[name].dtype.endswith("f8"):
                    self.entries[name].read()  # It may exceed a float32.

    def read(self, name: str, index: int | None = None) -> np.ndarray:
        """Return the entry `name`, or a slice of its first axis, as float32."""
        with errors_name(self.path):
            return self.entries[name].read(index)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self._close is not None:
            self._close()


@contextlib.contextmanager
def errors_name(path):
    """Turn whatever goes wrong inside into a ValueError that names `path`."""
    try:
        yield
    except Exception as error:
        message = str(error) or type(error).__name__
        if str(path) in message and isinstance(error, ValueError):
            raise
        raise ValueError(f"{path} cannot be read: {message}") from error


def open_checkpoint(path) -> Checkpoint:
    """Return what `path` holds, without reading its arrays.

    Args:
        path: A `.npz`, `.safetensors` or `.h5` file, or a folder as Hugging
            Face, timm or keras-hub write it.

    Raises:
        ValueError: If there is no such file, or it is of another kind,
            truncated, damaged or larger unfolded than a checkpoint can be.
    """
    with errors_name(path):
        path = pathlib.Path(path).expanduser()
        if path.is_dir():
            return _open_folder(path)
        if not path.is_file():
            raise ValueError(f"There is no file {path}")
        suffix = path.suffix.lower()
        opener = OPENERS.get(suffix)
        if opener is None:
            raise ValueError(REFUSED_SUFFIXES.get(suffix, UNKNOWN_SUFFIX))
        config = _config_beside(path)
        checkpoint = opener(path)
        checkpoint.config = {**config, **checkpoint.config}
        return checkpoint


UNKNOWN_SUFFIX = "a checkpoint ends in .npz, .safetensors or .h5"
_PICKLED = (
    "it is a pickle, which can run code when it is opened; save the weights "
    "as .safetensors with the library that wrote it"
)
REFUSED_SUFFIXES = {
    ".bin": _PICKLED,
    ".pt": _PICKLED,
    ".pth": _PICKLED,
    ".pkl": _PICKLED,
    ".ckpt": _PICKLED,
    ".keras": "it is a Keras model; open it with keras.saving.load_model",
    ".index": "it is a TensorFlow checkpoint, which holds no names of a ViT",
}


def _config_beside(path):
    """Return what a JSON file beside the weights says.

    `model.json` beside `model.npz`, else `config.json` in the folder of a
    `model.safetensors`, as a download from Hugging Face leaves them.
    """
    for name in (path.stem + ".json", "config.json"):
        beside = path.parent / name
        if name == "config.json" and path.name != "model.safetensors":
            continue
        if beside.is_file():
            return read_json(beside)
    return {}


def _open_folder(path):
    names = sorted(item.name for item in path.iterdir())
    if "model.weights.h5" in names and "config.json" in names:
        return _open_keras_hub(path)
    if "model.safetensors" in names:
        return open_checkpoint(path / "model.safetensors")
    if "model.safetensors.index.json" in names:
        return _open_shards(path)
    found = ", ".join(names[:10]) or "nothing"
    raise ValueError(
        "a folder must hold model.safetensors (Hugging Face, timm) or "
        f"model.weights.h5 and config.json (keras-hub). It holds {found}"
    )


def _open_shards(path):
    index = read_json(path / "model.safetensors.index.json")
    weight_map = index.get("weight_map")
    if not isinstance(weight_map, dict):
        raise ValueError("model.safetensors.index.json has no weight_map")
    shards = sorted({str(file) for file in weight_map.values()})
    for file in shards:
        if file != os.path.basename(file) or not file.endswith(".safetensors"):
            raise ValueError(f"{file!r} is no .safetensors file of the folder")
    with contextlib.ExitStack() as stack:
        opened = {
            file: stack.enter_context(_open_safetensors(path / file))
            for file in shards
        }
        missing = [
            name
            for name, file in weight_map.items()
            if name not in opened[file].entries
        ]
        if missing:
            raise ValueError(f"its files lack {', '.join(missing)}")
        entries = {
            name: opened[file].entries[name]
            for name, file in weight_map.items()
        }
        config = path / "config.json"
        config = read_json(config) if config.is_file() else {}
        close = stack.pop_all().close
    return Checkpoint(path, entries, config, close=close)


def _open_keras_hub(path):
    """Return the backbone of a preset and, where there is one, its head."""
    config = read_json(path / "config.json")
    files = ["model.weights.h5"]
    if (path / "task.json").is_file():
        config["task"] = read_json(path / "task.json")
        files.append("task.weights.h5")
    with contextlib.ExitStack() as stack:
        entries = {}
        for file in files:
            part = stack.enter_context(_open_h5(path / file))
            entries.update(part.entries)
        close = stack.pop_all().close
    return Checkpoint(path, entries, config, _read_through(entries), close)


def read_json(path) -> dict:
    """Return the JSON object in the file `path`.

    Raises:
        ValueError: If it is not one, or larger than 16 MiB.
    """
    with errors_name(path):
        if not os.path.isfile(path):
            raise ValueError("it is no file")
        if os.path.getsize(path) > MAX_JSON:
            raise ValueError(f"more than {MAX_JSON} bytes of JSON")
        return _parse_json(pathlib.Path(path).read_bytes())


def _parse_json(data) -> dict:
    def once(pairs):
        found = dict(pairs)
        if len(found) != len(pairs):
            raise ValueError("a name is given twice")
        return found

    value = json.loads(data.decode("utf-8"), object_pairs_hook=once)
    if not isinstance(value, dict):
        raise ValueError("it is not a JSON object")
    return value


def check_budget(sizes: Iterable[int], file_size: int):
    """Raise a ValueError if arrays of `sizes` bytes cannot be in the file.

    Args:
        sizes: Of the arrays, unfolded, in bytes.
        file_size: Of the file, in bytes.
    """
    total, limit = 0, ALLOWANCE + EXPANSION * file_size
    for count, size in enumerate(sizes, start=1):
        total += size
        if total > limit:
            raise ValueError(
                f"a file of {file_size:,} bytes that unfolds to more than "
                f"{limit:,} is no checkpoint"
            )
        if count > MAX_ENTRIES:
            raise ValueError(f"more than {MAX_ENTRIES:,} arrays")


def check_name(name: str) -> str:
    """Return the name of an array, or raise a ValueError if it is absurd."""
    if len(name) > MAX_NAME:
        raise ValueError(f"{name[:80]}... is a name of {len(name):,} letters")
    return name


def check_shape(name: str, shape):
    """Return `shape` as a tuple of ints, or raise a ValueError."""
    good = isinstance(shape, (list, tuple)) and len(shape) <= MAX_RANK
    if not good or not all(type(n) is int and n >= 0 for n in shape):
        raise ValueError(f"{name} has no valid shape: {str(shape)[:80]}")
    return tuple(shape)


# ------------------------------------------------------------------- .npz

NPY_HEADER = re.compile(
    rb"\{'descr': '([<>|=]?[fiubcSUVMmO][0-9]{0,4})', 'fortran_order': "
    rb"(True|False), 'shape': \(([0-9, ]{0,200})\), \}\s*\Z"
)


def _open_npz(path):
    archive = zipfile.ZipFile(path)
    try:
        members = archive.infolist()
        file_size = os.path.getsize(path)
        check_budget((m.file_size for m in members), file_size)
        entries, names = {}, {}
        for member in members:
            name = check_name(member.filename.removesuffix(".npy"))
            if name in entries:
                raise ValueError(f"{name} is stored twice")
            entries[name] = _npz_entry(archive, member, name)
            names[name] = member
        config = _own_config(archive.comment)
    except BaseException:
        archive.close()
        raise

    def verify(wanted):
        # The archive holds a checksum of every array; reading to the end of
        # one compares it. One pass in small pieces, so that nothing of a
        # damaged file is used and nothing is kept.
        for name in wanted:
            left = names[name].file_size
            with archive.open(names[name]) as stream:
                while chunk := stream.read(CHUNK):
                    left -= len(chunk)
            if left:
                raise ValueError(f"{name} ends before its header says")

    return Checkpoint(path, entries, config, verify, archive.close)


def _npz_entry(archive, member, name):
    if member.flag_bits & 1:
        raise ValueError(f"{name} is encrypted")
    stored_size = {
        zipfile.ZIP_STORED: member.file_size,
        zipfile.ZIP_DEFLATED: member.compress_size,
    }
    # Python unpacks the other methods without a limit.
    if member.compress_size != stored_size.get(member.compress_type):
        raise ValueError(f"{name} is not stored as NumPy stores an array")
    with archive.open(member) as stream:
        magic = stream.read(8)
        if magic[:6] != b"\x93NUMPY" or magic[6:7] not in b"\x01\x02\x03":
            raise ValueError(f"{name} is not a NumPy array")
        form = "<H" if magic[6] == 1 else "<I"
        (length,) = struct.unpack(form, stream.read(struct.calcsize(form)))
        if length > 10_000:
            raise ValueError(f"{name} has a header of {length:,} bytes")
        header = stream.read(length)
    found = NPY_HEADER.match(header)
    if not found:
        raise ValueError(f"{name} has no valid header: {header[:100]!r}")
    dtype = found[1].decode()
    if "O" in dtype:
        raise ValueError(f"{name} holds pickled objects, which are not read")
    shape = [int(n) for n in found[3].replace(b" ", b"").split(b",") if n]
    shape = check_shape(name, shape)
    offset = 8 + struct.calcsize(form) + length
    if dtype.lstrip("<>|=") == "V2":
        # NumPy stores bfloat16 as two bytes of no type.
        stored, dtype = np.dtype("<u2"), "bfloat16"
    else:
        stored = np.dtype(dtype)
    if (
        stored.itemsize == 0
        or offset + math.prod(shape) * stored.itemsize != member.file_size
    ):
        raise ValueError(f"{name} is not as long as its header says")
    order = "F" if found[2] == b"True" else "C"
    can_slice = order == "C" and member.compress_type == zipfile.ZIP_STORED

    def load(index=None):
        if can_slice:
            # The file itself: one copy, and no checksum twice.
            with open(archive.filename, "rb", buffering=0) as file:
                start = _data_start(file, member) + offset
                return _read_array(file, start, shape, stored, index)
        array = np.empty(shape, stored, order)
        with archive.open(member) as stream:
            stream.read(offset)
            _fill(stream, array.reshape(-1, order=order).view(np.uint8))
        return array if index is None else array[index]

    return Entry(name, shape, dtype, load, can_slice)


def _data_start(file, member):
    """Return where the data of an archive's member begin in the file."""
    file.seek(member.header_offset)
    # What the central directory does not say: the lengths of the name and of
    # the extra field that come first.
    name, extra = struct.unpack("<26xHH", file.read(30))
    return member.header_offset + 30 + name + extra


def _read_array(file, start, shape, dtype, index=None):
    """Return the array that begins at `start`, or a slice of its first axis."""
    if index is not None:
        shape = shape[1:]
        start += index * math.prod(shape) * dtype.itemsize
    array = np.empty(shape, dtype)
    file.seek(start)
    _fill(file, array.reshape(-1).view(np.uint8))
    return array


def _fill(file, out):
    view, done = memoryview(out), 0
    while done < len(view):
        count = file.readinto(view[done : done + 64 * CHUNK])
        if not count:
            raise ValueError("it ends in the middle of an array")
        done += count


def _own_config(text: bytes):
    """Return what our own files say of themselves, {} for others."""
    try:
        config = _parse_json(text)
    except (ValueError, RecursionError):
        return {}  # A comment of someone else.
    return config if config.pop("written_by", None) == WRITTEN_BY else {}


# ----------------------------------------------------------- .safetensors


def _open_safetensors(path):
    file = open(path, "rb", buffering=0)
    try:
        size = os.path.getsize(path)
        start = file.read(8)
        length = int.from_bytes(start, "little")
        if len(start) < 8 or length > min(size - 8, MAX_JSON):
            raise ValueError("its header is truncated or damaged")
        header = _parse_json(_read_exactly(file, length))
        metadata = header.pop("__metadata__", {})
        body = 8 + length
        entries = {
            check_name(name): _safetensors_entry(
                file, name, row, body, size - body
            )
            for name, row in header.items()
        }
        check_budget((0 for _ in entries), size)
        _check_layout(header, size - body)
    except BaseException:
        file.close()
        raise
    own = metadata.get(WRITTEN_BY) if isinstance(metadata, dict) else None
    config = _own_config(str(own).encode("utf-8", "replace"))
    return Checkpoint(path, entries, config, close=file.close)


def _safetensors_entry(file, name, row, body, body_size):
    if not isinstance(row, dict):
        raise ValueError(f"{name} has no valid description")
    dtype = SAFETENSORS_TYPES.get(str(row.get("dtype")))
    if dtype is None:
        raise ValueError(f"{name} has the unknown type {row.get('dtype')!r}")
    shape = check_shape(name, row.get("shape"))
    begin, end = check_shape(name, row.get("data_offsets"))
    stored = np.dtype("<u2" if dtype == "bfloat16" else dtype)
    if end > body_size or end - begin != math.prod(shape) * stored.itemsize:
        raise ValueError(f"{name} does not lie inside the file")

    def load(index=None):
        return _read_array(file, body + begin, shape, stored, index)

    return Entry(name, shape, dtype, load)


def _check_layout(header, body_size):
    """Raise a ValueError if arrays overlap or leave bytes of the file over."""
    end = 0
    for begin, stop in sorted(row["data_offsets"] for row in header.values()):
        if begin != end:
            raise ValueError("its arrays overlap or leave a gap")
        end = stop
    if end != body_size:
        raise ValueError("it is longer or shorter than its header says")


def _read_exactly(file, length):
    buffer = bytearray(length)
    _fill(file, buffer)
    return bytes(buffer)


# -------------------------------------------------------------------- .h5


def _open_h5(path):
    import h5py  # Keras needs it as well.

    file = h5py.File(path, "r")
    try:
        entries, sizes = {}, []
        for name, dataset in _h5_datasets(file, h5py):
            shape = check_shape(name, dataset.shape)
            entries[name] = Entry(
                name, shape, dataset.dtype.str, _h5_load(dataset)
            )
            # A chunk is unpacked whole, however little of it is wanted.
            count = max(math.prod(shape), math.prod(dataset.chunks or ()))
            sizes.append(count * dataset.dtype.itemsize)
        check_budget(sizes, os.path.getsize(path))
        config = _model_config(path) if "model_config" in file.attrs else {}
    except BaseException:
        file.close()
        raise
    verify = _read_through(entries)
    return Checkpoint(path, entries, config, verify, file.close)


def _h5_datasets(group, h5py, prefix="", seen=None):
    """Yield the arrays below `group`; links out of the file are refused."""
    seen = set() if seen is None else seen
    address = h5py.h5o.get_info(group.id).addr
    if address in seen:
        raise ValueError("its groups are linked in more than one place")
    seen.add(address)
    if len(seen) > MAX_ENTRIES:
        raise ValueError(f"more than {MAX_ENTRIES:,} arrays and groups")
    if prefix.count("/") > 32:
        raise ValueError("its groups are nested too deep")
    for key in group:
        name = check_name(prefix + key)
        link = group.get(key, getlink=True)
        if not isinstance(link, h5py.HardLink):
            raise ValueError(f"{name} is a link to elsewhere")
        item = group[key]
        if isinstance(item, h5py.Group):
            yield from _h5_datasets(item, h5py, name + "/", seen)
        elif isinstance(item, h5py.Dataset):
            if item.is_virtual or item.external:
                raise ValueError(f"{name} is stored outside the file")
            # Strings and the like are never weights.
            if item.dtype.kind in "fiub" and item.shape is not None:
                yield name, item


def _model_config(path) -> dict:
    """Return what a whole model of Keras, saved as .h5, is made of.

    It is an attribute of the file; but of a damaged one libhdf5 may read an
    attribute for ever. The text itself is looked for in the bytes instead.
    """
    size = 2**21
    with (
        open(path, "rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data,
    ):
        starts = [data.find(b'{"%s": "' % key) for key in MODEL_CONFIG_KEYS]
        starts = [start for start in starts if start >= 0]
        if not starts:
            return {}
        text = data[min(starts) : min(starts) + size].decode("utf-8", "replace")
    try:
        config, _ = json.JSONDecoder().raw_decode(text)
    except (ValueError, RecursionError):
        return {}
    return config


def _h5_load(dataset):
    return lambda index=None: dataset[() if index is None else index]


def _read_through(entries):
    def verify(names):
        for name in names:
            entries[name].load()

    return verify


OPENERS = {
    ".npz": _open_npz,
    ".safetensors": _open_safetensors,
    ".h5": _open_h5,
}


# ---------------------------------------------------------------- writing


def write_npz(path, arrays: Iterable[tuple[str, np.ndarray]], config: dict):
    """Write named arrays as `numpy.savez` does, one after the other.

    Equal arrays give equal files. What the names and shapes cannot say goes
    into the comment of the archive, where no reader of arrays looks.

    Args:
        path: The file to write.
        arrays: Names and arrays.
        config: What `Checkpoint.config` is to hold when the file is read.
    """
    with atomic_write(path) as draft, zipfile.ZipFile(draft, "w") as archive:
        archive.comment = _own_text(config).encode()
        for name, array in arrays:
            member = zipfile.ZipInfo(name + ".npy")
            with archive.open(member, "w", force_zip64=True) as stream:
                np.lib.format.write_array(
                    stream, np.ascontiguousarray(array), allow_pickle=False
                )


def write_safetensors(
    path,
    arrays: Iterable[tuple[str, np.ndarray]],
    shapes: dict[str, tuple],
    config: dict,
):
    """Write named float32 arrays as one .safetensors file.

    Args:
        path: The file to write.
        arrays: Names and arrays, in any order.
        shapes: Their shapes; the header is written before the arrays are made.
        config: What `Checkpoint.config` is to hold when the file is read.
    """
    metadata = {"format": "pt", WRITTEN_BY: _own_text(config)}
    header = {"__metadata__": metadata}
    offset = 0
    for name in sorted(shapes):
        size = 4 * math.prod(shapes[name])
        header[name] = {
            "dtype": "F32",
            "shape": list(shapes[name]),
            "data_offsets": [offset, offset + size],
        }
        offset += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    body = 8 + len(text)
    with atomic_write(path) as draft, open(draft, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name, array in arrays:
            file.seek(body + header[name]["data_offsets"][0])
            file.write(np.ascontiguousarray(array, "<f4").data)


def _own_text(config):
    return json.dumps({"written_by": WRITTEN_BY, **config})


def write_json(path, value: dict):
    """Write `value` as JSON."""
    with atomic_write(path) as draft:
        draft.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
