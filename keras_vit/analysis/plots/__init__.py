"""Pictures of where a model looks and what it has learned. Needs matplotlib.

Each function returns a new `matplotlib.figure.Figure`: no window opens and no
global state of matplotlib changes. `save_figure` writes a figure to a file.
Pictures count blocks, heads, rows and columns from 1; arguments and arrays
count from 0.
"""

try:
    import matplotlib  # noqa: F401
except ImportError as error:
    raise ImportError(
        "Pictures need matplotlib and Pillow: pip install matplotlib Pillow"
    ) from error

from keras_vit.analysis.plots.attention import (
    plot_distances,
    plot_heads,
    plot_overlays,
    plot_readings,
)
from keras_vit.analysis.plots.learned import (
    plot_filters,
    plot_position_similarity,
    plot_representation_similarity,
    plot_token_norms,
)
from keras_vit.analysis.plots.style import render, save_figure

__all__ = [
    "plot_distances",
    "plot_filters",
    "plot_heads",
    "plot_overlays",
    "plot_position_similarity",
    "plot_readings",
    "plot_representation_similarity",
    "plot_token_norms",
    "render",
    "save_figure",
]
