"""Analysis of where a trained model looks, and of what it has learned."""

from keras_vit.analysis.attention import (
    attention_distances,
    attention_maps,
    mean_attention_distance,
)
from keras_vit.analysis.callbacks import AttentionPictures
from keras_vit.analysis.embeddings import (
    PrincipalFilters,
    embedding_filters,
    position_similarity,
    scale_filters,
)
from keras_vit.analysis.inspection import Inspection, inspect_model, to_pixels
from keras_vit.analysis.map_page import write_map
from keras_vit.analysis.page import render_page, write_page
from keras_vit.analysis.relevance import (
    accumulate_relevance,
    attention_relevance,
)
from keras_vit.analysis.representations import (
    artefact_tokens,
    representation_similarity,
    token_norms,
)
from keras_vit.analysis.rollout import (
    HEAD_FUSIONS,
    attention_grid,
    attention_rollout,
    head_grid,
    head_tokens,
    roll_out,
    to_grid,
)
from keras_vit.models.features import attention_scores, grid_size_of

__all__ = [
    "AttentionPictures",
    "HEAD_FUSIONS",
    "Inspection",
    "PrincipalFilters",
    "accumulate_relevance",
    "artefact_tokens",
    "attention_distances",
    "attention_grid",
    "attention_maps",
    "attention_relevance",
    "attention_rollout",
    "attention_scores",
    "embedding_filters",
    "grid_size_of",
    "head_grid",
    "head_tokens",
    "inspect_model",
    "mean_attention_distance",
    "position_similarity",
    "render_page",
    "representation_similarity",
    "roll_out",
    "scale_filters",
    "to_grid",
    "to_pixels",
    "token_norms",
    "write_map",
    "write_page",
]
