"""Write a page with the images of embeddings as points on a map.

EMBEDDINGS is a folder that trainers.embed wrote. The page is one file that
needs no network.

Example:
    python -m trainers.map EMBEDDINGS --out=map.html
"""

if __name__ == "__main__":  # A mistyped flag is found before the slow imports.
    from trainers.command_line import begin

    begin("trainers.map")

import os
from collections.abc import Callable, Iterable

import numpy as np
from absl import flags

from keras_vit.analysis.map_page import TILE_SIDE, write_map
from keras_vit.errors import missing_packages
from trainers.commands import run_main, stop_at_once, user_errors
from trainers.evaluation.embeddings import Embeddings, open_embeddings
from trainers.evaluation.similarity import show_label
from trainers.evaluation.vectors import read_pictures
from trainers.pages import page_path
from trainers.paths import RemotePath

FLAGS = flags.FLAGS


def main(arguments):
    """Run the command."""
    with stop_at_once("Stopped."), user_errors(ModuleNotFoundError):
        if len(arguments) != 2:
            raise ValueError(
                "Pass one folder of embeddings. "
                f"Received: {' '.join(arguments[1:])!r}"
            )
        page = page_path(FLAGS.out)
        if isinstance(page, RemotePath):
            raise ValueError(
                "`out` must be a file on this machine. "
                f"Received: out={FLAGS.out!r}"
            )
        embeddings = open_embeddings(arguments[1])
        rows = np.arange(len(embeddings))
        if len(rows) > FLAGS.most_images:
            random = np.random.default_rng(0)
            rows = random.choice(rows, FLAGS.most_images, replace=False)
            rows.sort()
        points = METHODS[FLAGS.method](embeddings, rows)
        pictures = read_pictures(embeddings, rows, TILE_SIDE)
        part = f"{len(rows):,} of " if len(rows) < len(embeddings) else ""
        (source,) = embeddings.description["source"].values()
        if os.path.exists(source):  # The page may be for others.
            source = os.path.basename(source)
        write_map(
            page,
            points,
            [embeddings.paths[row] for row in rows],
            [show_label(embeddings.labels[row]) or None for row in rows],
            {
                place: pictures[row]
                for place, row in enumerate(rows.tolist())
                if row in pictures
            },
            summary=(
                f"{part}{len(embeddings):,} pictures, vectors of "
                f"{source}, {FLAGS.method.upper()}."
            ),
        )
        print(f"Page: {page}, {page.stat().st_size / 1e3:,.0f} kB")


def project_pca(embeddings: Embeddings, rows: np.ndarray) -> np.ndarray:
    """Return the first two principal components of vectors of length 1.

    The components are those of all images; memory does not grow with them.

    Shapes:
        rows: (n,), increasing. returns: (n, 2).
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


if __name__ == "__main__":
    run_main(main)
