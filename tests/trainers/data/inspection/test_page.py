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


def test_a_page_of_a_large_data_set_shows_a_part(tmp_path):
    names = [f"class {index}" for index in range(120)]
    photo = examine("a.png", "train", names[0], encode(waves(0)))
    images = [
        photo._replace(
            name=f"{name} {index}.png", label=name, digest=str(index)
        )
        for name in names
        for index in range(15)
    ]
    page = make_page(tmp_path / "index.html", images, names)
    sheet = page.split("<h2>Contact sheet</h2>")[1]
    assert sheet.count("<img ") == 100 * 12
    findings = page.split("<h2>Images of each class</h2>")[0]
    assert findings.count("<img ") <= 24 * 24 * 3
    assert re.search(r"<p>and [\d,]+ more</p>", findings)


def test_a_page_without_findings_says_so(tmp_path):
    images = [
        examine(f"{seed}.png", split, "cat", encode(waves(seed)))
        for seed, split in enumerate(5 * ("train", "test"))
    ]
    page = make_page(tmp_path / "index.html", images, ["cat"])
    assert "Nothing was found." in page
