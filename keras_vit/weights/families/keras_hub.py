"""keras-hub: presets and `.weights.h5` files, read only."""

import re

from keras_vit.weights.layer_shapes import BLOCK
from keras_vit.weights.layouts import Layout
from keras_vit.weights.styles import KERAS_3_HEADS_APART

EMBEDDING = "layers/vi_t_patching_and_embedding"
ENCODER = "layers/vi_t_encoder/encoder_layers/vi_t_encoder_block{_i}/"


def name_dense(shapes: dict) -> dict:
    """Distinguish the head from the pre-logits; both are named `dense`.

    If there are two layers, the second one is the head. A single layer is the
    head unless its kernel is square: a classifier never has as many classes as
    the model has features.

    Args:
        shapes: Shapes of the arrays, by name.
    """
    renamed = {}
    both = "layers/dense_1/vars/0" in shapes
    kernel = shapes.get("layers/dense/vars/0", ())
    alone = "pre_logits" if both or len(set(kernel)) == 1 else "predictions"
    for name in shapes:
        new = re.sub(r"^layers/dense/", f"layers/{alone}/", name)
        new = re.sub(r"^layers/dense_1/", "layers/predictions/", new)
        if new in renamed:
            raise ValueError(f"{new} is stored twice, once as {name}")
        renamed[new] = (name, None)
    return renamed


def _complete(config, hints, names):
    if config.use_class_token and config.pooling == "avg":
        raise ValueError(
            "keras-hub's 'gap' averages the class token with the patches, "
            "which no pooling here does. Load it without its head from a "
            "folder that has no task.json."
        )
    return config, ()


LAYOUT = Layout(
    order=4,
    title="keras-hub",
    style=KERAS_3_HEADS_APART,
    names={
        "patch_encoder": f"{EMBEDDING}/patch_embedding",
        "class_token": EMBEDDING,
        "position_embedding": f"{EMBEDDING}/position_embedding",
        BLOCK + "attention_norm": ENCODER + "layer_norm_1",
        BLOCK + "attention/qkv": (
            ENCODER + "mha/query_dense",
            ENCODER + "mha/key_dense",
            ENCODER + "mha/value_dense",
        ),
        BLOCK + "attention/out": ENCODER + "mha/output_dense",
        BLOCK + "mlp_norm": ENCODER + "layer_norm_2",
        BLOCK + "mlp/hidden": ENCODER + "mlp/dense_1",
        BLOCK + "mlp/out": ENCODER + "mlp/dense_2",
        "encoder_norm": "layers/vi_t_encoder/layer_norm",
        "pre_logits": "layers/pre_logits",
        "predictions": "layers/predictions",
    },
    recognise=(
        f"{EMBEDDING}/patch_embedding/vars/0",
        f"layers/vi_t_backbone/{EMBEDDING}/patch_embedding/vars/0",
    ),
    aliases=((r"^layers/vi_t_backbone/layers/", "layers/"),),
    prepare=name_dense,
    ignore=r"optimizer/|seed_generator",
    optional_bias=("heads_in",),
    complete=_complete,
)
