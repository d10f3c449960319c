import pytest
from PIL import Image

from tests import commands
from tests.trainers.data.inspection.test_examination import waves
from trainers.inspect_data import check_out


@pytest.fixture
def photos(tmp_path):
    """Return a folder with eight photos of two classes, and a broken one."""
    for index in range(8):
        place = tmp_path / "my photos" / ("Kätzchen", "犬")[index % 2]
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(waves(index)).save(place / f"{index}.png")
    (place / "broken.jpg").write_bytes(b"\xff\xd8\xff")
    return tmp_path / "my photos"


def test_findings_are_printed_and_on_a_page(
    photos, tmp_path, subprocess_environment
):
    words = ["-m", "trainers.inspect_data", f"folder:{photos}", "--out=seen"]
    result = commands.run(words, subprocess_environment, tmp_path)
    assert result.returncode == 1
    assert "| Kätzchen | " in result.stdout
    assert "Error: 1 image: unreadable" in result.stdout
    page = tmp_path / "seen/index.html"
    assert "broken.jpg" in page.read_text()
    check_out(tmp_path / "seen")  # It may be written anew.
    page.write_text("My page about seals.")
    words[2] = f"--dataset=folder:{photos}"
    result = commands.run(words, subprocess_environment, tmp_path)
    assert result.returncode == 1
    assert "`out` must be a folder without a page of" in result.stderr
    assert "Traceback" not in result.stderr
    assert page.read_text() == "My page about seals."
