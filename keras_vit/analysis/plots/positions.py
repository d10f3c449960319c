"""The similarity of the position embeddings: figure 7, centre."""

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from keras_vit.analysis.plots.array_checks import check_shape
from keras_vit.analysis.plots.colorbars import color_bar
from keras_vit.analysis.plots.style import (
    MAGNITUDE,
    SIGNED,
    SMALL,
    new_figure,
    set_title,
)
from keras_vit.analysis.plots.tiles import draw_tiles, size_of_tiles

# With more rows or columns of pictures, only every second, third, ... is drawn.
MOST_TILES = 14


def plot_position_similarity(
    similarity: np.ndarray, title: str | None = None
) -> Figure:
    """Draw the similarity of the position embeddings: figure 7, centre.

    The picture in row y and column x shows the similarity of the position
    embedding of the patch at this place to that of each patch. If there are
    more than 14 rows or columns, only every second, third, ... is drawn; the
    title states this.

    Shapes:
        similarity: (h, w, h, w), as from `position_similarity`.

    Args:
        similarity: Cosine similarities.
        title: Title of the picture.
    """
    similarity = check_similarities(similarity, 4)
    look = choose_colors(similarity)
    return draw_similarity(similarity, title, look)[0]


def plot_position_learning(
    similarities: np.ndarray, steps: Sequence[int], num_frames: int = 5
) -> Figure:
    """Draw frames of the animation of a position table during training.

    Shapes:
        similarities: (frames, h, w, h, w).

    Args:
        similarities: See `plot_position_similarity`; all share one scale.
        steps: The number of updates before each frame, ascending.
        num_frames: Number of frames to draw, including the first and the last.

    Raises:
        ValueError: If `steps` does not have one entry for each frame, or is
            not ascending.
    """
    similarities, steps = check_film(similarities, steps)
    if num_frames < 1:
        raise ValueError(
            f"`num_frames` must be 1 or more. Received: num_frames={num_frames}"
        )
    count = min(num_frames, len(steps))
    chosen = np.linspace(len(steps) - 1, 0, count).round().astype(int)[::-1]
    look = choose_colors(similarities)
    h, w = similarities.shape[1:3]
    side = 1.9
    figure = new_figure(
        count * side * w / max(h, w) + 0.9,
        side * h / max(h, w) + 0.4,
        layout="compressed",
    )
    # More room than between the pictures of a panel.
    figure.get_layout_engine().set(wspace=0.1)
    panels = figure.subplots(1, count, squeeze=False)[0]
    for axes, index in zip(panels, chosen):
        drawn = draw_position_tiles(axes, similarities[index], *look)
        axes.set(xticks=[], yticks=[])
        set_title(axes, f"update {steps[index]:,}")
    color_bar(drawn, "cosine similarity", ax=panels)
    return figure


def check_similarities(similarities, rank: int) -> np.ndarray:
    """Return similarities as an array of this rank.

    Raises:
        ValueError: If the shape does not end in (h, w, h, w).
    """
    argument = "similarity" if rank == 4 else "similarities"
    similarities = check_shape(similarities, argument, rank)
    if similarities.shape[-4:-2] != similarities.shape[-2:]:
        raise ValueError(
            f"`{argument}` must end in the shape (h, w, h, w). "
            f"Received: shape={similarities.shape}"
        )
    return similarities


def check_film(
    similarities, steps: Sequence[int]
) -> tuple[np.ndarray, list[int]]:
    """Return the frames of a film and their steps.

    Raises:
        ValueError: If `steps` does not have one entry for each frame, or is
            not ascending.
    """
    similarities = check_similarities(similarities, 5)
    steps = [int(step) for step in steps]
    if len(steps) != len(similarities) or steps != sorted(set(steps)):
        raise ValueError(
            "`steps` must be one for each frame, and rise. Received: "
            f"{len(similarities)} frames, steps={steps}"
        )
    return similarities, steps


def choose_colors(similarities: np.ndarray) -> tuple[str, int]:
    """Return the colour map and the lower end of the scale for cosines."""
    return (SIGNED, -1) if similarities.min() < 0 else (MAGNITUDE, 0)


def draw_similarity(similarity: np.ndarray, title: str | None, look: tuple):
    """Return a figure and the image in it."""
    down, across = size_of_tiles(
        *thin_out(similarity).shape, longest=4.6, narrowest=0.25, widest=0.6
    )
    size = across + 1.5, max(down + 0.7, 1.8)
    figure = new_figure(*size, layout="compressed")
    axes = figure.subplots()
    drawn = draw_position_tiles(axes, similarity, *look)
    axes.set_xlabel("column of the patch", fontsize=SMALL)
    axes.set_ylabel("row of the patch", fontsize=SMALL)
    set_title(axes, full_title(title, similarity))
    color_bar(drawn, "cosine similarity", ax=axes)
    return figure, drawn


def thin_out(similarity: np.ndarray) -> np.ndarray:
    """Return the pictures to draw, at most 14 x 14."""
    rows, columns = map(_choose_places, similarity.shape[:2])
    return similarity[rows][:, columns]


def full_title(title: str | None, similarity: np.ndarray) -> str:
    """Return a title that states if rows or columns are omitted."""
    steps = [-(-size // MOST_TILES) for size in similarity.shape[:2]]
    thinned = " and ".join(
        f"one {name} in {step}"
        for name, step in zip(("row", "column"), steps)
        if step > 1
    )
    return "; ".join(text for text in (title, thinned) if text)


def _choose_places(size):
    """Return the indices of the rows or columns to draw, evenly spaced."""
    step = -(-size // MOST_TILES)
    return np.arange((size - 1) % step // 2, size, step)


def draw_position_tiles(axes, similarity: np.ndarray, cmap: str, low: int):
    """Draw the pictures of all patches, numbered from 1; return the image.

    Args:
        axes: The axes to draw in.
        similarity: See `plot_position_similarity`.
        cmap: The colour map, see `choose_colors`.
        low: The lower end of the scale.
    """
    # Counted from 1, as in the paper.
    names = (_choose_places(size) + 1 for size in similarity.shape[:2])
    tiles = thin_out(similarity)
    return draw_tiles(axes, tiles, *names, cmap=cmap, vmin=low, vmax=1)[0]
