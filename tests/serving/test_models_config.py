"""models.config, against the messages that TF Serving itself reads."""

import pytest
from google.protobuf import text_format
from tensorflow_serving.config.model_server_config_pb2 import ModelServerConfig

from keras_vit.serving.models_config import models_config, versions


def make_models(folder, models):
    for name, numbers in models.items():
        for number in numbers:
            path = folder / name / str(number)
            path.mkdir(parents=True)
            (path / "saved_model.pb").touch()


def parse(text):
    config = text_format.Parse(text, ModelServerConfig())
    return {c.name: c for c in config.model_config_list.config}


def test_the_messages_of_tf_serving_read_it(tmp_path):
    names = {"digits": [2, 9, 10], "plants": [1], 'a "b" \\': [1, 2]}
    make_models(tmp_path, names)
    configs = parse(models_config(tmp_path, root="/srv/models/"))
    assert list(configs) == sorted(names)
    for name, config in configs.items():
        assert config.base_path == f"/srv/models/{name}"
        assert config.model_platform == "tensorflow"
        policy = config.model_version_policy
        assert policy.WhichOneof("policy_choice") == "all"
    labels = {n: dict(c.version_labels) for n, c in configs.items()}
    # The newest by number, not by the letters of the name.
    assert labels["digits"] == {"stable": 9, "canary": 10}
    assert labels["plants"] == {"stable": 1}


def test_the_text_as_it_stands(tmp_path):
    make_models(tmp_path, {"digits": [1, 2]})
    assert (
        models_config(tmp_path)
        == """\
model_config_list {
  config {
    name: "digits"
    base_path: "/models/digits"
    model_platform: "tensorflow"
    model_version_policy {
      all {
      }
    }
    version_labels {
      key: "canary"
      value: 2
    }
    version_labels {
      key: "stable"
      value: 1
    }
  }
}
"""
    )


def test_drafts_and_invalid_versions_are_ignored(tmp_path):
    make_models(
        tmp_path,
        {"digits": [3, ".draft-4", "5a", "-6", "٧", "notes"], ".old": [1]},
    )
    (tmp_path / "digits" / "8").mkdir()  # Without a model.
    (tmp_path / "models.config").touch()
    (tmp_path / "empty").mkdir()
    assert versions(tmp_path / "digits") == [3]
    assert list(parse(models_config(tmp_path))) == ["digits"]


def test_a_folder_without_models(tmp_path):
    for folder in (tmp_path, tmp_path / "nothing"):
        with pytest.raises(ValueError, match="<model>/<version>.*Received"):
            models_config(folder)
