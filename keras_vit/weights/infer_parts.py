"""Inference of the parts that Vision Transformers after 2021 have.

Each shows in names and shapes. What does not, such as rotary positions without
weights, is told by the JSON or by the name of the architecture.
"""

import math
import re

from keras_vit.weights.counts import ANY_NUMBER, NUMBER
from keras_vit.weights.layer_shapes import BLOCK, RELATIVE, ROTARY
from keras_vit.weights.shapes import Shapes

ATTENTION_PATH = BLOCK + "attention"
# Template, kind, weight, rank and axis of the arrays that contain the hidden
# size of the MLP.
MLP_HIDDEN = (
    (BLOCK + "mlp/hidden", "dense", "bias", 1, 0),
    (BLOCK + "mlp/hidden", "dense", "kernel", 2, 1),
)
MLP_OUT = (BLOCK + "mlp/out", "dense", "kernel", 2, 0)


def infer_parts(shapes: Shapes) -> dict:
    """Return the fields of ViTConfig for the parts that a file shows.

    Args:
        shapes: Shapes in the file.
    """
    return {
        **_infer_tokens(shapes),
        **_infer_norms(shapes),
        **_infer_projections(shapes),
        **_infer_positions(shapes),
        "pooling_mlp_dim": _infer_pooling_mlp_dim(shapes),
    }


def infer_mlp_dim(shapes: Shapes) -> int:
    """Return the hidden size of the MLP of a block.

    Args:
        shapes: Shapes in the file.
    """
    if shapes.layout.has_later_parts and _is_gated(shapes):
        return shapes.vote(MLP_OUT)
    size = shapes.vote(*MLP_HIDDEN, MLP_OUT)
    if size is None:
        shapes.fail(f"it lacks {shapes.name_of(*MLP_HIDDEN[1][:3], i=0)}.")
    return size


def _is_gated(shapes):
    """Return whether the first layer of the MLP has a gate beside it."""
    if isinstance(shapes.layout.names[BLOCK + "mlp/hidden"], tuple):
        return True
    hidden, out = shapes.vote(*MLP_HIDDEN), shapes.vote(MLP_OUT)
    return bool(out) and hidden == 2 * out


def _infer_tokens(shapes):
    registers = shapes.in_file("registers", "token", "token")
    return {
        "num_registers": math.prod(registers[:-1]) if registers else 0,
        "use_distillation_token": shapes.has(
            "distillation_token", "token", "token"
        ),
        "use_patch_bias": _has(shapes, "patch_encoder", "conv", "bias"),
    }


def _infer_norms(shapes):
    first = BLOCK + "attention_norm"
    is_rms = not _has(shapes, first, "norm", "beta")
    query_norm = _shape(shapes, ATTENTION_PATH + "/query_norm", "norm", "gamma")
    width = _shape(shapes, first, "norm", "gamma")
    qk_norm = "none"
    if query_norm:
        qk_norm = "width" if query_norm == width else "head"
    return {
        "norm": "rms" if is_rms else "layer",
        "use_patch_norm": _has(shapes, "patch_norm", "norm", "gamma"),
        "use_embedding_norm": _has(shapes, "embedding_norm", "norm", "gamma"),
        "qk_norm": qk_norm,
        "use_attention_inner_norm": _has(
            shapes, ATTENTION_PATH + "/inner_norm", "norm", "gamma"
        ),
        "use_mlp_inner_norm": _has(
            shapes, BLOCK + "mlp/inner_norm", "norm", "gamma"
        ),
        "use_final_norm": any(
            _has(shapes, name, "norm", "gamma")
            for name in ("encoder_norm", "pooling_norm")
        ),
    }


def _infer_projections(shapes):
    has_scale, has_mlp_scale = (
        _has(shapes, f"{BLOCK}{branch}_scale", "scale", "scale")
        for branch in ("attention", "mlp")
    )
    has_query_bias = _has(
        shapes, ATTENTION_PATH, "query_value_bias", "query_bias"
    )
    has_bias = _has(shapes, ATTENTION_PATH + "/qkv", "heads_in", "bias")
    qkv_bias = "all" if has_bias else "none"
    if has_query_bias and not _has_key_bias(shapes):
        qkv_bias = "query_value"
    return {
        # Only a new model needs the value.
        "layer_scale_init": 1e-5 if has_scale else None,
        "layer_scale_branches": (
            "attention" if has_scale and not has_mlp_scale else "both"
        ),
        "qkv_bias": qkv_bias,
        "use_block_bias": _has(
            shapes, ATTENTION_PATH + "/out", "heads_out", "bias"
        ),
        "use_gated_mlp": _is_gated(shapes),
    }


def _has_key_bias(shapes):
    """Return whether the keys of any block have a bias of their own."""
    names = shapes.layout.names[ATTENTION_PATH + "/qkv"]
    if isinstance(names, str):
        return False
    ending = shapes.layout.style["heads_in"]["bias"][0]
    name = names[1].format(i=ANY_NUMBER) + ending
    pattern = re.escape(name).replace(str(ANY_NUMBER), NUMBER)
    return any(re.fullmatch(pattern, name) for name in shapes.detected.names)


def _infer_positions(shapes):
    fields = {"use_shared_relative_positions": False}
    if _has(shapes, ROTARY, "frequency", "frequency"):
        fields["rotary_positions"] = "mixed"
    if _has(shapes, "rotary_positions", "class_angles", "class_angles"):
        fields["rotary_positions"] = "axial_class"
    for template in (RELATIVE, "relative_positions"):
        is_shared = template != RELATIVE
        hidden = _shape(shapes, template + "/hidden", "dense", "bias")
        if hidden:
            fields |= {
                "relative_positions": "mlp",
                "relative_hidden_dim": hidden[0],
                "use_shared_relative_positions": is_shared,
            }
        elif _has(shapes, template, "table", "table"):
            fields |= {
                "relative_positions": "table",
                "use_shared_relative_positions": is_shared,
            }
    return fields


def _infer_pooling_mlp_dim(shapes):
    shape = _shape(shapes, "pooling/mlp/hidden", "dense", "bias")
    size = math.prod(shape) if shape else None
    return None if size == infer_mlp_dim(shapes) else size


def _shape(shapes, *row):
    if row[0] not in shapes.layout.names:
        return None
    return shapes.in_file(*row, i=0)


def _has(shapes, *row):
    return _shape(shapes, *row) is not None
