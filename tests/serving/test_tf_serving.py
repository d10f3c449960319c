"""The files for TF Serving, against the messages that it reads itself."""

import numpy as np
import pytest
import tensorflow as tf
from google.protobuf import text_format
from tensorflow_serving.apis.prediction_log_pb2 import PredictionLog
from tensorflow_serving.config.model_server_config_pb2 import ModelServerConfig

from keras_vit.serving.tf_serving import (
    WARMUP_FILE,
    WarmupRecord,
    models_config,
    read_version,
    read_warmup,
    write_warmup,
)


def texts(*values):
    return np.array(values, object)


def make_records():
    random = np.random.default_rng(0)
    return [
        WarmupRecord(
            "serving_default",
            {"images": random.normal(size=(2, 4, 3, 3)).astype("float32")},
            {"logits": random.normal(size=(2, 5)).astype("float32")},
        ),
        WarmupRecord(
            "serve_uint8",
            {"images": random.integers(0, 256, (1, 4, 3, 3), "uint8")},
            {"logits": np.array([[1.5]], "float32")},
        ),
        WarmupRecord(
            "serve_bytes",
            # As image files do: they end in zeros, and are no text.
            {"image_bytes": texts(b"\xff\xd8\x00\xfe\x00\x00", b"")},
            {
                "labels": np.array([[b"cat\x00", "ß".encode()]] * 2, object),
                "probabilities": np.full((2, 2), 0.5, "float32"),
            },
        ),
    ]


def assert_same_arrays(arrays, expected):
    assert set(arrays) == set(expected)
    for name, array in arrays.items():
        assert array.dtype == expected[name].dtype, name
        assert array.shape == expected[name].shape
        assert array.tolist() == expected[name].tolist()


def test_what_is_written_is_read(tmp_path):
    path = tmp_path / "1" / WARMUP_FILE
    write_warmup(path, make_records())
    found = read_warmup(path)
    assert [r.signature for r in found] == [
        "serving_default",
        "serve_uint8",
        "serve_bytes",
    ]
    for record, expected in zip(found, make_records()):
        assert_same_arrays(record.inputs, expected.inputs)
        assert_same_arrays(record.outputs, expected.outputs)
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def test_a_request_of_another_program(tmp_path):
    """Without a signature, it is for the default one."""
    log = PredictionLog()
    log.log_metadata.timestamp_secs = 7  # Unknown to us.
    request = log.predict_log.request
    request.model_spec.version.value = 3
    request.inputs["x"].CopyFrom(tf.make_tensor_proto([1.5]))
    with tf.io.TFRecordWriter(str(tmp_path / "file")) as writer:
        writer.write(log.SerializeToString())
    [record] = read_warmup(tmp_path / "file")
    assert (record.signature, [*record.outputs]) == ("serving_default", [])
    assert record.inputs["x"].tolist() == [1.5]


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: content[:-5],
        lambda content: content[:6],  # Inside the first length.
        lambda x: x[:40] + bytes([x[40] ^ 1]) + x[41:],
    ],
    ids=["cut", "cut early", "flipped"],
)
def test_damaged_files_are_named(tmp_path, damage):
    path = tmp_path / "file"
    write_warmup(path, make_records())
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(ValueError, match=f"Not a warm-up file.*{path}: "):
        read_warmup(path)


@pytest.mark.parametrize(
    "content, reason",
    [
        (b"\xff\xff", ""),
        (b"\x12\x00", "not a Predict"),  # A classify_log.
    ],
)
def test_records_that_are_no_requests(tmp_path, content, reason):
    path = tmp_path / "file"
    with tf.io.TFRecordWriter(str(path)) as writer:
        writer.write(content)
    with pytest.raises(ValueError, match=f"Not a warm-up file.*{reason}"):
        read_warmup(path)


def test_folders_that_are_no_export(tmp_path, zoo):
    with pytest.raises(ValueError, match="NAME/NUMBER. Received"):
        read_version(zoo / "zoo")
    with pytest.raises(FileNotFoundError):
        read_version(tmp_path / "1")
    (tmp_path / "1").mkdir()  # As of an export to TFLite.
    with pytest.raises(ValueError, match="must be a version of a SavedModel"):
        read_version(tmp_path / "1")
    (tmp_path / "1/saved_model.pb").write_bytes(b"no model")
    with pytest.raises(ValueError, match="No SavedModel with the tag"):
        read_version(tmp_path / "1")
    (tmp_path / "1/saved_model.pb").write_bytes(
        (zoo / "zoo/3/saved_model.pb").read_bytes()
    )
    with pytest.raises(FileNotFoundError, match="warmup"):
        read_version(tmp_path / "1")


# -------------------------------------------------------------- models.config


def make_models(folder, models):
    for name, numbers in models.items():
        for number in numbers:
            path = folder / name / str(number)
            path.mkdir(parents=True)
            (path / "saved_model.pb").touch()


def parse(text):
    config = text_format.Parse(text, ModelServerConfig())
    return {c.name: c for c in config.model_config_list.config}


def test_tf_serving_reads_models_config(tmp_path):
    names = {"digits": [2, 9, 10], "plants": [1], 'a "b" \\': [1, 2]}
    make_models(tmp_path, names)
    configs = parse(models_config(tmp_path))
    assert list(configs) == sorted(names)
    for name, config in configs.items():
        assert config.base_path == f"/models/{name}"
        assert config.model_platform == "tensorflow"
        policy = config.model_version_policy
        assert policy.WhichOneof("policy_choice") == "all"
    labels = {n: dict(c.version_labels) for n, c in configs.items()}
    # The newest by number, not by the letters of the name.
    assert labels["digits"] == {"stable": 9, "canary": 10}
    assert labels["plants"] == {"stable": 1}


def test_drafts_and_invalid_versions_are_ignored(tmp_path):
    make_models(
        tmp_path,
        {"digits": [3, ".draft-4", "5a", "-6", "٧", "notes"], ".old": [1]},
    )
    (tmp_path / "digits" / "8").mkdir()  # Without a model.
    (tmp_path / "models.config").touch()
    (tmp_path / "empty").mkdir()
    config = parse(models_config(tmp_path))
    assert list(config) == ["digits"]
    assert dict(config["digits"].version_labels) == {"stable": 3}


def test_a_folder_without_models(tmp_path):
    for folder in (tmp_path, tmp_path / "nothing"):
        with pytest.raises(ValueError, match="<model>/<version>.*Received"):
            models_config(folder)
