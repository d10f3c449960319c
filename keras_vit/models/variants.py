"""VARIANTS: the published models, their sizes and their builders."""

from typing import NamedTuple

from keras_vit.models.config import ViTConfig


class Variant(NamedTuple):
    """A published model.

    Args:
        config: Its configuration.
        num_parameters: Its number of parameters.
        builder: Name of its builder in `keras_vit.applications`, or None.
    """

    config: ViTConfig
    num_parameters: int
    builder: str | None = None


def _sizes(width, depth, mlp_dim, num_heads):
    return {
        "width": width,
        "depth": depth,
        "mlp_dim": mlp_dim,
        "num_heads": num_heads,
    }


TI = _sizes(192, 12, 768, 3)
S = _sizes(384, 12, 1536, 6)
B = _sizes(768, 12, 3072, 12)
L = _sizes(1024, 24, 4096, 16)
H = _sizes(1280, 32, 5120, 16)
GAP = {"use_class_token": False, "pooling": "avg"}


def _variant(num_parameters, sizes, patch_size, *, builder=None, **choices):
    config = ViTConfig(patch_size=patch_size, **sizes, **choices)
    return Variant(config, num_parameters, builder)


# Parameters are counted with 1000 classes at the image size of the row, by
# default 224. Sizes, dropout and counts above the "-gap" rows are those of
# google-research/vision_transformer, except for R50+B/32 and R50+L/16, which
# only the paper has (table 6); the sizes below them are those of
# google-research/big_vision, which pools by averaging.
VARIANTS = {
    "Ti/16": _variant(5_717_416, TI, 16, builder="ViT_Ti16"),
    "S/16": _variant(22_050_664, S, 16, builder="ViT_S16"),
    "S/32": _variant(22_878_952, S, 32, builder="ViT_S32"),
    "B/8": _variant(86_576_872, B, 8, builder="ViT_B8"),
    "B/16": _variant(86_567_656, B, 16, builder="ViT_B16"),
    "B/32": _variant(88_224_232, B, 32, builder="ViT_B32"),
    "L/16": _variant(304_326_632, L, 16, dropout_rate=0.1, builder="ViT_L16"),
    "L/32": _variant(306_535_400, L, 32, builder="ViT_L32"),
    "H/14": _variant(632_045_800, H, 14, dropout_rate=0.1, builder="ViT_H14"),
    "R+Ti/16": _variant(6_337_704, TI, 8, stem_stages=(), builder="R_ViT_Ti16"),
    "R26+S/32": _variant(
        36_431_912, S, 1, stem_stages=(2, 2, 2, 2), builder="R26_ViT_S32"
    ),
    "R26+B/32": _variant(
        101_383_976, B, 1, stem_stages=(2, 2, 2, 2), builder="R26_ViT_B32"
    ),
    "R50+B/16": _variant(
        98_659_112,
        B,
        1,
        stem_stages=(3, 4, 9),
        dropout_rate=0.1,
        builder="R50_ViT_B16",
    ),
    "R50+B/32": _variant(
        110_945_832, B, 1, stem_stages=(3, 4, 6, 3), builder="R50_ViT_B32"
    ),
    "R50+L/16": _variant(
        316_483_624, L, 1, stem_stages=(3, 4, 9), builder="R50_ViT_L16"
    ),
    "R50+L/32": _variant(
        328_994_856,
        L,
        1,
        stem_stages=(3, 4, 6, 3),
        dropout_rate=0.1,
        builder="R50_ViT_L32",
    ),
    "S/16-gap": _variant(22_049_896, S, 16, **GAP),
    "S/32-gap": _variant(22_878_184, S, 32, **GAP),
    "B/16-gap": _variant(86_566_120, B, 16, **GAP),
    "B/32-gap": _variant(88_222_696, B, 32, **GAP),
    "mu/16": _variant(76_648, _sizes(32, 1, 128, 2), 16, **GAP),
    "M/16": _variant(
        38_836_712, _sizes(512, 12, 2048, 8), 16, **GAP, builder="ViT_M16"
    ),
    "So400m/14": _variant(
        413_595_352,
        _sizes(1152, 27, 4304, 16),
        14,
        **GAP,
        builder="ViT_So400m14",
    ),
    "g/14": _variant(
        1_012_608_616, _sizes(1408, 40, 6144, 16), 14, **GAP, builder="ViT_g14"
    ),
    "g-opt/16": _variant(1_136_283_112, _sizes(1536, 40, 6144, 16), 16, **GAP),
    "G/14": _variant(
        1_844_437_352, _sizes(1664, 48, 8192, 16), 14, **GAP, builder="ViT_G14"
    ),
    "G-opt/16": _variant(1_665_023_464, _sizes(1536, 48, 8192, 16), 16, **GAP),
    "e/14": _variant(3_807_210_728, _sizes(1792, 56, 15360, 16), 14, **GAP),
    # From this project, for images of 8x8 pixels such as scikit-learn's digits.
    "Pico/2": _variant(
        366_504, _sizes(64, 6, 256, 4), 2, image_size=8, channels=1
    ),
}
