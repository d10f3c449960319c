"""The official Flax code: google-research/vision_transformer."""

from keras_vit.weights.families.family import (
    FLAX,
    Dialect,
    Family,
    split_projections,
)
from keras_vit.weights.families.inference import BLOCK

UNIT = "stem/stage_#_unit_#/"
POSITIONS = "Transformer/posembed_input/pos_embedding"
FLAX_BLOCK = "Transformer/encoderblock_{i}/"
FLAX_UNIT = "block{s1}/unit{u1}/"
# Names of the training state beside the parameters.
TRAINING_STATE = (
    r"(opt|opt_state|optimizer|state|step|chrono|measurements|extra)(/|$)"
)
# Before Linen, Flax numbered all submodules of a block consecutively; since
# Linen, it numbers those of each class separately.
NUMBERS = {
    "LayerNorm": (2, 1),
    "MlpBlock": (3, 0),
    "MultiHeadDotProductAttention": (1, 0),
}
TO_LINEN, TO_RELEASED = (
    tuple(
        (rf"(encoderblock_\d+)/{name}_{row[i]}/", rf"\1/{name}_{row[1 - i]}/")
        for name, row in NUMBERS.items()
    )
    for i in (0, 1)
)


def flax_layers(attention: int, norm: int, mlp: int) -> dict:
    """Return the names that the official code and big_vision share.

    The numbers are those in the names of the parts of a block.
    """
    attention = f"{FLAX_BLOCK}MultiHeadDotProductAttention_{attention}/"
    mlp = f"{FLAX_BLOCK}MlpBlock_{mlp}/"
    return {
        "patch_encoder": "embedding",
        "class_token": "cls",
        BLOCK + "attention_norm": FLAX_BLOCK + "LayerNorm_0",
        BLOCK + "attention/qkv": split_projections(attention),
        BLOCK + "attention/out": attention + "out",
        BLOCK + "mlp_norm": f"{FLAX_BLOCK}LayerNorm_{norm}",
        BLOCK + "mlp/hidden": mlp + "Dense_0",
        BLOCK + "mlp/out": mlp + "Dense_1",
        "encoder_norm": "Transformer/encoder_norm",
        "pre_logits": "pre_logits",
        "predictions": "head",
    }


class Flax(Family):
    """The files of the official code, of 2020 and since Linen."""

    title = "the official Flax code (google-research/vision_transformer)"
    style = FLAX
    layers = {
        **flax_layers(attention=1, norm=2, mlp=3),
        "position_embedding": POSITIONS,
        "stem/root_conv": "conv_root",
        "stem/root_norm": "gn_root",
        **{UNIT + f"conv{n}": FLAX_UNIT + f"conv{n}" for n in (1, 2, 3)},
        **{UNIT + f"norm{n}": FLAX_UNIT + f"gn{n}" for n in (1, 2, 3)},
        UNIT + "shortcut_conv": FLAX_UNIT + "conv_proj",
        UNIT + "shortcut_norm": FLAX_UNIT + "gn_proj",
    }
    recognise = (POSITIONS, "conv_root/kernel")
    # The oldest files of big_vision use the same name for the positions.
    unless = r"MAPHead_0/|probe$|Transformer/encoderblock/"
    activation = "tanh"
    # "0/" is of a training by the code itself: parameters, then the optimizer.
    wrappers = ("opt/target/", "params/", "target/", "0/")
    aliases = TO_RELEASED
    dialects = {"linen": Dialect(TO_LINEN)}
    ignore = TRAINING_STATE
    slots = ((1, 0), (0,))
    may_lack_slot = True
    endings = {".npz": ""}
    poolings = ("token", "avg", "none")

    def write(self, config):
        """Refuse a pooling or activation that the code does not have."""
        pooling = config.pooling
        if pooling not in self.poolings:
            raise ValueError(f"it has no pooling={pooling!r}")
        if config.activation not in ("tanh", "exact"):
            raise ValueError(f"it has no activation={config.activation!r}")
        if pooling in ("avg", "map") and config.use_class_token:
            raise ValueError(f"its pooling {pooling!r} excludes a class token")
        return super().write(config)
