"""Gradients of the logit of a class with respect to attention."""

import dataclasses
from collections.abc import Callable

import keras
from keras import ops

from keras_vit.layers.distilled_head import DistilledHead
from keras_vit.models.gradients import record
from keras_vit.models.intermediates import (
    enter_blocks,
    get_block,
    layers_after_blocks,
    run_with_scores,
)
from keras_vit.models.submodels import check_vision_transformer
from keras_vit.models.vision_transformer import VisionTransformer


@dataclasses.dataclass(frozen=True)
class RecordedPass:
    """The results of a forward pass, which can be differentiated.

    Shapes:
        `scores` (B, K, T, T) and `tokens` (B, T, D), for each block. `logits`:
        (B, C).

    Args:
        scores: The attention probabilities.
        tokens: The tokens after each block.
        logits: The logits; the last tokens of a model without logits.
        pull_back: See `record`.
    """

    scores: list
    tokens: list
    logits: object
    pull_back: Callable

    def score_gradients(self, classes=None) -> list:
        """Return the gradients of logits by the scores, for each block.

        Args:
            classes: (B,), integers, or None for the most probable classes.
        """
        if classes is None:
            classes = ops.argmax(self.logits, axis=-1)
        # The sum over images separates, because the logit of an image depends
        # only on the attention in that image.
        mask = ops.one_hot(
            classes, self.logits.shape[-1], dtype=self.logits.dtype
        )
        return self.pull_back(mask)


def record_pass(model: VisionTransformer, images) -> RecordedPass:
    """Run a model once, for any number of gradients by its attention.

    To get the gradients, zeros are added to the probabilities of each block,
    and the logits are differentiated with respect to these zeros.

    Shapes:
        images: (B, H, W, C).
    """
    first, positions = enter_blocks(model, images)
    blocks = [get_block(model, i) for i in range(model.config.depth)]
    batch, length, _ = ops.shape(first)
    shape = (batch, model.config.num_heads, length, length)
    shifts = [ops.zeros(shape, block.compute_dtype) for block in blocks]

    def compute_logits(shifts):
        x, all_scores, tokens = first, [], []
        for block, shift, inputs in zip(blocks, shifts, positions):
            x, scores = run_with_scores(
                block, x, lambda weights, shift=shift: weights + shift, **inputs
            )
            all_scores.append(scores)
            tokens.append(x)
        logits = read_logits(model, x) if has_logits(model) else x
        return logits, (all_scores, tokens)

    logits, (scores, tokens), pull_back = record(compute_logits, shifts)
    return RecordedPass(scores, tokens, logits, pull_back)


def read_logits(model: VisionTransformer, tokens):
    """Return the logits (B, C) for the tokens (B, T, D) of the last block."""
    *before, head = layers_after_blocks(model)
    x = tokens
    for layer in before:
        x = layer(x)
    if head.activation is keras.activations.linear:
        return head(x)
    if isinstance(head, DistilledHead):
        return sum(head.both_logits(x)) / 2
    return ops.add(ops.matmul(ops.cast(x, "float32"), head.kernel), head.bias)


def has_logits(model: VisionTransformer) -> bool:
    """Return whether `model` computes one vector of logits for an image."""
    config = model.config
    return bool(config.num_classes) and config.pooling != "none"


def check_has_logits(model: VisionTransformer):
    """Raise a ValueError unless the logits of an image can be read."""
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
