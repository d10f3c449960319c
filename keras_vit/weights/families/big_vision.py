"""google-research/big_vision: its file formats since 2021."""

from keras_vit.weights.families import official
from keras_vit.weights.layouts import Dialect, Layout, NameVariant
from keras_vit.weights.styles import FLAT_ROWS, FLAX, SAME
from keras_vit.weights.writers import npz_writer

STACK = "Transformer/encoderblock/"
# Far more than the depth of the deepest published model, 56.
MAX_DEPTH = 1000
KERNEL = "embedding/kernel"
# NaFlex has a matrix for flat patches instead.
FLAT_KERNEL = "embedding/flat_kernel"


def _prepare(shapes):
    """Name the slices of arrays that stack the weights of all blocks."""
    _refuse_lost_positions(shapes)
    stacked = {n: s for n, s in shapes.items() if n.startswith(STACK)}
    depths = {shape[:1] for shape in stacked.values()}
    if len(depths) > 1 or any(not d or d[0] > MAX_DEPTH for d in depths):
        raise ValueError(f"the arrays below {STACK} are not of one depth")
    renamed = {name: (name, None) for name in shapes if name not in stacked}
    if len(shapes.get(KERNEL, ())) == 2:
        renamed[FLAT_KERNEL] = renamed.pop(KERNEL)
    for name, shape in stacked.items():
        for index in range(shape[0]):
            block = official.FLAX_BLOCK.format(i=index)
            new = block + name.removeprefix(STACK)
            if new in renamed:
                raise ValueError(f"{new} is stored twice, once in {name}")
            renamed[new] = (name, index)
    return renamed


def _refuse_lost_positions(shapes):
    """Refuse an official file without its position table.

    A file of big_vision without a table has sine-cosine positions and averages
    the patches. So a file with a class token and names from before Linen is
    from the official code.
    """
    released = any("/MlpBlock_3/" in name for name in shapes)
    has_table = any(name.endswith("pos_embedding") for name in shapes)
    if released and "cls" in shapes and not has_table:
        raise ValueError(f"it lacks {official.POSITIONS}.")


def _refuse(config):
    if config.stem_stages is not None:
        return "its ViT has no ResNet stem"
    if config.pooling == "map":
        has_token = config.use_class_token
        return "its pooling 'map' excludes a class token" if has_token else None
    return official.refuse(config)


LAYOUT = Layout(
    order=1,
    title="google-research/big_vision",
    style=FLAX,
    names={
        **official.FLAX_NAMES,
        **official.flax_block(attention=0, norm=1, mlp=0),
        "position_embedding": "pos_embedding",
        "pooling": "MAPHead_0/probe",
        "pooling/query": "MAPHead_0/MultiHeadDotProductAttention_0/query",
        "pooling/key_value": (
            "MAPHead_0/MultiHeadDotProductAttention_0/key",
            "MAPHead_0/MultiHeadDotProductAttention_0/value",
        ),
        "pooling/out": "MAPHead_0/MultiHeadDotProductAttention_0/out",
        "pooling/norm": "MAPHead_0/LayerNorm_0",
        "pooling/mlp/hidden": "MAPHead_0/MlpBlock_0/Dense_0",
        "pooling/mlp/out": "MAPHead_0/MlpBlock_0/Dense_1",
    },
    recognise=(
        "Transformer/encoder_norm/scale",
        "Transformer/encoder_norm/bias",
    ),
    activation="tanh",
    wrappers=("opt/target/", "params/img/", "params/", "img/"),
    aliases=(
        *official.TO_LINEN,
        (r"^Transformer/(posembed_input/)?pos_embedding$", "pos_embedding"),
        (
            r"^(probe$|MlpBlock_0/|MultiHeadDotProductAttention_0/"
            r"|LayerNorm_0/)",
            r"MAPHead_0/\1",
        ),
    ),
    variants=(
        NameVariant(
            FLAT_KERNEL,
            style={
                "conv": {
                    "kernel": ("/flat_kernel", FLAT_ROWS),
                    "bias": ("/bias", SAME),
                }
            },
        ),
    ),
    resize_of=lambda names: (
        "bilinear_antialias" if FLAT_KERNEL in names else None
    ),
    dialects={"scan": Dialect(stack=(r"encoderblock_\d+/", "encoderblock/"))},
    prepare=_prepare,
    ignore=rf"{official.TRAINING_STATE}|params/(txt/|t$|b$)|(txt/|t$|b$)",
    # Older files have a row for the class token, even if they have no token.
    slots=((0, 1), (0, 1)),
    may_lack_slot=True,
    no_table="sincos_2d",
    writers={".npz": npz_writer(prefix="params/")},
    refuse=_refuse,
)
