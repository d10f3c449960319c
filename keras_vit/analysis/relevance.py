"""Relevance: which patches speak for a class, by gradients of attention."""

from collections.abc import Iterable

import keras
import numpy as np
from keras import ops

from keras_vit.analysis.gradients import differentiate, without_gradients
from keras_vit.models import VisionTransformer
from keras_vit.models.intermediates import (
    get_block,
    layers_after_blocks,
    split_batches,
    to_float32,
    tokens_before_blocks,
)
from keras_vit.models.submodels import check_vision_transformer


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


def score_gradients(model: VisionTransformer, images, classes) -> tuple:
    """Return (attention probabilities, gradients of the logit by them).

    Both a list with one tensor (B, K, T, T) for each block. A zero is added
    to the probabilities of each block, and the gradient taken by the zeros.

    Shapes:
        images: (B, H, W, C).
        classes: (B,), integers, or None for the most probable ones.
    """
    tokens = tokens_before_blocks(model, images)
    blocks = [get_block(model, i) for i in range(model.config.depth)]
    batch, length, _ = ops.shape(tokens)
    shape = (batch, model.config.num_heads, length, length)
    shifts = [ops.zeros(shape, block.compute_dtype) for block in blocks]

    def sum_of_logits(shifts):
        # A sum: each image's logit depends on the image's own attention only.
        x, all_scores = tokens, []
        for block, shift in zip(blocks, shifts):
            x, scores = block(
                x,
                training=False,
                return_attention_scores=True,
                scores_shift=shift,
            )
            all_scores.append(scores)
        logits = read_logits(model, x)
        chosen = ops.argmax(logits, axis=-1) if classes is None else classes
        mask = ops.one_hot(chosen, logits.shape[-1], dtype=logits.dtype)
        return ops.sum(logits * mask), all_scores

    gradients, scores = differentiate(sum_of_logits, shifts)
    return scores, gradients


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


def read_logits(model: VisionTransformer, tokens):
    """Return the logits (B, C) for the tokens that leave the last block."""
    *before, head = layers_after_blocks(model)
    x = tokens
    for layer in before:
        x = layer(x)
    if head.activation is keras.activations.linear:
        return head(x)
    return ops.add(ops.matmul(ops.cast(x, "float32"), head.kernel), head.bias)


def has_logits(model: VisionTransformer) -> bool:
    """Return whether `model` has a head with an answer for an image."""
    config = model.config
    return bool(config.num_classes) and config.pooling != "none"


def check_has_logits(model: VisionTransformer):
    """Raise a ValueError unless `model` answers with logits for an image."""
    check_vision_transformer(model)
    config = model.config
    if not has_logits(model):
        raise ValueError(
            "`model` must have a head and a pooling. Received: "
            f"num_classes={config.num_classes}, pooling={config.pooling!r}"
        )
    head = model.get_layer("predictions")
    linear = head.activation is keras.activations.linear
    if head.quantization_mode is not None and not linear:
        raise ValueError(
            "The logits of a quantised head with an activation cannot be "
            "read; use `with_classifier_activation(None)` before quantising. "
            f"Received: quantization_mode={head.quantization_mode!r}"
        )


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
