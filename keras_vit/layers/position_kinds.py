"""The kinds of position embeddings, by name."""

from keras_vit.layers.learned_position_embedding import LearnedPositionEmbedding
from keras_vit.layers.learned_position_embedding_2d import (
    LearnedPositionEmbedding2D,
)
from keras_vit.layers.sincos_position_embedding import SinCosPositionEmbedding
from keras_vit.layers.sincos_position_embedding_2d import (
    SinCosPositionEmbedding2D,
)
from keras_vit.tables import pick

# Where a model adds its position embedding.
POSITION_PLACEMENTS = dict.fromkeys(
    ("stem", "every_block", "every_block_shared")
)


def make_position_embedding(kind: str, **kwargs):
    """Return the layer of `kind`, or None for "none".

    Args:
        kind: A key of POSITION_EMBEDDINGS.
        **kwargs: Arguments of `PositionEmbedding`.
    """
    layer_class = pick(POSITION_EMBEDDINGS, kind, "position_embedding")
    return layer_class and layer_class(**kwargs)


POSITION_EMBEDDINGS = {
    "none": None,
    "learned": LearnedPositionEmbedding,
    "learned_2d": LearnedPositionEmbedding2D,
    "sincos_1d": SinCosPositionEmbedding,
    "sincos_2d": SinCosPositionEmbedding2D,
}
