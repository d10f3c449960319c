"""Hugging Face: its names, its pooler, and the JSON that is written for it."""

import json

import numpy as np
import pytest

from keras_vit import from_checkpoint, save_checkpoint
from keras_vit.weights.families import LAYOUTS
from keras_vit.weights.families.huggingface_types import describe_tower
from tests.tiny import make, tiny_config, to_numpy
from tests.weights import forms
from tests.weights.cases import (
    answer_of,
    expected_of,
    model_of,
    path_of,
    stored_in,
)

CONFIG = json.loads((path_of("hf_vit") / "config.json").read_text())
NEW_NAMES = (
    (r"^vit\.encoder\.layer\.", "vit.layers."),
    (r"attention\.attention\.query", "attention.q_proj"),
    (r"attention\.attention\.key", "attention.k_proj"),
    (r"attention\.attention\.value", "attention.v_proj"),
    (r"attention\.output\.dense", "attention.o_proj"),
    (r"intermediate\.dense", "mlp.fc1"),
    (r"(\d)\.output\.dense", r"\1.mlp.fc2"),
)


@pytest.mark.parametrize("prefix", [True, False])
def test_the_new_names_of_hugging_face(prefix, load):
    arrays = stored_in("hf_vit")
    changes = NEW_NAMES if prefix else (*NEW_NAMES, (r"^vit\.", ""))
    new = forms.renamed(arrays, *changes)
    assert "vit.layers.1.mlp.fc2.bias" in {*new, *map("vit.{}".format, new)}
    assert not any("encoder" in name or "dense" in name for name in new)
    model = load(new, CONFIG)
    for ours, theirs in zip(model.weights, model_of("hf_vit").weights):
        np.testing.assert_array_equal(to_numpy(ours), to_numpy(theirs))


def test_the_pooler_of_hugging_face_is_the_pre_logits(load):
    """And is left where a classifier does not read it."""
    rng = np.random.default_rng(5)
    arrays = stored_in("hf_vit")
    weight = rng.normal(0, 0.2, (24, 24)).astype("float32")
    arrays["vit.pooler.dense.weight"] = weight
    arrays["vit.pooler.dense.bias"] = weight[0]
    both = load(arrays, CONFIG)
    assert both.load_report.ignored == (
        "vit.pooler.dense.weight",
        "vit.pooler.dense.bias",
    )
    x = expected_of("hf_vit")["x"]
    logits = to_numpy(both(x))
    np.testing.assert_allclose(logits, answer_of("hf_vit"), rtol=0, atol=1e-5)
    headless = {k: v for k, v in arrays.items() if "classifier" not in k}
    pooled = to_numpy(load(headless, CONFIG, classes=0)(x))
    tokens = from_checkpoint(path_of("hf_vit"), classes=0)(x)
    expected = np.tanh(to_numpy(tokens) @ weight.T + weight[0])
    np.testing.assert_allclose(pooled, expected, rtol=0, atol=1e-5)
    # It reads the class token, so all tokens come without it.
    model = load(headless, CONFIG, classes=0, pooling="none")
    expected = from_checkpoint(path_of("hf_vit"), classes=0, pooling="none")(x)
    np.testing.assert_array_equal(to_numpy(model(x)), to_numpy(expected))


def test_a_pooler_of_another_activation_is_refused(load):
    arrays = stored_in("hf_vit")
    arrays = {n: a for n, a in arrays.items() if "classifier" not in n}
    arrays["vit.pooler.dense.weight"] = np.ones((24, 24), "float32")
    arrays["vit.pooler.dense.bias"] = np.ones(24, "float32")
    with pytest.raises(ValueError, match="its pooler ends in 'gelu'"):
        load(arrays, {**CONFIG, "pooler_act": "gelu"})


def test_what_only_the_configuration_says():
    """The rest is judged by transformers, in test_files_for_peers.py."""
    config = tiny_config(
        dropout_rate=0.25, attention_dropout_rate=0.5, num_classes=2
    )
    written = LAYOUTS["huggingface"].write(config).files["config.json"]
    assert written["hidden_dropout_prob"] == 0.25
    assert written["attention_probs_dropout_prob"] == 0.5
    assert written["id2label"] == {"0": "LABEL_0", "1": "LABEL_1"}
    assert written["label2id"] == {"LABEL_0": 0, "LABEL_1": 1}


@pytest.mark.parametrize(
    "choices, is_several",
    [
        ({"probabilities": "sigmoid"}, True),
        ({"classifier_activation": "sigmoid"}, True),
        ({"probabilities": "softmax"}, False),
        ({}, False),
    ],
)
def test_the_sigmoid_of_several_labels_is_stated_and_read(
    choices, is_several, tmp_path
):
    """Without it, pipelines of transformers compute a softmax."""
    model = make(layer_norm_epsilon=1e-12, activation="exact", **choices)
    save_checkpoint(model, tmp_path / "hf", layout="huggingface")
    file = tmp_path / "hf/config.json"
    stated = json.loads(file.read_text()).get("problem_type")
    assert (stated == "multi_label_classification") == is_several
    read = from_checkpoint(tmp_path / "hf").config
    assert read.probabilities == ("sigmoid" if is_several else None)
    assert read.classifier_activation is None


def test_the_tower_of_the_first_versions_of_clip_counts():
    """`CLIPConfig` of transformers lets it replace `vision_config`."""
    older = {"hidden_act": "gelu", "hidden_size": 768}
    for stated in (None, {"hidden_act": "quick_gelu"}):
        config = {
            "model_type": "clip",
            "vision_config": stated,
            "vision_config_dict": older,
        }
        assert describe_tower(config)["hidden_act"] == "gelu"
