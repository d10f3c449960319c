"""A checkpoint is complete, or all that is wrong with it is named."""

import dataclasses
import re

import numpy as np
import pytest

from keras_vit import VisionTransformer, load_checkpoint
from keras_vit.weights.containers import File, open_file
from keras_vit.weights.find import find
from tests.tiny import noise, to_numpy
from tests.weights.cases import TIMM, TOKEN, path_of, stored_in

POSITIONS = "Transformer/posembed_input/pos_embedding"
PRE_LOGITS = "official_pre_logits.npz"
BLOCK = "Transformer/encoderblock_1/"
NORM = f"{BLOCK}LayerNorm_0/scale"
OF_HUGGING_FACE = "vit.embeddings.position_embeddings"
END = "Transformer/encoder_norm/scale"
# Name of a golden case, an array that it loses, the JSON that says that there
# is one, and the words of the error.
LOST = [
    (TOKEN, "cls", None, "17 positions"),
    (TOKEN, POSITIONS, None, POSITIONS),
    ("hf_vit", OF_HUGGING_FACE, None, OF_HUGGING_FACE),
    (TIMM, "blocks.1.attn.qkv.bias", None, "missing: blocks.1.attn.qkv.bias."),
    (TOKEN, "head/kernel", None, "missing: head/kernel."),
    (PRE_LOGITS, "pre_logits/kernel", None, "missing: pre_logits/kernel."),
    (TOKEN, NORM, None, f"missing: {NORM}."),
    ("big_vision_gap.npz", f"params/{END}", None, f"missing: {END}."),
    ("big_vision_tok.npz", "params/cls", {"pool": "tok"}, "lacks cls"),
    (
        "big_vision_gap.npz",
        "params/pos_embedding",
        {"posemb": "learn"},
        "lacks pos_embedding",
    ),
    (
        "timm_rect.safetensors",
        "cls_token",
        {"global_pool": "token"},
        "lacks cls_token",
    ),
]


@pytest.mark.parametrize(("name", "lost", "config", "words"), LOST)
def test_what_is_lost_is_named_and_no_other_model_is_made_of_the_rest(
    name, lost, config, words, load
):
    arrays = stored_in(name)
    del arrays[lost]
    with pytest.raises(ValueError, match=re.escape(words)):
        load(arrays, config, num_heads=3, image_size=32)


OF_TIMM = {"architecture": "vit_base_patch16_224"}
OF_HF = {"model_type": "vit", "num_attention_heads": 3}
CLASSIFIER = ["ViTForImageClassification"]
# Name of a golden case, the JSON beside its body, and the head that it states.
STATED_HEADS = {
    "timm": (TIMM, {**OF_TIMM, "num_classes": 7}, 7),
    "model_args": (
        TIMM,
        {**OF_TIMM, "num_classes": 0, "model_args": {"num_classes": 5}},
        5,
    ),
    "timm_features": (TIMM, {**OF_TIMM, "num_classes": 0}, 0),
    "wrapped_features": (
        TIMM,
        {**OF_TIMM, "num_classes": 7, "architectures": ["TimmWrapperModel"]},
        0,
    ),
    "trunk": (
        TIMM,
        {
            "model_cfg": {
                "embed_dim": 5,
                "vision_cfg": {
                    "timm_model_name": "vit_base_patch16_224",
                    "timm_proj": "linear",
                },
            },
            "preprocess_cfg": {"mean": 0.5, "std": 0.5},
        },
        5,
    ),
    "hf_labels": (
        "hf_vit",
        {**OF_HF, "architectures": CLASSIFIER, "id2label": {"0": "a"}},
        1,
    ),
    "hf_none": (
        "hf_vit",
        {**OF_HF, "architectures": CLASSIFIER, "num_labels": 0},
        0,
    ),
    "hf_features": ("hf_vit", {**OF_HF, "architectures": ["ViTModel"]}, 0),
}


@pytest.mark.parametrize("case", STATED_HEADS)
def test_a_head_that_the_configuration_states_and_the_file_lacks(case, load):
    name, config, stated = STATED_HEADS[case]
    head = ("head.", "classifier.")
    body = {k: v for k, v in stored_in(name).items() if not k.startswith(head)}
    if stated:
        with pytest.raises(ValueError, match=f"lacks the head of {stated} .*`"):
            load(body, config, num_heads=3)
    none = {"classes": 0} if stated else {}
    features = load(body, config, num_heads=3, **none)
    assert features.config.num_classes == 0
    assert not any("head" in note for note in features.load_report.notes)
    if stated:
        with pytest.warns(UserWarning, match=f"lacks the head of {stated} "):
            model = load(body, config, num_heads=3, classes=4)
        assert "predictions/kernel" in model.load_report.reset


def test_all_that_is_wrong_is_named_at_once(load, tmp_path):
    arrays = stored_in(TOKEN)
    del arrays[BLOCK + "LayerNorm_2/scale"], arrays["head/bias"]
    arrays["surplus/one"] = arrays["surplus/two"] = np.zeros(3)
    kernel = BLOCK + "MlpBlock_3/Dense_0/kernel"
    arrays[kernel] = arrays[kernel].T
    arrays["cls"] = np.zeros((1, 1, 24), "int32")
    with pytest.raises(ValueError) as error:
        load(arrays)
    for words in (
        str(tmp_path / "m.npz"),
        f"missing: {BLOCK}LayerNorm_2/scale, head/bias.",
        "left over: surplus/one, surplus/two.",
        f"{kernel} (48, 24), expected (24, 48)",
        "of another type: cls <i4, expected floats. of another shape: ",
    ):
        assert words in str(error.value)


FAULTS = {
    "transposed": (
        lambda a: a.update({"head/kernel": a["head/kernel"].T}),
        "head",
    ),
    "a_block_is_missing": (
        lambda a: [a.pop(k) for k in list(a) if "block_0/" in k],
        "encoderblock_0/",
    ),
    "no_blocks": (
        lambda a: [a.pop(k) for k in list(a) if "block_" in k],
        "it lacks Transformer/encoderblock_0/",
    ),
    "no_patches": (
        lambda a: a.pop("embedding/kernel"),
        "it lacks embedding/kernel",
    ),
    "rectangular_patches": (
        lambda a: a.update({"embedding/kernel": np.zeros((8, 4, 3, 24))}),
        "its patches are not square but 8x4",
    ),
    "patches_of_another_rank": (
        lambda a: a.update({"embedding/kernel": np.zeros((192, 24))}),
        "embedding/kernel has the shape (192, 24)",
    ),
    "positions_of_another_width": (
        lambda a: a.update(
            {"Transformer/posembed_input/pos_embedding": np.zeros((1, 17, 23))}
        ),
        "pos_embedding has the shape (1, 17, 23)",
    ),
    "both_dialects": (
        lambda a: a.update(
            {BLOCK + "LayerNorm_1/scale": a[BLOCK + "LayerNorm_2/scale"]}
        ),
        "twice",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_named(fault, load, tmp_path):
    edit, words = FAULTS[fault]
    arrays = stored_in(TOKEN)
    edit(arrays)
    with pytest.raises(ValueError, match=re.escape(words)) as error:
        load(arrays)
    assert str(tmp_path / "m.npz") in str(error.value)


@pytest.mark.parametrize(
    ("change", "json", "words"),
    [
        ({}, {"architecture": "qwen3_vit_88m"}, "qwen3_vit_88m has rotary"),
        ({}, {"architecture": "deepseek_vit_412m_enc"}, "412m_enc has axial"),
        ({"merger.norm.weight": 24}, None, "a projector .*merger.norm"),
        ({"patch_embed.position_embedding_table": 2}, None, "of Gemma 4"),
    ],
)
def test_towers_of_language_models_are_refused_by_their_parts(
    change, json, words, load
):
    """Arrays of the others alone would be read as those of a plain ViT."""
    arrays = {name: np.ones(size, "f4") for name, size in change.items()}
    with pytest.raises(ValueError, match=words):
        load({**stored_in(TIMM), **arrays}, json, num_heads=3)


def test_another_architecture_is_refused_by_its_part(load):
    """Names of other parts are in families/test_inference.py."""
    name = "blocks.0.attn.lambda_q1"
    arrays = {**stored_in(TIMM), name: np.zeros(24, "float32")}
    words = f"left over: {name}.*a model with differential attention"
    with pytest.raises(ValueError, match=words):
        load(arrays, num_heads=3)


def test_finding_a_model_reads_no_array(monkeypatch):
    sizes = [a.size for a in stored_in("big_vision_map.npz").values()]

    def refuse(*_, **__):
        raise AssertionError("it was read")

    monkeypatch.setattr(File, "read", refuse)
    with open_file(path_of("big_vision_map.npz")) as checkpoint:
        source = find(checkpoint)
    assert source.config.pooling == "map"
    assert source.num_parameters == sum(sizes)


@pytest.mark.parametrize("name", [TIMM, "hf_vit", "keras_hub", TOKEN])
def test_a_missing_bias_is_zero_or_an_error(name, load, tmp_path):
    """Libraries in which the bias of queries can be left out; Flax' cannot."""
    pattern = r"attn\.qkv\.bias|attention\.attention\..*bias|_dense/vars/1"
    pattern = pattern.replace("_dense", "mha/(query|key|value)_dense")
    pattern += r"|MultiHead.*/(query|key|value)/bias"
    arrays = stored_in(name)
    biases = [n for n in arrays if re.search(pattern, n)]
    assert len(biases) == (2 if name == TIMM else 6)
    for bias in biases:
        del arrays[bias]
    if name == TOKEN:
        with pytest.raises(ValueError, match="missing: .*bias"):
            load(arrays)
        return
    model = load(arrays, num_heads=3, image_size=32)
    found = {w.path: to_numpy(w) for w in model.weights}
    assert found["block_01/attention/qkv/kernel"].any()
    if name == "keras_hub":
        assert not found["block_01/attention/qkv/bias"].any()
        return
    # The families with later parts have models without the bias.
    assert model.config.qkv_bias == "none"
    biased = VisionTransformer(
        dataclasses.replace(model.config, qkv_bias="all")
    )
    load_checkpoint(biased, tmp_path / "m.npz")
    found = {w.path: to_numpy(w) for w in biased.weights}
    assert not found["block_01/attention/qkv/bias"].any()
    x = noise(1, 32, 32, 3)
    np.testing.assert_array_equal(to_numpy(biased(x)), to_numpy(model(x)))
