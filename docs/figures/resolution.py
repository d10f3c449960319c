"""A position table is resized for larger images."""

import matplotlib.pyplot as plt
import numpy as np
import style

from keras_vit.weights import RESIZES
from keras_vit.weights.resize import resize_positions

RULES = {
    "official": (style.BLUE, "o-"),
    "bilinear": (style.ORANGE, "s--"),
    "bicubic": (style.GREEN, "^-."),
    "bicubic_antialias": (style.PINK, "v:"),
}


def draw_resize():
    """Draw a feature of a table before and after, and the four rules."""
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
        axes.set_xticks([0, side // 2, side - 1])
        axes.set_yticks([0, side // 2, side - 1])
    left.set_ylabel("row")

    old = np.array([0.0, 1.0, -0.6, 0.3, 0.8, -0.2, 0.5])
    right.plot(range(7), old, "o", color="black", ms=7, mfc="none", label="old")
    for rule, (color, line) in RULES.items():
        matrix = RESIZES[rule](12, 7)
        places = np.arange(12) * 6 / 11
        if rule != "official":
            places = (np.arange(12) + 0.5) * 7 / 12 - 0.5
        right.plot(places, matrix @ old, line, color=color, label=rule, ms=3)
    right.set_title("7 positions become 12")
    right.set(xlabel="place on the old grid", ylabel="value of a feature")
    right.legend(fontsize=7, loc="lower right")
    return figure


FIGURES = {"resolution.svg": draw_resize}

if __name__ == "__main__":
    style.write(FIGURES)
