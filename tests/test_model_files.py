"""Files of models, and the class names beside them."""

import json
import os
import re

import keras
import pytest

from keras_vit import VisionTransformer, convert, from_checkpoint
from keras_vit.model_files import (
    find_model,
    is_run,
    load_keras,
    read_classes,
    stated_class_names,
    write_class_names,
)
from tests.tiny import randomize, tiny_config

NAMES = ["cat", "犬", "bird"]


@pytest.fixture
def folder(tmp_path):
    """Return the folder of a run with three classes, which were renamed."""
    path = tmp_path / "run"
    path.mkdir()
    config = tiny_config(
        num_classes=3, class_names=("a", "b", "c"), layer_norm_epsilon=1e-12
    )
    model = VisionTransformer(config)
    randomize(model)
    model.save(path / "model.keras")
    text = json.dumps({"recipe": {}, "class_names": NAMES})
    (path / "recipe.json").write_text(text)
    return path


@pytest.mark.parametrize("name", ["", "model.keras"])
def test_a_folder_of_hugging_face_has_the_classes(folder, tmp_path, name):
    target = tmp_path / "converted"
    words = [str(folder / name), str(target), "--layout=huggingface"]
    assert convert.main(words) == 0
    content = json.loads((target / "config.json").read_text())
    assert content["id2label"] == dict(zip("012", NAMES))
    assert content["label2id"] == dict(zip(NAMES, range(3)))
    assert from_checkpoint(target).config.num_classes == 3


def test_a_folder_of_timm_has_the_classes(folder, tmp_path):
    target = tmp_path / "converted"
    words = [str(folder), str(target), "--layout=timm"]
    assert convert.main([*words, "--layer_norm_epsilon=1e-6"]) == 0
    content = json.loads((target / "config.json").read_text())
    assert content["label_names"] == NAMES
    assert from_checkpoint(target).config.num_classes == 3


def test_a_run_without_a_model_is_refused(folder, tmp_path, capsys):
    (folder / "model.keras").unlink()
    words = [str(folder), str(tmp_path / "x.npz"), "--layout=official"]
    assert convert.main(words) == 1
    assert (
        "`source` must be the folder of a finished" in capsys.readouterr().err
    )


def test_what_is_of_no_run(folder, tmp_path):
    assert is_run(str(folder)) and not is_run(str(tmp_path))
    assert find_model("B/16-augreg") == "B/16-augreg"
    assert read_classes(str(folder / "model.keras"), 3) == NAMES
    assert read_classes(str(folder / "other.keras"), 3) == []
    assert read_classes(str(tmp_path / "model.keras"), 3) == []


@pytest.mark.parametrize(
    "text, fault",
    [
        ("no JSON", ""),
        ("{}", "None"),
        ('{"class_names": ["a"]}', r"a list of 1: \['a'\]$"),
        ('{"class_names": [["a"], 2, null]}', r"a list of 3: \[\["),
        ('{"class_names": "abc"}', "'abc'$"),
    ],
)
def test_names_that_are_not_those_of_the_logits_are_refused(
    folder, tmp_path, capsys, text, fault
):
    """In one line, and before anything is written."""
    (folder / "recipe.json").write_text(text)
    words = [str(folder), str(tmp_path / "hf"), "--layout=huggingface"]
    assert convert.main(words) == 1
    [line] = capsys.readouterr().err.splitlines()
    assert re.search(f"recipe.json.*{fault}", line)
    assert not (tmp_path / "hf").exists()


def test_an_encoder_has_no_names(tmp_path):
    VisionTransformer(tiny_config(num_classes=0)).save(tmp_path / "model.keras")
    (tmp_path / "recipe.json").write_text('{"class_names": []}')
    assert read_classes(str(tmp_path / "model.keras"), 0) == []
    with pytest.raises(ValueError, match="a list of 0 strings.*of 1: "):
        (tmp_path / "recipe.json").write_text('{"class_names": ["a"]}')
        read_classes(str(tmp_path / "model.keras"), 0)


def a_model():
    return keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(1)])


@pytest.mark.parametrize("content", [b"", b"text", None])
def test_a_damaged_file_is_named(content, tmp_path):
    path = tmp_path / "model.keras"
    if content is None:
        a_model().save(path)
        content = path.read_bytes()[:-50]
    path.write_bytes(content)
    message = re.escape(
        f"{path} cannot be read: it is not a complete .keras file"
    )
    with pytest.raises(ValueError, match=f"^{message}$"):
        load_keras(str(path))


def test_a_file_that_may_not_be_read_is_not_called_damaged(
    tmp_path, monkeypatch
):
    path = tmp_path / "model.keras"
    a_model().save(path)

    def refuse(path, *arguments, **options):
        raise PermissionError(13, os.strerror(13), path)

    monkeypatch.setattr("builtins.open", refuse)  # Root may read every file.
    with pytest.raises(PermissionError, match="Permission denied.*model.keras"):
        load_keras(str(path))
    monkeypatch.undo()
    with pytest.raises(FileNotFoundError, match="none.keras"):
        load_keras(str(tmp_path / "none.keras"))


LABELS = ["cat, tabby", "犬", "Kätzchen"]


@pytest.mark.parametrize("layout", ["huggingface", "timm"])
def test_names_are_read_back_and_the_rest_stays(layout, tmp_path):
    path = tmp_path / "config.json"
    path.write_text('{"width": 8}')
    write_class_names(str(tmp_path), layout, LABELS)
    assert json.loads(path.read_text())["width"] == 8
    assert stated_class_names(str(tmp_path), 3) == LABELS
    assert stated_class_names(str(tmp_path), 4) is None


@pytest.mark.parametrize(
    "content",
    [
        {},
        {"id2label": {"0": "LABEL_0", "1": "LABEL_1"}},  # Nobody named them.
        {"id2label": {"0": "cat"}},
        {"id2label": {"0": "cat", "1": "dog", "2": "bird"}},
        {"id2label": ["cat", "dog"]},
        {"label_names": "ab"},
        {"label_names": [1, 2]},
    ],
)
def test_what_names_no_classes(content, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(content))
    assert stated_class_names(str(tmp_path), 2) is None


def test_a_file_and_a_layout_without_names_are_left_alone(tmp_path):
    path = tmp_path / "config.json"
    path.write_text("{}")
    write_class_names(str(tmp_path), "official", LABELS)
    write_class_names(str(tmp_path), "timm", [])
    write_class_names(str(tmp_path / "none"), "timm", LABELS)
    assert path.read_text() == "{}"
    assert stated_class_names(str(tmp_path / "none"), 3) is None
