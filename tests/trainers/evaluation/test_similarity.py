"""Similar images among embeddings, and near duplicates."""

import numpy as np
import pytest
from sklearn.metrics.pairwise import cosine_similarity

from tests.tiny import noise
from trainers.evaluation import similarity
from trainers.evaluation.similarity import find_near_duplicates, find_nearest


def cut(vectors, size):
    return ((i, vectors[i : i + size]) for i in range(0, len(vectors), size))


@pytest.mark.parametrize("size", [1, 7, 100])
@pytest.mark.parametrize("are_unit", [False, True])
def test_the_nearest_are_those_of_scikit_learn(size, are_unit):
    vectors, queries = noise(50, 6), noise(4, 6, seed=1)
    vectors[9] = 0
    expected = cosine_similarity(queries, vectors)
    if are_unit:
        vectors = similarity.normalize(vectors)
    found = find_nearest(cut(vectors, size), queries, 5, are_unit)
    for row, images in zip(expected, found):
        order = np.argsort(-row)[:5]
        assert [image.row for image in images] == order.tolist()
        cosines = [image.cosine for image in images]
        np.testing.assert_allclose(cosines, row[order], atol=1e-6)


def test_all_are_found_if_there_are_fewer():
    [images] = find_nearest(cut(noise(3, 6), 2), noise(1, 6, seed=1), top=10)
    assert sorted(image.row for image in images) == [0, 1, 2]


def test_queries_of_another_width_are_refused():
    with pytest.raises(ValueError, match=r"`queries` must have 6 .*\(2, 5\)"):
        find_nearest(cut(noise(3, 6), 2), noise(2, 5))


@pytest.mark.parametrize("edges", [0, 10**6])
def test_near_duplicates_are_the_groups_of_a_graph(monkeypatch, edges):
    """Found in small tiles, with and without joining pairs in between."""
    monkeypatch.setattr(similarity, "TILE", 16)
    monkeypatch.setattr(similarity, "MOST_EDGES", edges)
    vectors = noise(100, 8)
    for copy, row in ((3, 90), (50, 90), (7, 8), (60, 61)):
        vectors[copy] = vectors[row] * 2 + noise(8, seed=copy) * 0.02
    near = cosine_similarity(vectors) >= 0.97
    expected = []
    for row in range(100):  # By breadth.
        group = {row}
        while (more := set(np.flatnonzero(near[list(group)].any(0)))) != group:
            group = more
        if len(group) > 1 and row == min(group):
            expected.append(sorted(group))
    found = find_near_duplicates(vectors, 0.97)
    expected.sort(key=lambda group: (-len(group), group))
    assert [[image.row for image in group] for group in found] == expected
    assert found[0][0].row == 3 and len(found) >= 3
    own = cosine_similarity(vectors[[3]], vectors)[0]
    for row, cosine in found[0]:
        assert cosine == pytest.approx(own[row], abs=1e-6)


def test_equal_images_have_a_cosine_of_one():
    vectors = np.repeat(noise(3, 768), 2, axis=0)
    found = find_near_duplicates(vectors, 1.0)
    assert [[image.row for image in group] for group in found] == [
        [0, 1],
        [2, 3],
        [4, 5],
    ]


@pytest.mark.parametrize("least", [0, -1, 1.5])
def test_other_cosines_are_refused(least):
    with pytest.raises(ValueError, match="`duplicates`"):
        find_near_duplicates(noise(3, 4), least)
