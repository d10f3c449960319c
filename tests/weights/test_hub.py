"""Models of Hugging Face's hub, from a server of this process."""

import http.server
import json
import re
import threading

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from keras_vit import from_checkpoint
from keras_vit.weights.builder_weights import resolve_weights
from keras_vit.weights.families.timm_tables import settings_of
from keras_vit.weights.hub import (
    HUB_MODELS,
    Repository,
    locate,
    parse_repository,
)
from tests.tiny import to_numpy
from tests.weights.cases import answer_of, expected_of, path_of

START = "/owner/model/resolve/main/"


class Hub(http.server.ThreadingHTTPServer):
    """A hub that holds files in memory.

    Args:
        files: What is at each path.
        asked: (path, Authorization) of each request so far.
        token: The token without which it gives nothing; None for everybody.
        moved: Address of another server, to which weights are redirected.
    """

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Answer)
        self.files, self.asked = {}, []
        self.token = self.moved = None

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}"


class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        hub, token = self.server, self.headers.get("Authorization")
        hub.asked.append((self.path, token))
        if hub.token and token != f"Bearer {hub.token}":
            return self.send_error(401)
        if self.path not in hub.files:
            return self.send_error(404)
        if hub.moved and self.path.endswith(".safetensors"):
            self.send_response(302)
            self.send_header("Location", hub.moved + self.path)
            self.send_header("Content-Length", "0")
            return self.end_headers()
        self.send_response(200)
        self.send_header("Content-Length", str(len(hub.files[self.path])))
        self.end_headers()
        self.wfile.write(hub.files[self.path])

    def log_message(self, *_):
        pass


def start(server):
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    return thread


@pytest.fixture
def hub(monkeypatch, tmp_path):
    """Return a hub that has the golden model of Hugging Face."""
    monkeypatch.setenv("KERAS_VIT_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("HF_TOKEN", raising=False)
    with Hub() as server:
        for file in ("config.json", "model.safetensors"):
            content = (path_of("hf_vit") / file).read_bytes()
            server.files[START + file] = content
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        thread = start(server)
        yield server
        server.shutdown()
        thread.join()


def is_the_golden_model(model):
    answer = to_numpy(model(expected_of("hf_vit")["x"]))
    np.testing.assert_allclose(answer, answer_of("hf_vit"), atol=1e-5)


def test_a_repository_is_read_and_kept(hub):
    is_the_golden_model(from_checkpoint("hf://owner/model"))
    asked = [path for path, _ in hub.asked]
    assert START + "model.safetensors" in asked
    assert START + "preprocessor_config.json" in asked
    # Nothing is asked for a second time, not even what is not there.
    hub.asked.clear()
    is_the_golden_model(from_checkpoint("hf://owner/model"))
    assert hub.asked == []


def test_shards(hub):
    arrays = load_file(path_of("hf_vit") / "model.safetensors")
    del hub.files[START + "model.safetensors"]
    names = sorted(arrays)
    shards = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    for file, part in shards.items():
        path = Repository("owner/shards").folder / file
        path.parent.mkdir(parents=True, exist_ok=True)
        save_file({name: arrays[name] for name in part}, path)
        hub.files[START + file] = path.read_bytes()
    index = {name: file for file, part in shards.items() for name in part}
    hub.files[START + "model.safetensors.index.json"] = json.dumps(
        {"weight_map": index}
    ).encode()
    is_the_golden_model(from_checkpoint("hf://owner/model"))


# By its name, the file is one of CLIP, with the images of CLIP.
@pytest.mark.filterwarnings("ignore:.*preprocess_input:UserWarning")
def test_a_repository_of_open_clip(hub):
    """Its files have other names, and it may have no other ones."""
    content = hub.files.pop(START + "model.safetensors")
    hub.files[START + "open_clip_model.safetensors"] = content
    content = hub.files.pop(START + "config.json")
    hub.files[START + "open_clip_config.json"] = content
    is_the_golden_model(from_checkpoint("hf://owner/model"))
    hub.asked.clear()
    is_the_golden_model(from_checkpoint("hf://owner/model"))
    assert hub.asked == []


def test_a_token_is_sent_to_the_hub_alone(hub, monkeypatch):
    hub.token = "secret"
    with pytest.raises(ConnectionError, match="no owner/model.*accept it"):
        from_checkpoint("hf://owner/model")
    monkeypatch.setenv("HF_TOKEN", "secret")
    with Hub() as storage:
        storage.files = hub.files
        hub.moved = storage.url
        thread = start(storage)
        is_the_golden_model(from_checkpoint("hf://owner/model"))
        storage.shutdown()
        thread.join()
    assert [token for _, token in storage.asked] == [None]
    assert hub.asked[-1][1] == "Bearer secret"


def test_without_a_connection_it_says_which_file_to_put_where(hub):
    hub.files.clear()
    folder = Repository("owner/model").folder
    with pytest.raises(ConnectionError) as error:
        from_checkpoint("hf://owner/model")
    assert f"put it at {folder / 'config.json'}" in str(error.value)
    assert "HF_ENDPOINT" in str(error.value)
    for file in ("model.safetensors", "preprocessor_config.json"):
        assert file in str(error.value)
    # What was put there is read, without asking for more than is needed.
    for file in ("config.json", "model.safetensors"):
        content = (path_of("hf_vit") / file).read_bytes()
        (folder / file).write_bytes(content)
    is_the_golden_model(from_checkpoint("hf://owner/model"))


def test_a_repository_of_pickles_alone(hub):
    del hub.files[START + "model.safetensors"]
    hub.files[START + "pytorch_model.bin"] = b"pickle"
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
        ("timm/vit_x.tag", Repository("timm/vit_x.tag")),
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


def test_a_known_name_is_that_of_a_repository(hub):
    name, row = next(iter(HUB_MODELS.items()))
    start = f"/{row.repository}/resolve/main/"
    hub.files = {start + p.split("/")[-1]: v for p, v in hub.files.items()}
    is_the_golden_model(from_checkpoint(name))


@pytest.mark.parametrize("name", HUB_MODELS)
def test_the_known_models_are_of_known_architectures(name):
    row = HUB_MODELS[name]
    owner, repository = row.repository.split("/")
    assert owner == "timm" and settings_of(repository) is not None
    size = re.search(r"_(224|336|384|448)[._]", repository)
    assert not size or int(size[1]) == row.image_size


@pytest.mark.parametrize(
    "weights, name",
    [
        ("dinov3", "B/16-dinov3"),
        ("B/16-dinov3", "B/16-dinov3"),
        ("hf://owner/model", "hf://owner/model"),
        ("timm/model", "timm/model"),
    ],
)
def test_builders_know_the_models_of_the_hub(weights, name):
    assert resolve_weights(weights, "B/16") == name


def test_a_model_of_the_hub_of_another_variant_is_an_error():
    with pytest.raises(ValueError, match="a pretrained B/32: .*'clip-openai'"):
        resolve_weights("B/16-dinov3", "B/32")


def test_a_name_without_a_scheme_is_told_to_have_one():
    with pytest.raises(ValueError, match="is named 'hf://owner/model'"):
        from_checkpoint("owner/model")


def test_a_mistyped_name_proposes_a_known_one():
    with pytest.raises(ValueError, match="Did you mean 'B/14-dinov2'"):
        from_checkpoint("B/14-dinov")


@pytest.mark.parametrize("name", ["augreg", "S/16-augreg"])
def test_a_folder_without_weights_is_no_checkpoint(name, tmp_path, monkeypatch):
    """A folder of logs may be called like a pretrained model."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / name / "logs").mkdir(parents=True)
    (tmp_path / name / "notes.txt").write_text("x")
    assert resolve_weights(name, "S/16") == "S/16-augreg"
    (tmp_path / name / "model.safetensors").touch()
    assert resolve_weights(name, "S/16") == name
    assert str(locate(name)) == name
