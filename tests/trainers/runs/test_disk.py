"""A full disk, simulated by a limit of the file size."""

import errno
import os
import resource

import pytest

from trainers.paths import as_path
from trainers.runs.job import (
    check_space,
    train,
)
from trainers.runs.preparation import (
    prepare,
)


@pytest.fixture
def limit_files():
    """Return a function that limits the size of files this process writes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)

    def limit(num_bytes):
        resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, before[1]))

    yield limit
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_room_is_tried_and_given_back(tmp_path, limit_files):
    limit_files(1_000_000)
    check_space(tmp_path, 1_000_000)
    with pytest.raises(OSError, match="room for 1.00 MB of .*File too large"):
        check_space(tmp_path, 1_000_001)
    assert not list(tmp_path.iterdir())


def test_a_full_disk_is_seen(tmp_path, monkeypatch):
    def refuse(descriptor, offset, length):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    with pytest.raises(OSError, match="`run_dir` must have .*No space left"):
        check_space(tmp_path, 1)


def test_a_file_system_that_cannot_allocate_is_not_judged(
    tmp_path, monkeypatch
):
    def refuse(descriptor, offset, length):
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    check_space(tmp_path, 1)
    monkeypatch.delattr(os, "posix_fallocate")
    check_space(tmp_path, 1)
    check_space(as_path("gs://bucket/run"), 1)
    assert not list(tmp_path.iterdir())


def test_a_training_asks_for_room_before_it_computes(
    recipe, tmp_path, limit_files, monkeypatch
):
    """For three states, two that are kept and a new one, and the model."""
    job = prepare(recipe, str(tmp_path))
    parameters = job.loop.model.count_params()
    asked = []

    def check(folder, size):
        asked.append(size)
        check_space(folder, size)

    monkeypatch.setattr("trainers.runs.job.check_space", check)
    limit_files(1_000)
    with pytest.raises(OSError, match="must have room"):
        train(job)
    # A state: weights, two moments.
    [size] = asked
    assert size == pytest.approx((3 * 3 + 1) * 4 * parameters, rel=0.01)
    assert not list(tmp_path.iterdir())
