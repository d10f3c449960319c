import pytest
from PIL import Image

from tests import commands
from tests.trainers.data.inspection.test_examination import waves


@pytest.fixture
def photos(tmp_path):
    """Return a folder with eight photos of two classes."""
    for index in range(8):
        place = tmp_path / "my photos" / ("Kätzchen", "犬")[index % 2]
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(waves(index)).save(place / f"{index}.png")
    return tmp_path / "my photos"


def test_findings_are_printed_and_on_a_page(
    photos, tmp_path, subprocess_environment
):
    (photos / "犬/broken.jpg").write_bytes(b"\xff\xd8\xff")
    words = ["-m", "trainers.inspect_data", f"folder:{photos}", "--out=seen"]
    result = commands.run(words, subprocess_environment, tmp_path)
    assert result.returncode == 1
    assert "| Kätzchen | " in result.stdout
    assert "Error: 1 image: unreadable" in result.stdout
    assert "broken.jpg" in (tmp_path / "seen/index.html").read_text()


def test_the_data_set_may_be_a_flag_and_the_page_is_written_anew(
    photos, tmp_path, subprocess_environment
):
    words = ["-m", "trainers.inspect_data", f"--dataset=folder:{photos}"]
    words += ["--out=seen"]
    for _ in range(2):
        result = commands.run(words, subprocess_environment, tmp_path)
        assert result.returncode == 0, result.stderr
    (tmp_path / "seen/index.html").write_text("My page about seals.")
    result = commands.run(words, subprocess_environment, tmp_path)
    assert result.returncode == 1
    assert "`out` must be a folder without a page of" in result.stderr
    assert (tmp_path / "seen/index.html").read_text() == "My page about seals."


def test_mistakes_end_in_a_message(tmp_path, subprocess_environment):
    result = commands.run(
        ["-m", "trainers.inspect_data", "folder:nothing"],
        subprocess_environment,
        tmp_path,
    )
    assert result.returncode == 1
    assert "PATH/CLASS/IMAGE.jpg" in result.stderr
    assert "Traceback" not in result.stderr
