"""Relevance: the patches that support a class, from attention gradients."""

from collections.abc import Iterable

import numpy as np
from keras import ops

from keras_vit.layers.base import as_float32
from keras_vit.layers.kernels import without_gradients
from keras_vit.models import VisionTransformer
from keras_vit.models.features import (
    check_has_logits,
    record_pass,
    split_batches,
)


def attention_relevance(
    model: VisionTransformer,
    images,
    classes=None,
    batch_size: int = 4,
) -> np.ndarray:
    """Return the relevance of each token to a class, for each output token.

    The attention is weighted by the gradient of the class logit with respect
    to the attention, see `accumulate_relevance`. Unlike a rollout, the result
    depends on the class. `head_grid` turns it into a map of the image.

    Shapes:
        images: (B, H, W, C), preprocessed for `model`.
        returns: (B, T, T), float32, not negative.

    Args:
        model: A VisionTransformer with one output vector per image. Small
            gradients underflow in mixed_float16; convert such a model with
            `with_dtype`.
        images: The images to explain.
        classes: One class for all images, or one for each image; None for the
            most probable class of each image.
        batch_size: Number of images in memory at a time. The backward pass of
            a ViT-B/16 needs half a gigabyte per image.

    Raises:
        ValueError: If the model has no logits for an image, or no such class.

    Example:
        >>> model = VisionTransformer(
        ...     ViTConfig(
        ...         width=24, depth=2, mlp_dim=48, num_heads=2, patch_size=8,
        ...         image_size=(32, 16), num_classes=7,
        ...     )
        ... )
        >>> attention_relevance(model, np.ones((2, 32, 16, 3)), 6).shape
        (2, 9, 9)

    Reference: Chefer, Gur and Wolf 2021, arXiv:2103.15679, section 3.
    Differs: Uses the logit even if the model returns probabilities.
    """
    check_has_logits(model)
    relevance = []
    with without_gradients():
        for part, batch in split_batches(model, images, batch_size):
            chosen = _classes_of(classes, model, len(images))
            recorded = record_pass(model, batch)
            gradients = recorded.score_gradients(
                None if chosen is None else chosen[part]
            )
            relevance.append(
                as_float32(accumulate_relevance(recorded.scores, gradients))
            )
    return np.concatenate(relevance)


def accumulate_relevance(scores: Iterable, gradients: Iterable):
    """Combine attention and its gradients over all blocks.

    Starting from R = I, each block adds E_h[(G * A)+] R, where A is the
    attention of the block, G the gradient with respect to A, + the positive
    part, and E_h the mean over the heads.

    Shapes:
        scores, gradients: tensors or arrays (B, K, T, T), first block first.
        returns: a tensor (B, T, T), float32.

    Args:
        scores: Attention probabilities.
        gradients: Gradients of the logit with respect to the scores.

    Reference: Chefer, Gur and Wolf 2021, arXiv:2103.15679, section 3,
        the rule for self-attention.
    """
    relevance = None
    for score, gradient in zip(scores, gradients, strict=True):
        product = ops.cast(score, "float32") * ops.cast(gradient, "float32")
        step = ops.mean(ops.relu(product), axis=1)  # (B, T, T)
        if relevance is None:
            identity = ops.eye(step.shape[-1], dtype="float32")
            relevance = ops.broadcast_to(identity, step.shape)
        relevance = relevance + ops.matmul(step, relevance)
    return relevance


def _classes_of(classes, model, batch):
    if classes is None:
        return None
    chosen, count = np.asarray(classes), model.config.num_classes
    valid = chosen.dtype.kind in "iu" and chosen.shape in ((), (batch,))
    if not valid or not ((0 <= chosen) & (chosen < count)).all():
        raise ValueError(
            f"`classes` must be an integer below {count}, or one for each of "
            f"the {batch} images, or None. Received: classes={classes!r}"
        )
    return np.broadcast_to(chosen, (batch,))
