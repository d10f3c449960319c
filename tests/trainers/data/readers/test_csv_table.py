import os
import shutil
import unicodedata

import numpy as np
import pytest
from PIL import Image

from trainers.data.datasets import open_dataset

PHOTOS = ("a b.png", "ä/猫.png", "c.png", "d.png")


@pytest.fixture
def folder(tmp_path):
    """Return a folder with four images, each of one grey level."""
    folder = tmp_path / "photos"
    (folder / "ä").mkdir(parents=True)
    for index, name in enumerate(PHOTOS):
        pixels = np.full((4, 6, 3), 40 * index, "uint8")
        Image.fromarray(pixels).save(folder / name)
    return folder


def write(folder, header, rows, separator=",", encoding="utf-8"):
    lines = [header, *rows]
    text = "\n".join(separator.join(line) for line in lines)
    (folder / "labels.csv").write_text(text, encoding=encoding)
    return open_dataset(f"csv:{folder}/labels.csv")


def listed(dataset, split):
    """Return the number and the class of each image of a split."""
    return sorted(
        (
            PHOTOS.index(path.partition("/photos/")[2]),
            dataset.class_names[label],
        )
        for path, label in dataset.reader.files[split]
    )


@pytest.mark.parametrize(
    "separator, encoding", [(";", "utf-8-sig"), ("\t", "utf-8")]
)
def test_columns_are_found_by_name(folder, separator, encoding):
    dataset = write(
        folder,
        ("Note", "Category", "Filename", "split"),
        [
            ("", "猫", PHOTOS[0], "train"),
            ("x", "dog", PHOTOS[1], "train"),
            ("", "dog", PHOTOS[2], "val"),
            ("", "猫", PHOTOS[3], "test"),
        ],
        separator,
        encoding,
    )
    assert dataset.class_names == ["dog", "猫"]
    assert listed(dataset, "train") == [(0, "猫"), (1, "dog")]
    assert listed(dataset, "val") == [(2, "dog")]
    assert dataset.eval_split == "test"
    [(image, label)] = dataset.examples("test")
    assert (image.numpy() == 3 * 40).all() and label == 1


def test_without_splits_they_are_made_by_content(folder):
    rows = zip(PHOTOS, ("one", "two", "one", "two"))
    dataset = write(folder, ("path", "label"), rows)
    for split in ("train", "test"):
        assert [label for _, label in listed(dataset, split)] == ["one", "two"]


SIMPLE = [(name, "ab"[i % 2]) for i, name in enumerate(PHOTOS)]


@pytest.mark.parametrize(
    "path, label",
    [
        ("File Name", "class_name"),
        ("image_id", "Target"),
        ("img-path", "class_name"),
        ("ID", "Target"),
        ("fname", "label"),
    ],
)
def test_names_of_columns_of_other_programs(folder, path, label):
    assert len(write(folder, (path, label), SIMPLE).reader.files["train"]) == 2


@pytest.mark.parametrize(
    "start, separator, end",
    [
        ('"sep=;"\r\n', ";", ""),
        ("sep=|\n", "|", ""),
        ("\n\n", ";", ";;\r\n;;\r\n"),
        ("\ufeff", "|", ""),
    ],
)
@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "utf-16-le"])
def test_tables_of_excel(folder, start, separator, end, encoding):
    lines = [
        ("path", "label", '"a, b, c, d"'),
        *((*row, "1") for row in SIMPLE),
    ]
    text = "".join(separator.join(line) + "\r\n" for line in lines)
    (folder / "t.csv").write_bytes((start + text + end).encode(encoding))
    dataset = open_dataset(f"csv:{folder}/t.csv")
    assert sum(map(len, dataset.reader.files.values())) == 4


@pytest.mark.parametrize(
    "change",
    [
        lambda path: path.replace("/", "\\"),
        lambda path: path.removesuffix(".png"),
        lambda path: unicodedata.normalize("NFD", path),
        lambda path: path.upper(),
    ],
)
def test_paths_as_other_systems_write_them(folder, change):
    rows = [(change(name), label) for name, label in SIMPLE]
    files = write(folder, ("path", "label"), rows).reader.files
    paths = {path for pairs in files.values() for path, _ in pairs}
    assert paths == {str(folder / name) for name in PHOTOS}


def test_tables_and_names_that_are_not_utf8(folder):
    (folder / "c.png").rename(os.fsdecode(bytes(folder) + b"/\xf6.png"))
    text = "path,label\n" + "\n".join(map(",".join, SIMPLE))
    content = text.encode().replace(b"c.png", b"\xf6.png")
    (folder / "labels.csv").write_bytes(content)
    assert open_dataset(f"csv:{folder}/labels.csv").class_names == ["a", "b"]
    (folder / "labels.csv").write_bytes(content.replace(b",a", b",\xe4"))
    with pytest.raises(ValueError, match=r"line 2: .xe4 is not in UTF-8"):
        open_dataset(f"csv:{folder}/labels.csv")


@pytest.mark.parametrize(
    "header, rows, fault",
    [
        (("path", "note"), [("c.png", "x")], "label or class or cat.*note"),
        (("path", "label"), [], "without lines"),
        (("path", "label"), [("c.png", "x", "y")], "line 2 has more cells"),
        (("path", "label"), [("猫.png", "x")], "no file .*but ä/猫.png"),
        (
            ("path", "label"),
            [("c.png", "x"), ("d.png", ""), *((f"{i}.jpg", "x") for i in "ab")],
            "line 3 has an empty cell; line 4: there is no file .*a.jpg",
        ),
        (
            ("path", "label", "remark"),
            [("c.png", "x", '"12 inch'), (*SIMPLE[0], "wide"), ("c.png", '"x')],
            "line 4 has a quote that is not closed.*,a,wide",
        ),
    ],
)
def test_faults_are_named(folder, header, rows, fault):
    with pytest.raises(ValueError, match=fault):
        write(folder, header, rows)


def test_a_letter_of_another_case_means_one_file(folder):
    shutil.copy(folder / "c.png", folder / "C.png")
    rows = [("C.PNG", "a"), *SIMPLE[1:]]
    with pytest.raises(ValueError, match="no file .*C.PNG"):
        write(folder, ("path", "label"), rows)
    rows[0] = ("C.png", "a")
    files = write(folder, ("path", "label"), rows).reader.files
    paths = {path for pairs in files.values() for path, _ in pairs}
    assert {str(folder / name) for name in ("C.png", "c.png")} <= paths


def test_a_name_without_ending_means_one_file(folder):
    shutil.copy(folder / "c.png", folder / "c.jpg")
    rows = [("c", "a"), *SIMPLE[1:]]
    with pytest.raises(ValueError, match="no file .*/c, but c.jpg and c.png"):
        write(folder, ("id", "label"), rows)


@pytest.mark.parametrize("word", ["is_valid", "Is Train", "subset"])
def test_a_column_that_may_be_a_split_is_said(folder, word):
    """One of 1 and 0 is a class unless its name can only mean a split."""
    with pytest.warns(UserWarning, match=f"column '{word}' .* name it split"):
        write(folder, ("path", "label", word), [(*row, "1") for row in SIMPLE])
    rows = [
        (name, *map(str, (i % 2, 1 - i % 2, i // 2)))
        for i, (name, _) in enumerate(SIMPLE)
    ]
    header = ("path", "a", "b", word)
    if word == "subset":
        assert write(folder, header, rows).class_names == ["a", "b", word]
        return
    with pytest.warns(UserWarning, match=f"column '{word}' .* name it split"):
        dataset = write(folder, header, rows)
    assert dataset.class_names == ["a", "b"]


def test_a_file_that_is_no_table(folder):
    with pytest.raises(ValueError, match="CSV file with a column `path`"):
        open_dataset(f"csv:{folder}/absent.csv")
    with pytest.raises(ValueError, match="in UTF-8.*a b.png"):
        open_dataset(f"csv:{folder}/a b.png")
