"""Convolutions beside attention: shifts, reach, and hybrids."""

import keras
import matplotlib.pyplot as plt
import numpy as np
import style
from keras import ops

from keras_vit import VARIANTS, VisionTransformer, preprocess_input
from keras_vit.analysis import attention_distances, mean_attention_distance
from keras_vit.layers import PatchEncoder

# arXiv:2010.11929, table 6: exaFLOPs of pre-training on JFT-300M, and ImageNet
# top-1 after fine-tuning.
VIT = {
    "B/32": (55, 80.73),
    "B/16": (224, 84.15),
    "L/32": (196, 84.37),
    "L/16": (783, 86.30),
    "L/16, 14 epochs": (1567, 87.12),
    "H/14, 14 epochs": (4262, 88.08),
}
HYBRID = {
    "R50+B/32": (106, 84.90),
    "R50+B/16": (274, 85.58),
    "R50+L/32": (246, 85.68),
    "R50+L/16": (859, 86.60),
    "R50+L/16, 14 epochs": (1668, 87.12),
}


def draw_shift():
    """Draw what a shift of the image changes, the shift itself undone."""
    shifts = np.arange(0, 49)
    of_conv, of_patches = _measure_changes(shifts)
    figure, axes = plt.subplots(figsize=(style.WIDTH, 2.5))
    axes.plot(
        shifts,
        of_patches,
        "o-",
        color=style.BLUE,
        ms=3,
        label="patches, P = 16",
    )
    axes.plot(
        shifts, of_conv, "s--", color=style.ORANGE, ms=3, label="3x3, stride 1"
    )
    axes.set_xticks(range(0, 49, 8))
    axes.set(
        xlabel="shift of the image, in pixels",
        ylabel="relative change",
        title="features after a shift, beside the shifted features",
    )
    axes.legend()
    axes.grid(True)
    return figure


def _measure_changes(shifts):
    """Return the relative change of a convolution and of patch embeddings."""
    image = preprocess_input(style.photo(272))
    random = np.random.default_rng(0)
    conv = keras.layers.Conv2D(8, 3, padding="valid")
    patches = PatchEncoder(patch_size=16, width=32)
    conv.build((None, 224, 224, 3))
    patches.build((None, 224, 224, 3))
    for layer in (conv, patches):
        shape = layer.kernel.shape
        layer.kernel.assign(random.normal(size=shape) / 10)
    views = np.stack([image[:224, s : s + 224] for s in shifts])
    maps = ops.convert_to_numpy(conv(views))
    tokens = ops.convert_to_numpy(patches(views)).reshape(-1, 14, 14, 32)
    of_conv, of_patches = [], []
    for s in shifts:
        # What both views see: the first moved by s pixels, or whole patches.
        of_conv.append(_change(maps[0][:, s:], maps[s][:, : 222 - s]))
        moved = round(s / 16)
        of_patches.append(
            _change(tokens[0][:, moved:], tokens[s][:, : 14 - moved])
        )
    return of_conv, of_patches


def _change(old, new):
    return float(np.linalg.norm(new - old) / np.linalg.norm(old))


def draw_reach():
    """Draw how far layers see: stacked convolutions, heads of attention."""
    figure, (left, right) = plt.subplots(
        1, 2, figsize=(style.WIDTH, 3.2), width_ratios=(1.35, 1)
    )
    _draw_reach_by_layer(left)
    _draw_mean_distance(right)
    return figure


def _draw_reach_by_layer(left):
    """Draw how far the layers of a new S/16 and of convolutions see."""
    layers = np.arange(1, 13)
    keras.utils.set_random_seed(0)
    model = VisionTransformer(VARIANTS["S/16"].config)
    images = preprocess_input(style.photo()[None])
    heads = attention_distances(model, images)  # (layers, K)
    farthest = 16 * 13 * 2**0.5
    left.axhline(
        farthest, color=style.BLUE, label="attention: the farthest patch"
    )
    left.plot(
        np.repeat(layers, heads.shape[1]),
        heads.ravel(),
        "o",
        color=style.BLUE,
        ms=4,
        alpha=0.6,
        label="attention: mean, new S/16",
    )
    left.plot(
        layers,
        16 * layers,
        "^--",
        color=style.GREEN,
        ms=3,
        label="3x3 on patches",
    )
    left.plot(
        layers, layers, "s--", color=style.ORANGE, ms=3, label="3x3 on pixels"
    )
    left.set(
        xlabel="layer",
        ylabel="pixels",
        title="how far a layer sees, 224x224 pixels",
        ylim=(0, 450),
    )
    left.legend(fontsize=7.5, loc="upper left", ncols=2)
    left.grid(True)


def _draw_mean_distance(right):
    """Draw the mean distance of a head over the width of its weights."""
    uniform = np.full((1, 1, 1, 196, 196), 1 / 196)
    uniform = mean_attention_distance(uniform, (14, 14), 16)[0, 0]
    y, x = np.indices((14, 14)).reshape(2, -1)
    square = (y[:, None] - y) ** 2 + (x[:, None] - x) ** 2
    widths = np.geomspace(0.2, 30, 60)
    maps = np.stack([np.exp(-square / (2 * s * s)) for s in widths])
    maps /= maps.sum(-1, keepdims=True)
    means = mean_attention_distance(maps[:, None, None], (14, 14), 16)[:, 0]
    right.semilogx(16 * widths, means, color=style.BLUE)
    right.axhline(uniform, color=style.GREY, ls=":")
    right.text(3.5, uniform - 7, f"uniform: {uniform:.0f} pixels", size=8)
    right.set(
        xlabel="width σ of the weights, in pixels",
        ylabel="mean distance, in pixels",
        title="a head with weights exp(−d² / 2σ²)",
    )
    right.grid(True)


def draw_hybrid():
    """Draw the published accuracy over the cost, with and without a stem."""
    figure, axes = plt.subplots(figsize=(style.WIDTH, 3.3))
    places = {
        "R50+L/32": (-6, 6, "right"),
        "R50+B/16": (7, -3, "left"),
        "R50+L/16, 14 epochs": (7, -4, "left"),
        "L/16, 14 epochs": (-6, 5, "right"),
        "L/32": (0, -12, "center"),
        "R50+L/16": (-6, 5, "right"),
        "L/16": (7, -7, "left"),
        "B/16": (7, -4, "left"),
        "H/14, 14 epochs": (-7, 1, "right"),
    }
    for table, color, marker, name in (
        (VIT, style.BLUE, "o", "patches of the image"),
        (HYBRID, style.ORANGE, "s", "patches of ResNet features"),
    ):
        cost, accuracy = zip(*table.values())
        axes.semilogx(cost, accuracy, marker, color=color, label=name)
        for model, point in table.items():
            right, up, align = places.get(model, (7, -3, "left"))
            axes.annotate(
                model,
                point,
                (right, up),
                textcoords="offset points",
                size=7.5,
                ha=align,
            )
    axes.set(
        xlabel="pre-training on JFT-300M, in exaFLOPs",
        ylabel="ImageNet top-1, in %",
        xlim=(40, 6000),
    )
    axes.legend(loc="lower right")
    axes.grid(True)
    return figure


FIGURES = {
    "shift.svg": draw_shift,
    "reach.svg": draw_reach,
    "hybrid.svg": draw_hybrid,
}

if __name__ == "__main__":
    style.write(FIGURES)
