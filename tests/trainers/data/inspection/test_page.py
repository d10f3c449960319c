import re

from tests.trainers.data.inspection.test_examination import encode, waves
from trainers.data.inspection import examine, find, write_data_page


def make_page(path, images, names):
    write_data_page(path, "folder:<photos>", images, names, find(images, names))
    return path.read_text(encoding="utf-8")


def test_counts_findings_and_pictures_are_on_one_page(tmp_path):
    names = ["<b>cat</b>", "dog 犬"]
    images = [
        examine(f"{split}/{index}.png", split, name, encode(waves(seed)))
        for seed, (split, name, index) in enumerate(
            (split, name, index)
            for split in ("train", "test")
            for name in names
            for index in range(2)
        )
    ]
    images.append(examine("a.jpg", "train", names[1], b""))
    page = make_page(tmp_path / "index.html", images, names)
    assert "<b>" not in page
    assert "&lt;b&gt;cat&lt;/b&gt;" in page
    assert "dog 犬</th><td>3</td><td>2</td>" in page
    assert page.count("<img ") == 8  # Each once: no finding is about them.
    assert 'title="a.jpg"><div class="none">' in page
    assert "unreadable, the file is empty" in page
    # It needs no network and runs no scripts.
    assert not re.search(r"<script|https?:|<link", page)
    assert "default-src 'none'" in page
