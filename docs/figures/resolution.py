"""A position table is resized for larger images."""

import matplotlib.pyplot as plt
import numpy as np
import style

from keras_vit.layers.resize import resize_positions
from keras_vit.weights import RESIZES

RULES = {
    "bilinear": style.ORANGE,
    "bicubic": style.GREEN,
    "bicubic_antialias": style.PINK,
}


def draw_resize():
    """Draw a feature of a table before and after, and how rules differ."""
    y, x = np.indices((14, 14)) / 13
    feature = np.sin(5 * x + 1) * np.cos(4 * y) + 0.5 * np.sin(9 * y)
    table = np.concatenate([[[0.0]], feature.reshape(-1, 1)])  # (T, 1)
    larger = resize_positions(table, (14, 14), (24, 24), "official")
    figure, (left, middle, right) = plt.subplots(
        1, 3, figsize=(style.WIDTH, 2.7), width_ratios=(1, 1, 1.5)
    )
    for axes, values, side, pixels in (
        (left, table, 14, 224),
        (middle, larger, 24, 384),
    ):
        axes.imshow(values[1:].reshape(side, side), vmin=-1.5, vmax=1.5)
        axes.set_title(f"{pixels} pixels: {side} x {side}\nT = {len(values)}")
        axes.set_xlabel("column")
        for axis in (axes.xaxis, axes.yaxis):
            style.count_from_one(axis, side, step=side // 2)
    left.set_ylabel("row")

    old = np.array([0.0, 1.0, -0.6, 0.3, 0.8, -0.2, 0.5])
    official = RESIZES["official"](12, 7) @ old
    for index, (rule, color) in enumerate(RULES.items()):
        right.bar(
            np.arange(12) + 0.27 * (index - 1),
            RESIZES[rule](12, 7) @ old - official,
            width=0.25,
            color=color,
            label=rule,
        )
    right.axhline(0, color=style.GREY, lw=0.8)
    right.set_title("7 positions become 12:\nless the official rule")
    style.count_from_one(right.xaxis, 12)
    right.set(xlabel="new position", ylabel="difference", ylim=(-0.22, 0.36))
    right.legend(fontsize=7, loc="upper right")
    right.grid(True, axis="y")
    return figure


FIGURES = {"resolution.svg": draw_resize}

if __name__ == "__main__":
    style.write(FIGURES)
