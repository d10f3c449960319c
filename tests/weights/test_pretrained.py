"""Names of published checkpoints, fetching them, and `weights=`.

Nothing here leaves this machine: files come from a server in a thread.
"""

import base64
import concurrent.futures
import contextlib
import hashlib
import http.server
import itertools
import math
import pathlib
import posixpath
import shutil
import socket
import threading
import time
import urllib.parse
import warnings

import keras
import numpy as np
import pytest

from keras_vit import VARIANTS, ViT_B16, ViT_Ti16
from keras_vit.applications import BUILDERS
from keras_vit.weights import (
    PRETRAINED,
    augreg,
    from_checkpoint,
    hub,
    save_checkpoint,
)
from keras_vit.weights.builder_weights import pretrained_tags
from keras_vit.weights.families.family import shapes_of
from keras_vit.weights.hub import fetch, find_pretrained, locate
from keras_vit.weights.resize_tables import resize_positions
from tests.tiny import noise, randomize, to_numpy

GOLDEN = pathlib.Path(__file__).parents[1] / "golden"

# --------------------------------------------------------- what was published

# Sizes are those that the README and the notebooks of
# google-research/vision_transformer list, with the unit of the last digit;
# None where none is listed. big_vision's files are of its own README.
MIB, GIB = 1.0, 1024.0
PUBLISHED = {
    "vit_models/imagenet21k/ViT-B_8.npz": (393.72, 0.01),
    "vit_models/imagenet21k/ViT-B_16.npz": (393.69, 0.01),
    "vit_models/imagenet21k/ViT-B_32.npz": (400.01, 0.01),
    "vit_models/imagenet21k/ViT-L_16.npz": (1.22 * GIB, 0.01 * GIB),
    "vit_models/imagenet21k/ViT-L_32.npz": (1.23 * GIB, 0.01 * GIB),
    "vit_models/imagenet21k/ViT-H_14.npz": (2.46 * GIB, 0.01 * GIB),
    "vit_models/imagenet21k/R50+ViT-B_16.npz": (439.85, 0.01),
    "vit_models/imagenet21k/R26+ViT-B_32.npz": (450.23, 0.01),
    "vit_models/imagenet21k/R50+ViT-L_32.npz": (1.31 * GIB, 0.01 * GIB),
    "vit_models/imagenet21k+imagenet2012/ViT-B_8.npz": (334.78, 0.01),
    "vit_models/imagenet21k+imagenet2012/ViT-B_16.npz": (331.4, 0.1),
    "vit_models/imagenet21k+imagenet2012/ViT-B_16-224.npz": (330.29, 0.01),
    "vit_models/imagenet21k+imagenet2012/ViT-B_32.npz": (336.89, 0.01),
    "vit_models/imagenet21k+imagenet2012/ViT-L_16.npz": None,
    "vit_models/imagenet21k+imagenet2012/ViT-L_16-224.npz": None,
    "vit_models/imagenet21k+imagenet2012/ViT-L_32.npz": None,
    "vit_models/imagenet21k+imagenet2012/R50+ViT-B_16.npz": (377.57, 0.01),
    "vit_models/sam/ViT-S_16.npz": (252.57 / 3, 0.01),  # With an optimizer.
    "vit_models/sam/ViT-B_16.npz": (330.3, 0.1),
    "vit_models/sam/ViT-B_32.npz": (336.61, 0.01),
    "vit_models/sam/ViT-L_16.npz": None,
    "vit_models/sam/ViT-L_32.npz": None,
    "big_vision/vit_s16_i1k_90ep.npz": None,
    "big_vision/vit_s16_i1k_150ep.npz": None,
    "big_vision/vit_s16_i1k_300ep.npz": None,
}
# The table "available ViT models" of the same README: nickname, name of the
# pre-trained model, of the one fine-tuned on ImageNet, MiB of the first.
RECOMMENDED = [
    (
        "L/16-augreg",
        "L_16-i21k-300ep-lr_0.001-aug_strong1-wd_0.1-do_0.0-sd_0.0",
        "--imagenet2012-steps_20k-lr_0.01-res_384",
        1243,
    ),
    (
        "B/16-augreg",
        "B_16-i21k-300ep-lr_0.001-aug_medium1-wd_0.1-do_0.0-sd_0.0",
        "--imagenet2012-steps_20k-lr_0.03-res_384",
        391,
    ),
    (
        "S/16-augreg",
        "S_16-i21k-300ep-lr_0.001-aug_light1-wd_0.03-do_0.0-sd_0.0",
        "--imagenet2012-steps_20k-lr_0.03-res_384",
        115,
    ),
    (
        "R50+L/32-augreg",
        "R50_L_32-i21k-300ep-lr_0.001-aug_medium1-wd_0.1-do_0.1-sd_0.1",
        "--imagenet2012-steps_20k-lr_0.01-res_384",
        1337,
    ),
    (
        "R26+S/32-augreg",
        "R26_S_32-i21k-300ep-lr_0.001-aug_light1-wd_0.1-do_0.0-sd_0.0",
        "--imagenet2012-steps_20k-lr_0.01-res_384",
        170,
    ),
    (
        "Ti/16-augreg",
        "Ti_16-i21k-300ep-lr_0.001-aug_none-wd_0.03-do_0.0-sd_0.0",
        "--imagenet2012-steps_20k-lr_0.03-res_384",
        37,
    ),
    (
        "B/32-augreg",
        "B_32-i21k-300ep-lr_0.001-aug_light1-wd_0.1-do_0.0-sd_0.0",
        "--imagenet2012-steps_20k-lr_0.01-res_384",
        398,
    ),
    (
        "S/32-augreg",
        "S_32-i21k-300ep-lr_0.001-aug_none-wd_0.1-do_0.0-sd_0.0",
        "--imagenet2012-steps_20k-lr_0.01-res_384",
        118,
    ),
    (
        "R+Ti/16-augreg",
        "R_Ti_16-i21k-300ep-lr_0.001-aug_none-wd_0.03-do_0.0-sd_0.0",
        "--imagenet2012-steps_20k-lr_0.03-res_384",
        40,
    ),
    (
        "B/8-augreg",
        "B_8-i21k-300ep-lr_0.001-aug_medium2-wd_0.1-do_0.0-sd_0.0",
        "--imagenet2012-steps_20k-lr_0.03-res_224",
        None,
    ),
]
for _, before, after, mib in RECOMMENDED:
    PUBLISHED[f"vit_models/augreg/{before}.npz"] = mib and (mib, MIB)
    PUBLISHED[f"vit_models/augreg/{before}{after}.npz"] = None

each_row = pytest.mark.parametrize("name", PRETRAINED)


def published_path(row):
    """Return bucket and path of a row, without steps to a folder above."""
    path = urllib.parse.unquote(urllib.parse.urlparse(row.url).path)
    return posixpath.normpath(path).lstrip("/")


def num_parameters(config):
    return sum(map(math.prod, shapes_of(config).values()))


@pytest.fixture(autouse=True)
def at_home(monkeypatch, tmp_path):
    """Keep the environment of whoever runs the tests out of them."""
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.delenv("KERAS_VIT_MIRROR", raising=False)
    monkeypatch.setenv("KERAS_VIT_CACHE", str(tmp_path / "cache"))


def test_the_table_is_complete():
    paths = [published_path(row) for row in PRETRAINED.values()]
    assert len(set(paths)) == len(paths) == 45
    assert set(paths) == set(PUBLISHED)


@pytest.mark.parametrize("name", PRETRAINED)
def test_a_url_is_well_formed(name):
    url = urllib.parse.urlparse(PRETRAINED[name].url)
    assert (url.scheme, url.netloc) == ("https", "storage.googleapis.com")
    assert not (url.query or url.params or url.fragment)
    parts = url.path.split("/")
    assert parts[1] in ("vit_models", "big_vision")
    # Nobody resolves "..": the storage would look for an object of that name.
    assert not {"", ".", ".."} & set(parts[1:])
    assert parts[-1].endswith(".npz")


def test_a_plus_in_a_url_is_a_plus():
    # In a path it is itself; only in a query it would be a blank.
    assert PRETRAINED["R50+B/16-i21k+i1k"].url == (
        "https://storage.googleapis.com/vit_models/"
        "imagenet21k+imagenet2012/R50+ViT-B_16.npz"
    )


@pytest.mark.parametrize(
    "name",
    [n for n, row in PRETRAINED.items() if PUBLISHED.get(published_path(row))],
)
def test_a_configuration_has_the_published_size(name):
    row = PRETRAINED[name]
    listed, unit = PUBLISHED[published_path(row)]
    size = 4 * num_parameters(row.config) / 2**20
    # An .npz has up to 0.11 MiB of names beside the numbers.
    assert listed - unit / 2 - 0.11 <= size <= listed + unit / 2


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("B/16-i21k", 103_186_515),
        ("H/14-i21k", 660_385_363),
        # VARIANTS is checked against the numbers of the official tests.
        ("B/16-i21k+i1k-224", 86_567_656),
        ("L/16-i21k+i1k-224", 304_326_632),
        ("S/16-sam", 22_050_664),
        ("L/32-sam", 306_535_400),
        # S/16-gap, less 196 positions, and a layer of 384 x 384.
        ("S/16-i1k-90ep", 22_049_896 - 196 * 384 + 384 * 385),
    ],
)
def test_a_configuration_has_the_published_number_of_parameters(name, count):
    assert num_parameters(PRETRAINED[name].config) == count


@each_row
def test_a_nickname_begins_with_its_variant(name):
    variant, _, tag = name.partition("-")
    expected = VARIANTS[variant].config
    config = PRETRAINED[name].config
    for field in (
        "width",
        "depth",
        "mlp_dim",
        "num_heads",
        "patch_size",
        "stem_stages",
    ):
        assert getattr(config, field) == getattr(expected, field)
    assert tag in pretrained_tags(variant)
    assert find_pretrained(name) is PRETRAINED[name]


@each_row
def test_classes_and_size_are_those_of_the_training(name):
    config = PRETRAINED[name].config
    tag = name.split("-", 1)[1]
    on_21k = tag in ("i21k", "augreg")
    assert config.num_classes == (21_843 if on_21k else 1000)
    large = tag in ("i21k+i1k", "augreg-i1k") and name != "B/8-augreg-i1k"
    assert config.image_size == ((384, 384) if large else (224, 224))
    # Only the ImageNet-21k models of 2020 and big_vision's have a layer
    # before the head.
    has_layer = tag == "i21k" or tag.endswith("ep")
    assert config.representation_size == (config.width if has_layer else None)
    assert config.activation == "tanh"


def test_tags_belong_to_one_variant():
    assert pretrained_tags("B/16") == [
        "i21k",
        "i21k+i1k",
        "i21k+i1k-224",
        "augreg",
        "augreg-i1k",
        "sam",
    ]
    assert pretrained_tags("R+Ti/16") == ["augreg", "augreg-i1k"]
    assert pretrained_tags("G/14") == []
    total = sum(len(pretrained_tags(variant)) for variant in VARIANTS)
    assert total == len(PRETRAINED)


def test_a_builder_names_its_checkpoints():
    text = " ".join(BUILDERS["R26_ViT_B32"].__doc__.split())
    assert "with or without the variant: 'i21k';" in text
    text = " ".join(BUILDERS["ViT_G14"].__doc__.split())
    assert "with or without the variant: none yet;" in text


# --------------------------------------------------------------------- AugReg


@pytest.mark.parametrize(
    ("nickname", "before", "after", "mib"), RECOMMENDED, ids=lambda x: ""
)
def test_the_recommended_models(nickname, before, after, mib):
    row = PRETRAINED[nickname]
    assert row.file == f"vit_models/augreg/{before}.npz"
    assert find_pretrained(before) == row
    tuned = PRETRAINED[f"{nickname}-i1k"]
    assert tuned.file == f"vit_models/augreg/{before}{after}.npz"
    assert find_pretrained(before + after) == tuned


def test_a_name_of_augreg_in_full():
    name = augreg(
        "R50_L_32",
        data="i1k",
        epochs=300,
        learning_rate=0.001,
        augmentation="light0",
        weight_decay=0.03,
        dropout_rate=0.1,
        stochastic_depth_rate=0.1,
        dataset="cifar100",
        steps=2500,
        tuning_rate=0.003,
        image_size=224,
    )
    assert name == (
        "R50_L_32-i1k-300ep-lr_0.001-aug_light0-wd_0.03-do_0.1-sd_0.1"
        "--cifar100-steps_2k-lr_0.003-res_224"
    )


def test_every_name_that_augreg_returns_is_known():
    models = {
        "Ti_16": "Ti/16",
        "S_16": "S/16",
        "S_32": "S/32",
        "B_8": "B/8",
        "B_16": "B/16",
        "B_32": "B/32",
        "L_16": "L/16",
        "R_Ti_16": "R+Ti/16",
        "R26_S_32": "R26+S/32",
        "R50_L_32": "R50+L/32",
    }
    augmentations = ("none", "light0", "light1", "medium1", "medium2")
    datasets = {
        None: None,
        "imagenet2012": 1000,
        "cifar100": 100,
        "oxford_iiit_pet": 37,
        "resisc45": 45,
        "kitti": 4,
    }
    # The parts of a name are spelled each on its own: of the tables, each row
    # comes with a few of the others.
    models_in_turn = itertools.cycle(models)
    augmentations = (*augmentations, "strong1", "strong2")
    augmentations_in_turn = itertools.cycle(augmentations)
    # Whole numbers are among the rates of the paper.
    for decay, data, rate, dataset in itertools.product(
        (0.03, 0.1, 0), ("i21k", "i1k"), (0, 0.1), datasets
    ):
        model = next(models_in_turn)
        augmentation = next(augmentations_in_turn)
        size, steps = (224, 500) if rate else (384, 20_000)
        name = augreg(
            model,
            data=data,
            augmentation=augmentation,
            weight_decay=decay,
            dropout_rate=rate,
            stochastic_depth_rate=rate,
            dataset=dataset,
            steps=steps,
            image_size=size,
        )
        row = find_pretrained(name)
        assert row is not None, name
        assert row.file == f"vit_models/augreg/{name}.npz"
        expected = VARIANTS[models[model]].config
        assert row.config.width == expected.width
        assert row.config.stem_stages == expected.stem_stages
        classes = datasets[dataset] or {"i21k": 21_843, "i1k": 1000}[data]
        assert row.config.num_classes == classes
        side = size if dataset else 224
        assert row.config.image_size == (side, side)


@pytest.mark.parametrize(
    ("argument", "value", "known"),
    [
        ("model", "Ti/16", "'Ti_16', 'S_16'"),
        ("model", None, "'Ti_16', 'S_16'"),
        ("data", "imagenet21k", "'i21k', 'i1k'"),
        ("augmentation", "light2", "'none', 'light0', 'light1', 'medium1'"),
        ("dataset", "cifar10", "'imagenet2012', 'cifar100'"),
    ],
)
def test_a_bad_argument_of_augreg_is_an_error(argument, value, known):
    arguments = {
        "model": "Ti_16",
        "augmentation": "none",
        "weight_decay": 0.1,
        argument: value,
    }
    with pytest.raises(ValueError) as error:
        augreg(**arguments)
    message = str(error.value)
    assert message.startswith(f"`{argument}` must be one of {known}")
    assert f". Received: {argument}={value!r}" in message


NAME = "Ti_16-i21k-300ep-lr_0.001-aug_none-wd_0.03-do_0.0-sd_0.0"


@pytest.mark.parametrize(
    "name",
    [
        "b/16-i21k",
        f"{NAME}.npz",
        f"{NAME}\n",
        NAME.replace("Ti_16", "H_14"),
        NAME.replace("none", "light2"),
        f"{NAME}--imagenet2012",
        f"{NAME}--imagenet2012-steps_20k-lr_0.03",
    ],
)
def test_another_name_is_not_known(name):
    assert find_pretrained(name) is None


# -------------------------------------------------------------- a small server


class Bucket(http.server.ThreadingHTTPServer):
    """Serves `files` and records the requests.

    Args:
        files: What is at each path.
        requests: (path, Range) of each request so far.
        breaks: After how many bytes each answer ends, of the first ones.
        hashes: Values of x-goog-hash, by path.
        tags: ETag of each path that has one; heeded in If-Range.
        conditions: If-Range of each request so far.
        knows_ranges: Whether it answers to Range, and with 206.
        tells_length: Whether it says how long an answer is.
        delay: Seconds before an answer.
    """

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Answer)
        self.files, self.requests, self.breaks = {}, [], []
        self.hashes, self.tags, self.conditions = {}, {}, []
        self.knows_ranges = self.tells_length = True
        self.delay = 0

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}"

    def ranges(self):
        """Return the Range of every request so far."""
        return [asked for _, asked in self.requests]

    def handle_error(self, request, client_address):
        pass  # The client has left, as some tests mean it to.


class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        bucket = self.server
        path = urllib.parse.unquote(self.path)
        asked = self.headers.get("Range")
        condition = self.headers.get("If-Range")
        bucket.requests.append((path, asked))
        bucket.conditions.append(condition)
        time.sleep(bucket.delay)
        if path not in bucket.files:
            self.send_error(404)
            return
        data, status = bucket.files[path], 200
        if condition not in (None, bucket.tags.get(path)):
            asked = None  # Another version: all of it.
        if asked and bucket.knows_ranges:
            assert asked.startswith("bytes=") and asked.endswith("-")
            start = int(asked[6:-1])
            if start >= len(data):
                self.send_response(416)
                self.send_header("Content-Range", f"bytes */{len(data)}")
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            data, status = data[start:], 206
        self.send_response(status)
        if bucket.tells_length:
            self.send_header("Content-Length", str(len(data)))
        if path in bucket.tags:
            self.send_header("ETag", bucket.tags[path])
        for value in bucket.hashes.get(path, ()):
            self.send_header("x-goog-hash", value)
        self.end_headers()
        if bucket.breaks:
            data = data[: bucket.breaks.pop(0)]
        self.wfile.write(data)

    def log_message(self, *_):
        pass


@pytest.fixture
def bucket():
    with Bucket() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


DATA = np.random.default_rng(0).bytes(300_000)
SHA256 = hashlib.sha256(DATA).hexdigest()


def goog(data, name="md5"):
    """Return a line of x-goog-hash, as Google's storage writes it."""
    digest = base64.b64encode(hashlib.md5(data).digest()).decode()
    return f"{name}={digest}"


@pytest.fixture
def path(bucket, tmp_path):
    """Return where to put DATA, which the bucket has at /file.npz."""
    bucket.files["/file.npz"] = DATA
    # Google's storage always sends an ETag.
    bucket.tags["/file.npz"] = '"data"'
    return tmp_path / "folder" / "deeper" / "file.npz"


def left_beside(path):
    """Return the names in the folder of `path`; a lock may stay."""
    names = sorted(file.name for file in path.parent.iterdir())
    return [n for n in names if not n.endswith((".lock", ".version"))]


def assert_nothing_is_there(path):
    """Fail if `path` or anything but the start of a download exists."""
    if path.parent.exists():
        assert set(left_beside(path)) <= {f"{path.name}.part"}


# ---------------------------------------------------------------------- fetch


@pytest.mark.parametrize("chunk", [1000, 2**20])
def test_a_file_is_fetched_whole(bucket, path, chunk, monkeypatch):
    monkeypatch.setattr(hub, "CHUNK_BYTES", chunk)
    assert fetch(f"{bucket.url}/file.npz", path) == path
    assert path.read_bytes() == DATA
    assert bucket.requests == [("/file.npz", None)]
    # What is beside it is its checksum, as sha256sum writes and reads it.
    assert left_beside(path) == ["file.npz", "file.npz.sha256"]
    record = path.with_name("file.npz.sha256").read_text()
    assert record == f"{SHA256}  file.npz\n"


def test_a_file_that_is_there_is_not_asked_for(bucket, path):
    path.parent.mkdir(parents=True)
    path.write_bytes(b"mine")
    assert fetch(f"{bucket.url}/file.npz", str(path)) == path
    assert path.read_bytes() == b"mine"
    assert bucket.requests == []


def test_halves_of_different_files_are_not_put_together(bucket, path):
    """Without a checksum, nothing else would detect this."""
    bucket.tags["/file.npz"] = '"one"'
    bucket.breaks = [1000]
    with pytest.raises(ConnectionError):
        fetch(f"{bucket.url}/file.npz", path)
    other = DATA[::-1]
    bucket.files["/file.npz"], bucket.tags["/file.npz"] = other, '"two"'
    bucket.breaks = [2000]
    with pytest.raises(ConnectionError):
        fetch(f"{bucket.url}/file.npz", path)
    fetch(f"{bucket.url}/file.npz", path)
    assert path.read_bytes() == other
    assert bucket.ranges() == [None, "bytes=1000-", "bytes=2000-"]
    assert not path.with_name("file.npz.part.version").exists()


@pytest.mark.parametrize("chunk", [1000, 2**20])
def test_an_interrupted_download_is_resumed(bucket, path, chunk, monkeypatch):
    monkeypatch.setattr(hub, "CHUNK_BYTES", chunk)
    bucket.breaks = [100_001, 50_000]
    for have in ("100,001 of 300,000", "150,001 of 300,000"):
        with pytest.raises(ConnectionError, match=f"broke off after {have}"):
            fetch(f"{bucket.url}/file.npz", path)
        assert_nothing_is_there(path)
    part = path.with_name("file.npz.part")
    assert part.read_bytes() == DATA[:150_001]
    fetch(f"{bucket.url}/file.npz", path, SHA256)
    assert path.read_bytes() == DATA
    assert not part.exists()
    assert bucket.ranges() == [None, "bytes=100001-", "bytes=150001-"]


def test_a_server_that_knows_no_ranges_sends_all_again(bucket, path):
    bucket.knows_ranges = False
    bucket.breaks = [100_001]
    with pytest.raises(ConnectionError):
        fetch(f"{bucket.url}/file.npz", path)
    fetch(f"{bucket.url}/file.npz", path, SHA256)
    assert path.read_bytes() == DATA
    assert bucket.ranges() == [None, "bytes=100001-"]


@pytest.mark.parametrize("left", [DATA, DATA + b"more", b"x" * 400_000])
def test_what_cannot_be_completed_is_fetched_again(bucket, path, left):
    path.parent.mkdir(parents=True)
    path.with_name("file.npz.part").write_bytes(left)
    path.with_name("file.npz.part.version").write_text('"data"')
    fetch(f"{bucket.url}/file.npz", path, SHA256)
    assert path.read_bytes() == DATA
    assert bucket.ranges() == [f"bytes={len(left)}-", None]


def test_a_server_that_does_not_say_how_long_a_file_is(bucket, path):
    bucket.tells_length = False
    fetch(f"{bucket.url}/file.npz", path, SHA256)
    assert path.read_bytes() == DATA


def test_the_md5_of_googles_storage_is_checked(bucket, path):
    # As the storage sends it: two lines, or one with a comma.
    for lines in (
        ["crc32c=n03x6A==", goog(DATA)],
        [f"crc32c=n03x6A==,{goog(DATA)}"],
        ["crc32c=n03x6A=="],
    ):
        bucket.hashes["/file.npz"] = lines
        fetch(f"{bucket.url}/file.npz", path)
        assert path.read_bytes() == DATA
        path.unlink()


@pytest.mark.parametrize("lines", [["{}"], ["crc32c=AAAAAA==, {}"]])
def test_a_wrong_md5_is_an_error(bucket, path, lines):
    wrong = goog(b"something else")
    bucket.hashes["/file.npz"] = [line.format(wrong) for line in lines]
    with pytest.raises(ValueError) as error:
        fetch(f"{bucket.url}/file.npz", path, SHA256)
    assert str(error.value) == (
        "file.npz was damaged in transfer or has changed: its md5 is "
        f"{hashlib.md5(DATA).hexdigest()} and should be "
        f"{hashlib.md5(b'something else').hexdigest()}."
    )
    # What is wrong is not gone on with.
    assert left_beside(path) == []
    bucket.hashes.clear()
    fetch(f"{bucket.url}/file.npz", path, SHA256)
    assert bucket.ranges() == [None, None]


def test_a_wrong_sha256_is_an_error(bucket, path):
    wrong = hashlib.sha256(b"something else").hexdigest()
    with pytest.raises(ValueError) as error:
        fetch(f"{bucket.url}/file.npz", path, wrong)
    assert f"its sha256 is {SHA256} and should be {wrong}." in str(error.value)
    assert left_beside(path) == []


def test_a_file_that_changed_between_two_halves_is_an_error(bucket, path):
    bucket.breaks = [100_000]
    with pytest.raises(ConnectionError):
        fetch(f"{bucket.url}/file.npz", path)
    changed = DATA[::-1]
    bucket.files["/file.npz"] = changed  # And its ETag stays, wrongly.
    bucket.hashes["/file.npz"] = [goog(changed)]
    with pytest.raises(ValueError, match="its md5 is"):
        fetch(f"{bucket.url}/file.npz", path)
    assert left_beside(path) == []
    fetch(f"{bucket.url}/file.npz", path)
    assert path.read_bytes() == changed


def test_two_halves_are_of_one_version(bucket, path):
    """No checksum is sent: only the version shows that the file changed."""
    bucket.tags["/file.npz"] = '"one"'
    bucket.breaks = [100_000, 50_000]
    for _ in range(2):
        with pytest.raises(ConnectionError):
            fetch(f"{bucket.url}/file.npz", path)
    # The same version goes on, another one starts anew.
    bucket.files["/file.npz"] = changed = DATA[::-1]
    bucket.tags["/file.npz"] = '"two"'
    fetch(f"{bucket.url}/file.npz", path)
    assert path.read_bytes() == changed
    assert bucket.ranges() == [None, "bytes=100000-", "bytes=150000-"]
    assert bucket.conditions == [None, '"one"', '"one"']
    # No version is left to be taken for that of the next file.
    assert left_beside(path) == ["file.npz", "file.npz.sha256"]


@pytest.mark.parametrize("tag", [None, 'W/"one"'])
def test_without_a_strong_version_a_download_starts_again(bucket, path, tag):
    """RFC 9110, 13.1.5: If-Range takes no weak tag.

    Nothing else would tell that the file has changed in between.
    """
    bucket.tags.pop("/file.npz")
    if tag:
        bucket.tags["/file.npz"] = tag
    bucket.breaks = [100_000]
    with pytest.raises(ConnectionError):
        fetch(f"{bucket.url}/file.npz", path)
    bucket.files["/file.npz"] = changed = DATA[::-1]
    fetch(f"{bucket.url}/file.npz", path)
    assert path.read_bytes() == changed
    assert bucket.ranges() == bucket.conditions == [None, None]


def test_a_version_of_an_earlier_file_is_forgotten(bucket, path):
    """The second answer has no version: the first one's is not its own."""
    bucket.breaks = [100_000, 50_000]
    with pytest.raises(ConnectionError):
        fetch(f"{bucket.url}/file.npz", path)
    bucket.files["/file.npz"] = DATA[::-1]
    bucket.tags.clear()
    with pytest.raises(ConnectionError):
        fetch(f"{bucket.url}/file.npz", path)
    fetch(f"{bucket.url}/file.npz", path)
    assert path.read_bytes() == DATA[::-1]
    assert bucket.ranges() == [None, "bytes=100000-", None]


def test_a_server_that_falls_silent_is_an_error(path, monkeypatch):
    monkeypatch.setattr(hub, "TIMEOUT_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        # It listens and never answers; without a limit it hangs up itself.
        stop = threading.Timer(5, listener.close)
        stop.start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/file.npz"
        with pytest.raises(ConnectionError, match="timed out"):
            fetch(url, path)
        stop.cancel()


def test_a_known_checksum_is_not_recorded(bucket, path, capsys):
    fetch(f"{bucket.url}/file.npz", path, SHA256)
    assert left_beside(path) == ["file.npz"]
    assert "sha256" not in capsys.readouterr().out


def test_the_recorded_checksum_is_said_once_and_holds(bucket, path, capsys):
    url = f"{bucket.url}/file.npz"
    fetch(url, path)
    record = path.with_name("file.npz.sha256")
    assert capsys.readouterr().out.endswith(
        f"No checksum is published for file.npz; {SHA256} (sha256) is "
        f"recorded in {record}.\n"
    )
    path.unlink()
    fetch(url, path)
    assert "checksum" not in capsys.readouterr().out
    path.unlink()
    bucket.files["/file.npz"] = changed = DATA[:-1] + b"!"
    with pytest.raises(ValueError, match=f"and should be {SHA256}"):
        fetch(url, path)
    assert left_beside(path) == [record.name]
    # Whoever knows of the change may say so.
    record.unlink()
    fetch(url, path)
    assert path.read_bytes() == changed


def test_progress_is_shown_of_the_whole_file(bucket, path, capsys):
    bucket.breaks = [100_000]
    with pytest.raises(ConnectionError):
        fetch(f"{bucket.url}/file.npz", path)
    fetch(f"{bucket.url}/file.npz", path, SHA256)
    assert capsys.readouterr() == ("Downloading: 0.3/0.3 MB\n", "")


def test_a_file_that_is_not_there_is_an_error(bucket, path):
    url = f"{bucket.url}/missing.npz"
    with pytest.raises(ConnectionError) as error:
        fetch(url, path)
    assert str(error.value).startswith(
        f"{url} could not be fetched: HTTP Error 404: Not Found. "
    )
    assert_nothing_is_there(path)


def refused_url():
    """Return a URL at which nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return f"http://127.0.0.1:{listener.getsockname()[1]}/file.npz"


def test_without_a_connection_the_error_says_what_to_put_where(tmp_path):
    url, path = refused_url(), tmp_path / "cache" / "file.npz"
    with pytest.raises(ConnectionError) as error:
        fetch(url, path)
    message = str(error.value)
    assert message.startswith(f"{url} could not be fetched: ")
    assert message.endswith(
        ". On a machine with a connection, download it and put it at "
        f"{path}; or set KERAS_VIT_MIRROR to a copy of the bucket."
    )
    assert isinstance(error.value.__cause__, OSError)
    assert_nothing_is_there(path)
    assert not path.with_name("file.npz.part").exists()
    # And doing so helps.
    path.write_bytes(DATA)
    assert fetch(url, path) == path


def test_the_error_of_a_server_does_not_keep_the_connection(bucket, path):
    # Python would warn of it whenever the error is collected.
    with pytest.raises(ConnectionError) as error:
        fetch(f"{bucket.url}/missing.npz", path)
    assert error.value.__cause__.code == 404
    assert error.value.__cause__.closed


@contextlib.contextmanager
def raw_server(answer):
    """Yield the URL of a server that sends `answer` to every request."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve():
            connection, _ = listener.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}/file.npz"
        finally:
            thread.join()


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n100\r\nabc",
        b"SSH-2.0-OpenSSH_9.6\r\n",
        b"",
    ],
    ids=["chunks that break off", "no HTTP", "nothing"],
)
def test_whatever_is_wrong_with_the_answer_is_a_connection_error(
    answer, tmp_path
):
    path = tmp_path / "file.npz"
    with raw_server(answer) as url:
        with pytest.raises(ConnectionError, match="could not be fetched"):
            fetch(url, path)
    assert_nothing_is_there(path)


def fetch_together(bucket, path, count=3):
    with concurrent.futures.ThreadPoolExecutor(count) as pool:
        jobs = [
            pool.submit(fetch, f"{bucket.url}/file.npz", path)
            for _ in range(count)
        ]
        return [job.result(timeout=120) for job in jobs]


fcntl_only = pytest.mark.skipif(
    not pathlib.Path("/dev/null").exists(), reason="Windows has no fcntl."
)


# A lock belongs to the open file, so threads wait as processes do.
@fcntl_only
def test_several_at_once_download_once(bucket, path):
    bucket.delay = 0.3
    assert fetch_together(bucket, path) == [path] * 3
    assert path.read_bytes() == DATA
    assert bucket.ranges() == [None]
    assert left_beside(path) == ["file.npz", "file.npz.sha256"]


@fcntl_only
def test_others_wait_until_a_file_is_checked(bucket, path, monkeypatch):
    # Of a gigabyte the checksums take seconds.
    check = hub._check

    def slow(*arguments):
        time.sleep(0.3)
        check(*arguments)

    monkeypatch.setattr(hub, "_check", slow)
    bucket.delay = 0.1
    assert fetch_together(bucket, path) == [path] * 3
    assert path.read_bytes() == DATA
    assert bucket.ranges() == [None]


@fcntl_only
def test_others_fetch_anew_what_one_found_damaged(bucket, path):
    # The second process waits for a file that is then discarded.
    bucket.delay = 0.1
    bucket.hashes["/file.npz"] = [goog(b"something else")]
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        jobs = [
            pool.submit(fetch, f"{bucket.url}/file.npz", path, SHA256)
            for _ in range(2)
        ]
        for job in jobs:
            error = job.exception(timeout=120)
            assert isinstance(error, ValueError), repr(error)
    assert_nothing_is_there(path)


# --------------------------------------------------------------------- locate


@pytest.fixture
def fetched(monkeypatch):
    """Return the list of the files to fetch, which are not fetched."""
    calls = []

    def note(url, path, sha256=None):
        calls.append((url, path, sha256))
        return path

    monkeypatch.setattr(hub, "fetch", note)
    return calls


def test_a_path_goes_before_a_name(tmp_path, monkeypatch, fetched):
    monkeypatch.chdir(tmp_path)
    file = pathlib.Path("B", "16-sam")
    assert locate("B/16-sam") != file
    assert len(fetched) == 1
    file.parent.mkdir()
    file.touch()
    assert locate("B/16-sam") == file
    assert locate(file) == file
    assert locate(tmp_path) == tmp_path
    assert len(fetched) == 1


def test_a_path_of_the_home_folder(tmp_path, monkeypatch, fetched):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    (tmp_path / "model.npz").touch()
    assert locate("~/model.npz") == tmp_path / "model.npz"
    assert fetched == []


def test_a_name_is_fetched_into_the_cache(tmp_path, fetched):
    expected = (
        tmp_path / "cache" / "vit_models" / "imagenet21k" / "ViT-B_16.npz"
    )
    assert locate("B/16-i21k") == expected
    row = PRETRAINED["B/16-i21k"]
    assert fetched == [(row.url, expected, row.sha256)]


@pytest.mark.parametrize("name", [*PRETRAINED, NAME])
def test_every_name_stays_inside_the_cache(name, tmp_path, fetched):
    path = locate(name)
    assert tmp_path / "cache" in path.parents
    assert ".." not in path.parts
    assert path.suffix == ".npz"
    assert fetched[0][0] == find_pretrained(name).url


def test_names_have_places_of_their_own(fetched):
    assert len({locate(name) for name in PRETRAINED}) == len(PRETRAINED)


def test_the_cache_is_below_the_folder_of_keras(tmp_path, monkeypatch, fetched):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    monkeypatch.delenv("KERAS_HOME", raising=False)
    monkeypatch.delenv("KERAS_VIT_CACHE")
    path = locate("B/16-sam")
    assert (
        path == tmp_path / ".keras" / "keras_vit" / PRETRAINED["B/16-sam"].file
    )
    monkeypatch.setenv("KERAS_VIT_CACHE", "")
    assert locate("B/16-sam") == path


def test_the_cache_follows_the_folder_of_keras(tmp_path, monkeypatch, fetched):
    monkeypatch.delenv("KERAS_VIT_CACHE")
    monkeypatch.setenv("KERAS_HOME", str(tmp_path / "elsewhere"))
    file = PRETRAINED["B/16-sam"].file
    assert locate("B/16-sam") == tmp_path / "elsewhere" / "keras_vit" / file


@pytest.mark.parametrize("text", ["", "."])
def test_an_empty_name_is_not_the_current_folder(text, fetched):
    if text:
        assert locate(text) == pathlib.Path(".")
        return
    with pytest.raises(ValueError, match="There is no file ''"):
        locate(text)


def test_the_folder_of_the_cache_may_be_in_the_home_folder(
    tmp_path, monkeypatch, fetched
):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    monkeypatch.setenv("KERAS_VIT_CACHE", "~/weights")
    file = PRETRAINED["B/16-sam"].file
    assert locate("B/16-sam") == tmp_path / "weights" / file


@pytest.mark.parametrize(
    ("text", "url"),
    [
        (
            "gs://vit_models/sam/ViT-B_16.npz",
            "https://storage.googleapis.com/vit_models/sam/ViT-B_16.npz",
        ),
        ("https://example.org/a/ViT-B_16.npz", None),
        ("http://example.org/a/ViT-B_16.npz?download=true", None),
    ],
)
def test_a_url_is_fetched_into_the_cache(text, url, tmp_path, fetched):
    path = locate(text)
    ((asked, where, sha256),) = fetched
    assert asked == (url or text)
    assert where == path
    assert sha256 is None
    assert path.name == "ViT-B_16.npz"
    assert path.parents[1] == tmp_path / "cache" / "url"
    # One place for one URL, and for it only.
    assert locate(text) == path
    assert locate(text.replace("ViT", "a/ViT")) != path


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("B/16-augregs", " Did you mean 'B/16-augreg' or "),
        ("L/16-i21k-i1k", "'L/16-i21k+i1k'"),
        ("zzz", ""),
        ("missing.npz", ""),
    ],
)
def test_an_unknown_name_is_an_error_that_suggests_others(name, hint, fetched):
    with pytest.raises(ValueError) as error:
        locate(name)
    message = str(error.value)
    assert message.startswith(
        f"There is no file {name!r}, and no pretrained model of that name; "
        "`keras_vit.PRETRAINED` and `keras_vit.HUB_MODELS` list them."
    )
    assert hint in message
    assert ("Did you mean" in message) == bool(hint)
    assert fetched == []


@pytest.mark.parametrize("path", ["/nope", "~/nope", "./nope", "../nope"])
def test_a_path_that_does_not_exist_is_not_taken_for_a_name(path, fetched):
    with pytest.raises(ValueError) as error:
        locate(path)
    assert str(error.value) == f"There is no file or folder {path!r}."
    assert fetched == []


@pytest.mark.parametrize("name", ["owner/name", "nope/", "-/name"])
def test_a_repository_is_proposed_if_it_can_be_one(name, fetched):
    with pytest.raises(ValueError) as error:
        locate(name)
    is_proposed = f"hub is named 'hf://{name}'" in str(error.value)
    assert is_proposed == (name == "owner/name")


@pytest.mark.parametrize("value", [None, 3, b"B/16-augreg", ["B/16-augreg"]])
def test_what_is_no_path_is_an_error_that_shows_it(value):
    with pytest.raises(ValueError) as error:
        locate(value)
    assert str(error.value) == (
        "`path_or_name` must be a path, a URL or a name. "
        f"Received: path_or_name={value!r}"
    )


def test_a_mirror_goes_before_the_bucket(monkeypatch):
    row = PRETRAINED["B/16-sam"]
    for mirror in ("https://example.org/vit", "https://example.org/vit/"):
        monkeypatch.setenv("KERAS_VIT_MIRROR", mirror)
        assert row.url == f"https://example.org/vit/{row.file}"
    monkeypatch.setenv("KERAS_VIT_MIRROR", "")
    assert row.url.startswith("https://storage.googleapis.com/vit_models/")


# ------------------------------------------------------- `weights=` of builders

# The sizes of the golden files; they have the 3 heads of Ti/16.
TINY = {"width": 24, "depth": 2, "mlp_dim": 48, "patch_size": 8}


def expected_of(case):
    with np.load(GOLDEN / f"{case}.expected.npz") as file:
        return {key: file[key] for key in file.files}


@pytest.fixture
def timm(tmp_path):
    """Return a timm file with 7 classes, without the JSON beside it."""
    path = tmp_path / "model.safetensors"
    shutil.copyfile(GOLDEN / "timm_token.safetensors", path)
    return path


def tiny(weights, **arguments):
    return ViT_Ti16(
        weights=weights,
        **{"classes": 7, "classifier_activation": None, **TINY, **arguments},
    )


def assert_answers(model, x, expected, atol=1e-5):
    answers = to_numpy(model(x))
    assert answers.shape == expected.shape
    np.testing.assert_allclose(answers, expected, rtol=0, atol=atol)


def test_a_name_is_fetched_from_the_mirror(bucket, tmp_path, monkeypatch):
    # A smaller model in the place of Ti/16.
    monkeypatch.setenv("KERAS_VIT_MIRROR", f"{bucket.url}/copy")
    file = PRETRAINED["Ti/16-augreg"].file
    data = (GOLDEN / "official_token.npz").read_bytes()
    bucket.files[f"/copy/{file}"] = data
    bucket.hashes[f"/copy/{file}"] = [goog(data)]
    expected = expected_of("official_token")
    # With the variant, without it, and as AugReg calls it.
    for name in ("augreg", "Ti/16-augreg", NAME):
        model = tiny(name)
        assert_answers(model, expected["x"], expected["logits"])
        assert model.config.activation == "tanh"
    model = from_checkpoint("Ti/16-augreg")
    assert_answers(model, expected["x"], expected["logits"])
    assert bucket.requests == [(f"/copy/{file}", None)]
    assert (tmp_path / "cache" / file).read_bytes() == data


def test_a_file_of_big_vision_is_asked_of_the_mirror(bucket, monkeypatch):
    monkeypatch.setenv("KERAS_VIT_MIRROR", bucket.url)
    with pytest.raises(ConnectionError, match="404"):
        locate("S/16-i1k-90ep")
    ((path, _),) = bucket.requests
    assert path.endswith("/big_vision/vit_s16_i1k_90ep.npz")
    assert ".." not in path


def test_offline_a_builder_says_what_to_put_where(tmp_path, monkeypatch):
    monkeypatch.setenv("KERAS_VIT_MIRROR", refused_url())
    with pytest.raises(ConnectionError) as error:
        ViT_B16(weights="sam")
    path = tmp_path / "cache" / "vit_models" / "sam" / "ViT-B_16.npz"
    assert f"put it at {path};" in str(error.value)


def test_a_checkpoint_of_a_variant_with_another_depth(tmp_path):
    path = tmp_path / "model.npz"
    source = randomize(ViT_Ti16(depth=1, classifier_activation=None))
    save_checkpoint(source, path)
    model = ViT_Ti16(depth=1, weights=path)
    assert model.config.image_size == (224, 224)
    assert model.output_shape == (None, 1000)
    x = noise(1, 224, 224, 3)
    scores = to_numpy(source(x))
    scores = np.exp(scores - scores.max())
    assert_answers(model, x, scores / scores.sum())
    with pytest.raises(ValueError) as error:
        ViT_Ti16(weights=path)
    assert str(error.value) == (
        f"`weights`: {path} is not a ViT_Ti16: it has depth=1 and not 12. Use "
        "`keras_vit.from_checkpoint` for a model of any size."
    )


def test_what_is_not_chosen_is_that_of_the_checkpoint(timm):
    model = tiny(timm)
    assert model.name == "vit_ti16"
    assert model.config.activation == "exact"
    assert model.config.image_size == (32, 32)
    assert model.config.pooling == "token"
    assert model.load_report.layout == "timm"
    assert model.load_report.reset == model.load_report.ignored == ()
    expected = expected_of("timm_token")
    assert_answers(model, expected["x"], expected["logits"])
    # A string does as well.
    assert_answers(tiny(str(timm)), expected["x"], expected["logits"])


def test_the_pre_logits_layer_of_a_checkpoint_stays():
    path = GOLDEN / "official_pre_logits.npz"
    expected = expected_of("official_pre_logits")
    model = tiny(path)
    assert model.config.representation_size
    assert_answers(model, expected["x"], expected["logits"])


def test_a_checkpoint_without_a_class_token():
    path = GOLDEN / "timm_avg.safetensors"
    expected = expected_of("timm_avg")
    model = tiny(path)
    assert model.config.use_pooling_norm
    assert_answers(model, expected["x"], expected["logits"])


def test_the_activation_is_that_of_the_builder(timm):
    expected = expected_of("timm_token")
    scores = np.exp(expected["logits"])
    scores /= scores.sum(axis=1, keepdims=True)
    model = tiny(timm, classifier_activation="softmax")
    assert_answers(model, expected["x"], scores)
    model = ViT_Ti16(weights=timm, classes=7, **TINY)
    assert_answers(model, expected["x"], scores)


@pytest.mark.parametrize("dtype", ["mixed_bfloat16", "bfloat16"])
def test_the_type_is_that_of_the_builder(timm, dtype):
    model = tiny(timm, dtype=dtype)
    assert model.get_layer("block_00").compute_dtype == "bfloat16"
    expected = expected_of("timm_token")
    assert_answers(model, expected["x"], expected["logits"], atol=0.1)


def test_a_default_of_1000_classes_is_warned_of_in_the_callers_line(timm):
    with pytest.warns(UserWarning) as caught:
        model = ViT_Ti16(weights=timm, **TINY)
    (warning,) = caught
    message = str(warning.message)
    assert message.startswith("The classifier of ViT_Ti16 is new")
    assert "1,000 classes" in message
    assert str(timm) in message
    assert message.endswith("Pass `classes` to set another number.")
    assert warning.filename == __file__
    assert model.output_shape == (None, 1000)
    kernel, bias = model.get_layer("predictions").get_weights()
    assert not kernel.any() and not bias.any()


def test_other_classes_are_a_choice(timm):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = tiny(timm, classes=10)
    assert model.output_shape == (None, 10)
    assert model.load_report.reset == ("predictions/kernel", "predictions/bias")
    expected = expected_of("timm_token")
    assert_answers(model, expected["x"], np.zeros((2, 10), "float32"))
    encoder = keras.Model(model.input, model.get_layer("encoder_norm").output)
    assert_answers(encoder, expected["x"], expected["tokens"])


@pytest.mark.parametrize(
    ("pooling", "pool"),
    [
        (None, lambda tokens: tokens),
        ("none", lambda tokens: tokens),
        ("token", lambda tokens: tokens[:, 0]),
        ("avg", lambda tokens: tokens[:, 1:].mean(axis=1)),
        ("max", lambda tokens: tokens[:, 1:].max(axis=1)),
    ],
)
def test_features_of_a_checkpoint_with_a_head(timm, pooling, pool):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        # 1000 classes, the default, is no choice without a classifier.
        model = ViT_Ti16(
            include_top=False, pooling=pooling, weights=timm, **TINY
        )
    expected = expected_of("timm_token")
    assert_answers(model, expected["x"], pool(expected["tokens"]))
    assert set(model.load_report.ignored) == {"head.weight", "head.bias"}


def test_another_pooling_before_the_head_is_a_choice(timm):
    model = tiny(timm, pooling="avg")
    assert model.config.pooling == "avg"
    (note,) = model.load_report.notes
    assert "pooling='token', the model with pooling='avg'" in note
    expected = expected_of("timm_token")
    kernel, bias = model.get_layer("predictions").get_weights()
    features = expected["tokens"][:, 1:].mean(axis=1)
    assert_answers(model, expected["x"], features @ kernel + bias)


def test_an_explicit_gelu_is_kept_and_noted_without_a_warning(timm):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = tiny(timm, activation="tanh")
    assert model.config.activation == "tanh"
    (note,) = model.load_report.notes
    assert note.startswith("The source computes with activation='exact'")
    expected = expected_of("timm_token")
    difference = np.abs(to_numpy(model(expected["x"])) - expected["logits"])
    assert 2e-5 < difference.max() < 1e-2


def test_other_choices_reach_the_model(timm):
    model = tiny(timm, dropout_rate=0.3, layer_norm_epsilon=1e-3)
    assert model.config.dropout_rate == 0.3
    assert model.config.layer_norm_epsilon == 1e-3


def positions_of(path, new):
    from safetensors.numpy import load_file

    table = load_file(path)["pos_embed"][0]
    return resize_positions(table, (4, 4), new, "bicubic_antialias")


@pytest.mark.parametrize("size", [(48, 32), (64, 64), (24, 40)])
def test_positions_are_resized_to_the_input(timm, size):
    model = tiny(timm, input_shape=(*size, 3))
    assert model.input_shape == (None, *size, 3)
    assert model.config.image_size == size
    new = tuple(side // 8 for side in size)
    (table,) = model.get_layer("position_embedding").get_weights()
    np.testing.assert_allclose(table, positions_of(timm, new), atol=1e-6)
    (line,) = model.load_report.resized
    assert f"4x4 patches to {new[0]}x{new[1]} (bicubic_antialias)" in line


def test_the_rectangle_of_a_file_is_told_by_the_input(tmp_path):
    path = tmp_path / "model.safetensors"
    shutil.copyfile(GOLDEN / "timm_rect.safetensors", path)
    expected = expected_of("timm_rect")
    shape = expected["x"].shape[1:]
    model = tiny(path, input_shape=shape)
    assert model.load_report.resized == ()
    assert_answers(model, expected["x"], expected["logits"])


def test_an_open_input_accepts_the_size_of_the_file_and_others(timm):
    model = tiny(timm, input_shape=(None, None, 3))
    assert model.input_shape == (None, None, None, 3)
    expected = expected_of("timm_token")
    assert_answers(model, expected["x"], expected["logits"])
    # The model resizes the positions in each call, by the rule of timm.
    fixed = from_checkpoint(timm, image_size=(48, 32), num_heads=3)
    x = noise(1, 48, 32, 3)
    assert_answers(model, x, to_numpy(fixed(x)))


def test_a_grey_input_answers_as_its_copies_do(timm):
    model = tiny(timm, input_shape=(32, 32, 1))
    grey = noise(2, 32, 32, 1)
    colours = to_numpy(tiny(timm)(np.repeat(grey, 3, axis=-1)))
    assert_answers(model, grey, colours)


def test_an_input_tensor_takes_the_weights(timm):
    inputs = keras.Input((32, 32, 3))
    x = keras.layers.Conv2D(3, 1, name="before")(inputs)
    model = tiny(timm, input_tensor=x)
    assert model.get_layer("before").kernel.shape == (1, 1, 3, 3)
    model.get_layer("before").set_weights(
        [np.eye(3, dtype="float32")[None, None], np.zeros(3, "float32")]
    )
    expected = expected_of("timm_token")
    assert_answers(model, expected["x"], expected["logits"])
    assert model.load_report.layout == "timm"


def test_another_variant_is_an_error_that_names_the_differences(timm):
    with pytest.raises(ValueError) as error:
        ViT_Ti16(weights=timm, classes=7)
    assert str(error.value) == (
        f"`weights`: {timm} is not a ViT_Ti16: it has width=24 and not 192, "
        "depth=2 and not 12, mlp_dim=48 and not 768, patch_size=8 and not 16. "
        "Use `keras_vit.from_checkpoint` for a model of any size."
    )


def test_a_hybrid_is_not_a_plain_vit():
    # All that is said of Ti/16 and its hybrid is the same but for the stem.
    path = GOLDEN / "official_hybrid_root_only.npz"
    with pytest.raises(ValueError, match=r"stem_stages=\(\) and not None"):
        tiny(path)


def test_the_number_of_heads_is_a_choice_where_a_file_does_not_say(timm):
    # timm does not store it.
    model = tiny(timm, num_heads=6)
    assert model.config.num_heads == 6


def test_a_file_in_the_home_folder(timm, monkeypatch):
    monkeypatch.setenv("HOME", str(timm.parent))
    monkeypatch.setenv("USERPROFILE", str(timm.parent))
    expected = expected_of("timm_token")
    model = tiny(f"~/{timm.name}")
    assert_answers(model, expected["x"], expected["logits"])


@pytest.mark.parametrize("build", [tiny, from_checkpoint])
def test_a_url_is_fetched(build, bucket, timm, tmp_path):
    bucket.files["/some/model.safetensors"] = timm.read_bytes()
    choices = {} if build is tiny else {"num_heads": 3}
    expected = expected_of("timm_token")
    for _ in range(2):
        model = build(f"{bucket.url}/some/model.safetensors", **choices)
        assert_answers(model, expected["x"], expected["logits"])
    assert bucket.requests == [("/some/model.safetensors", None)]
