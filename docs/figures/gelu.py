"""GELU beside ReLU and ELU, and its two forms."""

import matplotlib.pyplot as plt
import numpy as np
import style
from keras import ops

from keras_vit.layers import ACTIVATIONS


def draw_curves():
    """Draw the activations, and how far the forms of GELU are apart."""
    figure, (left, right) = plt.subplots(
        1, 2, figsize=(style.WIDTH, 2.9), width_ratios=(1.25, 1)
    )
    x = np.linspace(-5, 5, 2001)
    exact, tanh = (
        ops.convert_to_numpy(ACTIVATIONS[kind](ops.convert_to_tensor(x)))
        for kind in ("exact", "tanh")
    )
    _draw_activations(left, x, exact)
    _draw_gap(right, x, tanh - exact)
    return figure


def draw_dropout():
    """Draw a mask that drops small numbers more often, and its mean."""
    random = np.random.default_rng(0)
    x = np.linspace(-3, 3, 61)
    gelu = ops.convert_to_numpy(ACTIVATIONS["exact"](ops.convert_to_tensor(x)))
    # x is kept if a standard normal number is smaller: with probability Φ(x).
    is_kept = random.normal(size=(2000, x.size)) < x
    figure, (left, right) = plt.subplots(1, 2, figsize=(style.WIDTH, 2.8))
    left.plot(
        x, is_kept.mean(0), "o", color=style.BLUE, ms=3, label="mask of GELU"
    )
    left.plot(x, [0.5] * x.size, "--", color=style.GREY, label="dropout 0.5")
    left.set(
        xlabel="x", ylabel="share that is kept", title="2,000 masks for each x"
    )
    left.legend()
    few = is_kept[:4] * x
    places = np.broadcast_to(x, few.shape)
    right.plot(places.ravel(), few.ravel(), ".", color=style.GREY, ms=2)
    right.plot(
        x,
        (is_kept * x).mean(0),
        "o",
        color=style.BLUE,
        ms=3,
        label="mean of 2,000 masked x",
    )
    right.plot(x, gelu, color=style.ORANGE, label="GELU")
    right.set(
        xlabel="x", ylabel="x times the mask", title="grey: x or 0, 4 draws"
    )
    right.legend()
    for axes in (left, right):
        axes.grid(True)
    return figure


def _draw_activations(left, x, exact):
    near = np.abs(x) <= 3
    curves = (
        ("ReLU", np.maximum(x, 0), style.GREY, "--"),
        (
            "ELU",
            np.where(x > 0, x, np.expm1(np.minimum(x, 0))),
            style.GREEN,
            "-.",
        ),
        ("GELU", exact, style.BLUE, "-"),
    )
    for name, y, color, line in curves:
        left.plot(x[near], y[near], line, color=color, label=name)
    lowest = exact.argmin()
    left.plot(x[lowest], exact[lowest], "o", color=style.BLUE, ms=4)
    left.annotate(
        f"{exact[lowest]:.2f} at x = {x[lowest]:.2f}",
        (x[lowest], exact[lowest]),
        (0.2, -0.75),
        arrowprops={"arrowstyle": "-", "color": style.GREY},
    )
    left.set(xlabel="x", ylabel="activation", title="Three activations")
    left.legend()
    left.grid(True)


def _draw_gap(right, x, gap):
    right.plot(x, 1e4 * gap, color=style.ORANGE)
    far = np.abs(gap).argmax()
    right.set_title(
        f"largest difference {abs(gap[far]):.1e} at |x| = {abs(x[far]):.2f}"
    )
    right.set(xlabel="x", ylabel="tanh form − exact form, in 10⁻⁴")
    right.grid(True)


FIGURES = {"gelu.svg": draw_curves, "gelu_dropout.svg": draw_dropout}

if __name__ == "__main__":
    style.write(FIGURES)
