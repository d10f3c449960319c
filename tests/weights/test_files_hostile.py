"""Files that are damaged, forged or only unusual.

Either a file loads, or a ValueError names it: nothing else may happen, at no
great cost.
"""

import contextlib
import gc
import io
import json
import pickle
import re
import struct
import tracemalloc
import warnings
import zipfile
import zlib

import h5py
import numpy as np
import pytest

from keras_vit import VisionTransformer, from_checkpoint, load_checkpoint
from keras_vit.weights import containers
from keras_vit.weights.containers import open_file
from keras_vit.weights.families import LAYOUTS
from keras_vit.weights.families.inference import Known
from keras_vit.weights.find import find
from tests.tiny import tiny_config
from tests.weights.cases import FOLDER, TIMM, TOKEN, stored_in

MEBI = 2**20
CONFIG = tiny_config()


def found_in(path):
    """Return what is found in a file, and all its arrays."""
    with open_file(path) as file:
        found = find(file, Known(3, 32))
        names = dict.fromkeys(raw for raw, _ in found.places.values())
        file.verify(names)
        return found, {name: file.read(name) for name in names}


@contextlib.contextmanager
def at_most(peak):
    """Assert that no more than `peak` bytes are held at any time inside."""
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < peak
    finally:
        tracemalloc.stop()


def refused(path, words, peak=64 * MEBI):
    """Assert that `path` is refused in `words`, by name and at little cost."""
    with at_most(peak), pytest.raises(ValueError) as caught:
        found_in(path)
    message = str(caught.value)
    assert str(path) in message
    assert re.search(words, message), message[:500]


# ----------------------------------------------------------- making of files

OFFICIAL = stored_in(TOKEN)
LAST = list(OFFICIAL)[-1]
TABLE = "Transformer/posembed_input/pos_embedding"
ZEROS = np.zeros(3, "float32")
PICKLED = pickle.dumps([1])


def npy(array, descr=None, fortran=False, shape=None, data=None):
    """Return `array` as a .npy file; its header may say something else."""
    header = {
        "descr": descr or array.dtype.str,
        "fortran_order": fortran,
        "shape": array.shape if shape is None else shape,
    }
    text = "{" + "".join(f"{k!r}: {v!r}, " for k, v in header.items()) + "}\n"
    if data is None:
        data = array.tobytes("F" if fortran else "C")
    return npy_of(text.encode(), data)


def npy_of(header, data=b""):
    return b"\x93NUMPY\1\0" + struct.pack("<H", len(header)) + header + data


def archive_of(members, method=0):
    """Return an archive of (name, bytes), of which names may be equal."""
    with io.BytesIO() as file, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with zipfile.ZipFile(file, "w", method) as archive:
            for name, data in members:
                archive.writestr(name + ".npy", data)
        return file.getvalue()


def lie(data, offset, value, length=4, count=1):
    """Return the archive with another entry in its directory.

    For the last members, `count` of them.
    """
    pieces = data.split(b"PK\1\2")
    value, start = value.to_bytes(length, "little"), offset - 4
    for index in range(len(pieces) - count, len(pieces)):
        piece = pieces[index]
        pieces[index] = piece[:start] + value + piece[start + length :]
    return b"PK\1\2".join(pieces)


FLAGS, CRC, SIZE = 8, 16, 24  # Offsets of entries in a directory.


def official(changes=(), method=0):
    """Return a good archive with some members replaced or added."""
    members = {name: npy(array) for name, array in OFFICIAL.items()}
    return archive_of({**members, **dict(changes)}.items(), method)


def with_last(data, method=0):
    """Return the archive with another content of its last member."""
    return official({LAST: data}, method)


def flipped(data):
    """Return the archive with one byte of its last array changed."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        info = archive.getinfo(LAST + ".npy")
    last = info.header_offset + 30 + len(info.filename) + info.compress_size - 9
    return data[:last] + bytes([data[last] ^ 1]) + data[last + 1 :]


def split(data):
    length = int.from_bytes(data[:8], "little")
    return json.loads(data[8 : 8 + length]), data[8 + length :]


def safetensors(header, body=b""):
    header = json.dumps(header).encode()
    return len(header).to_bytes(8, "little") + header + body


GOOD = (FOLDER / TIMM).read_bytes()
HEADER, BODY = split(GOOD)
FC1 = "blocks.0.mlp.fc1.weight"


def timm(row=(), body=BODY, name=FC1):
    """Return a good .safetensors file; one row of its header has changes."""
    header = {**HEADER, name: {**HEADER.get(name, {}), **dict(row)}}
    return safetensors(header, body)


def empty(*shape):
    end = len(BODY)
    return {"dtype": "F32", "shape": list(shape), "data_offsets": [end, end]}


def h5_arrays():
    draws = np.random.default_rng(0)
    parts = LAYOUTS["vit_keras_h5"].names(CONFIG)
    return {
        part.name: draws.standard_normal(part.shape_in_file(3), "float32")
        for row in parts.values()
        for part in row
    }


def write_h5(path, without=None, **options):
    with h5py.File(path, "w") as file:
        for name, array in h5_arrays().items():
            if name != without:
                layer = name.split("/")[0]
                file.create_dataset(f"{layer}/{name}:0", data=array, **options)
    return path


GAMMA = "encoder_norm/gamma"
OTHER = "other.h5"


def h5_with(change):
    """Return a function that writes a file with a bad weight in it."""

    def write(path):
        write_h5(path.with_name(OTHER))
        write_h5(path, without=GAMMA)
        with h5py.File(path, "a") as file:
            change(file, f"encoder_norm/{GAMMA}:0")

    return write


def _virtual(file, name):
    layout = h5py.VirtualLayout((24,), "<f4")
    layout[:] = h5py.VirtualSource(OTHER, "x", (24,))
    file.create_virtual_dataset(name, layout)


def _long_chunk(file, name):
    options = {"maxshape": (None,), "chunks": (2**29,)}
    file.create_dataset(name, (24,), "<f4", **options, compression="gzip")


def _many_ways(file, name):
    group = file
    for _ in range(30):
        below = group.create_group("a")
        group["b"] = below
        group = below
    file["encoder_norm/again"] = file["/"]


def damaged_h5(path):
    write_h5(path, compression="gzip", fletcher32=True)
    with h5py.File(path) as file:
        chunk = file["head/head/kernel:0"].id.get_chunk_info(0)
    data = bytearray(path.read_bytes())
    data[chunk.byte_offset + chunk.size // 2] ^= 1
    path.write_bytes(data)


def gigantic_h5(path):
    """Write a file that claims a model 4096 times as large in all sizes."""
    with h5py.File(path, "w") as file:
        for name, array in h5_arrays().items():
            # Nothing is stored: HDF5 fills what was not written.
            shape = tuple(4096 * n for n in array.shape)
            chunks = tuple(min(n, 64) for n in shape)
            name = f"{name.split('/')[0]}/{name}:0"
            file.create_dataset(name, shape, "<f4", chunks=chunks)


def add(name, *arguments, **options):
    return h5_with(
        lambda file, weight: getattr(file, name)(weight, *arguments, **options)
    )


def msgpack(*shape, name=b"float32", data=bytes(12), size=None, behind=b""):
    """Return a map of one array as Flax writes it; it may lie."""
    sizes = b"".join(b"\xcf" + n.to_bytes(8, "big") for n in shape)
    size = (len(data) if size is None else size).to_bytes(4, "big")
    content = bytes([0x93, 0x90 + len(shape)]) + sizes
    content += bytes([0xA0 + len(name)]) + name + b"\xc6" + size + data
    length = (len(content) + len(behind)).to_bytes(4, "big")
    return b"\x81\xa1x\xc9" + length + b"\1" + content + behind


# ------------------------------------------------------------------- damages

LENGTH, NO_ARRAY = "the length in its header", "not a NumPy array"
CUT = "truncated or damaged"
TOO_LARGE, LOST = "is not a checkpoint", f"missing: {GAMMA}"
CHECKSUM = "checksum|CRC-32"
BAD_HEADER = "Error while deserializing header: "  # The library's words.
BOMB = npy(ZEROS) + bytes(128 * MEBI)


def write_bomb(path):
    """Write 128 MiB that pass for 200 bytes."""
    bomb = lie(archive_of([(LAST, BOMB)], 8), SIZE, 200)
    path.write_bytes(lie(bomb, CRC, zlib.crc32(BOMB[:200])))


def write_bzip2(path):
    path.write_bytes(archive_of([(LAST, BOMB)], 12))


DAMAGES = {
    # .npz
    "empty.npz": (b"", "cannot be read"),
    "no_members.npz": (b"PK\5\6" + bytes(18), "not a ViT"),
    "no_end.npz": (official()[:-200], "cannot be read"),
    "no_start.npz": (official()[100:], "cannot be read"),
    "objects.npz": (
        with_last(npy(ZEROS, "|O", shape=(1,), data=PICKLED)),
        "pickled",
    ),
    "pickle.npz": (with_last(PICKLED), NO_ARRAY),
    "code.npz": (with_last(npy_of(b"__import__('os')")), NO_ARRAY),
    "long_header.npz": (with_last(b"\x93NUMPY\2\0\xff\xff\xff\x7f"), NO_ARRAY),
    "terabytes.npz": (with_last(npy(ZEROS, shape=(10**12,))), LENGTH),
    "overflow.npz": (with_last(npy(ZEROS, shape=(2**62, 4))), LENGTH),
    "short.npz": (with_last(npy(ZEROS)[:-1]), LENGTH),
    "ends_early.npz": (
        lie(
            with_last(npy(OFFICIAL[LAST])[:-8]), SIZE, len(npy(OFFICIAL[LAST]))
        ),
        CHECKSUM,
    ),
    "encrypted.npz": (lie(official(), FLAGS, 1, 2), "is encrypted"),
    "large_member.npz": (lie(official(), SIZE, 2**31), TOO_LARGE),
    "bomb.npz": (write_bomb, LENGTH),
    # Many that are allowed one by one.
    "bombs.npz": (lie(official(method=8), SIZE, 2**27, count=9), TOO_LARGE),
    "bzip2.npz": (write_bzip2, LAST),
    "twice.npz": (archive_of([(LAST, npy(ZEROS))] * 2), f"{LAST} .*twice"),
    "byte.npz": (flipped(official()), CHECKSUM),
    "byte_deflated.npz": (flipped(official(method=8)), CHECKSUM),
    "integers.npz": (
        official({TABLE: npy(OFFICIAL[TABLE].astype("int32"))}),
        f"another type: {TABLE} <i4",
    ),
    # As many rows as one likes take no space.
    **{
        f"nothings_{descr[1:]}.npz": (
            official(
                {TABLE: npy(ZEROS, descr, shape=(1, 10**12, 24), data=b"")}
            ),
            LENGTH,
        )
        for descr in ("|V0", "|S0", "<U0")
    },
    "too_large_for_float32.npz": (
        with_last(npy(OFFICIAL[LAST] * 0 + np.float64(1e300))),
        "overflow",
    ),
    # .safetensors
    "empty.safetensors": (b"", "cannot be read"),
    "start.safetensors": (GOOD[:500], "cannot be read"),
    "no_end.safetensors": (timm(body=BODY[:-1]), BAD_HEADER),
    "more.safetensors": (timm(body=BODY + b"\0"), BAD_HEADER),
    "header.safetensors": (b"\xff" * 8 + GOOD[8:], "cannot be read"),
    "long_header.safetensors": (
        (10**6).to_bytes(8, "little") + GOOD[8:],
        "cannot be read",
    ),
    "offsets.safetensors": (
        timm({"data_offsets": [len(BODY), len(BODY) + 4608]}),
        BAD_HEADER,
    ),
    "terabytes.safetensors": (timm({"shape": [2**40, 2**40]}), BAD_HEADER),
    "shape.safetensors": (timm({"shape": [24, 48]}), f"another shape: {FC1}"),
    "axis.safetensors": (timm({"shape": [1, 48, 24]}), f"shape: {FC1}"),
    "type.safetensors": (
        timm({"dtype": "F8_E4M3", "shape": [192, 24]}),
        f"another type: {FC1} F8_E4M3",
    ),
    "empty_arrays.safetensors": (
        safetensors(
            {name: {**empty(0, 24), "data_offsets": [0, 0]} for name in HEADER}
        ),
        r"has the shape \(0, 24\)",
    ),
    "high_block.safetensors": (
        timm(empty(0), name="blocks.999999.norm1.weight"),
        "it lacks blocks.2.norm1.weight, of block 2 of 1000000",
    ),
    "higher_block.safetensors": (
        timm(empty(0), name="blocks.1000000.norm1.weight"),
        "left over: blocks.1000000.norm1.weight",
    ),
    # .h5
    "empty.h5": (b"", "cannot be read"),
    "start.h5": (b"\x89HDF\r\n\x1a\n", "cannot be read"),
    "byte.h5": (damaged_h5, "cannot be read"),
    "terabytes.h5": (gigantic_h5, TOO_LARGE),
    "link.h5": (add("__setitem__", h5py.ExternalLink(OTHER, "/x")), LOST),
    "soft_link.h5": (add("__setitem__", h5py.SoftLink("/head")), LOST),
    "virtual.h5": (h5_with(_virtual), "stored outside the file"),
    "external.h5": (
        add("create_dataset", (24,), "<f4", external=[(OTHER, 0, 96)]),
        "stored outside the file",
    ),
    "many_ways.h5": (h5_with(_many_ways), LOST),
    "large.h5": (
        add("create_dataset", (10**12,), "<f4", chunks=(1024,)),
        TOO_LARGE,
    ),
    "long_chunk.h5": (h5_with(_long_chunk), ""),
    "string.h5": (add("__setitem__", "text"), LOST),
    "null.h5": (add("__setitem__", h5py.Empty("<f4")), LOST),
    "integers.h5": (
        add("__setitem__", np.zeros(24, "int32")),
        "of another type: encoder_norm/",
    ),
    # .msgpack
    "empty.msgpack": (b"", "cannot be read"),
    "good.msgpack": (msgpack(3), "not a ViT"),
    "start.msgpack": (msgpack(3)[:-1], CUT),
    "more.msgpack": (msgpack(3) + b"\0", "bytes behind"),
    "unused.msgpack": (b"\xc1" + msgpack(3), "not MessagePack"),
    "terabytes.msgpack": (msgpack(2**40, 2**40), "not .1099511627776, "),
    "short.msgpack": (msgpack(4), r"not \(4,\)"),
    "long.msgpack": (msgpack(3, size=2**32 - 1), CUT),
    "behind.msgpack": (msgpack(3, behind=b"\0"), "as Flax stores"),
    "objects.msgpack": (msgpack(3, name=b"O", data=PICKLED), "type 'O'"),
    "text.msgpack": (msgpack(3, name=b"U1"), "type 'U1'"),
    "twice.msgpack": (b"\x82" + msgpack(3)[1:] * 2, "'x' .*twice"),
    "number.msgpack": (b"\x81\0" + msgpack(3), "0 is no name"),
    "list.msgpack": (b"\xdd" + b"\xff" * 4 + bytes(MEBI), "too many objects"),
    "lists.msgpack": (b"\x91" * MEBI, "recursion"),
    "names.msgpack": (
        (b"\x81\xda\x7f\xff" + b"n" * 0x7FFF) * 200 + msgpack(3),
        "n{60}... is too long",
    ),
    "pieces.msgpack": (
        b"\x81\xa1y\x83\xb9__msgpack_chunked_array__\xc3\xa5shape\x81\xa10\4"
        b"\xa6chunks\x81\xa10" + msgpack(3)[3:],
        r"pieces of y are not \(4,\)",
    ),
}


@pytest.fixture(scope="module")
def model():
    return VisionTransformer(CONFIG)


@pytest.mark.parametrize("name", DAMAGES)
def test_a_bad_file_is_named_and_leaves_the_model_as_it_was(
    name, tmp_path, model
):
    data, words = DAMAGES[name]
    path = tmp_path / name
    data(path) if callable(data) else path.write_bytes(data)
    before = model.get_weights()
    peak = (8 if name.startswith("bomb") else 64) * MEBI
    with at_most(peak), pytest.raises(ValueError) as caught:
        load_checkpoint(model, path)
    assert str(path) in str(caught.value)
    assert re.search(words, str(caught.value)), str(caught.value)[:500]
    after = model.get_weights()
    assert [a.tobytes() for a in before] == [a.tobytes() for a in after]


def test_a_pickle_is_not_run(tmp_path):
    class Trap:
        def __reduce__(self):
            return (type(tmp_path).touch, (tmp_path / "ran",))

    path = tmp_path / "m.npz"
    np.savez(path, **OFFICIAL, trap=np.array([Trap()], dtype=object))
    refused(path, "pickled")
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("name", ["m.npz", "m.safetensors", "m.h5"])
def test_more_arrays_than_a_model_has(tmp_path, monkeypatch, name):
    monkeypatch.setattr(containers, "MAX_ARRAYS", 20)
    path = write_h5(tmp_path / "m.h5")
    if name != path.name:
        path = tmp_path / name
        path.write_bytes(official() if name == "m.npz" else timm())
    refused(path, TOO_LARGE)


# ------------------------------------------------------------- good files


@pytest.mark.filterwarnings("ignore:.*GELU|.*activation=:UserWarning")
def test_the_files_made_here_are_good(tmp_path, model):
    (tmp_path / "a.npz").write_bytes(official())
    (tmp_path / "b.npz").write_bytes(official(method=8))
    write_h5(tmp_path / "d.h5")
    write_h5(tmp_path / "e.h5", compression="gzip", fletcher32=True)
    for path in sorted(tmp_path.iterdir()):
        load_checkpoint(model, path)
        kernel = model.get_layer("predictions").get_weights()[0]
        name = "head/kernel"
        arrays = h5_arrays() if path.suffix == ".h5" else OFFICIAL
        np.testing.assert_array_equal(kernel, arrays[name])


def _as_bits(array):
    return (array.view("<u4") >> 16).astype("<u2")


@pytest.mark.parametrize(
    ("dtype", "fortran", "method"),
    [
        ("<f2", False, 0),
        (">f4", False, 0),
        ("<f4", True, 0),
        (">f2", True, 8),
        ("<f8", False, 8),
        ("|V2", False, 0),  # bfloat16
    ],
)
def test_floats_of_any_kind_are_read_from_npz(tmp_path, dtype, fortran, method):
    name = "Transformer/encoderblock_1/MlpBlock_3/Dense_0/kernel"
    array = OFFICIAL[name]
    stored = _as_bits(array) if dtype == "|V2" else array.astype(dtype)
    path = tmp_path / "m.npz"
    path.write_bytes(official({name: npy(stored, dtype, fortran)}, method))
    if dtype == "|V2":
        expected = (stored.astype("<u4") << 16).view("<f4")
    else:
        expected = stored.astype("float32")
    found = found_in(path)[1][name]
    np.testing.assert_array_equal(found, expected)
    assert found.dtype == np.float32 and found.dtype.isnative


@pytest.mark.parametrize("dtype", ["F64", "F16", "BF16"])
def test_floats_of_any_kind_are_read_from_safetensors(tmp_path, dtype):
    begin, end = HEADER[FC1]["data_offsets"]
    array = np.frombuffer(BODY[begin:end], "<f4").reshape(48, 24)
    data = array.astype({"F64": "<f8", "F16": "<f2", "BF16": "<f4"}[dtype])
    expected = data.astype("float32")
    if dtype == "BF16":
        data = _as_bits(array)
        expected = (data.astype("<u4") << 16).view("<f4")
    # The old values stay as an array that is ignored.
    header = {**HEADER, "mask_token": {**HEADER[FC1], "shape": [1, 1, 1152]}}
    offsets = [len(BODY), len(BODY) + data.nbytes]
    header[FC1] = {**HEADER[FC1], "dtype": dtype, "data_offsets": offsets}
    path = tmp_path / "m.safetensors"
    path.write_bytes(safetensors(header, BODY + data.tobytes()))
    found, arrays = found_in(path)
    assert found.ignored == ("mask_token",)
    np.testing.assert_array_equal(arrays[FC1], expected)


@pytest.mark.parametrize("dtype", ["<f2", ">f4", ">f8"])
def test_floats_of_any_kind_are_read_from_h5(tmp_path, dtype):
    name = "encoderblock_1/MlpBlock_3/Dense_1/kernel"
    path = write_h5(tmp_path / "m.h5", without=name)
    array = h5_arrays()[name].astype(dtype)
    with h5py.File(path, "a") as file:
        file[f"encoderblock_1/{name}:0"] = array
    found = found_in(path)[1][f"encoderblock_1/{name}:0"]
    np.testing.assert_array_equal(found, array.astype("float32"))


@pytest.mark.parametrize("text", ["x", "[]"])
def test_a_description_of_others_is_passed_over(tmp_path, text):
    (tmp_path / "m.npz").write_bytes(official())
    with zipfile.ZipFile(tmp_path / "m.npz", "a") as archive:
        archive.comment = text.encode()
    header = {**HEADER, "__metadata__": {"keras_vit": text}}
    path = tmp_path / "m.safetensors"
    path.write_bytes(safetensors(header, BODY))
    assert found_in(path)[0].config.depth == 2
    assert found_in(tmp_path / "m.npz")[0].config.num_heads == 3


# -------------------------------------------------- paths and other suffixes


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("pytorch_model.bin", "is a pickle.*save the weights as .safetensors"),
        ("m.keras", "keras.saving.load_model"),
        ("m.ckpt.index", "TensorFlow checkpoint"),
        ("model.safetensors.index.json", "ends in .npz, .safetensors"),
    ],
)
def test_other_files_are_refused(tmp_path, name, words):
    path = tmp_path / name
    path.write_bytes(PICKLED)
    refused(path, words)


def test_paths_without_a_checkpoint(tmp_path):
    refused(tmp_path / "no.npz", "There is no file")
    refused(tmp_path, "It holds nothing")
    (tmp_path / "pytorch_model.bin").write_bytes(PICKLED)
    refused(tmp_path, "holds pytorch_model.bin. pytorch_model.bin is a pickle")
    (tmp_path / "m.npz").symlink_to(tmp_path / "m.npz")
    refused(tmp_path / "m.npz", "There is no file|cannot be read")


@pytest.mark.parametrize(
    ("data", "config"),
    [(timm(), "["), (timm({"shape": 5}), "{}")],
    ids=["configuration", "header"],
)
def test_a_refused_file_is_closed(tmp_path, data, config):
    path = tmp_path / "m.safetensors"
    path.write_bytes(data)
    (tmp_path / "m.json").write_text(config)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with pytest.raises(ValueError, match=re.escape(str(tmp_path))):
            open_file(path)
        gc.collect()
    assert not [str(warning.message) for warning in caught]


# ------------------------------------------------------------ whole models


def test_a_weight_in_two_places(tmp_path):
    path = tmp_path / "m.safetensors"
    header = {f"model.{name}": row for name, row in HEADER.items()}
    header["__metadata__"] = header.pop("model.__metadata__", {})
    offsets = [len(BODY), len(BODY) + 96]
    row = {"dtype": "F32", "shape": [24], "data_offsets": offsets}
    header["norm.weight"] = row
    path.write_bytes(safetensors(header, BODY + bytes(96)))
    refused(path, "twice")


STACK = "params/Transformer/encoderblock/"


@pytest.mark.parametrize(
    ("name", "array", "words"),
    [
        ("block_0/LayerNorm_0/scale", np.ones(24), "twice"),
        ("block/x", np.zeros((3, 24)), "are not of one depth"),
        ("block/x", np.zeros((10**6, 0)), "are not of one depth"),
    ],
)
def test_stacked_blocks(name, array, words, tmp_path):
    """Of unequal depth or of a million, or with one stored once more."""
    arrays = stored_in("big_vision_gap_scan.npz")
    name = STACK.replace("block/", name)
    np.savez(tmp_path / "m.npz", **arrays, **{name: array.astype("float32")})
    refused(tmp_path / "m.npz", words, peak=8 * MEBI)


def test_a_width_that_its_positions_cannot_have(tmp_path):
    path = tmp_path / "m.npz"
    # 24 wide with heads of 8 becomes 18 wide with heads of 6; the patches,
    # which are 8x8 as well, stay.
    sizes = {24: 18, 8: 6}
    arrays = {}
    for name, array in stored_in("big_vision_sincos_rep.npz").items():
        keep = 2 if name.endswith("embedding/kernel") else 0
        rest = [sizes.get(n, n) for n in array.shape[keep:]]
        arrays[name] = np.zeros([*array.shape[:keep], *rest], "float32")
    np.savez(path, **arrays)
    with pytest.raises(ValueError, match="4 divides, not 18") as caught:
        from_checkpoint(path, image_size=32)
    assert str(path) in str(caught.value)


def test_a_gigantic_image_allocates_nothing(tmp_path):
    path = tmp_path / "m.npz"
    path.write_bytes((FOLDER / "big_vision_sincos_rep.npz").read_bytes())
    (tmp_path / "m.json").write_text('{"image_size": 1048568}')
    with at_most(4 * MEBI):
        found, _ = found_in(path)
    assert found.config.image_size == (1048568, 1048568)
    assert found.num_parameters < 10**5
