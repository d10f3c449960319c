"""All there is to see of a model and some images, in one object."""

import dataclasses
from collections.abc import Callable, Sequence

import keras
import numpy as np

from keras_vit.analysis.attention import (
    attention_maps,
    mean_attention_distance,
)
from keras_vit.analysis.embeddings import (
    PrincipalFilters,
    leading_filters,
    position_similarity,
)
from keras_vit.analysis.page import render_frame
from keras_vit.analysis.relevance import attention_relevance
from keras_vit.analysis.representations import token_norms
from keras_vit.analysis.rollout import pools_patches, roll_out, to_grid
from keras_vit.models import VisionTransformer, ViTConfig
from keras_vit.models.attention_gradients import has_logits
from keras_vit.models.intermediates import (
    grid_size_of,
    num_prefix_tokens_of,
    to_float32,
)
from keras_vit.models.submodels import check_vision_transformer
from keras_vit.tables import pick


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
        model_name: What the model is called.
        config: What it is made of.
        image_names: What the images are called.
        pixels: The images as the model read them.
        grid_size: (h, w), rows and columns of the grid of patches.
        num_prefix_tokens: Tokens before the patches: 1 with a class token.
        reads_patches: Whether the head pools the patches in place of reading
            the class token.
        maps: Attention probabilities, see `attention_maps`.
        rollouts: See `attention_rollout`.
        token_norms: See the function of this name.
        distances: See `attention_distances`.
        similarity: See `position_similarity`; None without a position
            embedding.
        filters: See `embedding_filters`; None behind a ResNet stem.
        class_names: Names of the classes, or None.
        probabilities: Of the classes; None for a model without a head.
        top_classes: The likeliest ones, or None.
        relevances: See `attention_relevance`, or None.
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


def inspect_model(
    model: VisionTransformer,
    images,
    *,
    model_name: str = "model",
    image_names: Sequence[str] | None = None,
    class_names: Sequence[str] | None = None,
    activation: str = "softmax",
    num_classes: int = 3,
    value_range: tuple[float, float] = (-1.0, 1.0),
    report: Callable[[int, int], None] | None = None,
) -> Inspection:
    """Look at a model and at what it sees in some images.

    Image by image, so that what is needed on the way is little. What stays
    are the maps, 11 MB for an image and a ViT-B/16 at 224 pixels.

    Shapes:
        images: (B, H, W, C), as `model` reads them.

    Args:
        model: Any VisionTransformer.
        images: What it looks at.
        model_name: What the model is called.
        image_names: What the images are called. Default: their numbers.
        class_names: Names of the classes.
        activation: What makes probabilities of logits: a key of ACTIVATIONS.
        num_classes: Relevance is computed for so many of the likeliest
            classes of an image.
        value_range: What the model reads for black and for white.
        report: Called as report(steps done, steps in all).

    Raises:
        ValueError: If the model is no VisionTransformer or does not give
            finite numbers, or names are not as many as what they name.

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
    check_vision_transformer(model)
    images = np.asarray(images, "float32")
    classes = model.config.num_classes if has_logits(model) else 0
    image_names = _names(image_names, "image_names", len(images))
    if image_names is None:
        image_names = tuple(f"image {i + 1}" for i in range(len(images)))
    class_names = _names(class_names, "class_names", classes)
    activate = pick(ACTIVATIONS, activation, "activation")
    top = min(num_classes, classes)
    steps, done = len(images) * (1 + top), 0

    def count_step():
        nonlocal done
        done += 1
        if report:
            report(done, steps)

    config = model.config
    grid_size = tuple(int(n) for n in grid_size_of(model, images))
    patch_size = config.patch_size * config.stem_stride
    maps, distances = [], []
    probabilities, top_classes, relevances = [], [], []
    for i in range(len(images)):
        image = images[i : i + 1]
        scores = attention_maps(model, image)
        distances.append(mean_attention_distance(scores, grid_size, patch_size))
        maps.append(scores.astype("float16"))
        if classes:
            answer = to_float32(model(image, training=False))
            if config.classifier_activation is None:
                answer = to_float32(activate(answer))
            probabilities.append(answer[0])
            # The negative sorts equal ones by their number.
            top_classes.append(np.argsort(-answer[0], kind="stable")[:top])
        count_step()
        of_classes = []
        for j in range(top):
            chosen = top_classes[-1][j : j + 1]
            of_classes.append(attention_relevance(model, image, chosen)[0])
            count_step()
        relevances.append(of_classes)
    maps = np.concatenate(maps, axis=1)
    if not np.isfinite(maps).all():
        raise ValueError(
            "`model` must give finite attention. Received: NaN or infinity "
            f"from {model_name!r}"
        )
    return Inspection(
        model_name=model_name,
        config=config,
        image_names=image_names,
        pixels=to_pixels(images, value_range),
        grid_size=grid_size,
        num_prefix_tokens=num_prefix_tokens_of(model),
        reads_patches=pools_patches(model),
        maps=maps,
        rollouts=to_float32(
            roll_out(maps, num_prefix_tokens=num_prefix_tokens_of(model))
        ),
        token_norms=token_norms(model, images, batch_size=1),
        distances=np.mean(distances, axis=0),
        similarity=(
            None
            if config.position_embedding == "none"
            else position_similarity(model)
        ),
        filters=leading_filters(model),
        class_names=class_names,
        probabilities=np.stack(probabilities) if classes else None,
        top_classes=np.stack(top_classes) if classes else None,
        relevances=np.asarray(relevances, "float32") if top else None,
    )


def to_pixels(
    images, value_range: tuple[float, float] = (-1.0, 1.0)
) -> np.ndarray:
    """Return images as pixels from 0 to 255, grey or of three colours.

    Shapes:
        images: (B, H, W, C). returns: (B, H, W, 1 or 3), uint8.

    Args:
        images: What a model reads. Of channels that are no colours the mean
            is shown.
        value_range: What it reads for black and for white.

    Example:
        >>> to_pixels(np.array([-1, 0.2, 2]).reshape(1, 1, 3, 1)).ravel()
        array([  0, 153, 255], dtype=uint8)
    """
    if images.shape[-1] not in (1, 3):
        images = images.mean(axis=-1, keepdims=True)
    low, high = value_range
    pixels = np.round((images - low) * (255 / (high - low)))
    return np.clip(pixels, 0, 255).astype("uint8")


def _names(names, argument, count):
    if names is None:
        return None
    if len(names) != count:
        raise ValueError(
            f"`{argument}` must be {count} names. Received: {len(names)}"
        )
    return tuple(str(name) for name in names)


# What makes probabilities of logits.
ACTIVATIONS = {
    "softmax": keras.ops.softmax,
    "sigmoid": keras.ops.sigmoid,
}
