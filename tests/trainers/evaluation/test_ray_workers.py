"""Work on a cluster of Ray: two workers on this machine, which may be lost."""

import functools
import pickle
import tempfile
import types

import numpy as np
import pytest

from tests.tiny import make
from tests.trainers.evaluation.on_ray import die_in_a_shard, make_square
from tests.trainers.made import write_photos
from trainers.commands import cluster_from_flags
from trainers.data.datasets import ALL_SPLITS, open_dataset
from trainers.evaluation.embeddings import MANIFEST, open_embeddings
from trainers.evaluation.file_predictions import predict_each
from trainers.evaluation.ray_workers import RayCluster, connected
from trainers.evaluation.vectors import Work, embed, make_worker
from trainers.training.run_folder import NamedModel

ray = pytest.importorskip("ray")


@pytest.fixture(scope="module")
def two_workers():
    """Return the cluster of all tests."""
    with (
        # The paths of its sockets must be short.
        tempfile.TemporaryDirectory(prefix="ray", dir="/tmp") as folder,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setenv("RAY_TMPDIR", folder)
        with connected(ray, "local"):
            yield RayCluster("local", 2)


def test_results_are_in_order_though_a_worker_is_lost(two_workers, tmp_path):
    function = functools.partial(make_square, str(tmp_path / "died"))
    found = two_workers.map(function, range(40))
    assert list(found) == [number**2 for number in range(40)]
    assert (tmp_path / "died").exists()


def test_errors_are_those_of_the_function(two_workers):
    found = two_workers.map(make_square, [3, -1])
    assert next(found) == 9
    with pytest.raises(ValueError, match="^-1 is negative$"):
        next(found)


def test_what_kills_each_worker_ends_the_work(two_workers):
    function = functools.partial(make_square, poison=2)
    with pytest.raises(RuntimeError, match="lost 3 times with 2: "):
        list(two_workers.map(function, range(9)))


@pytest.mark.parametrize("address", ["localhost:1", "ray://x", "locals"])
def test_a_wrong_address_is_an_error(monkeypatch, address):
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    with pytest.raises(ValueError, match=f"Received: ray='{address}'"):
        list(RayCluster(address).map(make_square, [1]))


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "model.keras"
    make(num_registers=2).save(path)
    return NamedModel(str(path))


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    places = 8 * ["train/cat", "train/dog"]
    folder = write_photos(tmp_path_factory.mktemp("photos"), places)
    broken = folder / "train/cat/zz.jpg"
    broken.write_bytes(b"no image")
    return open_dataset(f"folder:{folder}", eval_split=ALL_SPLITS)


def test_embeddings_are_those_of_one_process(
    two_workers, source, photos, tmp_path
):
    options = {"batch_size": 3, "shard_rows": 3, "max_bad_examples": 1}
    one = embed(source, photos, tmp_path / "one", **options)
    prepare = functools.partial(die_in_a_shard, str(tmp_path / "died"))
    cluster = RayCluster("local", 2, prepare)
    assert (
        embed(source, photos, tmp_path / "two", cluster=cluster, **options)
        == one
        and len(one) == 1
    )
    assert (tmp_path / "died").exists()
    one, two = (open_embeddings(tmp_path / name) for name in ("one", "two"))
    assert [x[1:4] for x in one.shards] == [x[1:4] for x in two.shards]
    assert (one.paths, one.labels) == (two.paths, two.labels)
    np.testing.assert_allclose(one.vectors(), two.vectors(), 1e-5, 1e-5)
    assert {x.name for x in (tmp_path / "two").iterdir()} == {
        MANIFEST,
        *(shard.file for shard in two.shards),
    }


def test_a_worker_with_another_model_is_an_error(source, photos, tmp_path):
    """As on a machine whose file of the same name is another one."""
    work = Work(photos, {"model_digest": "another"}, 3, 0)
    with pytest.raises(ValueError, match="the one that computed the embed"):
        make_worker(source, tmp_path, work)


def test_flags_name_a_cluster():
    values = types.SimpleNamespace(ray=None, ray_workers=2)
    with pytest.raises(ValueError, match="needs --ray, .* ray_workers=2"):
        cluster_from_flags(values)
    values = types.SimpleNamespace(ray="auto", ray_workers=2)
    cluster = cluster_from_flags(values)
    assert (cluster.address, cluster.num_workers) == ("auto", 2)
    assert pickle.loads(pickle.dumps(cluster.prepare))() is None


def test_predictions_are_those_of_one_process(two_workers, source, photos):
    paths = [path for path, _ in photos.reader.files["train"]] * 4
    found = [*predict_each(source, paths, cluster=two_workers)]
    expected = [*predict_each(source, paths)]
    assert len(found) == len(expected) == 68
    for one, two in zip(found, expected):
        assert (one.path, one.fault) == (two.path, two.fault)
        for (name, p), (wanted, q) in zip(
            one.classes, two.classes, strict=True
        ):
            assert name == wanted and p == pytest.approx(q, 1e-5)
