"""The weights of a layer, listed before it is built.

A layer of a table lists its own in `weight_rows`, so a checkpoint is compared
with a model that does not exist yet.
"""

from typing import NamedTuple


class WeightRow(NamedTuple):
    """The weights of a layer, or of one inside it.

    Args:
        name: Name of the layer inside, "" for the layer itself.
        kind: Kind of the layer, a key of a `Style` of `keras_vit.weights`:
            dense, conv, norm, ...
        shapes: Shape of each weight, by name.
    """

    name: str
    kind: str
    shapes: dict[str, tuple]


def dense_row(
    name: str,
    inputs: int,
    outputs: int,
    has_bias: bool = True,
    kind: str = "dense",
) -> WeightRow:
    """Return the weights of a dense layer.

    Args:
        name: See `WeightRow`.
        inputs: Size of a token before it.
        outputs: Size of a token after it.
        has_bias: Whether it has a bias.
        kind: See `WeightRow`.
    """
    shapes = {"kernel": (inputs, outputs)}
    if has_bias:
        shapes["bias"] = (outputs,)
    return WeightRow(name, kind, shapes)


def heads_in_row(
    name: str, width: int, count: int, has_bias: bool = True
) -> WeightRow:
    """Return the weights of `count` projections before an attention.

    Args:
        name: See `WeightRow`.
        width: Size of a token.
        count: Number of the projections side by side, see `projection`.
        has_bias: Whether they have biases.
    """
    return dense_row(name, width, count * width, has_bias, "heads_in")


def heads_out_row(name: str, width: int, has_bias: bool = True) -> WeightRow:
    """Return the weights of the projection after an attention.

    Args:
        name: See `WeightRow`.
        width: Size of a token.
        has_bias: Whether it has a bias.
    """
    return dense_row(name, width, width, has_bias, "heads_out")


def norm_row(name: str, width: int, layer_class: type) -> WeightRow:
    """Return the weights of a norm.

    Args:
        name: See `WeightRow`.
        width: Size of a token.
        layer_class: A row of NORMS; its `weight_names` lists its weights.
    """
    shapes = dict.fromkeys(layer_class.weight_names, (width,))
    return WeightRow(name, "norm", shapes)


def single_row(weight: str, shape: tuple, name: str = "") -> WeightRow:
    """Return the only weight of a layer, whose kind has the same name.

    Args:
        weight: Name of the weight.
        shape: Its shape.
        name: See `WeightRow`.
    """
    return WeightRow(name, weight, {weight: shape})
