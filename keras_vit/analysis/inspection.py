"""Inspection: everything there is to see of a model and some images."""

import dataclasses

import numpy as np

from keras_vit.analysis.embeddings import PrincipalFilters
from keras_vit.analysis.page import render_frame
from keras_vit.analysis.rollout import to_grid
from keras_vit.models import ViTConfig


@dataclasses.dataclass(frozen=True)
class Inspection:
    """What a model sees in B images, and what it has learned.

    Shapes:
        pixels: (B, H, W, C), uint8; C is 1 or 3.
        maps: (layers, B, K, T, T), float16.
        rollouts: (B, T, T), float32.
        token_norms: (layers, B, T), float32.
        distances: (layers, K), float32, in pixels.
        similarity: (h, w, h, w), float32.
        probabilities: (B, classes), float32.
        top_classes: (B, k), integers, likeliest first.
        relevances: (B, k, T, T), float32, for each of `top_classes`.

    Args:
        model_name: The name of the model.
        config: Its configuration.
        image_names: The names of the images.
        pixels: The images as the model read them.
        grid_size: (h, w), rows and columns of the grid of patches.
        num_prefix_tokens: Tokens before the patches: 1 with a class token.
        reads_patches: Whether the head pools the patches, and does not read
            the class token.
        maps: Attention probabilities, see `attention_maps`.
        rollouts: See `attention_rollout`.
        token_norms: Lengths of the tokens after each block, see the function
            of this name.
        distances: See `attention_distances`.
        similarity: See `position_similarity`; None without a position
            embedding.
        filters: See `embedding_filters`; None behind a ResNet stem.
        class_names: Names of the classes, or None.
        probabilities: Of the classes; None for a model without a head.
        top_classes: The likeliest classes, or None.
        relevances: See `attention_relevance`; or None.
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
        """Pixels from one patch to the next."""
        return self.config.patch_size * self.config.stem_stride

    def read_grid(self, matrix: np.ndarray) -> np.ndarray:
        """Return what the head reads of a matrix, on the grid: (B, h, w).

        Args:
            matrix: (B, T, T), such as `rollouts`.
        """
        return to_grid(
            matrix,
            self.grid_size,
            self.num_prefix_tokens,
            from_patches=self.reads_patches,
        )

    def class_name(self, index: int) -> str:
        """Return the name of a class, its number if it has none."""
        return self.class_names[index] if self.class_names else str(index)

    def _repr_html_(self):
        """Return a page to explore, which notebooks show in a frame."""
        return render_frame(self)
