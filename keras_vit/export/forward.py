"""The function that an exported graph computes."""

from collections.abc import Callable

import keras

from keras_vit.models.features import (
    OUTPUTS,
    is_graph,
    name_output,
    split_at_head,
)

__all__ = ["OUTPUTS", "is_graph", "make_forward", "name_output"]


def make_forward(
    model: keras.Model, output: str | None = None, is_short: bool = True
) -> Callable:
    """Return a function that computes the outputs and features of `model`.

    A head on the class token reads only one token of the last block. So the
    last block computes only that token, from the keys and values of all
    tokens. This saves about 10 of the 12 D^2 multiplications for each token of
    that block, 7 % in a model with 12 blocks.

    Shapes:
        The function takes images (B, H, W, C) and returns a dict: the outputs
        under the name that `name_output` returns, and "features" (B, D), the
        input of the head, which is the last layer with weights.

    Args:
        model: A model with one input and one output. Its layers are shared.
        output: See `name_output`.
        is_short: Whether to skip the tokens that the head does not read.
    """
    name = name_output(model, output)
    compute = split_at_head(model, name != "features", is_short)

    def forward(images):
        features, outputs = compute(images)
        return {"features": features, name: outputs}

    return forward
