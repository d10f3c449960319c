"""Which tokens may attend to which: in translation, and in images."""

import matplotlib.pyplot as plt
import numpy as np
import style
from keras import ops

from keras_vit.layers.attention import attend_by_products

SOURCE = "the cat sleeps today".split()
TARGET = "heute schläft die Katze".split()
ORDER = (3, 2, 0, 1)  # The source word that each target word translates.
SIDE = 8  # Patches in a row of the figure of the patterns.


def draw_translation():
    """Draw the three attentions of an encoder and a decoder."""
    source = np.eye(4, dtype="float32")[None]  # (1, T, D): a meaning each.
    target = source[:, ORDER]
    causal = np.tril(np.ones((1, 4, 4), bool))
    cases = {
        "encoder: all words": (source, source, SOURCE, SOURCE, None),
        "decoder: no later word": (target, target, TARGET, TARGET, causal),
        "decoder reads the encoder": (5 * target, source, TARGET, SOURCE, None),
    }
    figure, all_axes = plt.subplots(1, 3, figsize=(style.WIDTH, 2.7))
    for axes, (title, case) in zip(all_axes, cases.items()):
        query, key, asking, asked, mask = case
        _, scores = attend_by_products(query, key, key, num_heads=1, mask=mask)
        scores = ops.convert_to_numpy(scores)[0, 0]
        picture = axes.imshow(scores, cmap="Blues", vmin=0, vmax=1)
        axes.set_xticks(range(4), asked, rotation=90)
        axes.set_yticks(range(4), asking)
        axes.set_title(title)
        for (row, column), value in np.ndenumerate(scores):
            axes.text(
                column,
                row,
                f"{value:.2f}".lstrip("0") if value else "0",
                ha="center",
                va="center",
                size=8,
                color="white" if value > 0.6 else "black",
            )
    all_axes[0].set_ylabel("asks (query)")
    figure.supxlabel("is asked (key)", size=9)
    figure.colorbar(picture, ax=all_axes, label="weight")
    return figure


def patterns() -> dict[str, np.ndarray]:
    """Return which patches attend to which, (N, N), by the name of a form."""
    rows, columns = np.divmod(np.arange(SIDE**2), SIDE)
    down = np.abs(rows[:, None] - rows)
    across = np.abs(columns[:, None] - columns)
    blocks = (rows // 4) * 2 + columns // 4
    return {
        "all": np.ones((SIDE**2, SIDE**2), bool),
        "local, 3 x 3": (down <= 1) & (across <= 1),
        "axial": (down == 0) | (across == 0),
        "blocks": blocks[:, None] == blocks,
    }


def draw_patterns():
    """Draw the patches that one patch reads, and all pairs, for each form."""
    forms = patterns()
    figure, all_axes = plt.subplots(
        2, len(forms), figsize=(style.WIDTH, 3.9), height_ratios=(1, 1.15)
    )
    token = np.zeros((1, SIDE**2, 8), "float32")
    query = 3 * SIDE + 3
    for (above, below), (name, mask) in zip(all_axes.T, forms.items()):
        _, scores = attend_by_products(
            token, token, token, num_heads=1, mask=mask[None]
        )
        scores = ops.convert_to_numpy(scores)[0, 0]  # (N, N)
        reads = scores > 0
        above.imshow(
            reads[query].reshape(SIDE, SIDE), cmap="Blues", vmin=0, vmax=1.6
        )
        above.plot(3, 3, "s", color=style.ORANGE, markersize=7)
        above.set_title(name)
        below.imshow(reads, cmap="Blues", vmin=0, vmax=1.6)
        below.set_xlabel(f"{reads.sum():,} pairs")
    all_axes[0, 0].set_ylabel("one query")
    all_axes[1, 0].set_ylabel("all queries")
    for axes in all_axes.flat:
        axes.set_xticks([])
        axes.set_yticks([])
    return figure


FIGURES = {
    "masks_translation.svg": draw_translation,
    "masks_patterns.svg": draw_patterns,
}

if __name__ == "__main__":
    style.write(FIGURES)
