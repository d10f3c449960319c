import pytest

from trainers.paths import as_path
from trainers.training.run_folder import RunFolder, check_place


@pytest.mark.parametrize("name", ["README.md", "model.keras"])
def test_files_of_no_run_are_not_overwritten(tmp_path, name):
    (tmp_path / name).write_text("mine")
    run = RunFolder(tmp_path)
    with pytest.raises(ValueError, match=f"no recipe.json, but {name}"):
        check_place(run, "digits")
    (tmp_path / "recipe.json").write_text("{}")
    check_place(run, "digits")


def test_other_files_are_nobody_s_business(tmp_path):
    (tmp_path / "data.html").write_text("of a run that did not begin")
    check_place(RunFolder(tmp_path), "digits")
    check_place(RunFolder(tmp_path / "new"), "digits")
    check_place(RunFolder(as_path("gs://bucket/run")), "folder:/")


@pytest.mark.parametrize(
    "kind, place", [("folder", ""), ("images", "cat"), ("folder", "cat/run")]
)
def test_a_run_among_its_images(tmp_path, kind, place):
    photos = tmp_path / "photos"
    run = RunFolder(photos / place)
    with pytest.raises(ValueError, match="outside the folder of the images"):
        check_place(run, f"{kind}:{photos}")
    check_place(run, f"csv:{photos}/table.csv")
    check_place(RunFolder(tmp_path / "photos_run"), f"{kind}:{photos}")
