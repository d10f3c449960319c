"""The official Flax code: google-research/vision_transformer."""

from keras_vit.weights.layer_shapes import BLOCK, UNIT
from keras_vit.weights.layouts import Dialect, Layout
from keras_vit.weights.styles import FLAX
from keras_vit.weights.writers import npz_writer

POSITIONS = "Transformer/posembed_input/pos_embedding"
FLAX_BLOCK = "Transformer/encoderblock_{i}/"
# Names that big_vision shares with the official code.
FLAX_NAMES = {
    "patch_encoder": "embedding",
    "class_token": "cls",
    BLOCK + "attention_norm": FLAX_BLOCK + "LayerNorm_0",
    "encoder_norm": "Transformer/encoder_norm",
    "pre_logits": "pre_logits",
    "predictions": "head",
}
# Names of the training state beside the parameters.
TRAINING_STATE = (
    r"(opt|opt_state|optimizer|state|step|chrono|measurements|extra)(/|$)"
)
# Before Linen, Flax numbered all submodules of a block consecutively; since
# Linen, it numbers those of each class separately.
TO_RELEASED = (
    (r"(encoderblock_\d+)/LayerNorm_1/", r"\1/LayerNorm_2/"),
    (r"(encoderblock_\d+)/MlpBlock_0/", r"\1/MlpBlock_3/"),
    (
        r"(encoderblock_\d+)/MultiHeadDotProductAttention_0/",
        r"\1/MultiHeadDotProductAttention_1/",
    ),
)
TO_LINEN = (
    (r"(encoderblock_\d+)/LayerNorm_2/", r"\1/LayerNorm_1/"),
    (r"(encoderblock_\d+)/MlpBlock_3/", r"\1/MlpBlock_0/"),
    (
        r"(encoderblock_\d+)/MultiHeadDotProductAttention_1/",
        r"\1/MultiHeadDotProductAttention_0/",
    ),
)


def flax_block(attention: int, norm: int, mlp: int) -> dict:
    """Return the names of the layers in a block.

    Args:
        attention: Number in the name of the attention.
        norm: Number in the name of the norm before the MLP.
        mlp: Number in the name of the MLP.
    """
    attention = f"{FLAX_BLOCK}MultiHeadDotProductAttention_{attention}/"
    mlp = f"{FLAX_BLOCK}MlpBlock_{mlp}/"
    return {
        BLOCK + "attention/qkv": (
            attention + "query",
            attention + "key",
            attention + "value",
        ),
        BLOCK + "attention/out": attention + "out",
        BLOCK + "mlp_norm": f"{FLAX_BLOCK}LayerNorm_{norm}",
        BLOCK + "mlp/hidden": mlp + "Dense_0",
        BLOCK + "mlp/out": mlp + "Dense_1",
    }


def refuse(config) -> str | None:
    """Return why the official code cannot express `config`, or None."""
    if config.pooling == "avg" and config.use_class_token:
        return "its average pooling excludes a class token"
    if config.pooling not in ("token", "avg", "none"):
        return f"it has no pooling {config.pooling!r}"
    if config.use_pooling_norm:
        return "its last norm comes before the pooling"
    return None


LAYOUT = Layout(
    order=0,
    title="the official Flax code (google-research/vision_transformer)",
    style=FLAX,
    names={
        **FLAX_NAMES,
        **flax_block(attention=1, norm=2, mlp=3),
        "position_embedding": POSITIONS,
        "stem/root_conv": "conv_root",
        "stem/root_norm": "gn_root",
        UNIT + "conv1": "block{s1}/unit{u1}/conv1",
        UNIT + "conv2": "block{s1}/unit{u1}/conv2",
        UNIT + "conv3": "block{s1}/unit{u1}/conv3",
        UNIT + "norm1": "block{s1}/unit{u1}/gn1",
        UNIT + "norm2": "block{s1}/unit{u1}/gn2",
        UNIT + "norm3": "block{s1}/unit{u1}/gn3",
        UNIT + "shortcut_conv": "block{s1}/unit{u1}/conv_proj",
        UNIT + "shortcut_norm": "block{s1}/unit{u1}/gn_proj",
    },
    recognise=(POSITIONS, "conv_root/kernel"),
    # The oldest files of big_vision use the same name for the positions.
    unless=r"MAPHead_0/|probe$|Transformer/encoderblock/",
    activation="tanh",
    wrappers=("opt/target/", "params/", "target/"),
    aliases=TO_RELEASED,
    dialects={"linen": Dialect(TO_LINEN)},
    ignore=TRAINING_STATE,
    slots=((1, 0), (0,)),
    may_lack_slot=True,
    writers={".npz": npz_writer()},
    refuse=refuse,
)
