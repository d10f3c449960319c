import os

import pytest

from keras_vit.files import DRAFT, draft_folder


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
