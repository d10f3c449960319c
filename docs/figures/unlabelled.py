"""What models that learn without labels read, and what they predict."""

import matplotlib.pyplot as plt
import numpy as np
import style
from keras import ops

from keras_vit.pretraining.masking import PatchCorruption, RandomPatchOrder

WORDS = "the cat sat down because it was tired".split()
HIDDEN = (2, 5)  # The words that BERT corrupts.
SIDE = 8  # Patches in a row of the photo.


def draw_objectives():
    """Draw what four models without labels read, and what they predict."""
    figure, all_axes = plt.subplots(
        1, 4, figsize=(style.WIDTH, 3.4), width_ratios=(1.2, 1.2, 1, 1)
    )
    following = [*WORDS[1:], "."]
    masked = ["[mask]" if i in HIDDEN else w for i, w in enumerate(WORDS)]
    targets = [w if i in HIDDEN else "" for i, w in enumerate(WORDS)]
    _draw_words(all_axes[0], "GPT", WORDS, following)
    _draw_words(all_axes[1], "BERT", masked, targets)
    corrupted, colors = _corrupt_patches()
    visible, pixels = _hide_patches()
    _draw_images(all_axes[2], "masked patches", corrupted, colors)
    _draw_images(all_axes[3], "masked autoencoder", visible, pixels)
    return figure


def _draw_words(axes, title, reads, predicts):
    axes.set(xlim=(0, 2), ylim=(len(reads) - 0.4, -1.2), title=title)
    axes.text(0.5, -0.8, "reads", ha="center", va="center", size=8)
    axes.text(1.5, -0.8, "predicts", ha="center", va="center", size=8)
    for row, words in enumerate(zip(reads, predicts)):
        for column, word in enumerate(words):
            if not word:
                continue
            color = style.ORANGE if column else style.BLUE
            color = style.GREY if word == "[mask]" else color
            style.box(axes, column + 0.5, row, word, color, 0.92, 0.7)
    style.hide_frame(axes)


def _draw_images(axes, title, reads, predicts):
    """Draw two images below each other, white where there is nothing."""
    gap = np.full((14, 64, 3), 255.0)
    axes.imshow(np.concatenate([gap, reads, gap, predicts]).astype("uint8"))
    axes.text(32, 6, "reads", ha="center", va="center", size=8)
    axes.text(32, 84, "predicts", ha="center", va="center", size=8)
    axes.set_title(title)
    style.hide_frame(axes)


def _cut_photo():
    """Return (1, N, P * P * C) pixels of the photo, and an order of patches."""
    photo = style.photo(64)[None]
    patches = photo.reshape(1, SIDE, 8, SIDE, 8, 3).transpose(0, 1, 3, 2, 4, 5)
    order = RandomPatchOrder(SIDE**2)(photo)
    return patches.reshape(1, SIDE**2, -1), ops.convert_to_numpy(order)


def _join(patches):
    patches = np.reshape(patches, (SIDE, SIDE, 8, 8, 3))
    return patches.transpose(0, 2, 1, 3, 4).reshape(64, 64, 3)


def _corrupt_patches():
    """Return the photo as masked patch prediction reads it, and its target."""
    patches, order = _cut_photo()
    layer = PatchCorruption(SIDE**2 // 2)
    layer.build(patches.shape, order.shape)
    layer.token.assign(np.full(layer.token.shape, 127.0))
    corrupted = ops.convert_to_numpy(layer(patches, order))
    colors = np.full_like(patches, 255).reshape(SIDE**2, -1, 3)
    chosen = order[0, : SIDE**2 // 2]
    means = patches.reshape(SIDE**2, -1, 3)[chosen].mean(1, keepdims=True)
    colors[chosen] = means // 32 * 32 + 16  # 8 shades of a channel.
    return _join(corrupted), _join(colors)


def _hide_patches():
    """Return the visible patches of the autoencoder, and those it predicts."""
    patches, order = _cut_photo()
    is_hidden = np.isin(np.arange(SIDE**2), order[0, : SIDE**2 * 3 // 4])
    visible, predicted = (
        np.where(shown[:, None], patches[0], 255.0)
        for shown in (~is_hidden, is_hidden)
    )
    return _join(visible), _join(predicted)
