"""Files that are damaged, forged or only unusual.

Either a file loads, or a ValueError names it: nothing else may happen, at no
great cost.
"""

import bz2
import contextlib
import dataclasses
import gc
import io
import json
import lzma
import pathlib
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

from keras_vit import (
    VisionTransformer,
    ViTConfig,
    from_checkpoint,
    load_checkpoint,
)
from keras_vit.weights import containers
from keras_vit.weights.containers import open_file
from keras_vit.weights.families import LAYOUTS
from keras_vit.weights.families.inference import Known
from keras_vit.weights.find import find

GOLDEN = pathlib.Path(__file__).parents[1] / "golden"
MEBI = 2**20
CONFIG = ViTConfig(
    width=24,
    depth=2,
    mlp_dim=48,
    num_heads=3,
    patch_size=8,
    image_size=32,
    num_classes=7,
)
CONFIG_OF_TIMM = dataclasses.replace(
    CONFIG, activation="exact", position_resize="bicubic_antialias"
)


# ----------------------------------------------------------- opening a file


def source_of(path):
    """Return the source at `path` and all its arrays."""
    with open_file(path) as checkpoint:
        source = find(checkpoint, Known(3, 32))
        names = dict.fromkeys(raw for raw, _ in source.places.values())
        checkpoint.verify(names)
        return source, {name: checkpoint.read(name) for name in names}


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
        source_of(path)
    message = str(caught.value)
    assert str(path) in message
    assert re.search(words, message), message[:500]


def loads_or_is_named(path):
    """Assert that `path` gives a whole model or a ValueError that names it."""
    try:
        source, arrays = source_of(path)
    except ValueError as error:
        assert str(path) in str(error)
        return
    for parts in source.parts.values():
        for part in parts:
            if part.name not in source.places:
                assert part.optional
                continue
            raw, index = source.places[part.name]
            array = arrays[raw] if index is None else arrays[raw][index]
            assert array.dtype == np.float32
            assert array.size == np.prod(part.shape, dtype=int)


# ----------------------------------------------------------- making of files


def arrays_of(name):
    with np.load(GOLDEN / name) as file:
        return {key: file[key] for key in file.files}


OFFICIAL = arrays_of("official_token.npz")
LAST = list(OFFICIAL)[-1]
TABLE = "Transformer/posembed_input/pos_embedding"


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


class Member:
    """The real and the stated content of a member of a forged archive.

    Args:
        data: The bytes.
        method: How they are compressed.
        size: How long they are said to be.
        flags: Of the member.
    """

    def __init__(self, data, method=0, size=None, flags=0x800):
        pack = {
            zipfile.ZIP_STORED: bytes,
            zipfile.ZIP_DEFLATED: lambda x: zlib.compress(x, wbits=-15),
            zipfile.ZIP_BZIP2: bz2.compress,
            zipfile.ZIP_LZMA: _lzma,
        }[method]
        self.packed = pack(data)
        self.size = len(data) if size is None else size
        self.crc = zlib.crc32(data[:size])
        self.method, self.flags = method, flags

    def fields(self, name):
        return struct.pack(
            "<5H3I2H",
            *(20, self.flags, self.method, 0, 0x21),
            *(self.crc, len(self.packed), self.size, len(name), 0),
        )


def _lzma(data):
    options = [{"id": lzma.FILTER_LZMA1, "dict_size": 2**16}]
    packed = lzma.compress(data, lzma.FORMAT_RAW, filters=options)
    return b"\x09\x04\x05\x00" + struct.pack("<BI", 93, 2**16) + packed


def archive_of(members, comment=b""):
    """Return an archive of (name, Member or bytes), without any checks."""
    body, directory = b"", b""
    for name, member in members:
        name = name.encode() + b".npy"
        if isinstance(member, bytes):
            member = Member(member)
        fields = member.fields(name)
        directory += b"PK\1\2\x14\0" + fields + bytes(10)
        directory += struct.pack("<I", len(body)) + name
        body += b"PK\3\4" + fields + name + member.packed
    count, sizes = len(members), (len(directory), len(body), len(comment))
    end = struct.pack("<4s4H2IH", b"PK\5\6", 0, 0, count, count, *sizes)
    return body + directory + end + comment


def official(changes=(), method=0, drop=()):
    """Return a good archive with some members replaced or added."""
    members = {
        name: Member(npy(array), method)
        for name, array in OFFICIAL.items()
        if name not in drop
    }
    return archive_of({**members, **dict(changes)}.items())


def split(data):
    length = int.from_bytes(data[:8], "little")
    return json.loads(data[8 : 8 + length]), data[8 + length :]


def safetensors(header, body=b""):
    if not isinstance(header, bytes):
        header = json.dumps(header).encode()
    return len(header).to_bytes(8, "little") + header + body


TIMM_BYTES = (GOLDEN / "timm_token.safetensors").read_bytes()
TIMM, TIMM_BODY = split(TIMM_BYTES)
FC1 = "blocks.0.mlp.fc1.weight"
FC2 = "blocks.1.mlp.fc2.weight"


def timm(changes=(), body=TIMM_BODY):
    """Return a good .safetensors file, some rows of whose header changed."""
    header = json.loads(json.dumps(TIMM))
    for name, row in dict(changes).items():
        header[name] = {**header.get(name, {}), **row}
    return safetensors(header, body)


def empty(*shape):
    end = len(TIMM_BODY)
    return {"dtype": "F32", "shape": list(shape), "data_offsets": [end, end]}


def h5_arrays():
    draws = np.random.default_rng(0)
    parts = LAYOUTS["vit_keras_h5"].names(CONFIG)
    return {
        part.name: draws.standard_normal(part.shape_in_file(3), "float32")
        for row in parts.values()
        for part in row
    }


def write_h5(path, without=(), **options):
    with h5py.File(path, "w") as file:
        for name, array in h5_arrays().items():
            if name not in without:
                layer = name.split("/")[0]
                file.create_dataset(f"{layer}/{name}:0", data=array, **options)
    return path


def write_shards(folder):
    """Write the small Hugging Face model as two files and an index."""
    header, body = split((GOLDEN / "hf_vit" / "model.safetensors").read_bytes())
    header.pop("__metadata__", None)
    weight_map = {}
    for number, names in enumerate((list(header)[:10], list(header)[10:])):
        file, offset, rows, pieces = f"{number}.safetensors", 0, {}, []
        for name in names:
            begin, end = header[name]["data_offsets"]
            offsets = [offset, offset + end - begin]
            rows[name] = {**header[name], "data_offsets": offsets}
            pieces.append(body[begin:end])
            offset = offsets[1]
            weight_map[name] = file
        (folder / file).write_bytes(safetensors(rows, b"".join(pieces)))
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": weight_map}))
    config = (GOLDEN / "hf_vit" / "config.json").read_text()
    (folder / "config.json").write_text(config)
    return weight_map


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return one folder for the files of many examples."""
    return tmp_path_factory.mktemp("hostile")


# ------------------------------------------------------------- good files


def test_the_files_made_here_are_good(tmp_path):
    (tmp_path / "a.npz").write_bytes(official())
    (tmp_path / "b.npz").write_bytes(official(method=8))
    (tmp_path / "c.safetensors").write_bytes(timm())
    write_h5(tmp_path / "d.h5")
    write_h5(tmp_path / "e.h5", compression="gzip", fletcher32=True)
    for path in sorted(tmp_path.iterdir()):
        assert source_of(path)[0].config.depth == 2
    _, arrays = source_of(tmp_path / "b.npz")
    np.testing.assert_array_equal(arrays[LAST], OFFICIAL[LAST])


@pytest.mark.parametrize("method", [0, 8], ids=["stored", "deflated"])
@pytest.mark.parametrize("fortran", [False, True])
@pytest.mark.parametrize("dtype", "<f2 >f2 <f4 >f4 =f4 <f8 >f8".split())
def test_floats_of_any_kind_are_read(tmp_path, dtype, fortran, method):
    name = "Transformer/encoderblock_1/MlpBlock_3/Dense_0/kernel"
    array = OFFICIAL[name].astype(dtype)
    member = Member(npy(array, dtype, fortran), method)
    path = tmp_path / "m.npz"
    path.write_bytes(official({name: member}))
    found = source_of(path)[1][name]
    np.testing.assert_array_equal(found, array.astype("float32"))
    assert found.dtype == np.float32 and found.dtype.isnative


def test_bfloat16_is_read_from_npz(tmp_path):
    array = OFFICIAL[LAST]
    bits = (array.view("<u4") >> 16).astype("<u2")
    path = tmp_path / "m.npz"
    path.write_bytes(official({LAST: npy(bits, "|V2")}))
    expected = (bits.astype("<u4") << 16).view("<f4")
    assert 0 < np.abs(expected - array).max() < np.abs(array).max() / 64
    np.testing.assert_array_equal(source_of(path)[1][LAST], expected)


@pytest.mark.parametrize("dtype", ["F64", "F16", "BF16"])
def test_floats_of_any_kind_are_read_from_safetensors(tmp_path, dtype):
    header, body, expected = {}, b"", {}
    for name, row in TIMM.items():
        if name == "__metadata__":
            continue
        begin, end = row["data_offsets"]
        array = np.frombuffer(TIMM_BODY[begin:end], "<f4")
        if dtype == "BF16":
            data = (array.view("<u4") >> 16).astype("<u2")
            array = (data.astype("<u4") << 16).view("<f4")
        else:
            data = array.astype({"F64": "<f8", "F16": "<f2"}[dtype])
            array = data.astype("float32")
        offsets = [len(body), len(body) + data.nbytes]
        header[name] = {**row, "dtype": dtype, "data_offsets": offsets}
        expected[name] = array.reshape(row["shape"])
        body += data.tobytes()
    path = tmp_path / "m.safetensors"
    path.write_bytes(safetensors(header, body))
    _, arrays = source_of(path)
    assert arrays.keys() == expected.keys()
    for name, array in arrays.items():
        np.testing.assert_array_equal(array, expected[name])


@pytest.mark.parametrize("dtype", ["<f2", ">f4", ">f8"])
def test_floats_of_any_kind_are_read_from_h5(tmp_path, dtype):
    name = "encoderblock_1/MlpBlock_3/Dense_1/kernel"
    path = write_h5(tmp_path / "m.h5", without=[name])
    array = h5_arrays()[name].astype(dtype)
    with h5py.File(path, "a") as file:
        file[f"encoderblock_1/{name}:0"] = array
    found = source_of(path)[1][f"encoderblock_1/{name}:0"]
    np.testing.assert_array_equal(found, array.astype("float32"))


def test_links_to_files_are_followed(tmp_path):
    write_shards(tmp_path)
    (tmp_path / "0.safetensors").rename(tmp_path / "blob")
    (tmp_path / "0.safetensors").symlink_to(tmp_path / "blob")
    source, arrays = source_of(tmp_path)
    assert source.key == "huggingface"
    _, whole = source_of(GOLDEN / "hf_vit")
    assert arrays.keys() == whole.keys()
    for name, array in whole.items():
        np.testing.assert_array_equal(arrays[name], array)
    (tmp_path / "npz").mkdir()
    link = tmp_path / "npz" / "m.npz"
    link.symlink_to(GOLDEN / "official_token.npz")
    assert source_of(link)[0].key == "official"


# -------------------------------------------------------------------- .npz

PICKLED = pickle.dumps([1])
ZEROS = np.zeros(3, "float32")


@pytest.mark.parametrize(
    ("member", "words"),
    [
        (npy(ZEROS, "|O", shape=(1,), data=PICKLED), "pickled"),
        (PICKLED, "not a NumPy array"),
        (b"", "not a NumPy array"),
        (npy(ZEROS, shape=(10**12,)), "the length in its header"),
        (npy(ZEROS, shape=(2**62, 4)), "the length in its header"),
        (npy(ZEROS, "<i3"), "i3"),
        (npy_of(b"__import__('os')"), "not a NumPy array"),
        (b"\x93NUMPY\2\0\xff\xff\xff\x7f", "not a NumPy array"),
        (npy(ZEROS)[:-1], "the length in its header"),
        (Member(npy(ZEROS), flags=0x801), "is encrypted"),
        (Member(npy(ZEROS), 0, size=2**31), "is not a checkpoint"),
        (Member(npy(ZEROS), 8, size=2**32 - 1), "is not a checkpoint|zip64"),
    ],
)
def test_a_bad_array_in_an_archive(tmp_path, member, words):
    path = tmp_path / "m.npz"
    path.write_bytes(official({LAST: member}))
    refused(path, words)


def test_a_pickle_is_not_run(tmp_path):
    class Trap:
        def __reduce__(self):
            return (pathlib.Path.touch, (tmp_path / "ran",))

    path = tmp_path / "m.npz"
    np.savez(path, **OFFICIAL, trap=np.array([Trap()], dtype=object))
    refused(path, "pickled")
    assert not (tmp_path / "ran").exists()


def test_zeros_that_unfold_are_refused(tmp_path):
    path = tmp_path / "m.npz"
    # The name says less than is there: 128 MiB that pass for 200 bytes.
    bomb = Member(npy(ZEROS) + bytes(128 * MEBI), 8, size=200)
    path.write_bytes(official({LAST: bomb}))
    refused(path, "the length in its header", peak=8 * MEBI)
    # Many that are allowed one by one.
    rows = [(f"{LAST}{i}", Member(npy(ZEROS), 8, 2**27)) for i in range(9)]
    path.write_bytes(archive_of(rows))
    refused(path, "is not a checkpoint", peak=8 * MEBI)


@pytest.mark.parametrize(
    "method",
    [
        zipfile.ZIP_BZIP2,
        zipfile.ZIP_LZMA,
    ],
    ids=["bzip2", "lzma"],
)
def test_unbounded_compression_is_refused(tmp_path, method):
    path = tmp_path / "m.npz"
    bomb = Member(npy(ZEROS) + bytes(16 * MEBI), method, size=200)
    path.write_bytes(official({LAST: bomb}))
    refused(path, LAST, peak=4 * MEBI)


def test_a_name_given_twice(tmp_path):
    path = tmp_path / "m.npz"
    twice = [(LAST, npy(OFFICIAL[LAST]))] * 2
    path.write_bytes(archive_of(twice))
    refused(path, f"{LAST} is stored twice")
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a", npy(ZEROS))
        archive.writestr("a.npy", npy(ZEROS))
    refused(path, "a is stored twice")


@pytest.mark.parametrize(
    "data",
    [b"", b"PK", b"PK\5\6" + bytes(18), official()[:-30], official()[100:]],
    ids=["empty", "start", "no_members", "no_end", "no_start"],
)
def test_broken_archives(tmp_path, data):
    path = tmp_path / "m.npz"
    path.write_bytes(data)
    refused(path, "cannot be read|not a ViT|whole")


# ------------------------------------------------------------ .safetensors

BODY = len(TIMM_BODY)
# How the library begins what it says of a bad header.
HEADER = "Error while deserializing header: "


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"data_offsets": [BODY, BODY + 4608]}, HEADER),
        ({"shape": [2**40, 2**40]}, HEADER),
        ({"shape": [24, 48]}, r"another shape: blocks.0.mlp.fc1.weight"),
        ({"dtype": "F64"}, HEADER),
        (
            {"dtype": "F8_E4M3", "shape": [192, 24]},
            "another type: blocks.0.mlp.fc1.weight F8_E4M3",
        ),
        ({"dtype": "I32"}, "another type: blocks.0.mlp.fc1.weight <i4"),
    ],
)
def test_a_bad_row_of_a_header(tmp_path, row, words):
    assert TIMM[FC1]["shape"] == [48, 24] and 48 * 24 * 4 == 4608
    path = tmp_path / "m.safetensors"
    path.write_bytes(timm({FC1: row}))
    refused(path, words)


@pytest.mark.parametrize("length", [2**64 - 1, 10**6])
def test_a_header_longer_than_the_file(tmp_path, length):
    path = tmp_path / "m.safetensors"
    path.write_bytes(length.to_bytes(8, "little") + TIMM_BYTES[8:])
    refused(path, "cannot be read")


@pytest.mark.parametrize("data", [b"", b"\0" * 7, TIMM_BYTES[:500]])
def test_a_file_shorter_than_its_header(tmp_path, data):
    path = tmp_path / "m.safetensors"
    path.write_bytes(data)
    refused(path, "cannot be read")


@pytest.mark.parametrize("body", [TIMM_BODY[:-1], TIMM_BODY + b"\0"])
def test_a_body_of_another_length(tmp_path, body):
    path = tmp_path / "m.safetensors"
    path.write_bytes(timm(body=body))
    refused(path, HEADER)


def test_empty_arrays_are_no_weights(tmp_path):
    path = tmp_path / "m.safetensors"
    header = {name: empty(0, 24) for name in TIMM}
    for row in header.values():
        row["data_offsets"] = [0, 0]
    path.write_bytes(safetensors(header))
    refused(path, r"has the shape \(0, 24\)")
    path.write_bytes(timm({"mask_token": empty(0)}))
    assert source_of(path)[0].ignored == ("mask_token",)


# --------------------------------------------------------------------- .h5


def _external_link(file, name, elsewhere):
    file[name] = h5py.ExternalLink(str(elsewhere), "/x")


def _soft_link(file, name, elsewhere):
    file[name] = h5py.SoftLink("/encoder_norm/encoder_norm/beta:0")


def _virtual(file, name, elsewhere):
    layout = h5py.VirtualLayout((24,), "<f4")
    layout[:] = h5py.VirtualSource(str(elsewhere), "x", (24,))
    file.create_virtual_dataset(name, layout)


def _external_storage(file, name, elsewhere):
    storage = [(str(elsewhere), 0, 96)]
    file.create_dataset(name, (24,), "<f4", external=storage)


def _cycle(file, name, elsewhere):
    file["encoder_norm/again"] = file["/"]


def _gigantic(file, name, elsewhere):
    file.create_dataset(name, (10**12,), "<f4", chunks=(1024,))


def _long_chunk(file, name, elsewhere):
    options = {"maxshape": (None,), "chunks": (2**29,)}
    file.create_dataset(name, (24,), "<f4", **options, compression="gzip")


def _string(file, name, elsewhere):
    file[name] = "text"


def _null(file, name, elsewhere):
    file[name] = h5py.Empty("<f4")


def _integers(file, name, elsewhere):
    file[name] = np.zeros(24, "int32")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (_external_link, "link to elsewhere"),
        (_soft_link, "link to elsewhere"),
        (_virtual, "stored outside the file"),
        (_external_storage, "stored outside the file"),
        (_cycle, "linked in more than one place"),
        (_gigantic, "is not a checkpoint"),
        (_long_chunk, ""),
        (_string, "missing: encoder_norm/gamma"),
        (_null, "missing: encoder_norm/gamma"),
        (_integers, "of another type: encoder_norm/"),
    ],
)
def test_bad_hdf5_files(tmp_path, change, words):
    weight = "encoder_norm/gamma"
    path = write_h5(tmp_path / "m.h5", without=[weight])
    elsewhere = write_h5(tmp_path / "other.h5")
    with h5py.File(path, "a") as file:
        change(file, "encoder_norm/encoder_norm/gamma:0", elsewhere)
    refused(path, words)


def test_groups_that_are_reached_in_many_ways(tmp_path):
    path = write_h5(tmp_path / "m.h5")
    with h5py.File(path, "a") as file:
        group = file
        for _ in range(30):
            below = group.create_group("a")
            group["b"] = below
            group = below
    refused(path, "linked in more than one place")


def test_hdf5_that_claims_a_gigantic_model(tmp_path):
    path = tmp_path / "m.h5"
    with h5py.File(path, "w") as file:
        for name, array in h5_arrays().items():
            # Nothing is stored: HDF5 fills what was not written.
            shape = tuple(4096 * n for n in array.shape)
            chunks = tuple(min(n, 64) for n in shape)
            layer = name.split("/")[0]
            name = f"{layer}/{name}:0"
            file.create_dataset(name, shape, "<f4", chunks=chunks)
    refused(path, "is not a checkpoint")


@pytest.mark.parametrize("data", [b"", b"\x89HDF\r\n\x1a\n", bytes(4096)])
def test_no_hdf5(tmp_path, data):
    path = tmp_path / "m.h5"
    path.write_bytes(data)
    refused(path, "cannot be read")


# ------------------------------------------- folders, JSON and other suffixes


@pytest.mark.parametrize(
    "file",
    [
        "/0.safetensors",
        "",
        "config.json",
        5,
    ],
)
def test_an_index_that_points_elsewhere(tmp_path, file):
    weight_map = write_shards(tmp_path)
    name = list(weight_map)[0]
    index = {"weight_map": {**weight_map, name: file}}
    path = tmp_path / "model.safetensors.index.json"
    path.write_text(json.dumps(index))
    refused(tmp_path, "is not the name of a .safetensors file of the folder")


@pytest.mark.parametrize(
    ("index", "words"),
    [
        ("[]", "not a JSON object"),
        ("{}", "has no weight_map"),
        ('{"weight_map": []}', "has no weight_map"),
        ('{"weight_map": {}}', "not a ViT"),
        ('{"weight_map": {"a": "9.safetensors"}}', "No such file"),
        ('{"weight_map": {"a": "0.safetensors"}}', "lack a"),
    ],
    ids=range(6),
)
def test_a_bad_index(tmp_path, index, words):
    write_shards(tmp_path)
    (tmp_path / "model.safetensors.index.json").write_text(index)
    refused(tmp_path, words)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (b"", "config.json cannot be read"),
        (b"[]", "not a JSON object"),
        (b"{" + b" " * 2**24 + b"}", "bytes of JSON"),
        (b'{"a": "\xff"}', "utf-8"),
        (b'{"a":' + b"[" * 100_000, "recursion"),
        (b'{"num_attention_heads": 5}', "must divide"),
    ],
    ids=range(6),
)
def test_a_bad_configuration(tmp_path, config, words):
    write_shards(tmp_path)
    (tmp_path / "config.json").write_bytes(config)
    refused(tmp_path, words)


@pytest.mark.parametrize(
    "value", ["NaN", "-1", "true", '"3"', "{}", "[null, null, 3]"]
)
def test_senseless_hints_are_passed_over(tmp_path, value):
    write_shards(tmp_path)
    keys = ("num_attention_heads", "image_size", "layer_norm_eps")
    keys += ("pooling", "posemb")
    # The name of an activation, however odd, is not passed over.
    keys += () if value == '"3"' else ("hidden_act",)
    config = "{" + ",".join(f'"{key}": {value}' for key in keys) + "}"
    (tmp_path / "config.json").write_text(config)
    source, _ = source_of(tmp_path)
    assert source.config.num_heads == 3
    assert source.config.activation == "exact"
    assert source.config.layer_norm_epsilon == 1e-12


@pytest.mark.parametrize("suffix", [".bin", ".pth"])
def test_pickles_are_refused_with_a_hint(tmp_path, suffix):
    path = tmp_path / f"pytorch_model{suffix}"
    path.write_bytes(PICKLED)
    refused(path, "is a pickle.*save the weights as .safetensors")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("m.keras", "keras.saving.load_model"),
        ("m.ckpt.index", "TensorFlow checkpoint"),
        ("model.safetensors.index.json", "ends in .npz, .safetensors"),
    ],
)
def test_other_files_are_refused(tmp_path, name, words):
    path = tmp_path / name
    path.write_bytes(b"x")
    refused(path, words)


def test_paths_without_a_checkpoint(tmp_path):
    refused(tmp_path / "no.npz", "There is no file")
    refused(tmp_path, "It holds nothing")
    (tmp_path / "pytorch_model.bin").write_bytes(PICKLED)
    refused(
        tmp_path, "It holds pytorch_model.bin. pytorch_model.bin is a pickle"
    )
    (tmp_path / "m.npz").symlink_to(tmp_path / "m.npz")
    refused(tmp_path / "m.npz", "There is no file|cannot be read")
    (tmp_path / "model.safetensors").symlink_to(tmp_path)
    refused(tmp_path, "There is no file|cannot be read")


@pytest.mark.parametrize(
    ("data", "config"),
    [
        (timm(), "["),
        (timm({FC1: {"shape": 5}}), "{}"),
    ],
    ids=["configuration", "header"],
)
def test_a_refused_file_is_closed(tmp_path, data, config):
    path = tmp_path / "m.safetensors"
    path.write_bytes(data)
    (tmp_path / "m.json").write_text(config)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with pytest.raises(ValueError) as error:
            open_file(path)
        assert str(tmp_path) in str(error.value)
        gc.collect()
    assert not [str(warning.message) for warning in caught]


@pytest.mark.parametrize("text", ["x", "[]"])
def test_a_description_of_others_is_passed_over(tmp_path, text):
    (tmp_path / "m.npz").write_bytes(official())
    with zipfile.ZipFile(tmp_path / "m.npz", "a") as archive:
        archive.comment = text.encode()[: 2**16 - 1]
    metadata = {"__metadata__": {"keras_vit": text}}
    (tmp_path / "m.safetensors").write_bytes(
        safetensors({**TIMM, **metadata}, TIMM_BODY)
    )
    assert source_of(tmp_path / "m.safetensors")[0].config == CONFIG_OF_TIMM
    assert source_of(tmp_path / "m.npz")[0].config.num_heads == 3


@pytest.mark.parametrize("way", ["wrapped", "stacked"])
def test_a_weight_in_two_places(tmp_path, way):
    path = tmp_path / "m.safetensors"
    if way == "stacked":
        name = STACK.replace("block/", "block_0/") + "LayerNorm_0/scale"
        path.write_bytes(scan({}, {name: np.ones(24, "<f4")}))
    else:
        header = {f"model.{name}": row for name, row in TIMM.items()}
        header["__metadata__"] = header.pop("model.__metadata__", {})
        offsets = [len(TIMM_BODY), len(TIMM_BODY) + 96]
        row = {"dtype": "F32", "shape": [24], "data_offsets": offsets}
        header["norm.weight"] = row
        path.write_bytes(safetensors(header, TIMM_BODY + bytes(96)))
    refused(path, "twice")


def test_a_width_that_its_positions_cannot_have(tmp_path):
    path = tmp_path / "m.npz"
    # 24 wide with heads of 8 becomes 18 wide with heads of 6; the patches,
    # which are 8x8 as well, stay.
    sizes = {24: 18, 8: 6}
    arrays = {}
    for name, array in arrays_of("big_vision_sincos_rep.npz").items():
        keep = 2 if name.endswith("embedding/kernel") else 0
        rest = [sizes.get(n, n) for n in array.shape[keep:]]
        arrays[name] = np.zeros([*array.shape[:keep], *rest], "float32")
    np.savez(path, **arrays)
    with pytest.raises(ValueError, match="4 divides, not 18") as caught:
        from_checkpoint(path, image_size=32)
    assert str(path) in str(caught.value)


# ------------------------------------------------------------ gigantic models


def test_a_block_with_a_high_number(tmp_path):
    path = tmp_path / "m.safetensors"
    path.write_bytes(timm({"blocks.999999.norm1.weight": empty(0)}))
    refused(
        path,
        "it lacks blocks.2.norm1.weight, of block 2 of 1000000",
        peak=4 * MEBI,
    )
    path.write_bytes(timm({"blocks.1000000.norm1.weight": empty(0)}))
    refused(path, "left over: blocks.1000000.norm1.weight", peak=4 * MEBI)


def scan(changes, more=()):
    header, body = {}, b""
    arrays = {**arrays_of("big_vision_gap_scan.npz"), **dict(more)}
    for name, array in arrays.items():
        offsets = [len(body), len(body) + array.nbytes]
        shape = list(array.shape)
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": offsets}
        body += array.tobytes()
    row = {"dtype": "F32", "data_offsets": [len(body)] * 2}
    for name, shape in changes.items():
        header[STACK + name] = {**row, "shape": shape}
    return safetensors(header, body)


STACK = next(
    name.partition("encoderblock/")[0] + "encoderblock/"
    for name in arrays_of("big_vision_gap_scan.npz")
    if "encoderblock/" in name
)


def test_a_stack_of_a_million_blocks(tmp_path):
    path = tmp_path / "m.safetensors"
    path.write_bytes(scan({}))
    assert source_of(path)[0].config.depth == 2
    path.write_bytes(scan({"x": [10**6, 0]}))
    refused(path, "are not of one depth")


@pytest.mark.parametrize("name", ["m.npz", "m.safetensors", "m.h5"])
def test_more_arrays_than_a_model_has(tmp_path, monkeypatch, name):
    monkeypatch.setattr(containers, "MAX_ARRAYS", 20)
    path = write_h5(tmp_path / "m.h5")
    if name != path.name:
        path = tmp_path / name
        path.write_bytes(official() if name == "m.npz" else timm())
    refused(path, "is not a checkpoint")


@pytest.mark.parametrize("descr", ["|V0", "|S0", "<U0"])
def test_a_table_of_nothings(tmp_path, descr):
    # As many rows as one likes take no space; a model would be built of them.
    path = tmp_path / "m.npz"
    table = npy(OFFICIAL[TABLE], descr, shape=(1, 10**12 + 1, 24), data=b"")
    path.write_bytes(official({TABLE: table}))
    refused(path, TABLE)


def test_a_gigantic_image_allocates_nothing(tmp_path):
    path = tmp_path / "m.npz"
    data = (GOLDEN / "big_vision_sincos_rep.npz").read_bytes()
    path.write_bytes(data)
    (tmp_path / "m.json").write_text('{"image_size": 1048568}')
    with at_most(4 * MEBI):
        source, _ = source_of(path)
    assert source.config.image_size == (1048568, 1048568)
    assert source.num_parameters < 10**5


# ------------------------------------------------- data that is damaged late


@pytest.fixture(scope="module")
def model():
    return VisionTransformer(CONFIG)


def damaged(data, name=LAST):
    """Return the archive with one byte of the data of `name` changed."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        info = archive.getinfo(name + ".npy")
    last = info.header_offset + 30 + len(info.filename) + info.compress_size - 9
    return data[:last] + bytes([data[last] ^ 1]) + data[last + 1 :]


def short(method):
    """Return an archive whose last array ends early, with a right checksum."""
    whole = npy(OFFICIAL[LAST])
    return official({LAST: Member(whole[:-8], method, size=len(whole))})


def damaged_h5(path):
    write_h5(path, compression="gzip", fletcher32=True)
    with h5py.File(path) as file:
        kernel = file["predictions" if "predictions" in file else "head"]
        kernel = kernel["head/kernel:0"]
        chunk = kernel.id.get_chunk_info(0)
    data = bytearray(path.read_bytes())
    data[chunk.byte_offset + chunk.size // 2] ^= 1
    return bytes(data)


def one_more_axis():
    return timm({FC2: {"shape": [1, *TIMM[FC2]["shape"]]}})


def typed_table(descr):
    table = OFFICIAL[TABLE]
    count = table.size * np.dtype(descr).itemsize
    return official({TABLE: npy(table, descr, data=bytes(count))})


@pytest.mark.parametrize(
    ("suffix", "data"),
    [
        (".npz", damaged(official())),
        (".npz", damaged(official(method=8))),
        (".npz", official()[:-200]),
        (".safetensors", TIMM_BYTES[:-1]),
        (".h5", damaged_h5),
        (".npz", official({LAST: npy(OFFICIAL[LAST], data=b"")})),
        (".npz", short(8)),
        (".npz", short(0)),
        (".safetensors", one_more_axis()),
        (".npz", typed_table("<U1")),
        (".npz", typed_table("<i4")),
        (".npz", typed_table("<M8")),
        (".npz", official({LAST: npy(OFFICIAL[LAST] * 0 + np.float64(1e300))})),
    ],
    ids=[
        "byte",
        "byte_deflated",
        "cut",
        "cut_safetensors",
        "checksum_h5",
        "no_data",
        "short_deflated",
        "short_stored",
        "one_more_axis",
        "strings",
        "integers",
        "dates",
        "overflow",
    ],
)
def test_a_bad_file_leaves_the_model_as_it_was(tmp_path, model, suffix, data):
    path = tmp_path / f"m{suffix}"
    path.write_bytes(data(path) if callable(data) else data)
    before = model.get_weights()
    with pytest.raises(ValueError) as caught:
        load_checkpoint(model, path)
    after = model.get_weights()
    assert [a.tobytes() for a in before] == [a.tobytes() for a in after]
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
def test_the_good_files_are_loaded(tmp_path, model, suffix):
    path = tmp_path / f"m{suffix}"
    begin, end = TIMM["head.weight"]["data_offsets"]
    head = np.frombuffer(TIMM_BODY[begin:end], "<f4").reshape(7, 24).T
    expected = {".npz": OFFICIAL["head/kernel"], ".safetensors": head}[suffix]
    path.write_bytes({".npz": official(), ".safetensors": timm()}[suffix])
    # The family of the file may compute with another GELU.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        load_checkpoint(model, path)
    kernel = model.get_layer("predictions").get_weights()[0]
    np.testing.assert_array_equal(kernel, expected)
