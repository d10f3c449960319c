"""Vectors as points of a map."""

import shutil
import sys
import types

import numpy as np
import pytest
from sklearn.decomposition import PCA

from tests.tiny import noise
from trainers.evaluation.embeddings import (
    EmbeddingWriter,
    Rows,
    make_schema,
    open_embeddings,
    write_shard,
)
from trainers.evaluation.probing import normalize
from trainers.map import project_pca, project_umap

ROWS = np.array([0, 2, 5, 30, 39])


@pytest.fixture(scope="module")
def vectors():
    return noise(40, 6) * np.float32([5, 3, 1, 1, 1, 1]) + 1


@pytest.fixture(scope="module")
def embeddings(vectors, tmp_path_factory):
    folder = tmp_path_factory.mktemp("vectors")
    description = {
        **{"source": {}, "vector": "pooled", "dtype": "float32"},
        **{"shape": [6], "num_images": 40, "has_several_labels": False},
        **{"directory": "/", "class_names": []},
    }
    writer = EmbeddingWriter(folder, description)
    schema = make_schema(description)
    for index, first in enumerate(range(0, 40, 16)):
        part = vectors[first : first + 16]
        last = first + len(part)
        names = [str(row) for row in range(first, last)]
        empty = [None] * len(part)
        rows = Rows(names, empty, empty, part)
        writer.add(write_shard(folder, schema, index, first, last, rows))
    return open_embeddings(folder)


def test_the_axes_are_those_of_scikit_learn(embeddings, vectors):
    unit = normalize(vectors)
    expected = PCA(2, svd_solver="full").fit(unit).transform(unit)[ROWS]
    found = project_pca(embeddings, ROWS)
    signs = np.sign((found * expected).sum(0))
    np.testing.assert_allclose(found, signs * expected, atol=1e-5)


def test_umap_gets_the_chosen_vectors(embeddings, vectors, monkeypatch):
    class Umap:
        def __init__(self, metric, random_state, n_jobs):
            assert (metric, random_state, n_jobs) == ("cosine", 0, 1)

        def fit_transform(self, x):
            np.testing.assert_allclose(x, normalize(vectors)[ROWS], atol=1e-6)
            return x[:, :2]

    monkeypatch.setitem(sys.modules, "umap", types.SimpleNamespace(UMAP=Umap))
    assert project_umap(embeddings, ROWS).shape == (5, 2)
    monkeypatch.setitem(sys.modules, "umap", None)
    with pytest.raises(ModuleNotFoundError, match="pip install umap-learn"):
        project_umap(embeddings, ROWS)


def test_what_a_killed_command_left_is_removed(embeddings, tmp_path):
    """Of other spans: readers of Parquet take all files of a folder."""
    folder = shutil.copytree(embeddings.folder, tmp_path / "vectors")
    description = {**embeddings.description, "pixel_range": [0, 4095]}
    writer = EmbeddingWriter(folder, embeddings.description)
    writer._description = description
    writer.add(writer.shards.pop())
    files = {path.name for path in folder.glob("*.parquet")}
    (folder / "part-00007.parquet").touch()
    writer.remove_others()
    assert {path.name for path in folder.glob("*.parquet")} == files
    # JSON has no tuples, which name the pixels of files.
    assert open_embeddings(folder).description["pixel_range"] == (0, 4095)
    for same in ([0, 4095], (0, 4095)):  # The same command goes on.
        EmbeddingWriter(folder, {**description, "pixel_range": same})
    with pytest.raises(ValueError, match="`out`.*pixel_range"):
        EmbeddingWriter(folder, {**description, "pixel_range": (0, 255)})
