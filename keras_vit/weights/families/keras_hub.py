"""keras-hub: presets and `.weights.h5` files, read only."""

import functools
import re

import keras

from keras_vit.weights.layer_shapes import BLOCK
from keras_vit.weights.layouts import Layout
from keras_vit.weights.styles import KERAS_3_HEADS_APART

EMBEDDING = "layers/vi_t_patching_and_embedding"
ENCODER = "layers/vi_t_encoder/encoder_layers/vi_t_encoder_block{_i}/"


def name_dense(shapes: dict, has_head: bool = False) -> dict:
    """Distinguish the head from the pre-logits; both are named `dense`.

    If there are two layers, the second one is the head. A single layer is the
    head, in vit-keras unless its kernel is square: its models of ImageNet-21k
    without a head end in the pre-logits.

    Args:
        shapes: Shapes of the arrays, by name.
        has_head: Whether every model with such a layer has a head.
    """
    renamed = {}
    both = "layers/dense_1/vars/0" in shapes
    kernel = shapes.get("layers/dense/vars/0", ())
    is_square = len(set(kernel)) == 1 and not has_head
    alone = "pre_logits" if both or is_square else "predictions"
    for name in shapes:
        new = re.sub(r"^layers/dense/", f"layers/{alone}/", name)
        new = re.sub(r"^layers/dense_1/", "layers/predictions/", new)
        if new in renamed:
            raise ValueError(f"{new} is stored twice, once as {name}")
        renamed[new] = (name, None)
    return renamed


def read_activation(value) -> str | None:
    """Return the activation of a head, None for logits.

    Args:
        value: Its name, or a function as Keras describes it.

    Raises:
        ValueError: If Keras has no such function.
    """
    if isinstance(value, dict):
        inner = value.get("config")
        value = inner if isinstance(inner, str) else value.get("class_name")
    if value in (None, "linear"):
        return None
    keras.activations.get(str(value))
    return str(value)


def _read_hints(json):
    """Return what task.json states of the head."""
    task = json.get("task")
    task = task.get("config") if isinstance(task, dict) else None
    if not isinstance(task, dict):
        return {}
    return {
        "classifier_activation": read_activation(task.get("activation")),
        "stated_classes": task.get("num_classes"),
    }


def _complete(config, hints, names):
    stated = hints.get("stated_classes") or config.num_classes
    if config.num_classes not in (0, stated):
        raise ValueError(
            f"its task.json is of {stated} classes, but its last layer has "
            f"{config.num_classes} outputs"
        )
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
    prepare=functools.partial(name_dense, has_head=True),
    read_hints=_read_hints,
    ignore=r"optimizer/|seed_generator",
    optional_bias=("heads_in",),
    complete=_complete,
)
