import json

import pytest

from keras_vit.class_names import stated_class_names, write_class_names

NAMES = ["cat, tabby", "犬", "Kätzchen"]


@pytest.mark.parametrize("layout", ["huggingface", "timm"])
def test_names_are_read_back_and_the_rest_stays(layout, tmp_path):
    path = tmp_path / "config.json"
    path.write_text('{"width": 8}')
    write_class_names(str(tmp_path), layout, NAMES)
    assert json.loads(path.read_text())["width"] == 8
    assert stated_class_names(str(tmp_path), 3) == NAMES
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
    write_class_names(str(tmp_path), "official", NAMES)
    write_class_names(str(tmp_path), "timm", [])
    write_class_names(str(tmp_path / "none"), "timm", NAMES)
    assert path.read_text() == "{}"
    assert stated_class_names(str(tmp_path / "none"), 3) is None
