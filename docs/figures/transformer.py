"""What a block costs, and what of it grows with the square of the tokens."""

import matplotlib.pyplot as plt
import numpy as np
import style

from keras_vit import VARIANTS


def draw_cost():
    """Draw the multiplications of a block of B/16 over the tokens."""
    config = VARIANTS["B/16"].config
    width, hidden = config.width, config.mlp_dim
    tokens = np.geomspace(50, 10_000, 200)
    parts = {
        "attention: QKᵀ and AV, 2 T² D": 2 * tokens**2 * width,
        "MLP, 2 T D M": 2 * tokens * width * hidden,
        "projections, 4 T D²": 4 * tokens * width**2,
    }
    colors = (style.ORANGE, style.BLUE, style.GREEN)
    figure, (left, right) = plt.subplots(1, 2, figsize=(style.WIDTH, 3.0))
    for (name, cost), color in zip(parts.items(), colors):
        left.loglog(tokens, cost / 1e9, color=color, label=name)
    sizes = [224, 384, 512, 1024]
    lengths = np.array([(size // 16) ** 2 + 1 for size in sizes])
    for size, length in zip(sizes, lengths):
        left.axvline(length, color=style.GREY, lw=0.8, ls=":")
        left.text(length, 0.022, f" {size}", rotation=90, size=7.5)
    left.set(
        xlabel="tokens T (dotted: side of the image, in pixels)",
        ylabel="10⁹ multiplications",
        title="one block of B/16, one image",
    )
    left.set_ylim(0.02, 300)
    left.legend(fontsize=7.5, loc="upper left", frameon=True, framealpha=1)
    left.grid(True)

    quadratic = 2 * lengths**2 * width
    linear = lengths * (4 * width**2 + 2 * width * hidden)
    share = 100 * quadratic / (quadratic + linear)
    bars = right.bar([str(size) for size in sizes], share, color=style.ORANGE)
    right.bar_label(bars, [f"{s:.0f} %" for s in share])
    right.set(
        xlabel="side of the image, in pixels",
        ylabel="% of the multiplications",
        title="share of QKᵀ and AV",
    )
    return figure


FIGURES = {"transformer_cost.svg": draw_cost}

if __name__ == "__main__":
    style.write(FIGURES)
