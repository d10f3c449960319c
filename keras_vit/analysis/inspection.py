"""Inspection: the analysis of a model and of its attention in some images."""

import dataclasses

import numpy as np

from keras_vit.analysis.embeddings import PrincipalFilters
from keras_vit.analysis.page import render_frame
from keras_vit.analysis.rollout import read_prefix, to_grid
from keras_vit.models import ViTConfig


@dataclasses.dataclass(frozen=True)
class Inspection:
    """The attention of a model in B images, and what the model has learned.

    Shapes:
        pixels: (B, H, W, C), uint8; C is 1 or 3.
        maps: (layers, B, K, T, T), float16.
        rollouts: (B, T, T), float32.
        token_norms: (layers, B, T), float32.
        distances: (layers, K), float32, in pixels.
        similarity: (h, w, h, w), float32.
        probabilities: (B, classes), float32.
        top_classes: (B, k), integers, most likely first.
        relevances: (B, k, T, T), float32, for each of `top_classes`.

    Args:
        model_name: Name of the model.
        config: Configuration of the model.
        image_names: Names of the images.
        pixels: The images, after preprocessing.
        grid_size: (h, w), rows and columns of the grid of patches.
        num_prefix_tokens: Number of tokens before the patches, 1 with a class
            token.
        reads_patches: Whether the head pools the patches instead of reading
            the class token.
        maps: Attention probabilities, see `attention_maps`.
        rollouts: See `attention_rollout`.
        token_norms: Norms of the tokens after each block, see the function
            `token_norms`.
        distances: See `attention_distances`.
        similarity: See `position_similarity`; None without a position
            embedding.
        filters: See `embedding_filters`; None with a ResNet stem.
        class_names: Names of the classes, or None.
        probabilities: Probabilities of the classes; None without a head.
        top_classes: The most likely classes; None without a head.
        relevances: See `attention_relevance`; None without a head.
    """

    model_name: str
    config: ViTConfig
    image_names: tuple[str, ...]
    pixels: np.ndarray
    grid_size: tuple[int, int]
    num_prefix_tokens: int
    reads_patches: bool
    maps: np.ndarray
    rollouts: np.ndarray
    token_norms: np.ndarray
    distances: np.ndarray
    similarity: np.ndarray | None
    filters: PrincipalFilters | None
    class_names: tuple[str, ...] | None
    probabilities: np.ndarray | None
    top_classes: np.ndarray | None
    relevances: np.ndarray | None

    @property
    def patch_size(self) -> int:
        """Image pixels from one patch to the next."""
        return self.config.patch_size * self.config.stem_stride

    def read_grid(self, matrix: np.ndarray) -> np.ndarray:
        """Return the part of a matrix that the head reads, as a grid (B, h, w).

        Args:
            matrix: (B, T, T), such as `rollouts`.
        """
        return to_grid(
            matrix,
            self.grid_size,
            self.num_prefix_tokens,
            from_patches=self.reads_patches,
            prefix_rows=read_prefix(self.config),
        )

    def class_name(self, index: int) -> str:
        """Return the name of a class, or its number if it has no name."""
        return self.class_names[index] if self.class_names else str(index)

    def _repr_html_(self):
        """Return the interactive page in a frame, for notebooks."""
        return render_frame(self)
