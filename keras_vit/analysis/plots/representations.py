"""The similarity of the blocks of two models."""

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from keras_vit.analysis.plots.array_checks import check_names, check_shape
from keras_vit.analysis.plots.colorbars import color_bar
from keras_vit.analysis.plots.fonts import families_for
from keras_vit.analysis.plots.style import (
    MAGNITUDE,
    SMALL,
    new_figure,
    shorten,
)


def plot_representation_similarity(
    similarity: np.ndarray, model_names: tuple[str, str] = ("a", "b")
) -> Figure:
    """Draw the similarity of the tokens after the blocks of two models.

    Shapes:
        similarity: (blocks of a, blocks of b), from
            `representation_similarity`.

    Args:
        similarity: Linear CKA, at most 1; values below 0 are drawn as 0.
        model_names: The names of the two models.
    """
    similarity = check_shape(similarity, "similarity", 2)
    names = check_names(model_names, "model_names", 2)
    rows, columns = similarity.shape
    side = float(np.clip(3 / max(rows, columns), 0.12, 0.4))
    figure = new_figure(
        max(columns * side + 1.5, 2.5),
        max(rows * side + 0.6, 2),
        layout="compressed",
    )
    axes = figure.subplots()
    drawn = axes.imshow(
        similarity,
        cmap=MAGNITUDE,
        vmin=0,
        vmax=1,
        origin="lower",
        # The middle of the first block is at 1.
        extent=(0.5, columns + 0.5, 0.5, rows + 0.5),
    )
    for axis, name in ((axes.yaxis, names[0]), (axes.xaxis, names[1])):
        text = f"block of {shorten(name)}"
        axis.set_label_text(
            text, fontsize=SMALL, parse_math=False, family=families_for(text)
        )
        axis.set_major_locator(MaxNLocator(8, integer=True, min_n_ticks=1))
    axes.tick_params(labelsize=SMALL)
    color_bar(drawn, "linear CKA", ax=axes)
    return figure
