"""keras-hub and vit-keras: the files of Keras, read only."""

import re

import keras

from keras_vit.weights.containers import LAYER_NAMES
from keras_vit.weights.families.family import (
    KERAS_2,
    KERAS_3,
    KERAS_3_HEADS_APART,
    Family,
    split_projections,
)
from keras_vit.weights.families.inference import BLOCK

EMBEDDING = "layers/vi_t_patching_and_embedding"
ENCODER = "layers/vi_t_encoder/encoder_layers/vi_t_encoder_block{_i}/"
DENSE_PROJECTIONS = ("query_dense", "key_dense", "value_dense")
DENSE = "layers/dense/vars"
VIT_KERAS = "layers/transformer_block{_i}/"
VIT_KERAS_H5 = "encoderblock_{i}/"
H5_ATTENTION = VIT_KERAS_H5 + "MultiHeadDotProductAttention_1/"


def _name_dense(shapes, alone):
    """Distinguish the head from the pre-logits; both are named `dense`.

    If there are two layers, the second one is the head; if there is one, it is
    `alone`.
    """
    renamed = {}
    if "layers/dense_1/vars/0" in shapes:
        alone = "pre_logits"
    for name in shapes:
        new = re.sub(r"^layers/dense/", f"layers/{alone}/", name)
        new = re.sub(r"^layers/dense_1/", "layers/predictions/", new)
        if new in renamed:
            raise ValueError(f"{new} is stored twice, once as {name}")
        renamed[new] = (name, None)
    return renamed


def _read_activation(value) -> str | None:
    """Return the activation of a head, None for logits."""
    if isinstance(value, dict):
        inner = value.get("config")
        value = inner if isinstance(inner, str) else value.get("class_name")
    if value in (None, "linear"):
        return None
    keras.activations.get(str(value))  # Raises if Keras has no such function.
    return str(value)


class KerasHub(Family):
    """Presets and `.weights.h5` files of keras-hub."""

    title = "keras-hub"
    style = KERAS_3_HEADS_APART
    layers = {
        "patch_encoder": f"{EMBEDDING}/patch_embedding",
        "class_token": EMBEDDING,
        "position_embedding": f"{EMBEDDING}/position_embedding",
        BLOCK + "attention_norm": ENCODER + "layer_norm_1",
        BLOCK + "attention/qkv": split_projections(
            ENCODER + "mha/", DENSE_PROJECTIONS
        ),
        BLOCK + "attention/out": ENCODER + "mha/output_dense",
        BLOCK + "mlp_norm": ENCODER + "layer_norm_2",
        BLOCK + "mlp/hidden": ENCODER + "mlp/dense_1",
        BLOCK + "mlp/out": ENCODER + "mlp/dense_2",
        "encoder_norm": "layers/vi_t_encoder/layer_norm",
        "pre_logits": "layers/pre_logits",
        "predictions": "layers/predictions",
    }
    recognise = (
        f"{EMBEDDING}/patch_embedding/vars/0",
        f"layers/vi_t_backbone/{EMBEDDING}/patch_embedding/vars/0",
    )
    aliases = ((r"^layers/vi_t_backbone/layers/", "layers/"),)
    ignore = r"optimizer/|seed_generator"
    optional_bias = ("attention/qkv",)

    def prepare(self, shapes, json):
        return _name_dense(shapes, "predictions")

    def read_hints(self, json):
        task = json.get("task")
        task = task.get("config") if isinstance(task, dict) else None
        if not isinstance(task, dict):
            return json, {}
        return json, {
            "classifier_activation": _read_activation(task.get("activation")),
            "stated_classes": task.get("num_classes"),
        }

    def complete(self, config, hints, shapes):
        """Refuse what keras-hub alone computes."""
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
        return config


class VitKeras(Family):
    """The `.weights.h5` files of vit-keras with Keras 3."""

    title = "vit-keras (.weights.h5)"
    style = KERAS_3
    layers = {
        "patch_encoder": "layers/conv2d",
        "class_token": "layers/class_token",
        "position_embedding": "layers/add_position_embs",
        BLOCK + "attention_norm": VIT_KERAS + "layernorm1",
        BLOCK + "attention/qkv": split_projections(
            VIT_KERAS + "att/", DENSE_PROJECTIONS
        ),
        BLOCK + "attention/out": VIT_KERAS + "att/combine_heads",
        BLOCK + "mlp_norm": VIT_KERAS + "layernorm2",
        BLOCK + "mlp/hidden": VIT_KERAS + "mlpblock/layers/dense",
        BLOCK + "mlp/out": VIT_KERAS + "mlpblock/layers/dense_1",
        "encoder_norm": "layers/layer_normalization",
        "pre_logits": "layers/pre_logits",
        "predictions": "layers/predictions",
    }
    recognise = ("layers/add_position_embs/vars/0",)
    ignore = r"optimizer/|.*seed_generator"

    def prepare(self, shapes, json):
        """Name a dense layer that is alone as the file calls it.

        Its models of ImageNet-21k without a head end in the pre-logits, whose
        kernel is square. So may be that of a head, in a file without names.
        """
        kernel = shapes.get(f"{DENSE}/0", ())
        is_square = len(set(kernel)) == 1
        alone = "pre_logits" if is_square else "predictions"
        if json.get(LAYER_NAMES, {}).get(DENSE) == "head":
            alone = "predictions"
        return _name_dense(shapes, alone)

    def read_hints(self, json):
        return json, {"dense": json.get(LAYER_NAMES, {}).get(DENSE)}

    def complete(self, config, hints, shapes):
        is_alone = config.representation_size and not config.num_classes
        if is_alone and hints["dense"] != "pre_logits":
            shapes.notes.append(
                f"The last layer of the file has {config.width} inputs and "
                "outputs, and the file does not name it. It is read as the "
                "pre-logits of a model without a head. If it is a head, write "
                "the file again with a newer Keras, which stores its name."
            )
        return config


class VitKerasH5(Family):
    """The `.h5` files of vit-keras with Keras 2."""

    title = "vit-keras (.h5)"
    style = KERAS_2
    layers = {
        "patch_encoder": "embedding",
        "class_token": "class_token/cls",
        "position_embedding": "posembed_input/pos_embedding",
        BLOCK + "attention_norm": VIT_KERAS_H5 + "LayerNorm_0",
        BLOCK + "attention/qkv": split_projections(H5_ATTENTION),
        BLOCK + "attention/out": H5_ATTENTION + "out",
        BLOCK + "mlp_norm": VIT_KERAS_H5 + "LayerNorm_2",
        BLOCK + "mlp/hidden": VIT_KERAS_H5 + "MlpBlock_3/Dense_0",
        BLOCK + "mlp/out": VIT_KERAS_H5 + "MlpBlock_3/Dense_1",
        "encoder_norm": "encoder_norm",
        "pre_logits": "pre_logits",
        "predictions": "head",
    }
    recognise = ("embedding/embedding/kernel", "embedding/embedding/kernel:0")
    wrappers = ("model_weights/",)
    # Keras 2 writes the name of the layer before the name of the weight, which
    # begins with the name of the layer again.
    aliases = (
        (r":0$", ""),
        (r"^(.+?)/\1/", r"\1/"),
        (r"^Transformer[/_]", ""),
        (r"/MlpBlock_3/.*?(Dense_\d/)", r"/MlpBlock_3/\1"),
        (r"^(encoderblock_\d+)/Dense_", r"\1/MlpBlock_3/Dense_"),
    )
    ignore = r"optimizer_weights/|top_level_model_weights"

    def read_hints(self, json):
        config = json.get("config")
        layers = config.get("layers") if isinstance(config, dict) else None
        for layer in layers if isinstance(layers, list) else ():
            row = layer.get("config") if isinstance(layer, dict) else None
            if isinstance(row, dict) and row.get("name") == "head":
                activation = _read_activation(row.get("activation"))
                return json, {"classifier_activation": activation}
        return json, {}
