"""Tables of positions, and how alike their rows are."""

import matplotlib.pyplot as plt
import numpy as np
import style
from keras import ops

from keras_vit import VisionTransformer, ViTConfig
from keras_vit.analysis import position_similarity

KINDS = {
    "sincos_1d": "fixed, 1-D (Vaswani et al.)",
    "sincos_2d": "fixed, 2-D",
    "learned": "learned, before training",
}


def draw_tables():
    """Draw three tables and, for one patch, the likeness of the others."""
    figure, all_axes = plt.subplots(
        2, 3, figsize=(style.WIDTH, 4.7), height_ratios=(1.15, 1)
    )
    row, column = 4, 9
    for (kind, title), (above, below) in zip(KINDS.items(), all_axes.T):
        config = ViTConfig(
            128, 1, 128, 2, patch_size=16, position_embedding=kind
        )
        model = VisionTransformer(config)
        layer = model.get_layer("position_embedding")
        if kind == "learned":
            values = np.random.default_rng(0).normal(0, 0.02, (197, 128))
            layer.embedding.assign(values)
        table = ops.convert_to_numpy(layer.table((14, 14)))  # (T, D)
        limit = 1 if kind != "learned" else 0.06
        shown = above.imshow(
            table, cmap="RdBu_r", aspect="auto", vmin=-limit, vmax=limit
        )
        above.set_title(title)
        above.set_xlabel("feature")
        style.count_from_one(above.xaxis, 128, step=32)
        style.count_from_one(above.yaxis, 197, step=50)
        figure.colorbar(shown, ax=above)
        similarity = position_similarity(model)[row, column]  # (h, w)
        shown = below.imshow(similarity, vmin=-1, vmax=1)
        box = plt.Rectangle((column - 0.5, row - 0.5), 1, 1, fill=False)
        box.set(edgecolor="white", linewidth=1.5)
        below.add_patch(box)
        below.set_xlabel("column of the patch")
        for axis in (below.xaxis, below.yaxis):
            style.count_from_one(axis, 14, step=7)
        figure.colorbar(shown, ax=below)
    all_axes[0, 0].set_ylabel("token: class token, patches")
    all_axes[1, 0].set_ylabel("row of the patch")
    return figure


FIGURES = {"positions.svg": draw_tables}

if __name__ == "__main__":
    style.write(FIGURES)
