"""Styles: the names and the form of the weights of each kind of layer."""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np


class Form(NamedTuple):
    """The form in which a file stores a weight.

    Both functions return views if possible.

    Args:
        to_file: Maps the weight and the number of heads to the stored array.
        to_ours: Maps the stored array and the shape of the weight to the
            weight.
    """

    to_file: Callable[[np.ndarray, int], np.ndarray]
    to_ours: Callable[[np.ndarray, tuple], np.ndarray]


# For each kind of layer and each of its weights, the ending that follows the
# name of the layer in the file, and the form.
Style = dict[str, dict[str, tuple[str, Form]]]


def make_style(
    endings: tuple[str, str, str, str],
    dense: Form,
    conv: Form,
    singles: dict[str, dict[str, tuple[str, Form]]],
    heads: tuple[Form, Form, Form] | None = None,
) -> Style:
    """Return the style of a library.

    Args:
        endings: Endings of the names of a kernel and a bias, and of the scale
            and the bias of a norm.
        dense: Form of the kernel of a dense layer.
        conv: Form of the kernel of a convolution.
        singles: Rows of the layers with one weight: class token, position
            table, probe.
        heads: Forms of the kernels before and after the attention, and of the
            bias before it; None for the forms of other dense layers.
    """
    kernel, bias, gamma, beta = endings
    heads_in, heads_out, heads_bias = heads or (dense, dense, SAME)
    return {
        "dense": {"kernel": (kernel, dense), "bias": (bias, SAME)},
        "heads_in": {"kernel": (kernel, heads_in), "bias": (bias, heads_bias)},
        "heads_out": {"kernel": (kernel, heads_out), "bias": (bias, SAME)},
        "conv": {"kernel": (kernel, conv), "bias": (bias, SAME)},
        "stem": {"kernel": (kernel, conv)},
        "norm": {"gamma": (gamma, SAME), "beta": (beta, SAME)},
        **singles,
    }


def _reshaped(array, shape):
    return array.reshape(shape)


def _patches_of_rows(array, shape):
    return array.T.reshape(_patch_shape(shape))


def _patches_of_channels(array, shape):
    rows, columns, channels, width = _patch_shape(shape)
    patches = array.reshape(width, channels, rows, columns)
    return patches.transpose(2, 3, 1, 0)


def _patch_shape(shape):
    """Return (P, P, C, D), of flat patches (D, P * P * C) as well."""
    if len(shape) != 2:
        return shape
    side = math.isqrt(shape[1] // 3)
    if 3 * side**2 != shape[1]:
        raise ValueError(
            f"its patches of {shape[1]} numbers are not square patches of "
            "three channels"
        )
    return side, side, 3, shape[0]


SAME = Form(lambda x, heads: x, _reshaped)
TRANSPOSED = Form(lambda x, heads: x.T, lambda x, shape: x.T)
# (rows, columns, in, out) to PyTorch's (out, in, rows, columns).
CONV = Form(
    lambda x, heads: x.transpose(3, 2, 0, 1),
    lambda x, shape: x.transpose(2, 3, 1, 0),
)
VECTOR = Form(lambda x, heads: x.reshape(-1), _reshaped)
ONE_MORE_AXIS = Form(lambda x, heads: x[None], _reshaped)
# A separate axis for the heads: (D, D) as (D, K, D/K), (D,) as (K, D/K), and
# (D, D) as (K, D/K, D).
SPLIT_LAST = Form(
    lambda x, heads: x.reshape(*x.shape[:-1], heads, -1), _reshaped
)
SPLIT_FIRST = Form(lambda x, heads: x.reshape(heads, -1, x.shape[1]), _reshaped)
HEADS_APART = (SPLIT_LAST, SPLIT_FIRST, SPLIT_LAST)

# (P, P, C, D) to (D, P * P * C), for images of three channels.
FLAT_PATCHES = Form(
    lambda x, heads: x.reshape(-1, x.shape[-1]).T, _patches_of_rows
)

# The same with the patches in the order (channel, row, column).
FLAT_CHANNELS = Form(
    lambda x, heads: x.transpose(3, 2, 0, 1).reshape(x.shape[-1], -1),
    _patches_of_channels,
)

# (P, P, C, D) to (P * P * C, D).
FLAT_ROWS = Form(
    lambda x, heads: x.reshape(-1, x.shape[-1]),
    lambda x, shape: x.reshape(
        _patch_shape(shape[::-1]) if len(shape) == 2 else shape
    ),
)
FLAT_FORMS = (FLAT_PATCHES, FLAT_CHANNELS, FLAT_ROWS)

_BATCHED = {
    "token": {"token": ("", SAME)},
    "embedding": {"embedding": ("", ONE_MORE_AXIS)},
    "probe": {"probe": ("", ONE_MORE_AXIS)},
}
_VARS = {
    "token": {"token": ("/vars/0", SAME)},
    "embedding": {"embedding": ("/vars/0", SAME)},
}
_SLOTS = ("/vars/0", "/vars/1", "/vars/0", "/vars/1")

FLAX = make_style(
    ("/kernel", "/bias", "/scale", "/bias"), SAME, SAME, _BATCHED, HEADS_APART
)
TORCH = make_style(
    (".weight", ".bias", ".weight", ".bias"), TRANSPOSED, CONV, _BATCHED
)
# The parts of later Vision Transformers.
LATER_TORCH = {
    "scale": {"scale": (".gamma", SAME)},
    "query_value_bias": {
        "query_bias": (".q_bias", SAME),
        "value_bias": (".v_bias", SAME),
    },
    "frequency": {"frequency": ("", SAME)},
    "table": {"table": ("", SAME)},
}
KERAS_2 = make_style(
    ("/kernel", "/bias", "/gamma", "/beta"), SAME, SAME, _BATCHED
)
KERAS_3 = make_style(_SLOTS, SAME, SAME, _VARS)
KERAS_3_HEADS_APART = make_style(_SLOTS, SAME, SAME, _VARS, HEADS_APART)
# The patch encoder of files that project flat patches instead of convolving.
FLAT_CONV = {
    "conv": {"kernel": (".weight", FLAT_PATCHES), "bias": (".bias", SAME)},
}
# RADIO: flat patches, and tokens without the axis of the batch.
RADIO = {
    "conv": {"kernel": (".weight", FLAT_CHANNELS), "bias": (".bias", SAME)},
    "token": {"token": ("", Form(lambda x, heads: x[0], _reshaped))},
}
