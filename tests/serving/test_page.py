"""The page on serving and its files: all commands that can run here."""

import json
import pathlib
import re
import shutil
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf
import yaml

from keras_vit import VisionTransformer, ViTConfig
from keras_vit.export import Serving, export_file
from keras_vit.serving.tf_serving import write_models_config
from tests import commands
from tests.serving.servers import GrpcServer, Models, RestServer

ROOT = pathlib.Path(__file__).parents[2]
PAGE = (ROOT / "docs/serving.md").read_text()
FILES = ROOT / "docs/serving"
FOLDER = "saved_models/digits/export/saved_model"
IMAGE = "tensorflow/serving:2.20.0"


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.M | re.S)


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    """Return a folder in which a run was exported twice."""
    folder = tmp_path_factory.mktemp("checkout")
    config = ViTConfig(
        24, 1, 48, 3, patch_size=4, image_size=8, channels=1, num_classes=10
    )
    images = np.random.default_rng(0).uniform(-1, 1, (2, 8, 8, 1))
    for version in (1, 2):
        model = VisionTransformer(config)
        random = np.random.default_rng(version)
        for weight in model.weights:
            value = random.normal(scale=0.3, size=weight.shape)
            weight.assign(value + (1 if weight.name == "gamma" else 0))
        path = folder / FOLDER / "digits" / str(version)
        serving = Serving(class_names=[str(i) for i in range(10)])
        export_file(model, path, images.astype("f4"), serving=serving)
    write_models_config(folder / FOLDER)
    keras.utils.save_img(folder / "digit.png", images[0], scale=True)
    python = folder / ".venv/bin/python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/bash\nexec {sys.executable} "$@"')
    python.chmod(0o755)
    return folder


def labels_in(text):
    """Return the version of each label in a models.config."""
    found = re.findall(r'key: "(\w+)"\s+value: (\d+)', text)
    return {label: int(version) for label, version in found}


@pytest.fixture(scope="module")
def models(checkout):
    text = (checkout / FOLDER / "models.config").read_text()
    return Models(checkout / FOLDER, {"digits": labels_in(text)})


@pytest.fixture(scope="module")
def here(models):
    """Return a function that puts the stand-ins' addresses into a text."""
    with RestServer(models) as rest, GrpcServer(models) as grpc:

        def here(text):
            text = text.replace("http://localhost:8501", rest.address)
            text = text.replace("localhost:8500", grpc.address)
            assert "localhost" not in text
            return text

        yield here


def run_block(text, folder, environment):
    return subprocess.run(
        ["bash", "-e", "-c", text],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )


def expected(models, version, signature, value):
    call = models.loaded["digits", version].signatures[signature]
    [name] = call.structured_input_signature[1]
    return {n: x.numpy() for n, x in call(**{name: value}).items()}


def test_requests_with_curl(checkout, models, here, subprocess_environment):
    if not shutil.which("curl"):
        pytest.skip("curl is not installed")
    found = []
    for block in blocks("bash"):
        if "curl" in block:
            # Curl prints one answer; JSON objects one after the other.
            result = run_block(here(block), checkout, subprocess_environment)
            assert result.returncode == 0, result.stdout + result.stderr
            decoder, text = json.JSONDecoder(), result.stdout
            while text.strip():
                answer, end = decoder.raw_decode(text.strip())
                found.append(answer)
                text = text.strip()[end:]
    status, metadata, rows, columns, pixels = found
    assert [v["state"] for v in status["model_version_status"]] == [
        "AVAILABLE"
    ] * 2
    assert (
        "serve_bytes" in metadata["metadata"]["signature_def"]["signature_def"]
    )
    content = (checkout / "digit.png").read_bytes()
    files = tf.constant([content])
    for answer, version in (
        (rows["predictions"][0], 2),
        ({n: x[0] for n, x in columns["outputs"].items()}, 1),
    ):
        want = expected(models, version, "serve_bytes", files)
        labels = [label.decode() for label in want["labels"][0]]
        assert answer["labels"] == labels
        np.testing.assert_allclose(
            answer["probabilities"], want["probabilities"][0], rtol=1e-5
        )
    zeros = tf.zeros((2, 8, 8, 1), tf.uint8)
    want = expected(models, 1, "serve_uint8", zeros)["logits"]
    np.testing.assert_allclose(pixels["predictions"], want, atol=1e-5)


@pytest.mark.slow
def test_the_check_over_grpc(checkout, here, subprocess_environment):
    """tests/test_docs.py runs the command over REST, with the README."""
    [block] = [x for x in blocks("bash") if "serve_check --grpc" in x]
    line = block.replace("\\\n", " ").splitlines()[-1]
    python, *words = here(line).split()
    assert python == ".venv/bin/python"
    words.append("--requests=5")
    result = commands.run(words, subprocess_environment, checkout)
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.count("| right |") == 2 + 3 * 4


def test_python(checkout, models, here, monkeypatch, capsys):
    monkeypatch.chdir(checkout)
    names = {}
    for block in blocks("python"):
        exec(compile(here(block), "serving.md", "exec"), names)
    content = (checkout / "digit.png").read_bytes()
    files = tf.constant([content])
    want = expected(models, 2, "serve_bytes", files)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0].encode() for line in lines[:5]] == [
        *want["labels"][0]
    ]
    assert names["labels"].tolist() == want["labels"].tolist()
    zeros = tf.zeros((100, 8, 8, 1), tf.uint8)
    want = expected(models, 1, "serve_uint8", zeros)["logits"]
    np.testing.assert_allclose(names["logits"], want, atol=1e-5)
    # The last block writes models.config anew, once a version is withdrawn.
    config = checkout / FOLDER / "models.config"
    assert labels_in(config.read_text())["canary"] == 2
    model = checkout / FOLDER / "digits"
    (model / "2").rename(model / ".2")
    try:
        exec(compile(blocks("python")[-1], "serving.md", "exec"), {})
        assert labels_in(config.read_text()) == {"stable": 1}
    finally:
        (model / ".2").rename(model / "2")
        write_models_config(checkout / FOLDER)


# ------------------------------------------------------------------- the files


def test_compose():
    text = (FILES / "compose.yaml").read_text()
    [(_, service)] = yaml.safe_load(text)["services"].items()
    assert service["image"] == IMAGE
    outside, inside, modes = zip(
        *(x.rsplit(":", 2) for x in service["volumes"])
    )
    flags = re.findall(r"--\w+=(/\S+)", text)  # Commented ones too.
    assert len(flags) == 3 and set(modes) == {"ro"}
    assert all(flag.startswith(inside) for flag in flags)
    assert outside[0] == f"${{MODELS:-../../{FOLDER}}}"
    assert all((FILES / path).is_file() for path in outside[1:])


@pytest.mark.parametrize(
    "names, code", [(["digits"], 0), (["digits", "plants"], 1), ([], 1)]
)
def test_health_check_of_compose(models, tmp_path, names, code):
    """It requests every model of the folder in MODELS."""
    for name in names:
        (tmp_path / name / "1").mkdir(parents=True)
        (tmp_path / name / "1" / "saved_model.pb").touch()
    if names:
        write_models_config(tmp_path)
    config = yaml.safe_load((FILES / "compose.yaml").read_text())
    kind, *words = config["services"]["serving"]["healthcheck"]["test"]
    assert kind == "CMD"
    with RestServer(models) as server:
        port = server.address.rpartition(":")[2]
        words[-1] = (
            words[-1]
            .replace("$$", "$")  # Compose's escape.
            .replace("8501", port)
            .replace("/models/models.config", str(tmp_path / "models.config"))
        )
        result = subprocess.run(words, timeout=10, check=False)
        assert result.returncode == code
    assert subprocess.run(words, stderr=subprocess.DEVNULL).returncode


def test_kubernetes():
    documents = yaml.safe_load_all((FILES / "kubernetes.yaml").read_text())
    config, deployment, service = documents
    template = deployment["spec"]["template"]
    labels = template["metadata"]["labels"]
    assert deployment["spec"]["selector"]["matchLabels"] == labels
    assert service["spec"]["selector"] == labels
    [container] = template["spec"]["containers"]
    assert container["image"] == IMAGE
    ports = {p["name"]: p["containerPort"] for p in container["ports"]}
    assert ports == {"grpc": 8500, "http": 8501}
    for port in service["spec"]["ports"]:
        assert ports[port["targetPort"]] == port["port"]
    mounts = {m["name"]: m["mountPath"] for m in container["volumeMounts"]}
    assert set(mounts) == {
        volume["name"] for volume in template["spec"]["volumes"]
    }
    files = [a.split("=")[1] for a in container["args"] if "=/" in a]
    assert all(file.startswith((*mounts.values(),)) for file in files)
    text = config["data"]["monitoring.config"]
    same = (FILES / "monitoring.config").read_text()
    assert text == re.sub(r"^#.*\n", "", same)
