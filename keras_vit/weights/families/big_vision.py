"""google-research/big_vision: its file formats since 2021."""

from keras_vit.weights.families.family import (
    FLAT_ROWS,
    Dialect,
    Variant,
    split_projections,
)
from keras_vit.weights.families.flax import (
    FLAX_BLOCK,
    POSITIONS,
    TO_LINEN,
    TRAINING_STATE,
    Flax,
    flax_layers,
)

STACK = "Transformer/encoderblock/"
# Far more than the depth of the deepest published model, 56.
MAX_DEPTH = 1000
KERNEL = "embedding/kernel"
# NaFlex has a matrix for flat patches instead.
FLAT_KERNEL = "embedding/flat_kernel"
MAP = "MAPHead_0/"
MAP_ATTENTION = MAP + "MultiHeadDotProductAttention_0/"


class BigVision(Flax):
    """The files of big_vision, with an array per block or stacked ones."""

    title = "google-research/big_vision"
    layers = {
        **flax_layers(attention=0, norm=1, mlp=0),
        "position_embedding": "pos_embedding",
        "pooling": MAP + "probe",
        "pooling/query": MAP_ATTENTION + "query",
        "pooling/key_value": split_projections(MAP_ATTENTION, ("key", "value")),
        "pooling/out": MAP_ATTENTION + "out",
        "pooling/norm": MAP + "LayerNorm_0",
        "pooling/mlp/hidden": MAP + "MlpBlock_0/Dense_0",
        "pooling/mlp/out": MAP + "MlpBlock_0/Dense_1",
    }
    recognise = (
        "Transformer/encoder_norm/scale",
        "Transformer/encoder_norm/bias",
    )
    unless = r"(?!)"
    wrappers = ("opt/target/", "params/img/", "params/", "img/")
    aliases = (
        *TO_LINEN,
        (r"^Transformer/(posembed_input/)?pos_embedding$", "pos_embedding"),
        (
            r"^(probe$|MlpBlock_0/|MultiHeadDotProductAttention_0/"
            r"|LayerNorm_0/)",
            rf"{MAP}\1",
        ),
    )
    variants = (
        Variant(
            FLAT_KERNEL,
            style={"patch_encoder/kernel": ("/flat_kernel", FLAT_ROWS)},
        ),
    )
    dialects = {"scan": Dialect(stack=(r"encoderblock_\d+/", "encoderblock/"))}
    ignore = rf"{TRAINING_STATE}|params/(txt/|t$|b$)|(txt/|t$|b$)"
    # Older files have a row for the class token, even if they have no token.
    slots = ((0, 1), (0, 1))
    no_table = "sincos_2d"
    other_resizes = (((FLAT_KERNEL,), None, "bilinear_antialias"),)
    endings = {".npz": "params/"}
    poolings = ("token", "avg", "none", "map")

    def prepare(self, shapes, json):
        """Name the slices of arrays that stack the weights of all blocks."""
        # A file of big_vision without a table has sine-cosine positions and
        # averages the patches. So one with a class token and names from before
        # Linen is of the official code, without its table.
        released = any("/MlpBlock_3/" in name for name in shapes)
        has_table = any(name.endswith("pos_embedding") for name in shapes)
        if released and "cls" in shapes and not has_table:
            raise ValueError(f"it lacks {POSITIONS}.")
        stacked = {n: s for n, s in shapes.items() if n.startswith(STACK)}
        depths = {shape[:1] for shape in stacked.values()}
        if len(depths) > 1 or any(not d or d[0] > MAX_DEPTH for d in depths):
            raise ValueError(f"the arrays below {STACK} are not of one depth")
        renamed = {name: (name, None) for name in shapes if name not in stacked}
        if len(shapes.get(KERNEL, ())) == 2:
            renamed[FLAT_KERNEL] = renamed.pop(KERNEL)
        for name, shape in stacked.items():
            for index in range(shape[0]):
                block = FLAX_BLOCK.format(i=index)
                new = block + name.removeprefix(STACK)
                if new in renamed:
                    raise ValueError(f"{new} is stored twice, once in {name}")
                renamed[new] = (name, index)
        return renamed
