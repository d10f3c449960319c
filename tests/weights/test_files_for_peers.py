"""Files of keras_vit, read by timm and Hugging Face transformers.

The libraries run in a process of their own, see peers.py.
"""

import pathlib
import re
from typing import NamedTuple

import numpy as np
import pytest

from keras_vit import VisionTransformer, save_checkpoint
from tests.tiny import make, randomize, tiny_config, to_numpy
from tests.weights.peer_process import HYBRID, MARKS, arrays_in, close, work

pytestmark = MARKS


class Written(NamedTuple):
    """A model of keras_vit, and how another library reads its file.

    Args:
        config: Changes to `tiny_config`.
        load: Arguments of the worker's task.
        tolerance: How far logits may be off.
    """

    config: dict
    load: dict
    tolerance: float = 1e-5


OURS_TINY = {
    "img_size": 32,
    "patch_size": 8,
    "embed_dim": 24,
    "depth": 2,
    "num_heads": 3,
    "mlp_ratio": 2,
    "num_classes": 7,
}
GAP = {"use_class_token": False, "pooling": "avg"}
GAP_THERE = {"class_token": False, "global_pool": "avg", "fc_norm": False}
HYBRID_SIZES = {"image_size": 128, "mlp_dim": 96}
HYBRID_THERE = {"img_size": 128, "embed_dim": 24, "depth": 2, "num_heads": 3}
# Changes to our configuration, and to the arguments of timm's model.
TIMM_WRITTEN = {
    "token": ({}, {}),
    "tanh": ({"activation": "tanh"}, {"act_layer": "gelu_tanh"}),
    "elu": ({"activation": "elu"}, {"act_layer": "elu"}),
    "avg": (
        {"pooling": "avg", "use_pooling_norm": True},
        {"global_pool": "avg"},
    ),
    "avg_without_fc_norm": (
        {"pooling": "avg"},
        {"global_pool": "avg", "fc_norm": False},
    ),
    "avg_without_token": (GAP, GAP_THERE),
    "max": ({"pooling": "max"}, {"global_pool": "max", "fc_norm": False}),
    "map": (
        {"use_class_token": False, "pooling": "map"},
        {"class_token": False, "global_pool": "map"},
    ),
    "map_tanh": (
        {"use_class_token": False, "pooling": "map", "activation": "tanh"},
        {"class_token": False, "global_pool": "map", "act_layer": "gelu_tanh"},
    ),
    "no_pooling": ({"pooling": "none"}, {"global_pool": ""}),
    "rectangle": ({"image_size": (24, 48)}, {"img_size": (24, 48)}),
    "1_channel": ({"channels": 1}, {"in_chans": 1}),
    "5_channels": ({"channels": 5}, {"in_chans": 5}),
    "no_classes": ({"num_classes": 0}, {"num_classes": 0}),
    "sincos_1d": ({"position_embedding": "sincos_1d"}, {}),
    "sincos_2d": ({"position_embedding": "sincos_2d"}, {}),
    "learned_2d": ({"position_embedding": "learned_2d"}, {}),
    "no_positions": ({"position_embedding": "none"}, {}),
    "rounded_mlp": (
        {"width": 56, "num_heads": 7, "mlp_dim": 488},
        {"embed_dim": 56, "num_heads": 7, "mlp_ratio": 8.72},
    ),
    "odd_mlp": ({"mlp_dim": 61}, {"mlp_ratio": 61 / 24 + 1e-9}),
}
# Of architectures whose function fixes what no argument can say.
TIMM_FOLDERS = {
    "gated_with_inner_norms": {
        "use_gated_mlp": True,
        "activation": "silu",
        "use_mlp_inner_norm": True,
        "use_attention_inner_norm": True,
    }
}
HYBRIDS_WRITTEN = {
    "R_Ti16": ((), 8, "vit_tiny_r_s16_p8_224"),
    "R26_S32": ((2, 2, 2, 2), 1, "vit_small_r26_s32_224"),
}
HF_WRITTEN = {
    "token": ({}, {}),
    "tanh": ({"activation": "tanh"}, {}),
    "relu": ({"activation": "relu"}, {}),
    "epsilon": ({"layer_norm_epsilon": 1e-12}, {}),
    "large_epsilon": ({"layer_norm_epsilon": 1e-2}, {}),
    "rectangle": ({"image_size": (24, 48)}, {}),
    "1_channel": ({"channels": 1}, {}),
    "sincos_2d": ({"position_embedding": "sincos_2d"}, {}),
    "dropout": ({"dropout_rate": 0.1, "attention_dropout_rate": 0.2}, {}),
    "auto": ({}, {"kind": "AutoModelForImageClassification"}),
    "pooler": (
        {"num_classes": 0, "representation_size": 24},
        {"kind": "ViTModel"},
    ),
    "pooler_of_another_size": (
        {"num_classes": 0, "representation_size": 20},
        {"kind": "ViTModel"},
    ),
    "no_pooler": (
        {"num_classes": 0, "pooling": "none"},
        {"kind": "ViTModel", "add_pooling_layer": False},
    ),
}


def written_cases():
    for name, (config, changes) in TIMM_WRITTEN.items():
        arguments = {**OURS_TINY, **changes}
        yield f"timm_file/{name}", Written(config, {"arguments": arguments})
        yield f"timm_folder/{name}", Written(config, {})
    for name, config in TIMM_FOLDERS.items():
        yield f"timm_folder/{name}", Written(config, {})
    for name, (stages, patch, model) in HYBRIDS_WRITTEN.items():
        config = {**HYBRID_SIZES, "stem_stages": stages, "patch_size": patch}
        config["stem_epsilons"] = "timm"
        load = {"arguments": {**HYBRID_THERE, "num_classes": 7}, "name": model}
        yield f"timm_file/{name}", Written(config, load, HYBRID)
    for name, (config, load) in HF_WRITTEN.items():
        load = {"kind": "ViTForImageClassification", **load}
        yield f"hf_folder/{name}", Written(config, load)


WRITTEN = dict(written_cases())


@pytest.fixture(scope="module")
def written(peers_folder):
    """Return a function from a case to our answer and the library's."""
    rows, ours = [], {}
    for seed, (key, case) in enumerate(WRITTEN.items()):
        kind = key.split("/")[0]
        config = tiny_config(**{"activation": "exact", **case.config})
        model = randomize(VisionTransformer(config), seed=seed + 1)
        path = peers_folder / f"written_{key}"
        path = path.with_suffix(".safetensors") if "file" in kind else path
        layout = "huggingface" if kind == "hf_folder" else "timm"
        save_checkpoint(model, path, layout=layout)
        x = np.random.default_rng(seed).random(
            (2, *config.image_size, config.channels), "float32"
        )
        x = 2 * x - 1
        images = peers_folder / f"{key.replace('/', '_')}.images.npz"
        np.savez(images, x=x)
        ours[key] = to_numpy(model(x))
        rows.append(
            {
                "task": f"load_{layout}",
                "path": str(path),
                "images": str(images),
                "output": str(images).replace(".images.", ".answers."),
                **case.load,
            }
        )
    errors = dict(zip(ours, work(rows, peers_folder, "load")))
    outputs = dict(zip(ours, (row["output"] for row in rows)))

    def answers(key):
        assert errors[key] is None, errors[key]
        return ours[key], arrays_in(outputs[key])["logits"]

    return answers


@pytest.mark.parametrize("key", WRITTEN)
def test_what_we_write_answers_the_same_there(key, written):
    ours, theirs = written(key)
    assert np.ptp(ours) > 0.1
    close(ours, theirs, WRITTEN[key].tolerance, f"written {key}")


def test_what_the_page_on_weights_shows_to_others_runs(peers_folder):
    """The blocks for timm and Hugging Face, in their own process."""
    model = make(activation="exact")
    save_checkpoint(model, peers_folder / "tuned_timm", layout="timm")
    save_checkpoint(model, peers_folder / "tuned_hf", layout="huggingface")
    page = pathlib.Path(__file__).parents[2] / "docs/weights.md"
    pattern = r"^```python\n((?:import timm|from transformers).*?)^```"
    blocks = re.findall(pattern, page.read_text(), re.M | re.S)
    assert len(blocks) == 2
    rows = [
        {"task": "run_code", "code": b, "folder": str(peers_folder)}
        for b in blocks
    ]
    assert work(rows, peers_folder, "page") == [None, None]
