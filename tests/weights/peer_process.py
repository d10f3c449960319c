"""The process of timm and Hugging Face transformers, see peers.py."""

import atexit
import functools
import importlib.util
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import warnings

import numpy as np
import pytest

from keras_vit import from_checkpoint, save_checkpoint


def find_python():
    """Return a Python that has PyTorch, timm and transformers, or None."""
    needed = ("torch", "timm", "transformers")
    if all(importlib.util.find_spec(name) for name in needed):
        own = sys.executable
    else:
        own = None
    return os.environ.get("KERAS_VIT_PEERS_PYTHON", own)


PYTHON = find_python()
WORKER = pathlib.Path(__file__).with_name("peers.py")
MARKS = [
    pytest.mark.slow(60),
    pytest.mark.peers,
    pytest.mark.skipif(
        not PYTHON, reason="Needs the extra `peers`, or KERAS_VIT_PEERS_PYTHON."
    ),
]
# Convolutions, standardisations and group norms in a row cost more rounding.
HYBRID = 5e-5


@functools.cache
def start_worker():
    """Start the process, for all tests of this one; return it and its log.

    Its imports take longer than most requests. It ends when its input does.
    """
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    log = pathlib.Path(tempfile.mkdtemp(), "peers.txt")
    with log.open("w") as errors:
        worker = subprocess.Popen(
            [PYTHON, str(WORKER)],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
    atexit.register(worker.communicate)
    return worker, log


def work(requests, folder, name):
    """Let a process of the other libraries do `requests`; return its errors."""
    path = folder / f"{name}.json"
    path.write_text(json.dumps(requests, default=str))
    worker, log = start_worker()
    print(path, file=worker.stdin, flush=True)
    assert worker.stdout.readline() == "\n", log.read_text()
    return json.loads(path.with_suffix(".errors.json").read_text())


def build(task, requests, folder):
    """Let it make models, each by a request; return a way to their folders.

    The requests are named. They get a seed each.
    """
    rows = [
        {"task": task, "folder": folder / name, "seed": seed, **request}
        for seed, (name, request) in enumerate(requests.items())
    ]
    errors = dict(zip(requests, work(rows, folder, task)))

    def folder_of(name):
        assert errors[name] is None, errors[name]
        return folder / name

    return folder_of


@functools.cache
def read(path):
    """Return the model of a folder, which must not be changed.

    Images that want another mode of `preprocess_input` are noted.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*preprocess_input")
        return from_checkpoint(path)


def arrays_in(path):
    with np.load(path) as file:
        return {key: file[key] for key in file.files}


def is_close(actual, expected, tolerance=1e-5):
    """Compare answers; the tolerance is in parts of the largest."""
    assert actual.shape == expected.shape
    assert np.abs(actual - expected).max() < tolerance * np.abs(expected).max()


def close(actual, expected, tolerance, label):
    assert actual.shape == expected.shape
    np.testing.assert_allclose(
        actual, expected, rtol=0, atol=tolerance, err_msg=label
    )


def answer_there(models, layout, folder, images):
    """Return the other library's answers with what we write of `models`.

    A model that is refused has none; an answer may be an error. `images` is
    the path of the images, or maps the names of the models to paths.
    """
    requests = {}
    for name, model in models.items():
        path = folder / f"written {name}"
        try:
            save_checkpoint(model, path, layout=layout)
        except ValueError:
            assert not path.exists()
            continue
        requests[name] = {
            "task": f"load_{layout}",
            "path": str(path),
            "images": str(images[name] if type(images) is dict else images),
            "output": f"{path}.npz",
        }
        if layout == "huggingface":
            config = json.loads((path / "config.json").read_text())
            requests[name]["kind"] = config["architectures"][0]
    errors = work(list(requests.values()), folder, "written")
    answers = dict(zip(requests, errors))
    for name, error in answers.items():
        if error is None:
            answers[name] = arrays_in(requests[name]["output"])
    return answers
