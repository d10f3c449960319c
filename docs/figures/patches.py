"""An image becomes patches, and patches become tokens."""

import matplotlib.pyplot as plt
import numpy as np
import style
from keras import ops

from keras_vit import preprocess_input
from keras_vit.layers import PatchEncoder


def draw_patches():
    """Draw the photo in patches, its rows of numbers and its tokens."""
    image = style.photo()
    h, w, side = 14, 14, 16
    encoder = PatchEncoder(patch_size=side, width=768)
    encoder.build((None, 224, 224, 3))
    random = np.random.default_rng(0)
    encoder.kernel.assign(random.normal(size=(16, 16, 3, 768)) / 768**0.5)
    tokens = ops.convert_to_numpy(encoder(preprocess_input(image[None])))[0]
    rows = image.reshape(h, side, w, side, 3).transpose(0, 2, 1, 3, 4)
    rows = rows.reshape(h * w, side * side * 3)  # (N, P*P*C)
    figure, (left, middle, right) = plt.subplots(
        1, 3, figsize=(style.WIDTH, 2.75), width_ratios=(1.15, 1, 1)
    )
    left.imshow(image.astype("uint8"))
    for place in range(0, 225, side):
        left.axhline(place - 0.5, color="white", lw=0.6)
        left.axvline(place - 0.5, color="white", lw=0.6)
    left.set_title("image (224, 224, 3)\nh · w = 14 · 14, P = 16")
    style.hide_frame(left)
    shown = middle.imshow(rows, cmap="gray", aspect="auto")
    middle.set_title("patches as rows of numbers\n(N, P·P·C) = (196, 768)")
    middle.set(
        xlabel="numbers of a patch\n(pixel, colour)", ylabel="patch, row by row"
    )
    style.count_from_one(middle.xaxis, 768, step=256)
    figure.colorbar(shown, ax=middle, label="0 to 255")
    shown = right.imshow(tokens, cmap="RdBu_r", aspect="auto", vmin=-2, vmax=2)
    right.set_title("tokens = rows · E + b\n(N, D) = (196, 768)")
    right.set(xlabel="feature")
    style.count_from_one(right.xaxis, 768, step=256)
    for axes in (middle, right):
        style.count_from_one(axes.yaxis, 196, step=28)
    figure.colorbar(shown, ax=right, label="value")
    return figure


FIGURES = {"patches.png": draw_patches}

if __name__ == "__main__":
    style.write(FIGURES)
