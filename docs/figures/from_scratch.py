"""The equations of the paper with their shapes, and the sizes of B, L and H."""

import matplotlib.pyplot as plt
import numpy as np
import style

from keras_vit import VARIANTS
from keras_vit.weights.families.family import shapes_of

# Number, formula and the name of its result: arXiv:2010.11929, section 3.1.
EQUATIONS = (
    ("1", "[x$_{class}$; x E] + E$_{pos}$", "z₀"),
    ("2", "MSA(LN(z)) + z", "z'"),
    ("3", "MLP(LN(z')) + z'", "z"),
    ("4", "LN(z$_L$) of the class token", "y"),
    ("head", "y W + b", "logits"),
)


def draw_equations():
    """Draw the equations from the image to the logits, with their shapes."""
    config = VARIANTS["B/16"].config
    tokens = config.grid_size[0] * config.grid_size[1] + 1
    flat = config.patch_size**2 * config.channels
    shapes = [
        f"(N, P·P·C) = ({tokens - 1}, {flat})",
        *[f"(T, D) = ({tokens}, {config.width})"] * 3,
        f"(D) = ({config.width})",
        f"(classes) = ({config.num_classes})",
    ]
    inside = {
        "1": f"E: ({flat}, {config.width}), "
        f"E$_{{pos}}$: ({tokens}, {config.width})",
        "2": f"K = {config.num_heads} heads, weights of attention: "
        f"({config.num_heads}, {tokens}, {tokens})",
        "3": f"hidden layer: ({tokens}, {config.mlp_dim})",
        "4": "",
        "head": f"W: ({config.width}, {config.num_classes})",
    }
    figure, axes = plt.subplots(figsize=(style.WIDTH, 4.0))
    axes.text(8.2, 0.62, shapes[0], ha="left", va="center", size=8)
    axes.text(4.2, 0.62, "patches x", ha="center", va="center", size=8)
    for row, (number, formula, result) in enumerate(EQUATIONS):
        y = -row
        color = style.BLUE if number in "23" else style.GREY
        axes.text(0.1, y, number, va="center", weight="bold", size=9)
        text = f"{result} = {formula}"
        text += f"\n{inside[number]}" if inside[number] else ""
        style.box(axes, 4.2, y, text, color, 6.4, 0.62)
        style.arrow(axes, (4.2, y + 0.52), (4.2, y + 0.32))
        axes.text(8.2, y, shapes[row + 1], ha="left", va="center", size=8)
    bracket = {"color": style.ORANGE, "lw": 1.2}
    axes.plot([7.55, 7.8, 7.8, 7.55], [-0.8, -0.8, -2.2, -2.2], **bracket)
    text = f"L = {config.depth} blocks"
    axes.text(7.95, -1.5, text, va="center", size=8, color=style.ORANGE)
    axes.set(xlim=(0, 11), ylim=(-4.5, 0.9))
    axes.set_title("one image in ViT-B/16 at 224 pixels")
    style.hide_frame(axes)
    return figure


def draw_sizes():
    """Draw width and blocks of B, L and H, and where their weights are."""
    models = ("B/16", "L/16", "H/14")
    figure, (left, right) = plt.subplots(1, 2, figsize=(style.WIDTH, 2.9))
    colors = (style.BLUE, style.ORANGE, style.GREEN)
    start = 0
    for model, color in zip(models, colors):
        config = VARIANTS[model].config
        left.add_patch(
            plt.Rectangle(
                (start, 0), config.width, config.depth, fc=color, alpha=0.25
            )
        )
        for block in range(1, config.depth + 1):
            left.plot(
                [start, start + config.width], [block] * 2, color=color, lw=0.6
            )
        text = f"{model}\nD = {config.width}\nM = {config.mlp_dim}"
        text += f"\nK = {config.num_heads}"
        middle = start + config.width / 2
        left.text(middle, config.depth + 1, text, ha="center", size=8)
        start += config.width + 300
    left.set(xlim=(-100, start - 200), ylim=(0, 50), ylabel="blocks L")
    left.set_yticks([12, 24, 32])
    left.set_xticks([])
    left.set_title("drawn to scale: width D, blocks L")
    bottom = np.zeros(len(models))
    parts = [_count_weights(VARIANTS[model].config) for model in models]
    for index, name in enumerate(parts[0]):
        counts = np.array([part[name] for part in parts]) / 1e6
        color = (*colors, style.GREY)[index]
        right.bar(models, counts, bottom=bottom, color=color, label=name)
        bottom += counts
    for place, total in enumerate(bottom):
        right.text(place, total + 8, f"{total:.0f}", ha="center", size=8)
    right.set(ylabel="million weights", ylim=(0, 720))
    right.set_title("1,000 classes, 224 pixels")
    right.legend(loc="upper left")
    return figure


def _count_weights(config):
    """Return the weights of each part of a model."""
    counts = {"MLPs": 0, "attention": 0, "patches, positions, head": 0}
    for path, shape in shapes_of(config).items():
        part = "patches, positions, head"
        if "/mlp/" in path:
            part = "MLPs"
        elif "/attention/" in path:
            part = "attention"
        counts[part] += int(np.prod(shape))
    return counts


FIGURES = {
    "from_scratch_equations.svg": draw_equations,
    "from_scratch_sizes.svg": draw_sizes,
}

if __name__ == "__main__":
    style.write(FIGURES)
