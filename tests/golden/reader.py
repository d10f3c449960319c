"""A plain reader of the tiny official and big_vision files, for tests.

It supports only the names in these files, and fills a model layer by layer.
"""

import json
import pathlib
import re

import numpy as np

from keras_vit import VisionTransformer, ViTConfig

FOLDER = pathlib.Path(__file__).parent


def load_case(name):
    """Return (model with the weights of the case, expected arrays)."""
    case = json.loads((FOLDER / f"{name}.json").read_text())
    with np.load(FOLDER / f"{name}.npz") as file:
        weights = {_plain(key): file[key] for key in file.files}
    with np.load(FOLDER / f"{name}.expected.npz") as file:
        expected = {key: file[key] for key in file.files}
    model = VisionTransformer(config_of(case, weights))
    for layer in model.layers[1:]:
        if layer.weights:
            layer.set_weights(arrays_of(layer, weights, case))
    return model, expected


def config_of(case, weights):
    pool = case.get("classifier") or case["pool"]
    token = pool in ("token", "tok")
    representation = case.get("representation_size") or case.get("rep_size")
    if representation is True:
        representation = case["width"]
    return ViTConfig(
        width=case["width"],
        depth=case["depth"],
        mlp_dim=case["mlp_dim"],
        num_heads=case["num_heads"],
        patch_size=case["patch"],
        image_size=tuple(case["image"]),
        num_classes=case["num_classes"],
        stem_stages=case.get("resnet_stages"),
        use_class_token=token,
        position_embedding=(
            "sincos_2d" if case.get("posemb") == "sincos2d" else "learned"
        ),
        pooling={"token": "token", "tok": "token", "gap": "avg", "map": "map"}[
            pool
        ],
        representation_size=representation or None,
        activation=case["gelu"],
    )


def arrays_of(layer, weights, case):
    """Return the arrays of the file in the order of `layer.weights`."""
    name = layer.name
    if name == "class_token":
        return [weights["cls"]]
    if name == "position_embedding":
        for key in (
            "Transformer/posembed_input/pos_embedding",
            "pos_embedding",
        ):
            if key in weights:
                table = weights[key][0]
        missing = layer.embedding.shape[0] - len(table)
        return [np.pad(table, ((missing, 0), (0, 0)))]
    if name == "stem":
        return [
            weights[_stem_key(w.path)].reshape(w.shape) for w in layer.weights
        ]
    if name == "pooling":
        return _map_head(layer, weights)
    if name.startswith("block_"):
        return _block(weights, int(name[6:]), case)
    prefix = {
        "patch_encoder": "embedding",
        "encoder_norm": "Transformer/encoder_norm",
        "pre_logits": "pre_logits",
        "predictions": "head",
    }[name]
    kernel = f"{prefix}/kernel"
    first = kernel if kernel in weights else f"{prefix}/scale"
    return [weights[first], weights[f"{prefix}/bias"]]


def _plain(key):
    return re.sub(r"^params/", "", key)


def _stem_key(path):
    path = path.removeprefix("stem/")
    path = re.sub(
        r"stage_(\d+)_unit_(\d+)/",
        lambda m: f"block{int(m[1]) + 1}/unit{int(m[2]) + 1}/",
        path,
    )
    for ours, theirs in (
        ("root_conv", "conv_root"),
        ("root_norm", "gn_root"),
        ("shortcut_conv", "conv_proj"),
        ("shortcut_norm", "gn_proj"),
        ("norm", "gn"),
        ("gamma", "scale"),
        ("beta", "bias"),
    ):
        path = path.replace(ours, theirs)
    return path


def _block(weights, index, case):
    stacked = "Transformer/encoderblock/LayerNorm_0/scale" in weights
    prefix = f"Transformer/encoderblock{'' if stacked else f'_{index}'}/"
    block = {
        key.removeprefix(prefix): value[index] if stacked else value
        for key, value in weights.items()
        if key.startswith(prefix)
    }
    released = case["block_names"] == "released"
    norm, attention, mlp = (2, 1, 3) if released else (1, 0, 0)
    return [
        block["LayerNorm_0/scale"],
        block["LayerNorm_0/bias"],
        *_attention(block, f"MultiHeadDotProductAttention_{attention}/"),
        block[f"LayerNorm_{norm}/scale"],
        block[f"LayerNorm_{norm}/bias"],
        *_mlp(block, f"MlpBlock_{mlp}/"),
    ]


def _attention(block, prefix):
    width = block[f"{prefix}query/kernel"].shape[0]
    parts = ("query", "key", "value")
    return [
        np.hstack(
            [block[f"{prefix}{p}/kernel"].reshape(width, width) for p in parts]
        ),
        np.hstack([block[f"{prefix}{p}/bias"].ravel() for p in parts]),
        block[f"{prefix}out/kernel"].reshape(width, width),
        block[f"{prefix}out/bias"],
    ]


def _mlp(block, prefix):
    return [
        block[f"{prefix}Dense_{i}/{kind}"]
        for i in (0, 1)
        for kind in ("kernel", "bias")
    ]


def _map_head(layer, weights):
    head = {
        key.removeprefix("MAPHead_0/"): value
        for key, value in weights.items()
        if key.startswith("MAPHead_0/")
    }
    kernel, bias, out_kernel, out_bias = _attention(
        head, "MultiHeadDotProductAttention_0/"
    )
    width = len(kernel)
    hidden_kernel, hidden_bias, *mlp_out = _mlp(head, "MlpBlock_0/")
    by_name = {
        "probe": head["probe"][0],
        "query/kernel": kernel[:, :width],
        "query/bias": bias[:width],
        "key_value/kernel": kernel[:, width:],
        "key_value/bias": bias[width:],
        "out/kernel": out_kernel,
        "out/bias": out_bias,
        "norm/gamma": head["LayerNorm_0/scale"],
        "norm/beta": head["LayerNorm_0/bias"],
        "mlp/hidden/kernel": hidden_kernel,
        "mlp/hidden/bias": hidden_bias,
        "mlp/out/kernel": mlp_out[0],
        "mlp/out/bias": mlp_out[1],
    }
    return [by_name[w.path.removeprefix("pooling/")] for w in layer.weights]
