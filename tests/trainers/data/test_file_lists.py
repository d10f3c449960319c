import pytest

from trainers.data.datasets import open_dataset
from trainers.data.file_lists import check_is_no_path


@pytest.mark.parametrize(
    "name, kind",
    [("photos", "folder"), ("labels.csv", "csv"), ("a.TSV", "csv")],
)
def test_a_path_without_its_kind_is_told_which(
    name, kind, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    check_is_no_path(name)  # It may be the name of something else.
    if kind == "folder":
        (tmp_path / name).mkdir()
    else:
        (tmp_path / name).touch()
    message = rf"Did you mean '{kind}:{name}'\?$"
    with pytest.raises(ValueError, match=message):
        check_is_no_path(name)
    with pytest.raises(ValueError, match=message):
        open_dataset(name)
    (tmp_path / "notes.txt").touch()
    check_is_no_path("notes.txt")
