"""The cases of all layers: their arguments, their input and their formula.

A new layer needs one row in CASES, nothing else. references.py has the
formulas of many lines.
"""

import itertools
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from scipy.special import softmax

from keras_vit import layers
from keras_vit.layers.resnet_stem import BottleneckUnit, StandardizedConv2D
from tests.layers import references
from tests.layers.references import Weights
from tests.tiny import noise, randomize


class Case(NamedTuple):
    """A layer, its arguments, the shape of its input, and its formula.

    The formula is one of the layer, its weights and its input. Without it,
    there is the shape of the output. A layer of positions that `is_beside` the
    tokens returns the same for every image.
    """

    layer_class: type
    kwargs: dict
    input_shape: tuple
    formula: Callable | None
    output_shape: tuple = ()
    is_beside: bool = False

    def make(self, **kwargs):
        """Return the layer, built, with random weights."""
        layer = self.layer_class(**self.kwargs, **kwargs)
        layer(self.inputs())
        return randomize(layer)

    def inputs(self, batch=2):
        """Return seeded random inputs."""
        return noise(batch, *self.input_shape[1:])

    def expect(self, layer):
        """Return what the formula says of `inputs()`."""
        x = self.inputs().astype("float64")
        return self.formula(layer, Weights(layer), x)


TOKENS = (2, 5, 12)
GRID = (2, 3)
OF_GRID = {"grid_size": GRID, "num_prefix_tokens": 1}
MASKS = {
    "keys": np.array([[1, 1, 0, 1, 0], [1, 0, 1, 1, 1]], bool),
    "pairs": np.tril(np.ones((2, 5, 5), bool)),
}


def cells(grid=GRID):
    """Return the row and the column of each patch, (N, 2)."""
    return np.array([*itertools.product(*map(range, grid))], "float64")


def cut(layer, w, x):
    side = layer.patch_size
    h, w_ = (size // side for size in x.shape[1:3])
    x = x[:, : h * side, : w_ * side]
    x = x.reshape(len(x), h, side, w_, side, -1).transpose(0, 1, 3, 2, 4, 5)
    kernel = w("kernel").reshape(-1, layer.width)
    return x.reshape(len(x), h * w_, -1) @ kernel + w("bias")


def prepend(layer, w, x):
    token = np.broadcast_to(w("token"), (len(x), *w("token").shape[1:]))
    return np.concatenate([token, x], axis=1)


def two_heads(layer, w, x):
    one, other = (
        w.dense(x[:, 0], "class_head"),
        w.dense(x[:, 1], "teacher_head"),
    )
    y = (one + other) / 2
    return softmax(y, axis=-1) if layer.activation.__name__ == "softmax" else y


def learned_2d(layer, w, x):
    rows = [[*w("columns")[c], *w("rows")[r]] for r, c in cells().astype(int)]
    return x + np.array([np.zeros(x.shape[-1]), *rows])


def sincos_1d(layer, w, x):
    steps = np.arange(0, x.shape[-1], 2) / x.shape[-1]
    angles = np.arange(x.shape[1])[:, None] / 10_000**steps
    return x + np.stack([np.sin(angles), np.cos(angles)], -1).reshape(
        x.shape[1:]
    )


def sincos_2d(layer, w, x):
    quarter = x.shape[-1] // 4
    omega = 10_000.0 ** -(np.arange(quarter) / (quarter - 1))
    y, z = (cells()[:, i, None] * omega for i in (0, 1))
    rows = np.concatenate([np.sin(z), np.cos(z), np.sin(y), np.cos(y)], -1)
    prefix = np.zeros((layer.num_prefix_tokens, x.shape[-1]))
    return x + np.concatenate([prefix, rows])


def average(layer, w, x):
    return x[:, layer.num_prefix_tokens :].mean(axis=1)


def rotation(angles):
    """Return a formula, from `angles(layer, w, y, x)` (N, 1 or K, E/2)."""

    def formula(layer, w, tokens):
        y, x = cells().T[:, :, None]
        found = angles(layer, w, y, x)
        if found.ndim == 2:
            found = found[:, None]
        prefix = np.zeros((layer.num_prefix_tokens, *found.shape[1:]))
        if "class_angles" in w:
            prefix[0] = w("class_angles")
        found = np.concatenate([prefix, found])
        if layer.pairs == "neighbours":
            found = np.repeat(found, 2, axis=-1)
        else:
            found = np.tile(found, 2)
        return np.stack([np.cos(found), np.sin(found)])

    return formula


def steps(temperature, head_size=8):
    return temperature ** -(np.arange(head_size // 4) * 4 / head_size)


def axial(layer, w, y, x):
    factor = steps(layer.temperature)
    return np.concatenate([y * factor, x * factor], axis=-1)


def axial_scaled(layer, w, y, x):
    factor, (h, w_) = steps(50.0), layer.reference_size
    y, x = (y + layer.offset) / 2 * h, (x + layer.offset) / 3 * w_
    return np.concatenate([x * factor, y * factor], axis=-1)


def centered(layer, w, y, x):
    factor = 2 * np.pi * steps(layer.temperature)
    y, x = 2 * (y + 0.5) / 2 - 1, 2 * (x + 0.5) / 3 - 1
    return np.concatenate([y * factor, x * factor], axis=-1)


def centered_rounded(layer, w, y, x):
    """With periods of eight bits, of 10^0, 10^(1/2) ... rounded by hand."""
    factor = 2 * np.pi / np.array([1, 202 / 64, 10, 253 / 8])
    y, x = 2 * (y + 0.5) / 2 - 1, 2 * (x + 0.5) / 3 - 1
    return np.concatenate([y * factor, x * factor], axis=-1)


def mixed(layer, w, y, x):
    by_x, by_y = w("frequency")  # (K, E/2)
    return x[:, None] * by_x + y[:, None] * by_y


def relative(between):
    """Return a formula, from `between(w, rows, columns)` (K,) of distances."""

    def formula(layer, w, x):
        prefix = layer.num_prefix_tokens
        bias = np.zeros((3, prefix + 6, prefix + 6))
        for (i, one), (j, other) in itertools.product(
            enumerate(cells()), repeat=2
        ):
            bias[:, prefix + i, prefix + j] = between(w, *(one - other))
        if "table" in w and prefix:
            table = w("table")
            bias[:, :prefix, prefix:] = table[15][:, None, None]
            bias[:, prefix:, :prefix] = table[16][:, None, None]
            bias[:, :prefix, :prefix] = table[17][:, None, None]
        return bias[None]

    return formula


def from_table(w, rows, columns):
    return w("table")[int((rows + 1) * 5 + columns + 2)]


def from_mlp(w, rows, columns):
    far = np.array([rows, columns])
    far = np.sign(far) * np.log(1 + np.abs(far))
    return w.dense(np.maximum(w.dense(far, "hidden"), 0), "out")


def relative_keys(layer, w, x):
    length = x.shape[1]
    index = np.subtract.outer(np.arange(length), np.arange(length))
    return w("keys")[index + length - 1]


def convolution(layer, w, x):
    options = (layer.epsilons, layer.use_symmetric_padding)
    return references.convolve(x, w("kernel"), layer.strides[0], *options)


# The rows of tables of layers have their key, or begin with it.
CASES = {
    "patches": Case(
        layers.PatchEncoder, {"patch_size": 4, "width": 12}, (2, 8, 12, 3), cut
    ),
    "patches of a channel, without the border and a bias": Case(
        layers.PatchEncoder,
        {"patch_size": 4, "width": 5, "use_bias": False, "ignore_border": True},
        (2, 13, 10, 1),
        cut,
    ),
    "layer norm": Case(
        layers.LayerNorm,
        {"epsilon": 1e-2},
        TOKENS,
        lambda layer, w, x: references.normalize(
            x, w("gamma"), w("beta"), epsilon=1e-2
        ),
    ),
    "rms norm": Case(
        layers.RmsNorm,
        {"epsilon": 1e-2},
        TOKENS,
        lambda layer, w, x: references.normalize(
            x, w("gamma"), 0, "rms", epsilon=1e-2
        ),
    ),
    "unit norm": Case(
        layers.UnitNorm,
        {},
        TOKENS,
        lambda layer, w, x: x / np.linalg.norm(x, axis=-1, keepdims=True),
    ),
    "layer scale": Case(
        layers.LayerScale, {}, TOKENS, lambda layer, w, x: x * w("scale")
    ),
    "class token": Case(layers.ClassToken, {}, TOKENS, prepend),
    "prefix tokens": Case(
        layers.PrefixTokens, {"num_tokens": 3}, TOKENS, prepend
    ),
    "two heads": Case(
        layers.DistilledHead, {"num_classes": 5}, (2, 2, 12), two_heads
    ),
    "two heads, softmax": Case(
        layers.DistilledHead,
        {"num_classes": 5, "activation": "softmax"},
        (2, 2, 12),
        two_heads,
    ),
    "learned": Case(
        layers.LearnedPositionEmbedding,
        OF_GRID,
        (2, 7, 8),
        lambda layer, w, x: x + w("embedding"),
    ),
    "learned 2d": Case(
        layers.LearnedPositionEmbedding2D, OF_GRID, (2, 7, 8), learned_2d
    ),
    "sincos 1d": Case(
        layers.SinCosPositionEmbedding, OF_GRID, (2, 7, 6), sincos_1d
    ),
    **{
        f"sincos 2d behind {count}": Case(
            layers.SinCosPositionEmbedding2D,
            {"grid_size": GRID, "num_prefix_tokens": count},
            (2, 6 + count, 12),
            sincos_2d,
        )
        for count in (0, 2)
    },
    "token": Case(layers.TokenPooling, {}, TOKENS, lambda layer, w, x: x[:, 0]),
    "avg": Case(
        layers.AveragePooling, {"num_prefix_tokens": 2}, TOKENS, average
    ),
    "max": Case(
        layers.MaxPooling,
        {"num_prefix_tokens": 2},
        TOKENS,
        lambda layer, w, x: x[:, 2:].max(axis=1),
    ),
    "token and avg": Case(
        layers.TokenAndAveragePooling,
        {"num_prefix_tokens": 2},
        TOKENS,
        lambda layer, w, x: np.concatenate(
            [x[:, 0], average(layer, w, x)], axis=-1
        ),
    ),
    "prefix": Case(
        layers.PrefixPooling,
        {"indices": (2, 0)},
        TOKENS,
        lambda layer, w, x: np.concatenate([x[:, 2], x[:, 0]], axis=-1),
    ),
    "distilled": Case(
        layers.DistilledPooling,
        {"num_classes": 5},
        TOKENS,
        lambda layer, w, x: x[:, :2],
    ),
    "distilled without a head": Case(
        layers.DistilledPooling,
        {},
        TOKENS,
        lambda layer, w, x: x[:, :2].mean(axis=1),
    ),
    **{
        f"map {activation}": Case(
            layers.AttentionPooling,
            {
                "num_heads": 3,
                "mlp_dim": 20,
                "activation": activation,
                "layer_norm_epsilon": 1e-2,
            },
            TOKENS,
            lambda layer, w, x: references.pool_by_attention(layer, x),
        )
        for activation in ("tanh", "exact")
    },
    "map of the patches": Case(
        layers.PatchAttentionPooling,
        {"num_heads": 3, "mlp_dim": 20, "num_prefix_tokens": 2},
        TOKENS,
        lambda layer, w, x: references.pool_by_attention(layer, x[:, 2:]),
    ),
    "probe": Case(
        layers.ProbePooling,
        {"num_heads": 3},
        TOKENS,
        lambda layer, w, x: references.pool_by_attention(layer, x),
    ),
    **{
        name: Case(
            layer_class,
            {**OF_GRID, "head_size": 8, **options},
            (2, 7, 24),
            rotation(angles),
            is_beside=True,
        )
        for name, layer_class, options, angles in (
            ("axial", layers.AxialRotaryPositions, {}, axial),
            (
                "axial scaled",
                layers.AxialRotaryPositions,
                {
                    "temperature": 50.0,
                    "axes": "xy",
                    "reference_size": (16, 12),
                    "offset": 0.5,
                },
                axial_scaled,
            ),
            (
                "axial class",
                layers.ClassRotaryPositions,
                {"temperature": 50.0},
                axial,
            ),
            (
                "centered",
                layers.CenteredRotaryPositions,
                {"temperature": 50.0},
                centered,
            ),
            (
                "centered rounded",
                layers.RoundedRotaryPositions,
                {"head_size": 16},
                centered_rounded,
            ),
            ("mixed", layers.MixedRotaryPositions, {"num_heads": 3}, mixed),
        )
    },
    **{
        f"{name} behind {count}": Case(
            layer_class,
            {
                "grid_size": GRID,
                "num_prefix_tokens": count,
                "num_heads": 3,
                **options,
            },
            (1, 6 + count, 12),
            relative(between),
            is_beside=True,
        )
        for name, layer_class, options, between in (
            ("table", layers.RelativePositionTable, {}, from_table),
            (
                "mlp of distances",
                layers.RelativePositionMlp,
                {"hidden_dim": 5},
                from_mlp,
            ),
        )
        for count in (0, 2)
    },
    "keys": Case(
        layers.RelativePositionKeys,
        {**OF_GRID, "num_heads": 3},
        (1, 7, 12),
        relative_keys,
        is_beside=True,
    ),
    **{
        f"convolution {options}": Case(
            StandardizedConv2D,
            {"filters": 5, **options},
            (2, 8, 7, 3),
            convolution,
        )
        for options in (
            {"kernel_size": 1, "strides": 2},
            {"kernel_size": 3, "strides": 1},
            {"kernel_size": 3, "strides": 2, "epsilons": "timm"},
            {"kernel_size": 7, "strides": 2},
            {
                "kernel_size": 3,
                "strides": 2,
                "epsilons": "bit",
                "use_symmetric_padding": True,
            },
        )
    },
    **{
        f"{unit.__name__} {options} {channels} {stride}": Case(
            unit,
            {"features": 32, "stride": stride, **options},
            (2, 6, 5, channels),
            lambda layer, w, x: references.residual_unit(
                layer, x, isinstance(layer, layers.PreActivationUnit)
            ),
        )
        for unit, options in (
            (BottleneckUnit, {}),
            (BottleneckUnit, {"epsilons": "timm"}),
            (layers.PreActivationUnit, {"groups": 8}),
        )
        for channels, stride in ((128, 1), (64, 1), (128, 2))
    },
    "dropped depth": Case(
        layers.StochasticDepth,
        {"rate": 0.4, "seed": 3},
        TOKENS,
        lambda layer, w, x: x,
    ),
    "patch dropout": Case(
        layers.PatchDropout,
        {"rate": 0.4, "seed": 3},
        TOKENS,
        lambda layer, w, x: x,
    ),
    **{
        f"attention {name}": Case(
            layers.MultiHeadSelfAttention,
            {"num_heads": 3, **options},
            TOKENS,
            lambda layer, w, x: references.attention(layer, x)[0],
        )
        for name, options in (
            ("plain", {"dropout_rate": 0.1}),
            (
                "with norms",
                {
                    "qkv_bias": "query_value",
                    "use_out_bias": False,
                    "qk_norm": "head",
                    "use_inner_norm": True,
                    "norm": "rms",
                    "norm_epsilon": 1e-5,
                    "rotary_pairs": "neighbours",
                },
            ),
        )
    },
    **{
        f"mlp {name}": Case(
            layers.MlpBlock,
            {"mlp_dim": 20, **options},
            TOKENS,
            lambda layer, w, x: references.mlp(layer, x),
        )
        for name, options in (
            *((name, {"activation": name}) for name in layers.ACTIVATIONS),
            (
                "gated",
                {
                    "dropout_rate": 0.1,
                    "activation": "silu",
                    "is_gated": True,
                    "use_inner_norm": True,
                    "norm": "rms",
                    "norm_epsilon": 1e-5,
                    "use_bias": False,
                },
            ),
        )
    },
    **{
        f"block {name}": Case(
            layers.TransformerBlock,
            {"num_heads": 3, "mlp_dim": 20, **options},
            TOKENS,
            lambda layer, w, x: references.block(layer, x)[0],
        )
        for name, options in (
            (
                "plain",
                {
                    "dropout_rate": 0.1,
                    "attention_dropout_rate": 0.1,
                    "stochastic_depth_rate": 0.1,
                    "activation": "exact",
                    "layer_norm_epsilon": 1e-5,
                    "use_remat": True,
                },
            ),
            (
                "of other families",
                {
                    "norm": "rms",
                    "norm_placement": "after",
                    "layer_scale_init": 0.1,
                    "layer_scale_branches": "attention",
                    "attention_options": {
                        "qkv_bias": "none",
                        "qk_norm": "width",
                        "norm": "rms",
                    },
                    "mlp_options": {"is_gated": True},
                },
            ),
        )
    },
    "stem": Case(
        layers.ResNetStem,
        {"stages": (1, 1)},
        (2, 16, 24, 3),
        None,
        (2, 2, 3, 512),
    ),
    "root of a stem": Case(
        layers.ResNetStem,
        {"stages": (), "epsilons": "timm"},
        (2, 16, 24, 3),
        None,
        (2, 4, 6, 64),
    ),
    "image preprocessor": Case(
        layers.ImagePreprocessor,
        {
            "image_size": (6, 4),
            "normalization": "clip",
            "resize_mode": "shortest",
            "interpolation": "bicubic",
            "crop_fraction": 0.8,
        },
        (2, 12, 9, 3),
        None,
        (2, 6, 4, 3),
    ),
}
