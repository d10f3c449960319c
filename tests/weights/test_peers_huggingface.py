"""The classes of Hugging Face transformers, judged by transformers itself."""

import json
import re
import shutil

import keras
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from keras_vit import from_checkpoint, save_checkpoint
from keras_vit.models.features import run_with_scores
from keras_vit.weights.read import read_preprocessing
from tests.tiny import LATER_KINDS, make, noise, to_numpy
from tests.weights.peer_process import (
    MARKS,
    answer_there,
    arrays_in,
    build,
    is_close,
    read,
)
from tests.weights.test_peers import all_close, answers_of

pytestmark = MARKS

quiet = pytest.mark.filterwarnings("ignore:.*preprocess_input:UserWarning")
SIZES = {
    "hidden_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "patch_size": 8,
}
TINY = {**SIZES, "image_size": 32, "intermediate_size": 96}
BORDER = {**TINY, "image_size": 38}
DINO = {**SIZES, "image_size": 32, "mlp_ratio": 2}
RADIO = {**SIZES, "image_size": 32, "max_img_size": 32, "mlp_ratio": 2.0}
FLAT = {**SIZES, "intermediate_size": 96, "num_patches": 16}
LABELS = {"num_labels": 7}
RELATIVE = {"use_relative_position_bias": True}
TEXT = {
    "vocab_size": 50,
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "max_position_embeddings": 16,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 1,
}
DECODER = {
    "decoder_hidden_size": 32,
    "decoder_num_attention_heads": 2,
    "decoder_intermediate_size": 32,
    "decoder_num_hidden_layers": 1,
    "mask_ratio": 0.0,
}
NECK = {
    "backbone_out_indices": [0, 0, 1, 1],
    "neck_hidden_sizes": [8] * 4,
    "fusion_hidden_size": 8,
}
SEGMENTS = {
    **TINY,
    "num_hidden_layers": 4,
    "out_indices": [1, 2, 3, 4],
    "pool_scales": [1],
}
INTERN = {**TINY, "image_size": [32, 32], "patch_size": [8, 8]}
LANGUAGE = {
    "model_type": "qwen2",
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "vocab_size": 50,
}
TIMM = {
    "architecture": "deit3_small_patch16_224",
    "model_args": {
        "img_size": 32,
        "patch_size": 8,
        "embed_dim": 48,
        "depth": 2,
        "num_heads": 3,
    },
}


def two_towers(text=(), **vision):
    return {
        "text_config": {**TEXT, **dict(text)},
        "vision_config": {**TINY, **vision},
    }


PROJECTED = {"projection_dim": 20}
SIGLIP = two_towers({"projection_size": 48})
SIGLIP_2 = {**SIGLIP, "vision_config": FLAT}
# The arguments of the configuration by the class, which may follow a remark.
CASES = {
    "ViTModel": TINY,
    "small pooler ViTModel": {**TINY, "pooler_output_size": 20},
    "no pooler ViTModel": TINY,
    "no head ViTForImageClassification": {**TINY, "num_labels": 0},
    "rectangle ViTForImageClassification": {
        **TINY,
        **LABELS,
        "image_size": (24, 48),
    },
    "tanh ViTModel": {**TINY, "hidden_act": "gelu_new"},
    "relu ViTModel": {**TINY, "hidden_act": "relu"},
    "epsilon ViTModel": {**TINY, "layer_norm_eps": 1e-2},
    "no bias ViTModel": {**TINY, "qkv_bias": False},
    "raw ViTForImageClassification": {**TINY, **LABELS},
    "shards ViTForImageClassification": {**TINY, **LABELS},
    "ViTForImageClassification": {**TINY, **LABELS},
    "ViTForMaskedImageModeling": {**TINY, "encoder_stride": 8},
    "DeiTModel": TINY,
    "DeiTForImageClassification": {**TINY, **LABELS},
    "DeiTForImageClassificationWithTeacher": {**TINY, **LABELS},
    "DeiTForMaskedImageModeling": {**TINY, "encoder_stride": 8},
    "Dinov2Model": DINO,
    "gated Dinov2Model": {**DINO, "use_swiglu_ffn": True},
    "Dinov2ForImageClassification": {**DINO, **LABELS},
    "Dinov2WithRegistersModel": DINO,
    "gated Dinov2WithRegistersModel": {**DINO, "use_swiglu_ffn": True},
    "Dinov2WithRegistersForImageClassification": {**DINO, **LABELS},
    "DINOv3ViTModel": {**TINY, "num_register_tokens": 4},
    "gated DINOv3ViTModel": {
        **TINY,
        "use_gated_mlp": True,
        "hidden_act": "silu",
    },
    "key_bias DINOv3ViTModel": {**TINY, "key_bias": True},
    "hot DINOv3ViTModel": {**TINY, "rope_theta": 7.0},
    "CLIPVisionModel": TINY,
    "exact CLIPVisionModel": {**TINY, "hidden_act": "gelu"},
    "CLIPVisionModelWithProjection": {**TINY, **PROJECTED},
    "CLIPModel": {**two_towers(), **PROJECTED},
    "CLIPForImageClassification": {**two_towers(), **LABELS},
    "MetaClip2VisionModelWithProjection": {**TINY, **PROJECTED},
    "MetaClip2Model": {**two_towers(), **PROJECTED},
    "MetaClip2ForImageClassification": {**two_towers(), **LABELS},
    "SiglipVisionModel": TINY,
    "headless SiglipVisionModel": {**TINY, "vision_use_head": False},
    "SiglipModel": SIGLIP,
    "SiglipForImageClassification": {**SIGLIP, **LABELS},
    "Siglip2VisionModel": FLAT,
    "Siglip2Model": SIGLIP_2,
    "Siglip2ForImageClassification": {**SIGLIP_2, **LABELS},
    "BeitModel": {**TINY, **RELATIVE},
    "token BeitModel": {**TINY, "use_mean_pooling": False},
    "absolute BeitModel": {**TINY, "use_absolute_position_embeddings": True},
    "BeitForImageClassification": {**TINY, **RELATIVE, **LABELS},
    "BeitForMaskedImageModeling": {
        **TINY,
        "use_shared_relative_position_bias": True,
        "vocab_size": 50,
    },
    "Data2VecVisionModel": {**TINY, **RELATIVE},
    "Data2VecVisionForImageClassification": {**TINY, **RELATIVE, **LABELS},
    "ViTMAEModel": {**TINY, "mask_ratio": 0.0},
    "ViTMAEForPreTraining": {**TINY, **DECODER},
    "ViTMSNModel": TINY,
    "ViTMSNForImageClassification": {**TINY, **LABELS},
    "IJepaModel": TINY,
    "IJepaForImageClassification": {**TINY, **LABELS},
    "Aimv2VisionModel": {**TINY, "use_head": False},
    "pooled Aimv2VisionModel": {**TINY, "use_head": True},
    "Aimv2Model": {**two_towers(use_head=True), **PROJECTED},
    # A border of 6 pixels fills no patch.
    "border ViTModel": BORDER,
    "border CLIPVisionModel": BORDER,
    "border SiglipVisionModel": BORDER,
    "DPTModel": {**TINY, **NECK},
    "DPTForDepthEstimation": {**TINY, **NECK},
    "InternVLVisionModel": INTERN,
    "InternVLModel": {"text_config": LANGUAGE, "vision_config": INTERN},
    "RMS InternVLVisionModel": {
        **INTERN,
        "norm_type": "rms_norm",
        "use_qk_norm": True,
        "attention_bias": False,
    },
    "BeitForSemanticSegmentation": {**SEGMENTS, **RELATIVE},
    "Data2VecVisionForSemanticSegmentation": {**SEGMENTS, **RELATIVE},
    "Tipsv2VisionModel": DINO,
    "Tipsv2Model": {
        "text_config": {**TEXT, "hidden_size": 48},
        "vision_config": DINO,
    },
    "MLCDVisionModel": TINY,
    "hot MLCDVisionModel": {
        **TINY,
        "hidden_act": "quick_gelu",
        "rope_parameters": {"rope_type": "axial", "rope_theta": 7.0},
    },
    "RadioModel": RADIO,
    "large RadioModel": {**RADIO, "max_img_size": 48},
    "other RadioModel": {
        **RADIO,
        "num_cls_tokens": 4,
        "num_registers": 0,
        "summary_idxs": [3, 0, 1],
        "hidden_act": "gelu_pytorch_tanh",
        "layer_norm_eps": 1e-3,
        "norm_mean": [0.1, 0.2, 0.3],
        "norm_std": [0.5, 0.6, 0.7],
        "video_temporal_patch_size": 2,
    },
    "Sapiens2Model": TINY,
    "ungated Sapiens2Model": {
        **TINY,
        "use_gated_mlp": False,
        "num_register_tokens": 0,
    },
    "hot Sapiens2Model": {
        **TINY,
        "rope_theta": 7.0,
        "rms_norm_eps": 1e-3,
        "hidden_act": "gelu",
        "key_bias": False,
        "use_qk_norm": False,
    },
    "Sapiens2ForSemanticSegmentation": {
        **TINY,
        **LABELS,
        "head_config": {"upsample_out_channels": [8], "conv_out_channels": [8]},
    },
    "TimmWrapperModel": TIMM,
    "TimmWrapperForImageClassification": {**TIMM, **LABELS},
}
# Further arguments of the worker.
OPTIONS = {
    "ViTForImageClassification": {"details": True},
    "no pooler ViTModel": {"add_pooling_layer": False},
    "rectangle ViTForImageClassification": {"size": (24, 48)},
    "raw ViTForImageClassification": {"raw": True, "details": True},
    "shards ViTForImageClassification": {"max_shard_size": "50KB"},
    **{
        f"border {kind}": {"size": (38, 38)}
        for kind in ("ViTModel", "CLIPVisionModel", "SiglipVisionModel")
    },
}
# Likewise, with the words of the error.
REFUSED = {
    "mish ViTModel": ({**TINY, "hidden_act": "mish"}, "hidden_act='mish'"),
    "grouped Sapiens2Model": (
        {**TINY, "num_key_value_heads_per_layer": [3, 1]},
        "grouped queries",
    ),
    "biased Aimv2VisionModel": (
        {**TINY, "qkv_bias": True},
        "biases in the blocks of AIMv2",
    ),
    "native Aimv2VisionModel": ({**TINY, "is_native": True}, "is_native"),
    "partial DINOv3ViTModel": (
        {**TINY, "query_bias": False, "mlp_bias": False},
        "queries or of the values alone, biases of the MLP",
    ),
    "mixed InternVLVisionModel": (
        {**INTERN, "use_qk_norm": True},
        "RMS norms of queries and keys beside layer norms",
    ),
    "gated RadioModel": (
        {**RADIO, "use_swiglu_ffn": True},
        "the gated MLP of RADIO",
    ),
    "VitPoseBackbone": (TINY, "model_type='vitpose_backbone'"),
}
INTERPOLATE = {"interpolate_pos_encoding": True}
# Inputs that let a class resize its positions to larger images.
RESIZED = {
    "ViTModel": INTERPOLATE,
    "DeiTForImageClassification": INTERPOLATE,
    "Dinov2Model": {},
    "Dinov2WithRegistersModel": {},
    "DINOv3ViTModel": {},
    "CLIPVisionModel": INTERPOLATE,
    "SiglipVisionModel": INTERPOLATE,
    "Siglip2VisionModel": {},
    "BeitModel": {},
    "RadioModel": {},
    "MLCDVisionModel": {},
    "DPTModel": {},
    "Tipsv2VisionModel": {},
}


def request_of(name, arguments):
    """Return the request for a model, by a class that may follow a remark."""
    kind = name.split()[-1]
    ends = r"(ModelWithProjection|Model|For[A-Z]\w+)$"
    config = re.sub(ends, "", kind) + "Config"
    return {"kind": kind, "config": config, "arguments": arguments}


@pytest.fixture(scope="module")
def built(peers_folder):
    """Return a function from the name of a case to its folder."""
    refused = {name: arguments for name, (arguments, _) in REFUSED.items()}
    requests = {
        name: {
            **request_of(name, arguments),
            "resized": RESIZED.get(name),
            **OPTIONS.get(name, {}),
        }
        for name, arguments in {**CASES, **refused}.items()
    }
    return build("build_huggingface_class", requests, peers_folder)


def pixels_for(model, name, x):
    """Return images as the model wants them; RADIO normalises its own."""
    if "Radio" not in name:
        return x
    settings = model.config.preprocessing
    return (x - np.float32(settings.mean)) / np.float32(settings.deviation)


def attention_of(model, x):
    """Return the attention maps of every block."""
    names = [layer.name for layer in model.layers]
    blocks = [name for name in names if name.startswith("block_")]
    before = [names[names.index(name) - 1] for name in blocks]
    outputs = [model.get_layer(name).output for name in before]
    inputs = keras.Model(model.input, outputs)(x)
    found = {}
    for index, (name, tokens) in enumerate(zip(blocks, inputs)):
        block = model.get_layer(name)
        _, scores = run_with_scores(block, tokens)
        found[f"attention/{index}"] = to_numpy(scores)
    return found


# CLIP returns the tokens before the last norm.
BEFORE_NORM = ("CLIP", "MetaClip2", "MLCD")


@pytest.mark.parametrize("name", CASES)
@quiet
def test_a_class_answers_the_same(name, built):
    folder = built(name)
    expected = arrays_in(folder / "expected.npz")
    x = expected.pop("x")
    if name.startswith("raw"):
        model = from_checkpoint(folder / "weights.safetensors", num_heads=3)
    elif name.startswith("large"):  # Its table is larger than the images.
        model = from_checkpoint(folder, image_size=x.shape[1:3])
    else:
        model = read(folder)
    x = pixels_for(model, name, x)
    assert expected
    if "hidden/0" in expected:
        all_close(answers_of(model, x), expected, 5e-6, name)
        all_close(attention_of(model, x), expected, 1e-6, name)
    if "answer" in expected:
        is_close(to_numpy(model(x)), expected["answer"])
    if "tokens" in expected:
        names = [layer.name for layer in model.layers]
        last = f"block_{model.config.depth - 1:02d}"
        kind = name.split()[-1]
        if "encoder_norm" in names and not kind.startswith(BEFORE_NORM):
            last = "encoder_norm"
        part = keras.Model(model.input, model.get_layer(last).output)
        is_close(to_numpy(part(x)), expected["tokens"])


# Arrays without which a file may look like one of another model.
TELLING = (
    r"(lambda_\d|\.lambda1|gamma\.weight)$",
    r"(lambda_2|scale2\.lambda1)$",
    "(register|storage)_tokens",
    "patch_embed.*\\.bias$",
    "embeddings.rms_norm",
    "gate_proj",
    "relative_position_bias_table",
    "class_pos_emb",
    "attn.wk.bias$",
    r"norm.*\.bias$",
)


@pytest.mark.parametrize("name", CASES)
def test_a_file_that_lacks_a_part_is_refused(name, built, tmp_path):
    """All arrays of a part at once, as if the model never had it."""
    if name.startswith(("Timm", "raw", "shards")):
        return  # See the architectures of timm, and the class itself.
    folder = built(name)
    arrays = load_file(folder / "model.safetensors")
    shutil.copy(folder / "config.json", tmp_path)
    for pattern in TELLING:
        rest = {
            key: array
            for key, array in arrays.items()
            if not re.search(pattern, key)
            or key.startswith("language_model")
            or not array.size
        }
        # RADIO's LayerScale may be missing: it is then one.
        is_optional = "Radio" in name and "lambda" in pattern
        if len(rest) < len(arrays) and not is_optional:
            save_file(rest, tmp_path / "model.safetensors")
            with pytest.raises(ValueError, match="model.safetensors"):
                read_preprocessing(tmp_path)


@pytest.mark.parametrize("name", RESIZED)
@quiet
def test_positions_are_resized_as_by_the_source(name, built):
    folder = built(name)
    expected = arrays_in(folder / "resized.npz")
    model = from_checkpoint(folder, image_size=expected["x"].shape[1:3])
    x = pixels_for(model, name, expected["x"])
    is_close(to_numpy(model(x)), expected["answer"])


@pytest.mark.parametrize("name", REFUSED)
def test_a_class_that_is_refused(name, built):
    with pytest.raises(ValueError, match=REFUSED[name][1]):
        from_checkpoint(built(name))


def test_grouped_queries_are_refused(built, tmp_path):
    folder = tmp_path / "grouped"
    shutil.copytree(built("MLCDVisionModel"), folder)
    described = json.loads((folder / "config.json").read_text())
    described["num_key_value_groups"] = 3
    (folder / "config.json").write_text(json.dumps(described))
    with pytest.raises(ValueError, match="grouped queries"):
        from_checkpoint(folder)


# Models that are written in the class they come from,
WRITTEN = {
    name: name.split()[-1]
    for name in (
        "DeiTForImageClassification",
        "DeiTForImageClassificationWithTeacher",
        "Dinov2Model",
        "gated Dinov2Model",
        "Dinov2ForImageClassification",
        "gated Dinov2WithRegistersModel",
        "Dinov2WithRegistersForImageClassification",
        "DINOv3ViTModel",
        "gated DINOv3ViTModel",
        "key_bias DINOv3ViTModel",
        "hot DINOv3ViTModel",
        "CLIPVisionModel",
        "exact CLIPVisionModel",
        "SiglipVisionModel",
        "BeitModel",
        "token BeitModel",
        "absolute BeitModel",
        "BeitForImageClassification",
        "IJepaForImageClassification",
        "pooled Aimv2VisionModel",
    )
}
# or in an equal one.
WRITTEN |= {
    "CLIPModel": "CLIPVisionModelWithProjection",
    "MetaClip2VisionModelWithProjection": "CLIPVisionModelWithProjection",
    "Siglip2Model": "SiglipVisionModel",
    "SiglipForImageClassification": "IJepaForImageClassification",
    "Data2VecVisionForImageClassification": "BeitForImageClassification",
    "ViTMSNForImageClassification": "ViTForImageClassification",
    "DPTModel": "ViTModel",
    "Tipsv2VisionModel": "Dinov2WithRegistersModel",
}
# Models that no class of transformers computes, as far as we write.
NOT_WRITTEN = {
    "Aimv2Model": "Aimv2VisionModel has no classifier",
    "CLIPForImageClassification": "use_final_norm=False",
    "InternVLVisionModel": "use_final_norm=False",
    "Data2VecVisionModel": "its BEiT normalises the average",
    "MLCDVisionModel": "rotary_positions='axial_class'",
    "RadioModel": "use_patch_bias=False",
    "Sapiens2Model": "norm='rms'",
}


@pytest.mark.parametrize("name", NOT_WRITTEN)
def test_what_has_no_class_is_refused(name, built, tmp_path):
    model = read(built(name))
    with pytest.raises(ValueError, match=NOT_WRITTEN[name]):
        save_checkpoint(model, tmp_path / "model", layout="huggingface")
    assert not list(tmp_path.iterdir())


# One of each kind that the package can build, whether transformers has it or
# not, and some without a head.
KINDS = {
    **LATER_KINDS,
    **{
        f"{name}_headless": {**choices, "num_classes": 0}
        for name, choices in LATER_KINDS.items()
    },
    "dinov2_token": {
        "layer_scale_init": 0.1,
        "num_registers": 2,
        "use_prefix_positions": False,
        "num_classes": 0,
    },
    "dinov2_positions": {
        "layer_scale_init": 0.1,
        "num_registers": 2,
        "num_classes": 0,
    },
    "dinov3_scale": {
        **LATER_KINDS["dinov3"],
        "qk_norm": "none",
        "layer_scale_init": 0.1,
        "num_classes": 0,
    },
    "beit_after": {**LATER_KINDS["beit"], "norm_placement": "after"},
    "siglip": {"use_class_token": False, "pooling": "map", "num_classes": 0},
    "siglip_wide": {
        "use_class_token": False,
        "pooling": "map",
        "pooling_mlp_dim": 96,
        "num_classes": 0,
    },
    "probe": {**LATER_KINDS["aimv2"], "pooling": "probe", "num_classes": 0},
}
WRITTEN_KINDS = {
    "aimv2_headless",
    "beit",
    "beit_headless",
    "clip_headless",
    "deit",
    "dinov2",
    "dinov2_token",
    "dinov3_scale",
    "probe",
    "siglip",
}


@pytest.fixture(scope="module")
def answered(built, peers_folder):
    """Return the answers there with the written files, and ours."""
    models = {name: make(**choices) for name, choices in KINDS.items()}
    np.savez(peers_folder / "x.npz", x=noise(2, 32, 32, 3))
    images = dict.fromkeys(KINDS, peers_folder / "x.npz")
    for name in WRITTEN:
        models[name] = read(built(name))
        images[name] = built(name) / "expected.npz"
    found = answer_there(models, "huggingface", peers_folder, images)
    for name, kind in WRITTEN.items():
        path = peers_folder / f"written {name}" / "config.json"
        assert json.loads(path.read_text())["architectures"] == [kind]
    return found, {
        name: to_numpy(models[name](np.load(images[name])["x"]))
        for name in found
    }


@pytest.mark.parametrize("name", [*sorted(WRITTEN_KINDS), *WRITTEN])
def test_what_we_write_answers_the_same(name, answered):
    there, here = (answers[name] for answers in answered)
    assert isinstance(there, dict), there
    answer = there["logits"]
    if answer.ndim == 3:  # AIMv2 without its pooling returns the tokens.
        answer = answer.mean(axis=1)
    is_close(answer, here, 5e-6)


def test_what_transformers_does_not_compute_is_refused(answered):
    assert answered[0].keys() == {*WRITTEN_KINDS, *WRITTEN}
