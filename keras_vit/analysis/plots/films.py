"""Animations of a position table during training."""

import os
from collections.abc import Sequence

import numpy as np

from keras_vit.analysis.plots.positions import (
    check_film,
    choose_colors,
    draw_similarity,
    full_title,
    thin_out,
)
from keras_vit.analysis.plots.style import set_title
from keras_vit.analysis.plots.tiles import make_mosaic
from keras_vit.analysis.plots.writing import check_suffix, render
from keras_vit.files import atomic_write


def film_position_similarity(
    similarities: np.ndarray,
    steps: Sequence[int],
    path: str | os.PathLike,
    frames_per_second: float = 4.0,
):
    """Write an animation of the position table during training, as a GIF.

    The last frame is shown two seconds longer. The file is written atomically,
    and equal animations give equal bytes.

    Shapes:
        similarities: (frames, h, w, h, w).

    Args:
        similarities: See `plot_position_similarity`; all share one scale.
        steps: The number of updates before each frame, ascending; the titles
            show it.
        path: Path of the file; must end in .gif.
        frames_per_second: Speed of the animation.

    Raises:
        ValueError: If `steps` does not have one entry for each frame or is not
            ascending, or `path` has another ending.
    """
    from PIL import Image  # Matplotlib depends on it.

    similarities, steps = check_film(similarities, steps)
    if not 0 < frames_per_second <= 50:
        raise ValueError(
            "`frames_per_second` must be above 0 and at most 50. "
            f"Received: frames_per_second={frames_per_second}"
        )
    check_suffix(path, (".gif",))
    pictures = [
        Image.fromarray(pixels) for pixels in _draw_frames(similarities, steps)
    ]
    milliseconds = [round(1000 / frames_per_second)] * len(pictures)
    milliseconds[-1] += 2000
    with atomic_write(path) as draft:
        pictures[0].save(
            draft,
            save_all=True,
            append_images=pictures[1:],
            duration=milliseconds,
            loop=0,
        )


def _draw_frames(similarities, steps):
    """Yield the pixels of each frame."""
    look = choose_colors(similarities)
    titles = [f"update {step:,}" for step in steps]
    figure, drawn = draw_similarity(similarities[0], titles[0], look)
    for frame, title in zip(similarities, titles):
        drawn.set_data(make_mosaic(thin_out(frame)))
        set_title(drawn.axes, full_title(title, frame))
        yield render(figure)
        # The layout is computed only once: it would take half of the time.
        figure.set_layout_engine("none")
