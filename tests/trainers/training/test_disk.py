"""A full disk, simulated by a limit of the file size."""

import errno
import os
import resource

import pytest

from trainers.paths import as_path
from trainers.training.run_folder import RunFolder
from trainers.training.trainer import prepare


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
    RunFolder(tmp_path).check_space(1_000_000)
    with pytest.raises(OSError, match="room for 1.00 MB of .*File too large"):
        RunFolder(tmp_path).check_space(1_000_001)
    assert not list(tmp_path.iterdir())


def test_a_full_disk_is_seen(tmp_path, monkeypatch):
    def refuse(descriptor, offset, length):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    with pytest.raises(OSError, match="`run_dir` must have .*No space left"):
        RunFolder(tmp_path).check_space(1)


def test_a_file_system_that_cannot_allocate_is_not_judged(
    tmp_path, monkeypatch
):
    def refuse(descriptor, offset, length):
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    RunFolder(tmp_path).check_space(1)
    monkeypatch.delattr(os, "posix_fallocate")
    RunFolder(tmp_path).check_space(1)
    RunFolder(as_path("gs://bucket/run")).check_space(1)
    assert not list(tmp_path.iterdir())


def test_a_training_asks_for_room_before_it_computes(
    recipe, tmp_path, limit_files, monkeypatch
):
    """For three states, two that are kept and a new one, and the model."""
    trainer = prepare(recipe, str(tmp_path))
    parameters = trainer.loop.model.count_params()
    asked, check = [], RunFolder.check_space

    def note(folder, size):
        asked.append(size)
        check(folder, size)

    monkeypatch.setattr(RunFolder, "check_space", note)
    limit_files(1_000)
    with pytest.raises(OSError, match="must have room"):
        trainer.train()
    # A state: weights, two moments.
    [size] = asked
    assert size == pytest.approx((3 * 3 + 1) * 4 * parameters, rel=0.01)
    assert not list(tmp_path.iterdir())
