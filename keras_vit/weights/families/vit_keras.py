"""vit-keras, read only: the `.weights.h5` files of Keras 3."""

from keras_vit.weights.families.keras_hub import name_dense
from keras_vit.weights.layer_shapes import BLOCK
from keras_vit.weights.layouts import Layout
from keras_vit.weights.styles import KERAS_3

BLOCK_NAME = "layers/transformer_block{_i}/"

LAYOUT = Layout(
    order=5,
    title="vit-keras (.weights.h5)",
    style=KERAS_3,
    names={
        "patch_encoder": "layers/conv2d",
        "class_token": "layers/class_token",
        "position_embedding": "layers/add_position_embs",
        BLOCK + "attention_norm": BLOCK_NAME + "layernorm1",
        BLOCK + "attention/qkv": (
            BLOCK_NAME + "att/query_dense",
            BLOCK_NAME + "att/key_dense",
            BLOCK_NAME + "att/value_dense",
        ),
        BLOCK + "attention/out": BLOCK_NAME + "att/combine_heads",
        BLOCK + "mlp_norm": BLOCK_NAME + "layernorm2",
        BLOCK + "mlp/hidden": BLOCK_NAME + "mlpblock/layers/dense",
        BLOCK + "mlp/out": BLOCK_NAME + "mlpblock/layers/dense_1",
        "encoder_norm": "layers/layer_normalization",
        "pre_logits": "layers/pre_logits",
        "predictions": "layers/predictions",
    },
    recognise=("layers/add_position_embs/vars/0",),
    prepare=name_dense,
    ignore=r"optimizer/|.*seed_generator",
)
