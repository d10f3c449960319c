import shutil
import subprocess
import sys

import keras
import numpy as np
import pytest

import keras_vit
from tests.trainers.made import write_pairs
from trainers.data.datasets import open_dataset
from trainers.data.labels import LabelOptions
from trainers.training.model_card import describe_run
from trainers.training.provenance import digest_data, find_commit


@pytest.fixture
def photos(tmp_path):
    noise = np.random.default_rng(0).integers(0, 255, (6, 9, 9, 3), "uint8")
    parts = ("train/a", "train/b", "test/a", "test/b", "train/a", "train/b")
    for number, (part, image) in enumerate(zip(parts, noise)):
        folder = tmp_path / "photos" / part
        folder.mkdir(parents=True, exist_ok=True)
        keras.utils.save_img(folder / f"{number}.png", image)
    return tmp_path / "photos"


def digest(folder):
    return digest_data(open_dataset(f"folder:{folder}"))


def test_a_digest_follows_the_images_and_not_their_folder(photos, tmp_path):
    first = digest(photos)
    assert digest(shutil.copytree(photos, tmp_path / "moved")) == first
    changes = {
        "a file more": lambda p: shutil.copy(p / "train/a/0.png", p / "test/a"),
        "another class": lambda p: shutil.move(
            p / "train/a/0.png", p / "train/b/0.png"
        ),
        "another name": lambda p: (p / "train/a/0.png").rename(
            p / "train/a/x.png"
        ),
        "another file": lambda p: (p / "train/a/0.png").write_bytes(
            (p / "train/a/4.png").read_bytes() + b"\0"
        ),
        "another split": lambda p: shutil.move(
            p / "train/a/0.png", p / "test/a/0.png"
        ),
    }
    found = {first}
    for name, change in changes.items():
        copy = shutil.copytree(photos, tmp_path / name)
        change(copy)
        found.add(digest(copy))
    assert len(found) == 1 + len(changes)


def test_a_digest_of_pairs_does_not_follow_their_folder(tmp_path):
    write_pairs(tmp_path / "one", "segment", 4)
    shutil.copytree(tmp_path / "one", tmp_path / "other")
    found = [
        digest_data(
            open_dataset(f"pairs:{folder}", labels=LabelOptions("segment"))
        )
        for folder in (tmp_path / "one", tmp_path / "other")
    ]
    assert found[0] == found[1]


def test_other_data_sets_have_digests(digits):
    part = open_dataset("digits", train_split="train[:50%]")
    assert digest_data(digits) == digest_data(open_dataset("digits"))
    assert digest_data(digits) != digest_data(part)


def test_the_commit_is_that_of_the_working_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert find_commit() is None
    (tmp_path / "a.txt").write_text("1")
    who = ["-c", "user.name=a", "-c", "user.email=a@b"]
    for words in (["init", "-q"], ["add", "a.txt"], [*who, "commit", "-qm1"]):
        subprocess.run(["git", *words], check=True)
    head = find_commit()
    assert len(head) == 40
    (tmp_path / "a.txt").write_text("2")
    assert find_commit() == f"{head}+changes"


def test_a_run_and_its_card_say_what_it_was_made_with(run):
    origin = run.origin
    assert origin["versions"]["keras_vit"] == keras_vit.__version__
    assert origin["versions"]["keras"] == keras.version()
    assert origin["versions"]["python"] == sys.version.split()[0]
    assert origin["backend"] == keras.backend.backend()
    card = describe_run(run, run.load_model())
    for fact in (
        f"keras {keras.version()}",
        origin["date"],
        origin["data_digest"],
    ):
        assert fact in card
