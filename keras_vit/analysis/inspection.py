"""Inspection: a model run on images, and what is collected of it."""

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np

from keras_vit.analysis.attention import mean_attention_distance
from keras_vit.analysis.embeddings import (
    PrincipalFilters,
    embedding_filters,
    position_similarity,
)
from keras_vit.analysis.page import render_frame
from keras_vit.analysis.relevance import accumulate_relevance
from keras_vit.analysis.rollout import head_tokens, roll_out, to_grid
from keras_vit.arguments import as_texts, as_whole
from keras_vit.layers.base import as_float32
from keras_vit.layers.kernels import without_gradients
from keras_vit.models import VisionTransformer, ViTConfig
from keras_vit.models.features import (
    CLASSIFIER_ACTIVATIONS,
    as_images,
    check_has_logits,
    grid_size_of,
    has_logits,
    name_activation,
    record_pass,
)
from keras_vit.preprocessing.description import (
    Mode,
    as_colours,
    to_fractions,
    to_uint8,
)
from keras_vit.tables import pick


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
    maps: np.ndarray
    rollouts: np.ndarray
    token_norms: np.ndarray
    distances: np.ndarray
    similarity: np.ndarray | None
    filters: PrincipalFilters | None
    class_names: tuple[str, ...] | None = None
    probabilities: np.ndarray | None = None
    top_classes: np.ndarray | None = None
    relevances: np.ndarray | None = None

    @property
    def num_prefix_tokens(self) -> int:
        """Number of tokens before the patches, 1 with a class token."""
        return self.config.num_prefix_tokens

    @property
    def patch_size(self) -> int:
        """Image pixels from one patch to the next."""
        return self.config.patch_size * self.config.stem_stride

    def read_grid(self, matrix: np.ndarray) -> np.ndarray:
        """Return the part of a matrix that the head reads, as a grid (B, h, w).

        Args:
            matrix: (B, T, T), such as `rollouts`.
        """
        tokens = head_tokens(self.config)
        return to_grid(matrix, self.grid_size, self.num_prefix_tokens, tokens)

    def class_name(self, index: int) -> str:
        """Return the name of a class, or its number if it has no name."""
        return self.class_names[index] if self.class_names else str(index)

    def _repr_html_(self):
        """Return the interactive page in a frame, for notebooks."""
        return render_frame(self)


def inspect_model(
    model: VisionTransformer,
    images,
    *,
    model_name: str = "model",
    image_names: Sequence[str] | None = None,
    class_names: Sequence[str] | None = None,
    activation: str | None = None,
    num_classes: int = 3,
    normalization: Mode | None = None,
    report: Callable[[int, int], None] | None = None,
) -> Inspection:
    """Inspect a model, and where it looks in some images.

    Images are processed one by one, so the attention maps need most of the
    memory: 11 MB per image for a ViT-B/16 at 224 pixels.

    Shapes:
        images: (B, H, W, C), preprocessed for `model`.

    Args:
        model: Any VisionTransformer.
        images: The images to inspect the model on.
        model_name: Name of the model, in titles.
        image_names: Names of the images. Default: their numbers, from 1.
        class_names: Names of the classes. Default: those that the model knows.
        activation: Function that turns logits into probabilities: a key of
            CLASSIFIER_ACTIVATIONS. Default: as the model states, or "softmax".
        num_classes: Number of the most likely classes for which relevance is
            computed.
        normalization: How `images` are normalised, see `preprocess_input`;
            None for the way of `model.config`.
        report: Called as report(inspected images, number of images).

    Raises:
        ValueError: If the model is not a VisionTransformer, returns numbers
            that are not finite, `num_classes` is negative, or the number of
            names is wrong.

    Example:
        >>> model = VisionTransformer(
        ...     ViTConfig(
        ...         width=24, depth=3, mlp_dim=48, num_heads=2, patch_size=8,
        ...         image_size=(32, 16), num_classes=7,
        ...     )
        ... )
        >>> inspection = inspect_model(model, np.zeros((2, 32, 16, 3)))
        >>> inspection.maps.shape, inspection.relevances.shape
        ((3, 2, 2, 9, 9), (2, 3, 9, 9))
    """
    images = np.asarray(as_images(images, model), "float32")
    config, classes = model.config, 0
    if has_logits(model):
        check_has_logits(model)  # And that they can be read.
        classes = config.num_classes
    if image_names is None:
        image_names = [f"image {i + 1}" for i in range(len(images))]
    image_names = as_texts(image_names, "image_names", len(images))
    if class_names is None:
        class_names = config.class_names
    if class_names is not None and classes:
        class_names = as_texts(class_names, "class_names", classes)
    activation = activation or config.probabilities or "softmax"
    activate = pick(CLASSIFIER_ACTIVATIONS, activation, "activation")
    if name_activation(model) is not None:
        activate = model.get_layer("predictions").activation
    top = min(as_whole(num_classes, "num_classes", 0), classes)
    grid_size = tuple(int(n) for n in grid_size_of(model, images))
    views = []
    for image in images:
        views.append(_look_at(model, image[None], grid_size, activate, top))
        if report:
            report(len(views), len(images))
    found = {
        name: np.stack(
            [view[name] for view in views],
            axis=1 if name in ("maps", "token_norms") else 0,
        )
        for name in views[0]
    }
    if not np.isfinite(found["maps"]).all():
        raise ValueError(
            "`model` must have finite attention. Received: NaN or infinity "
            f"from {model_name!r}"
        )
    found["distances"] = found["distances"].mean(axis=0)
    has_positions = config.position_embedding != "none"
    if normalization is None:
        normalization = config.preprocessing.normalization
    return Inspection(
        model_name=model_name,
        config=config,
        image_names=image_names,
        pixels=to_pixels(images, normalization),
        grid_size=grid_size,
        similarity=position_similarity(model) if has_positions else None,
        # () is a stem without stages, not a missing stem.
        filters=(
            embedding_filters(model) if config.stem_stages is None else None
        ),
        class_names=class_names,
        **found,
    )


def _look_at(model, image, grid_size, activate, top):
    """Return arrays on an image (1, H, W, C), from one forward pass."""
    config = model.config
    prefix, patch = config.num_prefix_tokens, config.patch_size
    with without_gradients():
        recorded = record_pass(model, image)
        maps = np.stack([as_float32(scores) for scores in recorded.scores])
        tokens = [as_float32(tokens)[0] for tokens in recorded.tokens]
        found = {
            "maps": maps[:, 0].astype("float16"),
            "rollouts": as_float32(roll_out(maps))[0],
            "token_norms": np.linalg.norm(np.stack(tokens), axis=-1),
            "distances": mean_attention_distance(
                maps,
                grid_size,
                patch * config.stem_stride,
                num_prefix_tokens=prefix,
            ),
        }
        if not has_logits(model):
            return found
        probabilities = as_float32(activate(recorded.logits))[0]
        # Negative, so that equal probabilities are sorted by class index.
        best = np.argsort(-probabilities, kind="stable")[:top]
        found |= {"probabilities": probabilities, "top_classes": best}
        relevances = []
        for index in best:
            gradients = recorded.score_gradients([index])
            relevance = accumulate_relevance(recorded.scores, gradients)
            relevances.append(as_float32(relevance)[0])
        if top:
            found["relevances"] = np.stack(relevances)
    return found


def to_pixels(images, normalization: Mode = "vit") -> np.ndarray:
    """Return images as grey or colour pixels from 0 to 255.

    Shapes:
        images: (B, H, W, C). returns: (B, H, W, 1 or 3), uint8.

    Args:
        images: Preprocessed images. If the channels are not colours, their
            mean is returned.
        normalization: How `images` are normalised, see `preprocess_input`.

    Example:
        >>> to_pixels(np.array([-1, 0.2, 2]).reshape(1, 1, 3, 1)).ravel()
        array([  0, 153, 255], dtype=uint8)
    """
    fractions = to_fractions(images, normalization)
    return to_uint8(as_colours(fractions), "zero_one")
