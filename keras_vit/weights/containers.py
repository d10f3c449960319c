"""Files of weights: named arrays that are read one by one, and JSON.

NumPy, h5py and safetensors read the arrays, and for files of Flax a reader of
MessagePack that leaves them where they are. Nothing is ever unpickled, and the
sizes that a file declares are compared with its length before memory is taken.
Every fault of a file raises a ValueError that names it.
"""

import contextlib
import dataclasses
import functools
import json
import math
import os
import pathlib
import re
import warnings
import zipfile
import zlib
from collections.abc import Callable, Iterable
from typing import NamedTuple

import ml_dtypes
import numpy as np
import safetensors

from keras_vit.files import atomic_write

# Arrays may expand to this multiple of the file, plus an allowance for small
# files. Trained weights can hardly be compressed.
EXPANSION, ALLOWANCE = 16, 2**28
MAX_JSON = 2**24
# Far more than the depth of the deepest model times the arrays of a block.
MAX_ARRAYS = 100_000
# Far more than a path of names in nested maps.
MAX_NAME = 1000
# Names of files in a folder of Hugging Face's hub.
WEIGHTS = "model.safetensors"
OPEN_CLIP = "open_clip_model.safetensors"
OPEN_CLIP_JSON = "open_clip_config.json"
SHARD_INDEX = "model.safetensors.index.json"
KERAS_HUB = "model.weights.h5"
# Of the TensorFlow and Flax classes of transformers 4.
TF_WEIGHTS, FLAX_WEIGHTS = "tf_model.h5", "flax_model.msgpack"
SHARD = r"-\d+-of-\d+\.(safetensors|h5|msgpack)$"
# The name of an index has the variant, such as fp16, in one of two places.
ANY_INDEX = r"[\w.-]+\.(safetensors|h5|msgpack)\.index(\.[\w-]+)?\.json"
# Names of the same file in other types, such as model.fp16.safetensors.
OF_FOLDER = (
    r"((pytorch|tf|flax)_)?model([.-][\w-]+)*\.(safetensors|npz|h5|msgpack)"
)
# Keys of which every description of a model has one.
DESCRIPTION_KEYS = frozenset(
    "architecture architectures model_type model_cfg class_name "
    "registered_name vision_config".split()
)
# Marks a description that this package wrote into a file.
WRITTEN_BY = "keras_vit"
# In the description of a .h5 file: the names of layers, by their groups.
LAYER_NAMES = "layer_names"
PICKLE_ENDINGS = (".bin", ".pt", ".pth", ".pkl", ".ckpt")
WHY_NO_PICKLES = (
    "a pickle, which can run code when it is opened; load it with the library "
    "that wrote it, and save the weights as .safetensors"
)
REFUSED_ENDINGS = {
    **dict.fromkeys(PICKLE_ENDINGS, f"it is {WHY_NO_PICKLES}"),
    ".keras": "it is a Keras model; open it with keras.saving.load_model",
    ".index": "it is a TensorFlow checkpoint, which has no names of a ViT",
}
# Types of arrays that can be weights.
FLOATS = ("bfloat16", *(f"{order}f{n}" for order in "<>" for n in (2, 4, 8)))
# A byte that no text has.
CONTROL = rb"[\x00-\x08\x0e-\x1a\x1c-\x1f\x7f]"


class Array(NamedTuple):
    """An array of a file, described without reading it.

    Args:
        shape: Its shape.
        dtype: Its type in NumPy's notation, or "bfloat16".
        load: Reads it, or one slice of its first axis.
        check: Raises an error if it is damaged; None if it cannot be.
        can_slice: Whether a slice is read without the rest.
    """

    shape: tuple[int, ...]
    dtype: str
    load: Callable[[int | None], np.ndarray]
    check: Callable[[], object] | None = None
    can_slice: bool = True


@dataclasses.dataclass
class File(contextlib.AbstractContextManager):
    """The arrays of a file or folder, and its description of itself.

    Args:
        path: The file or folder.
        arrays: The arrays by name; none has been read.
        json: The description beside the arrays or inside the file, such as the
            content of `config.json`.
        close: Closes the files.
        notes: What was left out of the description, or cannot be kept, each
            with what to do about it.
    """

    path: str
    arrays: dict[str, Array]
    json: dict
    close: Callable[[], None]
    notes: list[str] = dataclasses.field(default_factory=list)

    def verify(self, names: Iterable[str]):
        """Raise a ValueError unless all these arrays can be read."""
        with errors_name(self.path):
            for name in names:
                array = self.arrays[name]
                if array.dtype.endswith("f8"):
                    # The values may be too large for float32.
                    self.read(name)
                elif array.check is not None:
                    array.check()

    def read(self, name: str, index: int | None = None) -> np.ndarray:
        """Return an array, or a slice of its first axis, as float32."""
        with errors_name(self.path), np.errstate(over="raise"):
            return np.asarray(self.arrays[name].load(index), "float32")

    def __exit__(self, *_):
        self.close()


@contextlib.contextmanager
def errors_name(path):
    """Turn any error raised inside into a ValueError that names `path`."""
    try:
        yield
    except Exception as error:
        message = str(error) or type(error).__name__
        if str(path) in message and isinstance(error, ValueError):
            raise
        raise ValueError(f"{path} cannot be read: {message}") from error


def open_file(path: str | os.PathLike) -> File:
    """Open the file or folder of weights at `path`; read none of its arrays.

    Args:
        path: A `.npz`, `.safetensors`, `.h5` or `.msgpack` file, or a folder as
            Hugging Face, timm or keras-hub write it.

    Raises:
        ValueError: If there is no such file, or it is of another kind,
            truncated, damaged, or expands to more than a file of weights can
            contain.
    """
    with errors_name(path):
        path = pathlib.Path(path).expanduser()
        if path.is_dir():
            return _in_names_of_torch(_open_folder(path))
        if not path.is_file():
            raise ValueError(f"There is no file {path}")
        ending = path.suffix.lower()
        if ending not in OPENERS:
            raise ValueError(
                REFUSED_ENDINGS.get(
                    ending,
                    "the name of a checkpoint ends in .npz, .safetensors, .h5 "
                    "or .msgpack, and that of a model of Keras in .keras",
                )
            )
        notes = []
        about = _json_beside(path, notes.append)
        refuse_text(path)
        file = _in_names_of_torch(OPENERS[ending](path))
        file.json = {**about, **file.json}
        file.notes += notes
        return file


def refuse_text(path: str | os.PathLike, of: str = "weights"):
    """Raise a ValueError if a file is a pointer, a web page or other text.

    `of` is what it should be; "JSON" may be text.
    """
    with open(path, "rb") as file:
        start = file.read(400)
    if re.search(CONTROL, start):
        return
    text = start.decode("utf-8", "ignore").lstrip("\ufeff \t\r\n")
    name = os.path.basename(path)
    if text.startswith("version https://git-lfs"):
        raise ValueError(
            f"{name} is a pointer of Git LFS, not the {of}: run `git lfs "
            "pull`, or download the file itself"
        )
    if text.startswith("<"):
        raise ValueError(
            f"{name} is a web page (HTML or XML), not the {of}: the download "
            f"was refused or redirected. It starts with {text[:60]!r}"
        )
    if of != "JSON" and len(text) > 8:
        raise ValueError(
            f"{name} is text, not {of}; it starts with {text[:60]!r}"
        )


def _check_sizes(sizes: Iterable[int], path):
    """Raise a ValueError if arrays of `sizes` bytes cannot be in a file."""
    sizes, length = list(sizes), os.path.getsize(path)
    limit = ALLOWANCE + EXPANSION * length
    if sum(sizes) > limit or len(sizes) > MAX_ARRAYS:
        raise ValueError(
            f"a file of {length:,} bytes that expands to {len(sizes):,} "
            f"arrays and {sum(sizes):,} bytes is not a checkpoint"
        )


# ----------------------------------------------------------------- containers


def _open_npz(path) -> File:
    with contextlib.ExitStack() as stack:
        archive = stack.enter_context(zipfile.ZipFile(path))
        _check_sizes((m.file_size for m in archive.infolist()), path)
        arrays, data = {}, np.memmap(path, np.uint8, "r")
        for member in archive.infolist():
            name = member.filename.removesuffix(".npy")
            if name in arrays:
                raise ValueError(f"{name} is stored twice")
            arrays[name] = _array_of_npz(data, archive, member, name)
        close = stack.pop_all().close
    return File(str(path), arrays, _own_json(archive.comment), close)


def _array_of_npz(data, archive, member, name) -> Array:
    is_stored = member.compress_type == zipfile.ZIP_STORED
    # Python unpacks the methods other than these without a limit.
    if not is_stored and member.compress_type != zipfile.ZIP_DEFLATED:
        raise ValueError(f"{name} is not stored as NumPy stores an array")
    form = np.lib.format
    with archive.open(member) as stream, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Of old notations.
        try:
            readers = {
                (1, 0): form.read_array_header_1_0,
                (2, 0): form.read_array_header_2_0,
            }
            shape, is_fortran, dtype = readers[form.read_magic(stream)](stream)
        except Exception as error:
            raise ValueError(f"{name} is not a NumPy array: {error}") from None
        offset = stream.tell()
    if dtype.hasobject:
        raise ValueError(f"{name} holds pickled objects, which are not read")
    if dtype.str == "|V2":  # NumPy stores bfloat16 as bytes without a type.
        dtype = np.dtype(ml_dtypes.bfloat16)
    length = offset + math.prod(shape) * dtype.itemsize
    if length != member.file_size or not dtype.itemsize:
        raise ValueError(f"{name} does not have the length in its header")

    def unpack(index=None):
        with archive.open(member) as stream:  # It compares the checksum.
            array = form.read_array(stream, allow_pickle=False).view(dtype)
        return array if index is None else array[index]

    @functools.cache
    def view():
        """Return the array in the file, once its checksum was compared."""
        start = member.header_offset + 30  # Then a name and an extra field.
        start += sum(data[start - 4 : start].view("<u2").tolist())
        stored = data[start : start + member.file_size]
        if zlib.crc32(stored) != member.CRC:
            raise ValueError(f"{name} does not have its checksum")
        order = "F" if is_fortran else "C"
        return stored[offset:].view(dtype).reshape(shape, order=order)

    def copy(index=None):
        return np.array(view() if index is None else view()[index])

    shown = "bfloat16" if dtype == ml_dtypes.bfloat16 else dtype.str
    if is_stored and math.prod(shape):
        return Array(shape, shown, copy, view)
    return Array(shape, shown, unpack, unpack, can_slice=False)


def _open_safetensors(path) -> File:
    with open(path, "rb") as file:
        length = int.from_bytes(file.read(8), "little")
    if length > MAX_JSON:  # The library allows 100 MB.
        raise ValueError("its header is truncated or damaged")
    with contextlib.ExitStack() as stack:
        file = safetensors.safe_open(path, framework="numpy")
        stack.enter_context(file)
        names, arrays = sorted(file.keys()), {}
        _check_sizes([0] * len(names), path)
        for name in names:
            part = file.get_slice(name)
            # Types that NumPy lacks, such as F8_E4M3, are no weights of a ViT.
            dtype = STORED_DTYPES.get(part.get_dtype(), part.get_dtype())
            load = functools.partial(_load_safetensors, file, name)
            arrays[name] = Array(tuple(part.get_shape()), dtype, load)
        own = (file.metadata() or {}).get(WRITTEN_BY, "")
        close = stack.pop_all().close
    return File(str(path), arrays, _own_json(own.encode()), close)


def _load_safetensors(file, name, index=None):
    if index is None:
        return file.get_tensor(name)
    return file.get_slice(name)[index]


def _open_h5(path) -> File:
    import h5py  # Keras needs it as well.

    arrays, sizes, layers = {}, [], {}

    def add(name, item):
        if isinstance(item.attrs.get("name"), str):
            layers[name] = item.attrs["name"]
        # Strings and the like are never weights.
        is_bfloat16 = getattr(item, "dtype", "") == "|V2"  # As Keras stores it.
        if getattr(item, "shape", None) is None or not (
            is_bfloat16 or item.dtype.kind in "fiub"
        ):
            return
        if item.is_virtual or item.external:
            raise ValueError(f"{name} is stored outside the file")
        # Reading any part of a chunk unpacks the whole chunk.
        count = max(math.prod(item.shape), math.prod(item.chunks or ()))
        sizes.append(count * item.dtype.itemsize)
        dtype = "bfloat16" if is_bfloat16 else item.dtype.str

        def load(index=()):
            array = np.asarray(item[() if index is None else index])
            return array.view(ml_dtypes.bfloat16) if is_bfloat16 else array

        arrays[name] = Array(item.shape, dtype, load, load)

    with contextlib.ExitStack() as stack:
        file = stack.enter_context(h5py.File(path, "r"))
        file.visititems(add)  # It follows no links, and visits nothing twice.
        _check_sizes(sizes, path)
        text = file.attrs.get("model_config", "{}")
        about = _parse_json(text.encode() if isinstance(text, str) else text)
        about |= {LAYER_NAMES: layers} if layers else {}
        close = stack.pop_all().close
    return File(str(path), arrays, about, close)


def _open_msgpack(path) -> File:
    """Open a file of `flax.serialization`: nested maps of arrays."""
    stream, arrays = MessagePack(np.memmap(path, np.uint8, "r")), {}

    def add(name, item):
        if len(name) > MAX_NAME:  # Every array repeats those around it.
            raise ValueError(f"{name[:60]}... is too long for a name")
        if isinstance(item, dict) and "__msgpack_chunked_array__" in item:
            item = _join_chunks(name, item)
        if isinstance(item, Array):
            if name in arrays:
                raise ValueError(f"{name} is stored twice")
            arrays[name] = item
        elif isinstance(item, dict):
            for key, value in item.items():
                add(f"{name}/{key}" if name else key, value)

    add("", stream.read())
    if stream.at != len(stream.data):
        raise ValueError("there are bytes behind its arrays")
    return File(str(path), arrays, {}, lambda: None)


class MessagePack:
    """Reads the objects of a file of MessagePack; arrays stay in the file.

    Source: the specification of MessagePack, and `flax.serialization`, which
    stores an array as an extension of the type 1, or 3 for a scalar: its shape,
    the name of its type, and its bytes.
    """

    # The first byte of objects -> their kind, and the number of bytes of the
    # number that follows: that of a container is its length.
    NUMBERS = {
        first + index: (kind, size << index)
        for first, kind, count, size in (
            (0xC4, "bytes", 3, 1),
            (0xC7, "extension", 3, 1),
            (0xCA, "float", 2, 4),
            (0xCC, "number", 4, 1),
            (0xD0, "signed", 4, 1),
            (0xD9, "text", 3, 1),
            (0xDC, "list", 2, 2),
            (0xDE, "map", 2, 2),
        )
        for index in range(count)
    }

    def __init__(self, data: np.ndarray):
        self.data, self.at, self.num_objects = data, 0, 0

    def take(self, size: int) -> np.ndarray:
        """Return the next bytes."""
        if size > len(self.data) - self.at:
            raise ValueError("it is truncated or damaged")
        self.at += size
        return self.data[self.at - size : self.at]

    def read(self):
        """Return the next object, None for those that no array needs."""
        self.num_objects += 1
        if self.num_objects > MAX_ARRAYS:
            raise ValueError("it holds too many objects for a checkpoint")
        first = int(self.take(1)[0])
        if first < 0x80:
            return first
        if first in (0xC0, 0xC2, 0xC3) or first >= 0xE0:
            return None  # Nothing, false, true and small negative numbers.
        if first < 0xC0:
            is_text = first >= 0xA0
            kind = "text" if is_text else ("map", "list")[first >= 0x90]
            number = first % (32 if is_text else 16)
        elif 0xD4 <= first <= 0xD8:
            kind, number = "extension", 1 << (first - 0xD4)
        elif first in self.NUMBERS:
            kind, size = self.NUMBERS[first]
            number = int.from_bytes(self.take(size).tobytes(), "big")
        else:
            raise ValueError("it is not MessagePack")
        if kind == "number":
            return number
        if kind == "text":
            return self.take(number).tobytes().decode()
        if kind == "bytes":
            return self.take(number)
        if kind == "list":
            return [self.read() for _ in range(number)]
        if kind == "map":
            return self._read_map(number)
        return self._read_array(number) if kind == "extension" else None

    def _read_map(self, length) -> dict:
        items = {}
        for _ in range(length):
            key = self.read()
            if not isinstance(key, str) or key in items:
                raise ValueError(f"{key!r:.60} is no name, or is stored twice")
            items[key] = self.read()
        return items

    def _read_array(self, length) -> Array | None:
        start = self.at + 1
        if self.take(1)[0] not in (1, 3):
            self.take(length)
            return None
        match self.read():
            case [[*shape], str(name), np.ndarray() as data]:
                is_shape = all(isinstance(size, int) for size in shape)
            case _:
                is_shape = False
        if not is_shape or self.at != start + length:
            raise ValueError("one of its arrays is not as Flax stores them")
        dtype = np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)
        if name != "bfloat16" and dtype.kind not in "fiub":
            raise ValueError(f"an array is of the type {name!r}")
        if math.prod(shape) * dtype.itemsize != len(data):
            raise ValueError(f"an array of {name} is not {tuple(shape)}")

        def load(index=None):
            array = data.view(dtype).reshape(shape)
            return np.array(array if index is None else array[index])

        shown = name if name == "bfloat16" else dtype.str
        return Array(tuple(shape), shown, load)


def _join_chunks(name, item) -> Array:
    """Return an array that Flax stores in pieces, because it is large."""
    shape, chunks = (
        [item[key][str(index)] for index in range(len(item[key]))]
        for key in ("shape", "chunks")
    )
    sizes = [math.prod(chunk.shape) for chunk in chunks]
    dtypes = {chunk.dtype for chunk in chunks}
    if math.prod(shape) != sum(sizes) or len(dtypes) != 1:
        raise ValueError(f"the pieces of {name} are not {tuple(shape)}")

    def load(index=None):
        pieces = [chunk.load(None).reshape(-1) for chunk in chunks]
        array = np.concatenate(pieces).reshape(shape)
        return array if index is None else array[index]

    return Array(tuple(shape), *dtypes, load, can_slice=False)


OPENERS = {
    ".npz": _open_npz,
    ".safetensors": _open_safetensors,
    ".h5": _open_h5,
    ".msgpack": _open_msgpack,
}
# Types in a .safetensors file -> NumPy's notation.
STORED_DTYPES = {
    **{f"F{8 * size}": f"<f{size}" for size in (2, 4, 8)},
    **{f"{x.upper()}{8 * n}": f"<{x}{n}" for x in "iu" for n in (2, 4, 8)},
    "BF16": "bfloat16",
    "I8": "|i1",
    "U8": "|u1",
    "BOOL": "|b1",
}


# ------------------------------------------ TensorFlow and Flax in transformers

# A name that the files of these classes have, and those of PyTorch do not.
PATCH_KERNEL = (
    r"(.*[/.])?embeddings[/.]patch_embeddings?[/.](projection[/.])?kernel(:0)?"
)
# The ends of their names -> those of PyTorch.
ENDS_IN_TORCH = {
    **dict.fromkeys(("kernel", "gamma", "scale"), "weight"),
    **dict.fromkeys(("embedding", "embeddings"), "weight"),
    "beta": "bias",
}


def _in_names_of_torch(file: File) -> File:
    """Return the arrays of a TFViT or FlaxViT as PyTorch's class stores them.

    Source: `modeling_tf_pytorch_utils` and `modeling_flax_pytorch_utils` of
    transformers 4.57, whose version 5 lacks these classes.
    """
    if not any(re.fullmatch(PATCH_KERNEL, name) for name in file.arrays):
        return file
    arrays = {}
    for old, array in file.arrays.items():
        # Keras writes the name of a layer, and then those of the model and
        # again of the layer.
        name = re.sub(r"^([^/]+)/[^/]+/(?=\1/)", "", old).removesuffix(":0")
        name = re.sub(r"_\._|/", ".", name).removeprefix("clip.")
        start, dot, end = name.rpartition(".")
        name = start + dot + ENDS_IN_TORCH.get(end, end)
        if name in arrays:
            file.close()
            raise ValueError(f"{name} is stored twice, once as {old}")
        is_matrix = end == "kernel" and len(array.shape) > 1
        arrays[name] = _transposed(array) if is_matrix else array
    return dataclasses.replace(file, arrays=arrays)


def _transposed(array) -> Array:
    """Return the kernel of a layer with its outputs and inputs first."""
    *window, inputs, outputs = range(len(array.shape))
    order = (outputs, inputs, *window)

    def load(index=None):
        whole = array.load(None).transpose(order)
        return whole if index is None else whole[index]

    shape = tuple(array.shape[axis] for axis in order)
    return array._replace(shape=shape, load=load, can_slice=False)


# -------------------------------------------------------------------- folders


def _open_folder(path) -> File:
    names = sorted(item.name for item in path.iterdir())
    adapters = [n for n in names if re.match(r"adapter_(config|model)\.", n)]
    if adapters:
        raise ValueError(
            f"{adapters[-1]} is an adapter of PEFT, such as LoRA, for another "
            "model. Call `merge_and_unload()` in PEFT, and save the model "
            "that it returns"
        )
    if {KERAS_HUB, "config.json"} <= set(names):
        # A preset of keras-hub: its backbone and, if present, its head.
        about, files = read_json(path / "config.json"), [path / KERAS_HUB]
        if "task.json" in names:
            about["task"] = read_json(path / "task.json")
            files.append(path / "task.weights.h5")
        return _join(path, files, about)
    for name in (WEIGHTS, OPEN_CLIP):
        if name in names:
            return open_file(path / name)
    indices = [name for name in names if re.fullmatch(ANY_INDEX, name)]
    shards = [name for name in names if re.search(SHARD, name)]
    weights = [n for n in names if n.endswith(tuple(OPENERS))]
    if SHARD_INDEX in names:
        return _open_shards(path, SHARD_INDEX)
    for name in (TF_WEIGHTS, FLAX_WEIGHTS):
        if name in names:
            return open_file(path / name)
    if len(indices) == 1 and set(weights) == set(shards):
        return _open_shards(path, indices[0])
    if len(weights) == 1 and not shards:
        return open_file(path / weights[0])
    found = ", ".join(names[:10]) or "nothing"
    pickles = [name for name in names if name.endswith(PICKLE_ENDINGS)]
    advice = f". {pickles[0]} is {WHY_NO_PICKLES}" if pickles else ""
    if len(weights) > 1:
        advice = ". Pass the path of one of these files"
    raise ValueError(
        f"a folder must hold {WEIGHTS} (Hugging Face, timm), {TF_WEIGHTS}, "
        f"{FLAX_WEIGHTS} (transformers 4), or {KERAS_HUB} and config.json "
        f"(keras-hub). It holds {found}{advice}"
    )


def _open_shards(path, index) -> File:
    """Return the arrays of several files with an index."""
    weight_map = read_json(path / index).get("weight_map")
    if not isinstance(weight_map, dict):
        raise ValueError(f"{index} has no weight_map")
    # The index of TensorFlow has the name of the model before each name.
    weight_map = {
        re.sub(r"^[^/]+/(?=.*:0$)", "", name): file
        for name, file in weight_map.items()
    }
    shards = sorted({str(file) for file in weight_map.values()})
    ending = f".{re.fullmatch(ANY_INDEX, index)[1]}"
    for file in shards:
        if file != os.path.basename(file) or not file.endswith(ending):
            raise ValueError(
                f"{file!r} is not the name of a {ending} file of the folder"
            )
    stems = {re.split(SHARD, file)[0] for file in shards}
    lost = [
        name
        for name in sorted(os.listdir(path))
        if re.search(SHARD, name)
        and re.split(SHARD, name)[0] in stems
        and name not in shards
    ]
    if lost:
        raise ValueError(f"{index} does not name {', '.join(lost)}")
    about = path / "config.json"
    about = read_json(about) if about.is_file() else {}
    return _join(path, [path / file for file in shards], about, weight_map)


def _join(path, parts, about, places=None) -> File:
    """Return the arrays of several files in a folder as one.

    `places` are the names of the files of arrays, as far as an index states
    them; without one, later files replace arrays of earlier ones.
    """
    arrays = {}
    with contextlib.ExitStack() as stack:
        for part in parts:
            refuse_text(part)
            file = stack.enter_context(OPENERS[part.suffix](part))
            for name, array in file.arrays.items():
                # An index may lack arrays of its files; transformers reads
                # them.
                if places and places.get(name, part.name) != part.name:
                    continue
                if places and name in arrays:
                    raise ValueError(f"{name} is stored in two of its files")
                arrays[name] = array
        lacking = [name for name in places or () if name not in arrays]
        if lacking:
            raise ValueError(f"its files lack {', '.join(lacking)}")
        close = stack.pop_all().close
    return File(str(path), arrays, about, close)


# ----------------------------------------------------------------------- JSON


def read_json(path: str | os.PathLike) -> dict:
    """Return the JSON object in the file `path`.

    Raises:
        ValueError: If it is not a JSON object or is larger than 16 MiB.
    """
    with errors_name(path):
        if not os.path.isfile(path):
            raise ValueError("it is not a file")
        refuse_text(path, "JSON")
        if os.path.getsize(path) > MAX_JSON:
            raise ValueError(f"it holds more than {MAX_JSON:,} bytes of JSON")
        value = _parse_json(pathlib.Path(path).read_bytes())
        if isinstance(value.get("error"), str):
            raise ValueError(
                f"it is the error of a server: {value['error'][:60]!r}"
            )
        return value


def _parse_json(data: bytes) -> dict:
    value = json.loads(data.decode("utf-8"))
    if not isinstance(value, dict):
        raise ValueError("it is not a JSON object")
    return value


def _own_json(text: bytes) -> dict:
    """Return the description that this package wrote, {} in other files."""
    try:
        value = _parse_json(text)
    except (ValueError, RecursionError):
        return {}  # Another program's comment.
    return value if value.pop("written_by", None) == WRITTEN_BY else {}


def write_json(path: str | os.PathLike, value: dict):
    """Write `value` as JSON."""
    with atomic_write(path) as draft:
        draft.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


def _json_beside(path, note) -> dict:
    """Return the JSON object beside a file of weights, {} without one.

    The file is `model.json` beside `model.npz`. In a download from Hugging
    Face, it is `config.json` or `open_clip_config.json`: beside
    `model.safetensors`, and beside a file of another name if the folder has
    no other weights.
    """
    own = path.parent / f"{path.stem}.json"
    if own.is_file():
        return read_json(own)
    is_open_clip = path.name.startswith("open_clip")
    names = (OPEN_CLIP_JSON,) if is_open_clip else ("config.json",)
    for name in dict.fromkeys((*names, OPEN_CLIP_JSON)):
        if not (path.parent / name).is_file():
            continue
        config = read_json(path.parent / name)
        if path.name == WEIGHTS or is_open_clip:
            return config
        if not config.keys() & DESCRIPTION_KEYS:
            continue
        if is_of_folder(path):
            return config
        note(
            f"{path.parent / name} is not read for {path.name}, because the "
            f"folder has several files of weights. If it describes this one, "
            f"copy it to {own.name}."
        )
    return {}


def is_of_folder(path: pathlib.Path) -> bool:
    """Return whether the JSON files beside a file of weights are of it."""
    if re.fullmatch(OF_FOLDER, path.name):
        return True
    rows = [n for n in os.listdir(path.parent) if n.endswith(tuple(OPENERS))]
    return rows == [path.name] and not path.name.startswith("open_clip")


# -------------------------------------------------------------------- writing


def write_npz(
    path: str | os.PathLike,
    arrays: Iterable[tuple[str, np.ndarray]],
    about: dict,
):
    """Write named arrays as `numpy.savez` does, one after the other.

    Equal arrays give equal files. The description is stored in the comment of
    the archive, which other readers ignore; it is the `File.json` of the file
    when it is read.
    """
    with atomic_write(path) as draft, zipfile.ZipFile(draft, "w") as archive:
        about = {"written_by": WRITTEN_BY, **about}
        archive.comment = json.dumps(about).encode()
        for name, array in arrays:
            member = zipfile.ZipInfo(name + ".npy")
            with archive.open(member, "w", force_zip64=True) as stream:
                np.lib.format.write_array(
                    stream, np.ascontiguousarray(array), allow_pickle=False
                )


def write_safetensors(
    path: str | os.PathLike,
    arrays: Iterable[tuple[str, np.ndarray]],
    shapes: dict[str, tuple[int, ...]],
    about: dict,
):
    """Write named float32 arrays as one `.safetensors` file.

    Arrays are written one after the other, and equal arrays give equal files.
    The library does neither: it takes all arrays at once, and the order of its
    metadata changes from call to call. The header is written before the arrays
    are computed, so it takes their `shapes`.
    """
    # Hugging Face requires the entry "format".
    own = json.dumps({"written_by": WRITTEN_BY, **about})
    metadata = {"format": "pt", WRITTEN_BY: own}
    header, end = {"__metadata__": metadata}, 0
    for name in sorted(shapes):
        start, end = end, end + 4 * math.prod(shapes[name])
        header[name] = {
            "dtype": "F32",
            "shape": list(shapes[name]),
            "data_offsets": [start, end],
        }
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with atomic_write(path) as draft, open(draft, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name, array in arrays:
            file.seek(8 + len(text) + header[name]["data_offsets"][0])
            file.write(np.ascontiguousarray(array, "<f4").data)
