"""Relevance: which patches speak for a class, by gradients of attention."""

from collections.abc import Iterable

import numpy as np
from keras import ops

from keras_vit.models import VisionTransformer
from keras_vit.models.attention_gradients import (
    check_has_logits,
    score_gradients,
)
from keras_vit.models.gradients import without_gradients
from keras_vit.models.intermediates import split_batches, to_float32


def attention_relevance(
    model: VisionTransformer,
    images,
    classes=None,
    batch_size: int = 4,
) -> np.ndarray:
    """Return how much each token speaks for a class, in every last token.

    Attention weighed by the gradient of the logit of the class with respect
    to it, see `accumulate_relevance`. Unlike a rollout it depends on the
    class. `head_grid` makes a picture of it.

    Shapes:
        images: (B, H, W, C), as `model` reads them.
        returns: (B, T, T), float32, not negative.

    Args:
        model: A VisionTransformer with one answer for an image. Under
            mixed_float16 small gradients are lost: use `with_dtype`.
        images: What it looks at.
        classes: A class, or one for each image; None for the most probable.
        batch_size: Images in memory at a time, with what the backward pass
            needs of them: half a gigabyte each for a ViT-B/16.

    Raises:
        ValueError: If the model has no logits of an image, or no such class.

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
    Differs: Takes the logit where the model answers with probabilities.
    """
    check_has_logits(model)
    relevance = []
    with without_gradients():
        for part, batch in split_batches(images, batch_size):
            chosen = _classes_of(classes, model, len(images))
            chosen = None if chosen is None else chosen[part]
            scores, gradients = score_gradients(model, batch, chosen)
            relevance.append(
                to_float32(accumulate_relevance(scores, gradients))
            )
    return np.concatenate(relevance)


def accumulate_relevance(scores: Iterable, gradients: Iterable):
    """Combine attention and its gradients over all blocks.

    R = I at first; each block adds E_h[(G * A)+] R, where A is its attention,
    G the gradient with respect to it, + the positive part and E_h the mean
    over the heads.

    Shapes:
        scores, gradients: tensors or arrays (B, K, T, T), first block first.
        returns: a tensor (B, T, T), float32.

    Args:
        scores: Attention probabilities.
        gradients: What is explained, differentiated by them.

    Reference: Chefer, Gur and Wolf 2021, arXiv:2103.15679, section 3,
        the rule for self-attention.
    """
    relevance = None
    for score, gradient in zip(scores, gradients, strict=True):
        product = ops.cast(score, "float32") * ops.cast(gradient, "float32")
        step = ops.mean(ops.relu(product), axis=1)  # (B, T, T)
        if relevance is None:
            length = step.shape[-1]
            identity = ops.eye(length, dtype="float32")
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
