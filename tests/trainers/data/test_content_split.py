import shutil

import pytest

from trainers.data.readers.image_paths import split_by_content


@pytest.fixture
def files(tmp_path):
    """Return 200 files of two classes, of different content."""
    return [
        (write(tmp_path / f"{i}.jpg", b"\xff\xd8 photo %d" % i), "ab"[i % 2])
        for i in range(200)
    ]


def write(path, content):
    path.write_bytes(content)
    return str(path)


def sides(files):
    """Return the split of each path."""
    rows = split_by_content(files, "folder:photos")
    return {path: split for split, pairs in rows.items() for path, _ in pairs}


def test_a_fifth_is_for_testing(files):
    found = [*sides(files).values()].count("test")
    # Four standard deviations of a binomial distribution.
    assert abs(found - 40) < 4 * (200 * 0.2 * 0.8) ** 0.5


def test_new_photos_move_no_old_ones(files):
    few = sides(files[:100])
    all = sides(files)
    assert {path: all[path] for path in few} == few


def test_names_do_not_matter(files, tmp_path):
    moved = []
    for index, (path, label) in enumerate(files):
        new = tmp_path / f"{200 - index}.png"
        shutil.move(path, new)
        moved.append((str(new), label))
    before = split_by_content(moved, "folder:photos")
    again = split_by_content(moved[::-1], "folder:photos")
    assert before == again
    assert all(pairs != sorted(pairs) for pairs in before.values())


def test_files_with_the_same_length_and_start_are_told_apart(tmp_path):
    """Scans of one size, here of two each, begin with the same blank border."""
    files = []
    for i in range(300):
        content = bytes(2**16 + i // 2) + b"%03d" % i
        files.append((write(tmp_path / f"{i}", content), "ab"[i % 2]))
    found = sides(files)
    assert abs([*found.values()].count("test") - 60) < 4 * (60 * 0.8) ** 0.5
    paths = [path for path, _ in files]
    pairs = zip(paths[::2], paths[1::2])
    assert any(found[one] != found[other] for one, other in pairs)
    for path in paths[::29]:
        copy = str(shutil.copy(path, f"{path} again"))
        assert sides([*files, (copy, "a")]) == {**found, copy: found[path]}


def test_a_copy_is_on_the_side_of_its_file_and_moves_none(files):
    few = files[:50]
    before = sides(few)
    for path, label in few[:10]:
        copy = str(shutil.copy(path, f"{path} again"))
        found = sides([*few, (copy, label)])
        assert found == {**before, copy: before[path]}


def test_few_photos_are_on_both_sides(files):
    for first in range(0, 40, 4):  # Two of each class.
        few = files[first : first + 4]
        found = split_by_content(few, "folder:photos")
        for pairs in found.values():
            assert sorted(label for _, label in pairs) == ["a", "b"]


@pytest.mark.parametrize(
    "labels, fault",
    [
        ("aaaa", "two classes or more.*with 'a'"),
        ("", "two classes or more.*with none"),
        ("ab", "two different images or more of each.*folder:photos.*one of"),
    ],
)
def test_too_few_are_refused(files, labels, fault):
    few = [(path, label) for (path, _), label in zip(files, labels)]
    with pytest.raises(ValueError, match=fault):
        split_by_content(few, "folder:photos")


def test_the_only_photo_of_a_class_is_for_training(files, tmp_path):
    """So are its copies; the check of the images names the class."""
    copy = str(shutil.copy(files[0][0], tmp_path / "copy"))
    single = [(files[0][0], "c"), (copy, "c")]
    found = split_by_content([*files[1:], *single], "folder:photos")
    assert set(single) <= set(found["train"])
    assert {label for _, label in found["test"]} == {"a", "b"}
