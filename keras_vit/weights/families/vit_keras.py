"""vit-keras, read only: `.weights.h5` files of Keras 3, `.h5` of Keras 2."""

from keras_vit.weights.families.keras_hub import name_dense
from keras_vit.weights.layer_shapes import BLOCK
from keras_vit.weights.layouts import Layout
from keras_vit.weights.styles import KERAS_2, KERAS_3

KERAS_3_BLOCK = "layers/transformer_block{_i}/"
KERAS_2_BLOCK = "encoderblock_{i}/"
KERAS_2_ATTENTION = KERAS_2_BLOCK + "MultiHeadDotProductAttention_1/"

LAYOUT = Layout(
    title="vit-keras (.weights.h5)",
    style=KERAS_3,
    names={
        "patch_encoder": "layers/conv2d",
        "class_token": "layers/class_token",
        "position_embedding": "layers/add_position_embs",
        BLOCK + "attention_norm": KERAS_3_BLOCK + "layernorm1",
        BLOCK + "attention/qkv": (
            KERAS_3_BLOCK + "att/query_dense",
            KERAS_3_BLOCK + "att/key_dense",
            KERAS_3_BLOCK + "att/value_dense",
        ),
        BLOCK + "attention/out": KERAS_3_BLOCK + "att/combine_heads",
        BLOCK + "mlp_norm": KERAS_3_BLOCK + "layernorm2",
        BLOCK + "mlp/hidden": KERAS_3_BLOCK + "mlpblock/layers/dense",
        BLOCK + "mlp/out": KERAS_3_BLOCK + "mlpblock/layers/dense_1",
        "encoder_norm": "layers/layer_normalization",
        "pre_logits": "layers/pre_logits",
        "predictions": "layers/predictions",
    },
    recognise=("layers/add_position_embs/vars/0",),
    prepare=name_dense,
    ignore=r"optimizer/|.*seed_generator",
)

LAYOUT_H5 = Layout(
    title="vit-keras (.h5)",
    style=KERAS_2,
    names={
        "patch_encoder": "embedding",
        "class_token": "class_token/cls",
        "position_embedding": "posembed_input/pos_embedding",
        BLOCK + "attention_norm": KERAS_2_BLOCK + "LayerNorm_0",
        BLOCK + "attention/qkv": (
            KERAS_2_ATTENTION + "query",
            KERAS_2_ATTENTION + "key",
            KERAS_2_ATTENTION + "value",
        ),
        BLOCK + "attention/out": KERAS_2_ATTENTION + "out",
        BLOCK + "mlp_norm": KERAS_2_BLOCK + "LayerNorm_2",
        BLOCK + "mlp/hidden": KERAS_2_BLOCK + "MlpBlock_3/Dense_0",
        BLOCK + "mlp/out": KERAS_2_BLOCK + "MlpBlock_3/Dense_1",
        "encoder_norm": "encoder_norm",
        "pre_logits": "pre_logits",
        "predictions": "head",
    },
    recognise=("embedding/embedding/kernel", "embedding/embedding/kernel:0"),
    wrappers=("model_weights/",),
    # Keras 2 writes the layer and then the weight, whose name begins with
    # that of the layer.
    aliases=(
        (r":0$", ""),
        (r"^(.+?)/\1/", r"\1/"),
        (r"^Transformer[/_]", ""),
        (r"/MlpBlock_3/.*?(Dense_\d/)", r"/MlpBlock_3/\1"),
        (r"^(encoderblock_\d+)/Dense_", r"\1/MlpBlock_3/Dense_"),
    ),
    ignore=r"optimizer_weights/|top_level_model_weights",
)
