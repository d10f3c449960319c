"""Vectors as points of a plane, for a map."""

from collections.abc import Callable, Iterable

import numpy as np

from keras_vit.errors import missing_packages
from trainers.evaluation.embeddings import Embeddings


def project_pca(embeddings: Embeddings, rows: np.ndarray) -> np.ndarray:
    """Return the first two principal components of vectors of length 1.

    The components are those of all images; memory does not grow with them.

    Shapes:
        rows: (n,), increasing. returns: (n, 2).

    Args:
        embeddings: The embeddings.
        rows: The images to return.
    """
    total, squares = np.zeros(embeddings.width), 0.0
    for _, block in embeddings.unit_blocks():
        total += block.sum(0, dtype="float64")
        squares = squares + (block.T @ block).astype("float64")
    mean = total / len(embeddings)
    covariance = squares / len(embeddings) - np.outer(mean, mean)
    _, vectors = np.linalg.eigh(covariance)
    axes = vectors[:, :-3:-1]  # The largest first.
    # An eigenvector has no sign of its own.
    largest = np.abs(axes).argmax(0)
    axes = axes * np.sign(axes[largest, np.arange(axes.shape[1])])
    chosen = _take(embeddings.unit_blocks(), rows)
    return (chosen - mean) @ axes


def project_umap(embeddings: Embeddings, rows: np.ndarray) -> np.ndarray:
    """Return the points of UMAP, by the cosine of the chosen images.

    Shapes:
        rows: (n,), increasing. returns: (n, 2).

    Raises:
        ModuleNotFoundError: If umap-learn is not installed.
    """
    try:
        import umap
    except ModuleNotFoundError:
        raise missing_packages("--method=umap", ["umap"]) from None

    chosen = _take(embeddings.unit_blocks(), rows)
    # With a seed, always the same map, by one thread.
    projection = umap.UMAP(metric="cosine", random_state=0, n_jobs=1)
    return projection.fit_transform(chosen)


def _take(blocks: Iterable, rows):
    found = []
    for start, block in blocks:
        low, high = np.searchsorted(rows, (start, start + len(block)))
        found.append(block[rows[low:high] - start])
    return np.concatenate(found)


METHODS: dict[str, Callable] = {"pca": project_pca, "umap": project_umap}
