"""Similar images among embeddings: nearest neighbours and near duplicates."""

import html
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from trainers.evaluation.probing import normalize
from trainers.pages import make_figure, write_html
from trainers.paths import Path

TILE = 2048  # Rows and columns of a product of near duplicates.
MOST_EDGES = 2_000_000  # Pairs that are kept before they are joined.
MOST_GROUPS = 100  # On a page.
MOST_PICTURES = 50  # Of a group, on a page.


class Similar(NamedTuple):
    """An image that is similar to another.

    Args:
        row: Its row among the embeddings.
        cosine: The cosine of the two vectors.
    """

    row: int
    cosine: float


def find_nearest(
    blocks: Iterable[tuple[int, np.ndarray]],
    queries: np.ndarray,
    top: int = 10,
    are_unit: bool = False,
) -> list[list[Similar]]:
    """Return the rows whose vectors have the largest cosines to queries.

    Exact: each block is multiplied by all queries.

    Shapes:
        queries: (Q, D).

    Args:
        blocks: First rows and vectors (n, D), as of `Embeddings.blocks`.
        queries: The vectors to compare with.
        top: Number of rows to return for each, or all if there are fewer.
        are_unit: Whether the vectors of the blocks have length 1, as those of
            `Embeddings.vectors(unit=True)`: half of the time is saved.

    Returns:
        For each query, the most similar rows, the most similar first.

    Raises:
        ValueError: If the queries are not as wide as the vectors.

    Example:
        >>> vectors = np.float32([[3, 0], [0, 2], [1, 1]])
        >>> find_nearest([(0, vectors)], np.float32([[0, 1]]), top=2)
        [[Similar(row=1, cosine=1.0), Similar(row=2, cosine=0.70710...)]]
    """
    queries = normalize(queries)
    rows = np.zeros((len(queries), 0), int)
    best = np.zeros((len(queries), 0), queries.dtype)
    tiny = np.finfo("float32").tiny
    for start, block in blocks:
        if queries.shape[1:] != block.shape[1:]:
            raise ValueError(
                f"`queries` must have {block.shape[1]} numbers each, as the "
                f"vectors of `blocks`. Received: shape={queries.shape}"
            )
        cosines = np.ascontiguousarray((block @ queries.T).T)
        if not are_unit:
            lengths = np.sqrt(np.einsum("ij,ij->i", block, block))
            cosines /= np.maximum(lengths, tiny)
        count = min(top, len(block))
        kept = np.argpartition(cosines, -count, axis=1)[:, -count:]
        best = np.hstack([best, np.take_along_axis(cosines, kept, 1)])
        rows = np.hstack([rows, start + kept])
        order = np.lexsort((rows, -best))[:, :top]
        best = np.take_along_axis(best, order, 1)
        rows = np.take_along_axis(rows, order, 1)
    return [
        [Similar(int(row), float(x)) for row, x in zip(*pair)]
        for pair in zip(rows, best)
    ]


def find_near_duplicates(
    vectors: np.ndarray, least: float
) -> list[list[Similar]]:
    """Return groups of rows that cosines of `least` or more connect.

    Takes time with the square of the number of rows.

    Shapes:
        vectors: (N, D), float32.

    Args:
        vectors: The vectors.
        least: The smallest cosine of a pair, above 0 and at most 1.

    Returns:
        The groups, the largest first, each with its cosines to its first row.

    Raises:
        ValueError: If `least` is no such number.

    Example:
        >>> vectors = np.float32([[1, 0], [0, 1], [2, 0], [0, -1]])
        >>> find_near_duplicates(vectors, 0.9)
        [[Similar(row=0, cosine=1.0), Similar(row=2, cosine=1.0)]]
    """
    if not 0 < least <= 1:
        raise ValueError(
            "`duplicates` must be above 0 and at most 1. "
            f"Received: duplicates={least}"
        )
    vectors = normalize(vectors)
    least = least - 1e-6  # Equal vectors have a cosine of about 1.
    edges, count = [], 0
    for i in range(0, len(vectors), TILE):
        for j in range(i, len(vectors), TILE):
            cosines = vectors[i : i + TILE] @ vectors[j : j + TILE].T
            left, right = np.nonzero(cosines >= least)
            left, right = left + i, right + j
            is_pair = left < right
            edges.append((left[is_pair], right[is_pair]))
            count += len(edges[-1][0])
            if count > MOST_EDGES:
                edges = [_join(edges, len(vectors))]
                count = 0
    first, rows = _join(edges, len(vectors))
    groups = {}
    for start, row in zip(first.tolist(), rows.tolist()):
        groups.setdefault(start, [start]).append(row)
    ordered = sorted(groups.values(), key=lambda group: (-len(group), group))
    return [
        [
            Similar(row, float(cosine))
            for row, cosine in zip(group, vectors[group] @ vectors[group[0]])
        ]
        for group in ordered
    ]


def _join(edges, size):
    """Return an edge from the first row of each group to every other row."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    left, right = map(np.concatenate, zip(*edges))
    graph = coo_array((np.ones(len(left), bool), (left, right)), (size, size))
    _, groups = connected_components(graph, directed=False)
    _, starts = np.unique(groups, return_index=True)
    first, rows = starts[groups], np.arange(size)
    is_edge = first < rows
    return first[is_edge], rows[is_edge]


class Found(NamedTuple):
    """What is shown of a query or of a group.

    Args:
        title: What the images are similar to.
        picture: A JPEG of it, or None.
        images: The similar images.
    """

    title: str
    picture: bytes | None
    images: Sequence[Similar]


def show_label(label) -> str:
    """Return a label of embeddings as text; empty if there is none."""
    return ", ".join(label) if isinstance(label, list) else label or ""


def write_similar_page(
    path: Path,
    title: str,
    found: Sequence[Found],
    paths: Sequence[str],
    labels: Sequence,
    pictures: Mapping[int, bytes],
):
    """Write a page with the similar images of queries, or of groups.

    Args:
        path: The HTML file.
        title: Its title.
        found: The queries or groups; the first MOST_GROUPS are shown.
        paths: The name of each row of the embeddings.
        labels: The label of each.
        pictures: JPEGs of the rows that are shown.
    """
    parts = []
    for entry in found[:MOST_GROUPS]:
        shown = [
            make_figure(
                {paths[row]: pictures.get(row)},
                paths[row],
                [
                    os.path.basename(paths[row]),
                    f"{cosine:.3f} {show_label(labels[row])}",
                ],
            )
            for row, cosine in entry.images[:MOST_PICTURES]
        ]
        more = len(entry.images) - MOST_PICTURES
        parts += [
            f"<h2>{html.escape(entry.title)}</h2>",
            '<div class="row">',
            make_figure(
                {entry.title: entry.picture},
                entry.title,
                [os.path.basename(entry.title)],
                "query",
            )
            if entry.picture
            else "",
            *shown,
            "</div>",
            f"<p>and {more:,} more</p>" if more > 0 else "",
        ]
    more = len(found) - MOST_GROUPS
    parts.append(f"<p>and {more:,} more groups</p>" if more > 0 else "")
    if not found:
        parts.append("<p>There are none.</p>")
    write_html(path, title, parts, SIMILAR_STYLE)


SIMILAR_STYLE = """
h2 { font-size: 1rem; }
figure { width: 7rem; }
figure.query img { outline: 3px solid #36c; outline-offset: -3px; }
"""
