"""vit-keras, read only: the `.h5` files of Keras 2."""

from keras_vit.weights.families.keras_hub import read_activation
from keras_vit.weights.layer_shapes import BLOCK
from keras_vit.weights.layouts import Layout
from keras_vit.weights.styles import KERAS_2

BLOCK_NAME = "encoderblock_{i}/"
ATTENTION = BLOCK_NAME + "MultiHeadDotProductAttention_1/"


def _read_hints(json):
    """Return the activation of the head in a whole model."""
    config = json.get("config")
    layers = config.get("layers") if isinstance(config, dict) else None
    for layer in layers if isinstance(layers, list) else ():
        row = layer.get("config") if isinstance(layer, dict) else None
        if isinstance(row, dict) and row.get("name") == "head":
            activation = read_activation(row.get("activation"))
            return {"classifier_activation": activation}
    return {}


LAYOUT = Layout(
    order=6,
    title="vit-keras (.h5)",
    style=KERAS_2,
    names={
        "patch_encoder": "embedding",
        "class_token": "class_token/cls",
        "position_embedding": "posembed_input/pos_embedding",
        BLOCK + "attention_norm": BLOCK_NAME + "LayerNorm_0",
        BLOCK + "attention/qkv": (
            ATTENTION + "query",
            ATTENTION + "key",
            ATTENTION + "value",
        ),
        BLOCK + "attention/out": ATTENTION + "out",
        BLOCK + "mlp_norm": BLOCK_NAME + "LayerNorm_2",
        BLOCK + "mlp/hidden": BLOCK_NAME + "MlpBlock_3/Dense_0",
        BLOCK + "mlp/out": BLOCK_NAME + "MlpBlock_3/Dense_1",
        "encoder_norm": "encoder_norm",
        "pre_logits": "pre_logits",
        "predictions": "head",
    },
    recognise=("embedding/embedding/kernel", "embedding/embedding/kernel:0"),
    wrappers=("model_weights/",),
    # Keras 2 writes the name of the layer before the name of the weight, which
    # begins with the name of the layer again.
    read_hints=_read_hints,
    aliases=(
        (r":0$", ""),
        (r"^(.+?)/\1/", r"\1/"),
        (r"^Transformer[/_]", ""),
        (r"/MlpBlock_3/.*?(Dense_\d/)", r"/MlpBlock_3/\1"),
        (r"^(encoderblock_\d+)/Dense_", r"\1/MlpBlock_3/Dense_"),
    ),
    ignore=r"optimizer_weights/|top_level_model_weights",
)
