"""Attention between words, between patches, and over channels."""

import matplotlib.pyplot as plt
import numpy as np
import style
from keras import ops
from matplotlib.patheffects import withStroke

from keras_vit import VARIANTS
from keras_vit.layers import MultiHeadSelfAttention, PatchEncoder
from keras_vit.layers.attention import attend_by_products
from keras_vit.models.features import run_with_scores

WORDS = "the cat sat down because it was tired".split()
# What a word asks for and what it offers: animal, deed, state. By hand.
ASKS = {
    "the": (2, 0, 0),
    "cat": (1, 2, 2),
    "sat": (3, 0, 0),
    "down": (0, 3, 0),
    "because": (0, 2, 2),
    "it": (4, 0, 0),
    "was": (0, 0, 3),
    "tired": (3, 0, 0),
}
OFFERS = {"cat": (2, 0, 0), "sat": (0, 2, 0), "tired": (0, 0, 2)}
OFFERS["it"] = (1, 0, 0)


def draw_words():
    """Draw which word looks at which, by queries and keys made by hand."""
    query = np.array([[ASKS[word] for word in WORDS]], "float32")  # (1, T, D)
    key = np.array([[OFFERS.get(w, (0, 0, 0)) for w in WORDS]], "float32")
    _, scores = attend_by_products(query, key, key, num_heads=1)  # (1, 1, T, T)
    scores = ops.convert_to_numpy(scores)[0, 0]
    figure, all_axes = plt.subplots(
        1, 3, figsize=(style.WIDTH, 3.0), width_ratios=(1, 1, 2.6)
    )
    for axes, table, title in zip(all_axes, (query, key), ("queries", "keys")):
        axes.imshow(table[0], cmap="Purples", vmin=0, vmax=5, aspect="auto")
        axes.set_xticks(range(3), ["animal", "deed", "state"], rotation=90)
        axes.set_yticks(range(len(WORDS)), WORDS)
        axes.set_title(f"{title} (T, D)")
        for (row, column), value in np.ndenumerate(table[0]):
            axes.text(
                column, row, f"{value:.0f}", ha="center", va="center", size=8
            )
    all_axes[1].set_yticks([])
    axes = all_axes[2]
    picture = axes.imshow(scores, cmap="Blues", vmin=0, vmax=1, aspect="auto")
    axes.set_xticks(range(len(WORDS)), WORDS, rotation=90)
    axes.set_yticks(range(len(WORDS)), WORDS)
    axes.set_title("attention (T, T): each row sums to 1")
    for (row, column), value in np.ndenumerate(scores):
        color = "white" if value > 0.6 else "black"
        text = f"{value:.2f}".lstrip("0")
        axes.text(
            column, row, text, ha="center", va="center", size=7, color=color
        )
    axes.set(xlabel="is asked (key)", ylabel="asks (query)")
    figure.colorbar(picture, ax=axes, label="weight")
    return figure


def draw_patches():
    """Draw which patches of a photo attend to which, by how they look."""
    image = style.photo()
    h, w, side = 14, 14, 16
    scores = _compare_patches(image, h, w, side)
    figure, all_axes = plt.subplots(1, 4, figsize=(style.WIDTH, 2.6))
    places = {"a": (1, 10), "b": (6, 4), "c": (12, 11)}
    all_axes[0].imshow(image.astype("uint8"))
    all_axes[0].set_title("the photo, three patches")
    for axes, (name, (row, column)) in zip(all_axes[1:], places.items()):
        axes.imshow(image.astype("uint8"), extent=(0, w, h, 0), alpha=0.35)
        shown = axes.imshow(
            100 * scores[row, column],
            extent=(0, w, h, 0),
            cmap="magma",
            alpha=0.8,
            vmin=0,
        )
        figure.colorbar(
            shown,
            ax=axes,
            location="bottom",
            panchor=False,
            label="weight, in %",
        )
        axes.set_title(f"where {name} looks")
        _mark_patch(all_axes[0], name, row, column, side)
        _mark_patch(axes, name, row, column, 1)
    for axes in all_axes:
        axes.set_anchor("N")
    style.hide_frame(all_axes)
    return figure


def _compare_patches(image, h, w, side):
    """Return the attention (h, w, h, w) between patches that look alike."""
    pixels = image.reshape(h, side, w, side, 3)
    red, green, blue = np.moveaxis(pixels.mean((1, 3)), -1, 0)
    spread = pixels.std((1, 3, 4))
    looks = [red + green + blue, 3 * (red - green), 3 * (green - blue), spread]
    looks = np.stack(looks, axis=-1).reshape(1, h * w, 4)
    looks = (looks - looks.mean(1)) / looks.std(1)
    looks /= np.linalg.norm(looks, axis=-1, keepdims=True)
    query = key = (4.5 * looks).astype("float32")  # (1, N, 4)
    _, scores = attend_by_products(query, key, key, num_heads=1)
    return ops.convert_to_numpy(scores).reshape(h, w, h, w)


def _mark_patch(axes, name, row, column, scale):
    """Draw a square around a patch, and its name beside it."""
    box = plt.Rectangle((column * scale, row * scale), scale, scale, fill=False)
    box.set(
        edgecolor="white",
        linewidth=1.6,
        path_effects=[withStroke(linewidth=3, foreground="black")],
    )
    axes.add_patch(box)
    axes.text(
        (column + 1.3) * scale,
        (row + 0.9) * scale,
        name,
        color="white",
        weight="bold",
        path_effects=[withStroke(linewidth=2, foreground="black")],
    )


def draw_channels():
    """Draw what squeeze-and-excitation weighs, and what self-attention does."""
    image = style.photo(64) / 127.5 - 1
    random = np.random.default_rng(0)
    halves = {"the sky": image[:32], "the ground": image[32:]}
    kernel = random.normal(size=(3, 3, 3, 8)).astype("float32") / 3
    squeeze = random.normal(size=(8, 4)).astype("float32")
    excite = random.normal(size=(4, 8)).astype("float32")
    figure, (left, right) = plt.subplots(
        1, 2, figsize=(style.WIDTH, 3.0), width_ratios=(1.35, 1)
    )
    for index, (name, half) in enumerate(halves.items()):
        x = ops.relu(ops.conv(half[None], kernel, padding="same"))
        means = ops.mean(x, axis=(1, 2))  # (B, C)
        gates = ops.sigmoid(ops.relu(means @ squeeze) @ excite)
        left.bar(
            np.arange(8) + 0.4 * index - 0.2,
            ops.convert_to_numpy(gates)[0],
            width=0.38,
            color=(style.BLUE, style.ORANGE)[index],
            label=f"image: {name}",
        )
    left.set(xlabel="channel", ylabel="gate, 0 to 1", ylim=(0, 1.25))
    style.count_from_one(left.xaxis, 8)
    left.set_title("squeeze-and-excitation: (B, C)")
    left.legend(loc="upper left", ncols=2)

    encoder = PatchEncoder(patch_size=16, width=32)
    encoder.build((None, 64, 64, 3))
    encoder.kernel.assign(random.normal(size=(16, 16, 3, 32)) / 16)
    attention = MultiHeadSelfAttention(num_heads=1)
    attention.build((None, 16, 32))
    attention.qkv.kernel.assign(random.normal(size=(32, 96)) / 4)
    _, scores = run_with_scores(attention, encoder(image[None]))
    picture = right.imshow(ops.convert_to_numpy(scores)[0, 0], cmap="Blues")
    right.set_title("self-attention: (B, K, T, T)")
    right.set(xlabel="token that is asked", ylabel="token that asks")
    for axis in (right.xaxis, right.yaxis):
        style.count_from_one(axis, 16, step=4)
    figure.colorbar(picture, ax=right, label="weight")
    return figure


def draw_heads():
    """Draw the path of the tokens through three of the heads."""
    config = VARIANTS["B/16"].config
    tokens, width, heads = 197, config.width, config.num_heads
    slice_width = width // heads
    figure, axes = plt.subplots(figsize=(style.WIDTH, 2.9))
    style.box(
        axes, 0.6, 0, f"tokens\n({tokens}, {width})", style.GREY, 1.2, 0.8
    )
    rows = {1.2: "head 1", 0.3: "head 2", -1.2: f"head {heads}"}
    for y, name in rows.items():
        style.arrow(axes, (1.2, 0), (2.1, y))
        text = f"{name}: Q, K, V\n({tokens}, {slice_width}) each"
        style.box(axes, 2.95, y, text, style.BLUE, 1.7, 0.7)
        style.arrow(axes, (3.8, y), (4.15, y))
        text = f"softmax(Q Kᵀ / √{slice_width})\n({tokens}, {tokens})"
        style.box(axes, 5.1, y, text, style.ORANGE, 1.9, 0.7)
        style.arrow(axes, (6.05, y), (6.4, y))
        text = f"times V\n({tokens}, {slice_width})"
        style.box(axes, 7.0, y, text, style.GREEN, 1.2, 0.7)
        style.arrow(axes, (7.6, y), (8.1, 0))
    for x in (2.95, 5.1, 7.0):
        axes.text(x, -0.45, "⋮", ha="center", va="center", size=12)
    text = f"side by side\n({tokens}, {width})"
    style.box(axes, 8.75, 0, text, style.GREEN, 1.3, 0.8)
    style.arrow(axes, (9.4, 0), (9.8, 0))
    text = f"times W$_o$\n({tokens}, {width})"
    style.box(axes, 10.4, 0, text, style.GREY, 1.2, 0.8)
    axes.set(xlim=(-0.1, 11.1), ylim=(-1.7, 1.7))
    style.hide_frame(axes)
    return figure


def draw_squeeze(channels=256, ratio=16):
    """Draw squeeze-and-excitation around a feature map."""
    figure, axes = plt.subplots(figsize=(style.WIDTH, 2.0))
    inner = channels // ratio
    style.box(axes, 0.7, 0, f"x\n(h, w, {channels})", style.GREY, 1.2, 0.8)
    steps = {
        2.7: (f"mean over\nh and w: ({channels})", style.BLUE),
        4.7: (f"dense, ReLU\n({inner})", style.ORANGE),
        6.7: (f"dense, sigmoid\n({channels})", style.ORANGE),
    }
    left = 1.3
    for x, (text, color) in steps.items():
        start = (left, 0 if left == 1.3 else 1)
        style.arrow(axes, start, (x - 0.8, 1))
        style.box(axes, x, 1, text, color, 1.6, 0.8)
        left = x + 0.8
    axes.text(4.7, 1.55, f"C / r, r = {ratio}", ha="center", size=8)
    style.arrow(axes, (left, 1), (8.6, 0.15))
    style.arrow(axes, (1.3, 0), (8.45, 0))
    style.box(axes, 8.65, 0, "×", style.GREY, 0.4, 0.3)
    style.arrow(axes, (8.85, 0), (9.5, 0))
    style.box(
        axes, 10.2, 0, f"result\n(h, w, {channels})", style.GREY, 1.3, 0.8
    )
    axes.set(xlim=(0, 11), ylim=(-0.6, 1.9))
    style.hide_frame(axes)
    return figure


FIGURES = {
    "attention_words.svg": draw_words,
    "attention_patches.png": draw_patches,
    "attention_heads.svg": draw_heads,
    "attention_squeeze.svg": draw_squeeze,
    "attention_channels.svg": draw_channels,
}

if __name__ == "__main__":
    style.write(FIGURES)
