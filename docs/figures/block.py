"""Which numbers a normalisation averages, and where a block puts it."""

import matplotlib.pyplot as plt
import numpy as np
import style
import tensorflow as tf
from keras import ops

from keras_vit.layers import TransformerBlock

DEPTH = 24


def draw_axes():
    """Draw what shares a mean: in layer norm, in batch norm."""
    images, tokens, width = 3, 5, 8
    figure, all_axes = plt.subplots(
        2, images, figsize=(style.WIDTH, 3.4), sharex=True, sharey=True
    )
    for row, (name, color) in enumerate(
        (("layer norm", style.BLUE), ("batch norm", style.ORANGE))
    ):
        for image in range(images):
            axes = all_axes[row, image]
            for (token, feature), _ in np.ndenumerate(np.ones((tokens, width))):
                if row == 0:
                    marked = (image, token) == (1, 2)
                else:
                    marked = feature == 5
                cell = plt.Rectangle((feature, token), 0.9, 0.9)
                cell.set_facecolor(color if marked else "#e4e4e4")
                axes.add_patch(cell)
            axes.set(xlim=(-0.1, width), ylim=(tokens, -0.1))
            axes.set_title(f"{name}, image {image + 1}")
            style.hide_frame(axes)
            if image == 0:
                axes.set_ylabel("T tokens")
            if row == 1:
                axes.set_xlabel("D features")
    return figure


# Which axes of (N, C, H W) share a mean: batch, layer, instance, group norm.
NORMS = {
    "batch norm": lambda n, c, place: c == 0,
    "layer norm": lambda n, c, place: n == 0,
    "layer norm in a ViT": lambda n, c, place: n == 0 and place == 0,
    "instance norm": lambda n, c, place: n == 0 and c == 0,
    "group norm": lambda n, c, place: n == 0 and c < 3,
}


def draw_cubes():
    """Draw which numbers of a batch share a mean, for five normalisations."""
    sizes = (4, 6, 5)  # N, C and H W.
    figure, all_axes = plt.subplots(
        1,
        len(NORMS),
        figsize=(style.WIDTH, 1.9),
        subplot_kw={"projection": "3d"},
    )
    for axes, (name, shares_mean) in zip(all_axes, NORMS.items()):
        colors = np.full(sizes, "#ececec", object)
        for n, c, place in np.ndindex(sizes):
            if shares_mean(n, c, sizes[2] - 1 - place):
                colors[n, c, place] = style.BLUE
        axes.voxels(
            np.ones(sizes, bool),
            facecolors=colors,
            edgecolor=style.GREY,
            linewidth=0.3,
            shade=False,
        )
        axes.view_init(elev=24, azim=-128)
        axes.set_box_aspect(sizes, zoom=1.05)
        axes.set_axis_off()
        axes.set_title(name.replace(" in", "\nin"), y=1.0)
        axes.text(2, -1.8, -0.8, "N", size=8)
        axes.text(-2.0, 3, -0.8, "C", size=8)
        axes.text(-0.4, 8.4, 2.0, "HW", size=8)
    return figure


def run(blocks, tokens, is_pre_norm):
    """Return the tokens behind blocks, the norm before or after the sum."""
    if is_pre_norm:
        for block in blocks:
            tokens = block(tokens)
        return tokens
    for block in blocks:
        tokens = block.attention_norm(tokens + block.attention(tokens))
        tokens = block.mlp_norm(tokens + block.mlp(tokens))
    return tokens


def measure(is_pre_norm):
    """Return the size of the gradients of each block, and of its tokens."""
    blocks = [TransformerBlock(num_heads=4, mlp_dim=512) for _ in range(DEPTH)]
    random = np.random.default_rng(0)
    for block in blocks:
        block.build((None, 17, 128))
        for layer in (block.attention.qkv, block.attention.out):
            limit = (6 / 256) ** 0.5  # Glorot, a matrix of (D, D) each.
            shape = layer.kernel.shape
            layer.kernel.assign(random.uniform(-limit, limit, shape))
        for layer in (block.mlp.hidden, block.mlp.out):
            limit = (6 / 640) ** 0.5
            shape = layer.kernel.shape
            layer.kernel.assign(random.uniform(-limit, limit, shape))
            layer.bias.assign(ops.zeros_like(layer.bias))
    tokens = ops.convert_to_tensor(random.normal(size=(8, 17, 128)), "float32")
    targets = random.integers(0, 10, 8)
    head = random.normal(size=(128, 10)).astype("float32") / 128**0.5
    lengths, x = [], tokens
    for block in blocks:
        x = run([block], x, is_pre_norm)
        lengths.append(float(ops.mean(ops.norm(x, axis=-1))))
    kernels = [block.mlp.out.kernel.value for block in blocks]
    with tf.GradientTape() as tape:
        x = run(blocks, tokens, is_pre_norm)[:, 0]
        # What stands before the head: pre-norm ends in a norm of its own.
        mean, variance = tf.nn.moments(x, -1, keepdims=True)
        logits = (x - mean) / tf.sqrt(variance + 1e-6) @ head
        loss = tf.nn.sparse_softmax_cross_entropy_with_logits(targets, logits)
        loss = tf.reduce_mean(loss)
    gradients = tape.gradient(loss, kernels)
    return [float(ops.norm(gradient)) for gradient in gradients], lengths


def draw_pre_norm():
    """Draw gradients and lengths of tokens in new models of 24 blocks."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(style.WIDTH, 2.8))
    for is_pre_norm, name, color, line in (
        (True, "pre-norm (ViT)", style.BLUE, "o-"),
        (False, "post-norm (Vaswani et al.)", style.ORANGE, "s--"),
    ):
        gradients, lengths = measure(is_pre_norm)
        numbers = range(1, DEPTH + 1)
        left.plot(numbers, gradients, line, color=color, ms=3, label=name)
        right.plot(numbers, lengths, line, color=color, ms=3, label=name)
    left.set(
        xlabel="block",
        ylabel="norm of the gradient",
        title="gradient of the last matrix of the MLP",
    )
    right.set(
        xlabel="block", ylabel="mean norm", title="length of a token behind it"
    )
    left.set_ylim(0, 5)
    right.set_ylim(0, 65)
    right.legend(loc="upper left")
    for axes in (left, right):
        axes.grid(True)
    return figure


FIGURES = {
    "normalisation.svg": draw_axes,
    "normalisation_cubes.png": draw_cubes,
    "pre_norm.svg": draw_pre_norm,
}

if __name__ == "__main__":
    style.write(FIGURES)
