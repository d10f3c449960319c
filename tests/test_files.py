import errno
import os

import pytest

from keras_vit.files import DRAFT, atomic_write, draft_folder


def test_a_draft_is_hidden_and_gone_after_an_error(tmp_path):
    path = tmp_path / "new" / "model"
    with pytest.raises(OSError, match="no room"), draft_folder(path) as draft:
        (draft / "file").write_text("half")
        [hidden] = path.parent.iterdir()
        assert hidden.name.startswith(DRAFT) and draft == hidden / "model"
        raise OSError("no room")
    assert not [*path.parent.iterdir()]


def test_a_draft_becomes_a_folder_as_any_other(tmp_path):
    before = os.umask(0o027)
    try:
        with draft_folder(tmp_path / "model") as draft:
            os.rename(draft, tmp_path / "model")
    finally:
        os.umask(before)
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
    assert (tmp_path / "model").stat().st_mode & 0o777 == 0o750


@pytest.mark.parametrize("write", [atomic_write, draft_folder])
def test_a_full_disk_names_the_path_and_not_the_draft(tmp_path, write):
    path = tmp_path / "model"
    reason = os.strerror(errno.ENOSPC)
    for hidden in (False, True):
        with pytest.raises(OSError, match="No space.*: '.*/model'$") as caught:
            with write(path) as draft:
                name = (str(draft),) if hidden else ()
                raise OSError(errno.ENOSPC, reason, *name)
        assert caught.value.filename == str(path)
        assert caught.value.errno == errno.ENOSPC


def test_a_folder_that_takes_no_files_is_told_by_the_file(tmp_path):
    with pytest.raises(FileNotFoundError, match="absent"):
        with atomic_write(tmp_path / "model"):
            open(tmp_path / "absent")
    with pytest.raises(NotADirectoryError, match="/proc/version/model"):
        with atomic_write("/proc/version/model/x"):
            pass


@pytest.mark.parametrize("write", [atomic_write, draft_folder])
@pytest.mark.parametrize("name", ["model", "new/model"])
def test_a_file_in_place_of_a_folder_is_named(tmp_path, write, name):
    file = tmp_path / "file"
    file.touch()
    message = f"to a folder, and {file} is a file. Received: {file / name}$"
    with pytest.raises(NotADirectoryError, match=message):
        with write(file / name):
            pass
