"""Downloads, of files and of repositories, and the cache.

Nothing here leaves this machine: files come from a server in a thread.
"""

import base64
import concurrent.futures
import contextlib
import hashlib
import http.server
import json
import pathlib
import re
import socket
import threading
import time
import urllib.parse

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from keras_vit import ViT_Ti16, from_checkpoint, load_text_encoder
from keras_vit.weights import HUB_MODELS, PRETRAINED, hub
from keras_vit.weights.families.timm_tables import fields_of
from keras_vit.weights.hub import (
    TOKENIZER_FILES,
    Repository,
    fetch,
    find_pretrained,
    locate,
    parse_repository,
)
from tests.tiny import to_numpy
from tests.weights.cases import TIMM, TOKEN, answer_of, expected_of, path_of
from tests.weights.test_pretrained import AUGREG, TINY


class Server(http.server.ThreadingHTTPServer):
    """Serves `files` from memory and records the requests.

    Args:
        files: What is at each path.
        requests: Path and headers of each request so far.
        breaks: After how many bytes each answer ends, of the first ones.
        hashes: Values of x-goog-hash, by path.
        tags: ETag of each path that has one; heeded in If-Range.
        knows_ranges: Whether it answers to Range, and with 206.
        tells_length: Whether it says how long an answer is.
        delay: Seconds before an answer.
        token: The token without which it gives nothing; None for everybody.
        moved: Address of another server, to which weights are redirected.
    """

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Answer)
        self.files, self.requests, self.breaks = {}, [], []
        self.hashes, self.tags = {}, {}
        self.knows_ranges = self.tells_length = True
        self.delay, self.token, self.moved = 0, None, None

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}"

    def asked(self, name):
        """Return a header of every request so far, or the paths."""
        return [request.get(name) for request in self.requests]

    def handle_error(self, request, client_address):
        pass  # The client has left, as some tests mean it to.

    @contextlib.contextmanager
    def running(self):
        with self:
            thread = threading.Thread(target=self.serve_forever, args=(0.01,))
            thread.start()
            yield self
            self.shutdown()
            thread.join()


class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        server, path = self.server, urllib.parse.unquote(self.path)
        server.requests.append({"path": path, **self.headers})
        asked, tag = self.headers.get("Range"), server.tags.get(path)
        time.sleep(server.delay)
        if server.token and (
            self.headers.get("Authorization") != f"Bearer {server.token}"
        ):
            return self.send_error(401)
        if path not in server.files:
            return self.send_error(404)
        data, headers, status = server.files[path], [], 200
        if server.moved and path.endswith(".safetensors"):
            headers.append(("Location", server.moved + path))
            data, status = b"", 302
        if self.headers.get("If-Range", tag) != tag:
            asked = None  # Another version: all of it.
        if asked and server.knows_ranges:
            start = int(re.fullmatch(r"bytes=(\d+)-", asked)[1])
            status = 206 if start < len(data) else 416
            data = data[start:]
        if server.tells_length:
            headers.append(("Content-Length", str(len(data))))
        if tag:
            headers.append(("ETag", tag))
        headers += [("x-goog-hash", x) for x in server.hashes.get(path, ())]
        self.send_response(status)
        for header in headers:
            self.send_header(*header)
        self.end_headers()
        self.wfile.write(
            data[: server.breaks.pop(0)] if server.breaks else data
        )

    def log_message(self, *_):
        pass


@pytest.fixture(autouse=True)
def at_home(monkeypatch, tmp_path):
    """Keep the environment of whoever runs the tests out of them."""
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    monkeypatch.setenv("no_proxy", "*")
    for name in ("KERAS_VIT_MIRROR", "KERAS_HOME", "HF_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    for name in ("HOME", "USERPROFILE"):
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.setenv("KERAS_VIT_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def server():
    with Server().running() as server:
        yield server


DATA = np.random.default_rng(0).bytes(300_000)
CHANGED = DATA[::-1]
SHA256 = hashlib.sha256(DATA).hexdigest()


def goog(data):
    """Return a line of x-goog-hash, as Google's storage writes it."""
    return f"md5={base64.b64encode(hashlib.md5(data).digest()).decode()}"


@pytest.fixture
def bucket(server):
    """Return a server that has DATA at /file.npz."""
    server.files["/file.npz"] = DATA
    # Google's storage always sends an ETag.
    server.tags["/file.npz"] = '"data"'
    return server


@pytest.fixture
def path(tmp_path):
    """Return where to put it."""
    return tmp_path / "folder" / "deeper" / "file.npz"


def left_beside(path):
    """Return the names in the folder of `path`; a lock may stay."""
    names = sorted(file.name for file in path.parent.iterdir())
    return [name for name in names if not name.endswith(".lock")]


def broken(bucket, path, *breaks):
    """Begin to fetch, as often as the answer is to break off."""
    bucket.breaks = list(breaks)
    for _ in breaks:
        with pytest.raises(ConnectionError, match="broke off after"):
            fetch(f"{bucket.url}/file.npz", path)
        assert not path.exists()


def assert_fetched(bucket, path, data=DATA):
    """Fetch what the server has; nothing is left but its checksum."""
    assert fetch(f"{bucket.url}/file.npz", path) == path
    assert path.read_bytes() == data
    assert left_beside(path) == ["file.npz", "file.npz.sha256"]


# ---------------------------------------------------------------------- fetch


def test_a_file_is_fetched_whole_and_once(bucket, path):
    for _ in range(2):
        assert_fetched(bucket, path)
    assert bucket.asked("Range") == [None]
    # The checksum beside it is as sha256sum writes and reads it.
    record = path.with_name("file.npz.sha256").read_text()
    assert record == f"{SHA256}  file.npz\n"


@pytest.mark.parametrize("chunk", [1000, 2**20])
def test_an_interrupted_download_is_resumed(
    bucket, path, chunk, monkeypatch, capsys
):
    monkeypatch.setattr(hub, "CHUNK_BYTES", chunk)
    broken(bucket, path, 100_001, 50_000)
    assert path.with_name("file.npz.part").read_bytes() == DATA[:150_001]
    assert_fetched(bucket, path)
    ranges = [None, "bytes=100001-", "bytes=150001-"]
    assert bucket.asked("Range") == ranges
    assert bucket.asked("If-Range") == [None, '"data"', '"data"']
    # Progress is of the whole file.
    assert capsys.readouterr() == ("Downloading: 0.3/0.3 MB\n", "")


def test_a_server_that_knows_no_ranges_sends_all_again(bucket, path):
    bucket.knows_ranges = False
    broken(bucket, path, 100_001)
    assert_fetched(bucket, path)


@pytest.mark.parametrize("left", [DATA, b"x" * 400_000])
def test_what_cannot_be_completed_is_fetched_again(bucket, path, left):
    path.parent.mkdir(parents=True)
    path.with_name("file.npz.part").write_bytes(left)
    path.with_name("file.npz.part.version").write_text('"data"')
    assert_fetched(bucket, path)
    assert bucket.asked("Range") == [f"bytes={len(left)}-", None]


def test_a_server_that_does_not_say_how_long_a_file_is(bucket, path):
    bucket.tells_length = False
    assert_fetched(bucket, path)


def test_parts_are_of_one_version(bucket, path):
    """No checksum is sent: only the version shows that the file changed."""
    broken(bucket, path, 100_000)
    bucket.files["/file.npz"], bucket.tags["/file.npz"] = CHANGED, '"two"'
    broken(bucket, path, 50_000)
    assert_fetched(bucket, path, CHANGED)
    assert bucket.asked("Range") == [None, "bytes=100000-", "bytes=50000-"]
    assert bucket.asked("If-Range") == [None, '"data"', '"two"']


@pytest.mark.parametrize("tag", [None, 'W/"one"'])
def test_without_a_strong_version_a_download_starts_again(bucket, path, tag):
    """RFC 9110, 13.1.5: If-Range takes no weak tag."""
    bucket.tags["/file.npz"] = tag
    broken(bucket, path, 100_000)
    bucket.files["/file.npz"] = CHANGED
    assert_fetched(bucket, path, CHANGED)
    assert bucket.asked("Range") == bucket.asked("If-Range") == [None, None]


def test_a_version_of_an_earlier_file_is_forgotten(bucket, path):
    """The second answer has no version: the first one's is not its own."""
    broken(bucket, path, 100_000)
    bucket.files["/file.npz"] = CHANGED
    bucket.tags.clear()
    broken(bucket, path, 50_000)
    assert_fetched(bucket, path, CHANGED)
    assert bucket.asked("Range") == [None, "bytes=100000-", None]


def test_the_md5_of_googles_storage_is_checked(bucket, path):
    # As the storage sends it: two lines, or one with a comma.
    for lines in ["crc32c=n03x6A==", "{}"], ["crc32c=n03x6A==,{}"]:
        wrong = hashlib.md5(b"something else").hexdigest()
        bucket.hashes["/file.npz"] = [
            line.format(goog(b"something else")) for line in lines
        ]
        with pytest.raises(ValueError, match=f"file.npz .*should be {wrong}"):
            fetch(f"{bucket.url}/file.npz", path)
        assert left_beside(path) == []  # What is wrong is not gone on with.
        bucket.hashes["/file.npz"] = [line.format(goog(DATA)) for line in lines]
        assert_fetched(bucket, path)
        path.unlink()
        path.with_name("file.npz.sha256").unlink()


def test_the_recorded_checksum_holds(bucket, path):
    assert_fetched(bucket, path)
    path.unlink()
    bucket.files["/file.npz"] = CHANGED
    record = path.with_name("file.npz.sha256")
    with pytest.raises(ValueError, match=f"{SHA256}.*remove {record}"):
        fetch(f"{bucket.url}/file.npz", path)
    assert left_beside(path) == [record.name]
    record.unlink()
    assert_fetched(bucket, path, CHANGED)


def unanswered_url():
    """Return a URL at which nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return f"http://127.0.0.1:{listener.getsockname()[1]}/file.npz"


def test_without_a_connection_the_error_says_what_to_put_where(path):
    url = unanswered_url()
    with pytest.raises(ConnectionError) as error:
        fetch(url, path)
    for words in (url, f"put it at {path};", "KERAS_VIT_MIRROR"):
        assert words in str(error.value)
    assert isinstance(error.value.__cause__, OSError)
    assert left_beside(path) == []
    # And doing so helps.
    path.write_bytes(DATA)
    assert fetch(url, path) == path


def test_the_error_of_a_server_does_not_keep_the_connection(bucket, path):
    # Python would warn of it whenever the error is collected.
    with pytest.raises(ConnectionError, match="missing.npz .*404") as error:
        fetch(f"{bucket.url}/missing.npz", path)
    assert error.value.__cause__.code == 404
    assert error.value.__cause__.closed
    assert left_beside(path) == []


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n100\r\nabc",
        b"SSH-2.0-OpenSSH_9.6\r\n",
        b"",
        None,
    ],
    ids=["chunks that break off", "no HTTP", "nothing", "silence"],
)
def test_whatever_is_wrong_with_the_answer_is_a_connection_error(
    answer, path, monkeypatch
):
    monkeypatch.setattr(hub, "TIMEOUT_SECONDS", 0.3)
    done = threading.Event()

    def serve():
        connection, _ = listener.accept()
        with connection:
            connection.recv(65536)
            connection.sendall(answer or b"")
            if answer is None:
                done.wait(5)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve)
        thread.start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/file.npz"
        with pytest.raises(ConnectionError, match="could not be fetched"):
            fetch(url, path)
        done.set()
        thread.join()
    assert not path.exists()


def fetch_together(bucket, path):
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        url = f"{bucket.url}/file.npz"
        jobs = [pool.submit(fetch, url, path) for _ in range(3)]
        return [job.exception(timeout=120) for job in jobs]


# A lock belongs to the open file, so threads wait as processes do.
@pytest.mark.skipif(hub.fcntl is None, reason="Windows has no fcntl.")
def test_several_at_once_download_once(bucket, path, monkeypatch):
    check = hub._check

    def slow(*arguments):  # The checksum of a gigabyte takes seconds.
        time.sleep(0.3)
        check(*arguments)

    monkeypatch.setattr(hub, "_check", slow)
    bucket.delay = 0.1
    bucket.hashes["/file.npz"] = [goog(b"something else")]
    # What one found damaged, the others fetch anew.
    for error in fetch_together(bucket, path):
        assert isinstance(error, ValueError), repr(error)
    bucket.hashes.clear()
    bucket.requests.clear()
    assert fetch_together(bucket, path) == [None] * 3
    assert_fetched(bucket, path)
    assert bucket.asked("Range") == [None]


# --------------------------------------------------------------------- locate


@pytest.fixture
def fetched(monkeypatch):
    """Return the list of the addresses to fetch, which are not fetched."""
    calls = []

    def note(url, path):
        calls.append(url)
        return path

    monkeypatch.setattr(hub, "fetch", note)
    return calls


def test_a_path_goes_before_a_name(tmp_path, monkeypatch, fetched):
    monkeypatch.chdir(tmp_path)
    file = pathlib.Path("B", "16-sam")
    file.mkdir(parents=True)
    assert locate("B/16-sam") != file  # A folder without weights.
    assert len(fetched) == 1
    (file / "model.safetensors").touch()
    assert locate("B/16-sam") == file
    assert locate(tmp_path) == tmp_path
    (tmp_path / "model.npz").touch()
    assert locate("~/model.npz") == tmp_path / "model.npz"
    assert locate(".") == pathlib.Path(".")
    assert len(fetched) == 1


def test_every_name_has_a_place_of_its_own_in_the_cache(tmp_path, fetched):
    names = [*PRETRAINED, AUGREG.replace("none", "light0")]
    for name in names:
        row = find_pretrained(name)
        assert locate(name) == tmp_path / "cache" / row.file
        assert ".." not in row.file and row.file.endswith(".npz")
        assert fetched[-1] == row.url
    assert len(set(fetched)) == len(names)


@pytest.mark.parametrize(
    ("variables", "folder"),
    [
        ({"KERAS_VIT_CACHE": ""}, ".keras/keras_vit"),
        ({"KERAS_VIT_CACHE": "", "KERAS_HOME": "~/k"}, "k/keras_vit"),
        ({"KERAS_VIT_CACHE": "~/weights", "KERAS_HOME": "~/k"}, "weights"),
    ],
    ids=str,
)
def test_the_folder_of_the_cache(
    variables, folder, tmp_path, monkeypatch, fetched
):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    file = PRETRAINED["B/16-sam"].file
    assert locate("B/16-sam") == tmp_path / folder / file


@pytest.mark.parametrize(
    ("text", "url"),
    [
        (
            "gs://vit_models/sam/ViT-B_16.npz",
            "https://storage.googleapis.com/vit_models/sam/ViT-B_16.npz",
        ),
        ("http://example.org/a/ViT-B_16.npz?download=true", None),
    ],
)
def test_an_address_is_fetched_into_the_cache(text, url, tmp_path, fetched):
    path = locate(text)
    assert fetched == [url or text]
    assert path.name == "ViT-B_16.npz"
    assert path.parents[1] == tmp_path / "cache" / "url"
    # One place for one address, and for it only.
    assert locate(text) == path
    assert locate(text.replace("ViT", "a/ViT")) != path


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("B/16-augregs", "Did you mean 'B/16-augreg' or "),
        ("L/16-i21k-i1k", "Did you mean .*'L/16-i21k+i1k'"),
        ("B/14-dinov", "Did you mean 'B/14-dinov2'"),
        ("owner/name", "hub is named 'hf://owner/name'"),
        ("zzz", r"`keras_vit.HUB_MODELS` list them\.$"),
        ("nope/", r"`keras_vit.HUB_MODELS` list them\.$"),
        ("", "There is no file ''"),
        ("/nope", "no file or folder '/nope'"),
        ("~/nope", "no file or folder '~/nope'"),
        ("../nope", "no file or folder '../nope'"),
        (None, "`path_or_name` .*=None"),
        (b"B/16-augreg", "`path_or_name` .*=b'B/16-augreg'"),
    ],
    ids=str,
)
def test_an_unknown_name_is_an_error(name, words, fetched):
    with pytest.raises(ValueError, match=words.replace("+", r"\+")):
        locate(name)
    assert fetched == []


def test_a_name_is_fetched_from_the_mirror(server, tmp_path, monkeypatch):
    monkeypatch.setenv("KERAS_VIT_MIRROR", f"{server.url}/copy/")
    file = PRETRAINED["Ti/16-augreg"].file
    assert PRETRAINED["Ti/16-augreg"].url == f"{server.url}/copy/{file}"
    # A smaller model in the place of Ti/16.
    data = path_of(TOKEN).read_bytes()
    server.files[f"/copy/{file}"] = data
    for name in ("augreg", "Ti/16-augreg", AUGREG):
        model = ViT_Ti16(
            weights=name, classes=7, classifier_activation=None, **TINY
        )
        is_the_golden_model(model, TOKEN)
    is_the_golden_model(from_checkpoint("Ti/16-augreg"), TOKEN)
    assert server.asked("path") == [f"/copy/{file}"]
    assert (tmp_path / "cache" / file).read_bytes() == data
    # A repository of the bucket beside vit_models.
    with pytest.raises(ConnectionError, match="404"):
        locate("S/16-i1k-90ep")
    assert server.asked("path")[1] == "/copy/big_vision/vit_s16_i1k_90ep.npz"


def test_an_address_is_a_checkpoint(server):
    server.files["/some/model.safetensors"] = path_of(TIMM).read_bytes()
    for _ in range(2):
        model = from_checkpoint(
            f"{server.url}/some/model.safetensors", num_heads=3
        )
        is_the_golden_model(model, TIMM)
    assert server.asked("path") == ["/some/model.safetensors"]


# ------------------------------------------------- repositories of the hub

START = "/owner/model/resolve/main/"


@pytest.fixture
def hugging_face(server, monkeypatch):
    """Return a hub that has the golden model of Hugging Face."""
    for file in ("config.json", "model.safetensors"):
        content = (path_of("hf_vit") / file).read_bytes()
        server.files[START + file] = content
    monkeypatch.setenv("HF_ENDPOINT", server.url)
    return server


def is_the_golden_model(model, name="hf_vit"):
    answer = to_numpy(model(expected_of(name)["x"]))
    np.testing.assert_allclose(answer, answer_of(name), atol=1e-5)


# By its name, a file is one of CLIP, with the images of CLIP.
@pytest.mark.filterwarnings("ignore:.*preprocess_input:UserWarning")
@pytest.mark.parametrize("names", ["hf", "open_clip"])
def test_a_repository_is_read_and_kept(hugging_face, names):
    if names == "open_clip":
        files = hugging_face.files
        for file in ("model.safetensors", "config.json"):
            files[f"{START}open_clip_{file}"] = files.pop(START + file)
    is_the_golden_model(from_checkpoint("hf://owner/model"))
    asked = hugging_face.asked("path")
    assert START + "preprocessor_config.json" in asked
    # Nothing is asked for a second time, not even what is not there.
    is_the_golden_model(from_checkpoint("hf://owner/model"))
    assert hugging_face.asked("path") == asked


def test_shards(hugging_face, tmp_path):
    arrays = load_file(path_of("hf_vit") / "model.safetensors")
    files = hugging_face.files
    del files[START + "model.safetensors"]
    index = {}
    for file, names in (("a", list(arrays)[::2]), ("b", list(arrays)[1::2])):
        path = tmp_path / f"{file}.safetensors"
        save_file({name: arrays[name] for name in names}, path)
        files[START + path.name] = path.read_bytes()
        index |= dict.fromkeys(names, path.name)
    text = json.dumps({"weight_map": index})
    files[START + "model.safetensors.index.json"] = text.encode()
    is_the_golden_model(from_checkpoint("hf://owner/model"))


def test_a_token_is_sent_to_the_hub_alone(hugging_face, monkeypatch):
    hugging_face.token = "secret"
    with pytest.raises(ConnectionError, match="no owner/model.*HF_TOKEN"):
        from_checkpoint("hf://owner/model")
    monkeypatch.setenv("HF_TOKEN", "secret")
    with Server().running() as storage:
        storage.files = hugging_face.files
        hugging_face.moved = storage.url
        is_the_golden_model(from_checkpoint("hf://owner/model"))
    assert storage.asked("Authorization") == [None]
    assert hugging_face.asked("Authorization")[-1] == "Bearer secret"


def test_without_a_connection_it_says_which_file_to_put_where(hugging_face):
    files = dict(hugging_face.files)
    hugging_face.files.clear()
    folder = Repository("owner/model").folder
    with pytest.raises(ConnectionError) as error:
        from_checkpoint("hf://owner/model")
    for words in (
        f"put it at {folder / 'config.json'}",
        "HF_ENDPOINT",
        "model.safetensors",
        "preprocessor_config.json",
    ):
        assert words in str(error.value)
    # What was put there is read.
    for path, content in files.items():
        (folder / path.rpartition("/")[2]).write_bytes(content)
    is_the_golden_model(from_checkpoint("hf://owner/model"))


@pytest.mark.parametrize("name", ["tf_vit", "flax_vit"])
def test_a_repository_of_transformers_4(hugging_face, name):
    """Beside a pickle, which is all that PyTorch would read there."""
    hugging_face.files = {START + "pytorch_model.bin": b"\x80\2."}
    for path in (path_of("transformers_4") / name).iterdir():
        hugging_face.files[START + path.name] = path.read_bytes()
    model = from_checkpoint("hf://owner/model")
    with np.load(path_of("transformers_4") / f"{name}.expected.npz") as file:
        answer = to_numpy(model(file["x"]))
        np.testing.assert_allclose(answer, file["logits"], atol=1e-5)


@pytest.mark.parametrize("name", ["clip", "siglip"])
def test_a_repository_with_a_tokenizer(hugging_face, name):
    """Its files are fetched for texts alone, and once."""
    folder, files = path_of("towers") / name, hugging_face.files
    files.clear()
    for path in folder.iterdir():
        files[START + path.name] = path.read_bytes()
    locate("hf://owner/model")
    tokenizers = {START + name for name in TOKENIZER_FILES}
    assert not tokenizers & {*hugging_face.asked("path")}
    encode = load_text_encoder("hf://owner/model")
    with np.load(path_of("towers") / f"{name}.expected.npz") as file:
        tokens = encode.tokenizer(file["texts"].tolist())
        np.testing.assert_array_equal(tokens, file["tokens"])
    asked = hugging_face.asked("path")
    assert tokenizers <= {*asked}
    load_text_encoder("hf://owner/model")
    assert hugging_face.asked("path") == asked


def test_a_repository_of_pickles_alone(hugging_face):
    del hugging_face.files[START + "model.safetensors"]
    with pytest.raises(ConnectionError, match="as .bin.* is a pickle.*save"):
        from_checkpoint("hf://owner/model")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("hf://a/b", Repository("a/b")),
        ("hf://a/b.c-d_e@v1.0", Repository("a/b.c-d_e", "v1.0")),
        ("hf://a/b/", Repository("a/b")),
        ("hf://a/b@refs/pr/1", Repository("a/b", "refs/pr/1")),
        ("https://huggingface.co/a/b", Repository("a/b")),
        ("https://huggingface.co/a/b/tree/v1", Repository("a/b", "v1")),
        ("https://huggingface.co/a/b/resolve/main/c.safetensors", None),
        ("timm/vit_x.tag/", Repository("timm/vit_x.tag")),
        ("timm/a/b", None),
        ("B/16-augreg", None),
    ],
)
def test_names_of_repositories(text, expected):
    assert parse_repository(text) == expected


@pytest.mark.parametrize(
    "text",
    ["hf://", "hf://a", "hf://a/b/c", "hf://a/../b", "hf://../b"]
    + ["hf://a/b@", "hf://a/b@../c", "hf://a/b@refs/../c", "hf://a/b//"],
)
def test_a_wrong_name_is_an_error(text):
    with pytest.raises(ValueError, match="hf://OWNER/NAME"):
        from_checkpoint(text)


def test_a_revision_has_a_folder_of_its_own():
    one, other = Repository("a/b"), Repository("a/b", "v1")
    assert one.folder != other.folder
    assert other.url("config.json").endswith("/a/b/resolve/v1/config.json")
    # As huggingface_hub quotes it.
    proposal = Repository("a/b", "refs/pr/1")
    end = "/a/b/resolve/refs%2Fpr%2F1/config.json"
    assert proposal.url("config.json").endswith(end)
    assert proposal.folder.parent == one.folder.parent


def test_a_known_name_is_that_of_a_repository(hugging_face):
    name, row = next(iter(HUB_MODELS.items()))
    hugging_face.files = {
        f"/{row.repository}/resolve/main/{path.rpartition('/')[2]}": content
        for path, content in hugging_face.files.items()
    }
    is_the_golden_model(from_checkpoint(name))


@pytest.mark.parametrize("name", HUB_MODELS)
def test_the_known_models_are_of_known_architectures(name):
    row = HUB_MODELS[name]
    owner, repository = row.repository.split("/")
    assert owner == "timm" and fields_of(repository) is not None
    size = re.search(r"_(224|336|384|448)[._]", repository)
    assert not size or int(size[1]) == row.image_size
