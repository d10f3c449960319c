"""The whole model, with the shapes of ViT-B/16."""

import matplotlib.pyplot as plt
import style
from matplotlib.patches import FancyBboxPatch

import keras_vit


def draw_model():
    """Draw the layers of ViT-B/16, what they make and what they hold."""
    model = keras_vit.ViT_B16()
    figure, (left, right) = plt.subplots(
        1, 2, figsize=(style.WIDTH, 4.4), width_ratios=(1.55, 1)
    )
    style.hide_frame((left, right))
    _draw_layers(left, model)
    _draw_block(right, model.get_layer("block_00"))
    return figure


def _list_layers(model):
    """Return (label, number of weights, shape of the output) of the layers."""
    rows = [("image", None, model.input.shape)]
    for name, label in (
        ("patch_encoder", "PatchEncoder: cut, project"),
        ("class_token", "ClassToken: prepend"),
        ("position_embedding", "LearnedPositionEmbedding: add"),
        ("block_00", "12 x TransformerBlock"),
        ("encoder_norm", "LayerNorm"),
        ("pooling", "TokenPooling: keep the class token"),
        ("predictions", "Dense, softmax"),
    ):
        layer = model.get_layer(name)
        count = layer.count_params() * (12 if name == "block_00" else 1)
        rows.append((label, count, layer.output.shape))
    return rows


def _draw_layers(left, model):
    """Draw the layers of a model from top to bottom."""
    rows = _list_layers(model)
    left.set(xlim=(0, 10), ylim=(-len(rows) + 0.4, 0.9))
    for index, (label, count, shape) in enumerate(rows):
        is_block = "12 x" in label
        color = style.BLUE if is_block else style.GREY
        _box(left, 0.2, -index, 5.6, label, color, bold=is_block)
        shape = ", ".join(["B", *map(str, shape[1:])])
        left.text(6.05, -index + 0.1, f"({shape})", va="center", size=8.5)
        if count:
            left.text(
                6.05,
                -index - 0.24,
                f"{count:,} weights",
                va="center",
                size=7,
                color=style.GREY,
            )
        if index:
            _arrow(left, (3, -index + 0.68), (3, -index + 0.33))
    left.set_title(f"ViT-B/16: {model.count_params():,} weights")


def _draw_block(right, block):
    """Draw the layers of a block, and the branches that pass them by."""
    parts = (
        ("LayerNorm", block.attention_norm),
        ("self-attention", block.attention),
        ("+", None),
        ("LayerNorm", block.mlp_norm),
        ("MLP: Dense, GELU, Dense", block.mlp),
        ("+", None),
    )
    right.set(xlim=(0, 10), ylim=(-len(parts) + 0.4, 0.9))
    _arrow(right, (5, 0.9), (5, 0.33))
    for index, (label, layer) in enumerate(parts):
        if layer is None:
            _box(right, 4.3, -index, 1.4, label, style.ORANGE, bold=True)
            # The branch that passes both layers by.
            top = -index + 2.5
            right.plot([5, 9.3, 9.3], [top, top, -index], "k-", lw=0.9)
            _arrow(right, (9.33, -index), (5.65, -index))
        else:
            _box(right, 1.6, -index, 6.8, label, style.BLUE)
            count = f"{layer.count_params():,}"
            right.text(
                1.5,
                -index,
                count,
                ha="right",
                va="center",
                size=6.5,
                color=style.GREY,
            )
        _arrow(right, (5, -index - 0.33), (5, -index - 0.67))
    right.set_title("one block: (B, 197, 768) stays")


def _box(axes, x, y, width, label, color, bold=False):
    box = FancyBboxPatch(
        (x, y - 0.3), width, 0.6, boxstyle="round,pad=0,rounding_size=0.12"
    )
    box.set(facecolor=color + "22", edgecolor=color)
    axes.add_patch(box)
    axes.text(
        x + width / 2,
        y,
        label,
        ha="center",
        va="center",
        size=8,
        weight="bold" if bold else "normal",
    )


def _arrow(axes, start, end):
    line = {"arrowstyle": "->", "lw": 0.9, "shrinkA": 0, "shrinkB": 0}
    axes.annotate("", end, start, arrowprops=line)


FIGURES = {"model.svg": draw_model}

if __name__ == "__main__":
    style.write(FIGURES)
