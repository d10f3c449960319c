import itertools
import random
import shutil

import pytest
from PIL import Image

from tests.trainers.data.inspection.test_examination import waves
from trainers.data.datasets import open_dataset
from trainers.data.inspection import (
    Examined,
    count_classes,
    count_label_sets,
    find,
    find_copies,
    find_near_copies,
    find_unread,
    judge_loose_images,
    judge_names,
)

GOOD = {"look": 0, "size": (300, 200), "kind": "JPEG RGB"}


def image(name, label="cat", split="train", **facts):
    facts = {**GOOD, "look": random.Random(name).getrandbits(64), **facts}
    return Examined(name, split, label, facts.pop("digest", name), **facts)


# Looks that are far apart.
FAR = [int(f"{n:08b}" * 8, 2) for n in (0, 255, 0b00001111, 0b11110000)]
ANOTHER = int("01" * 32, 2)


def balanced():
    places = [(c, s) for c in ("cat", "dog") for s in ("train", "test")]
    found = [
        image(f"{c} {s}.jpg", c, s, look=look)
        for (c, s), look in zip(places, FAR)
    ]
    # Enough of each to measure something.
    return found + [
        image(f"{c} {s} {n}.jpg", c, s) for c, s in places for n in range(4)
    ]


def texts(images, names=("cat", "dog")):
    return [f"{f.level}: {f.text}" for f in find(images, names)]


def test_nothing_is_found_in_good_data():
    assert texts(balanced()) == []
    assert count_classes(balanced(), ["cat", "dog"]) == {
        "train": {"cat": 5, "dog": 5},
        "test": {"cat": 5, "dog": 5},
    }


def test_a_class_that_a_split_lacks_is_an_error():
    lacking = [i for i in balanced() if (i.label, i.split) != ("dog", "test")]
    [found] = texts(lacking)
    assert found.startswith("error: the split 'test' has no image of 'dog'")
    assert len(texts(balanced(), ("cat", "dog", "cow"))) == 3


@pytest.mark.parametrize("is_balanced", [False, True])
def test_great_differences_of_the_classes_are_named(is_balanced):
    many = [image(f"{i}.jpg", look=None) for i in range(100)]
    found = find(balanced() + many, ("cat", "dog"), is_balanced=is_balanced)
    [text] = [f.text for f in found if "only 10" in f.text]
    assert "'cat' has 110 images, 'dog' only 10" in text
    # No advice that is taken already.
    assert ("--class_weights=balanced" in text) != is_balanced


def test_loose_images_are_counted_and_named():
    [found] = judge_loose_images(["a.jpg"])
    assert "1 image outside the folders of the classes" in found.text
    assert "a.jpg" in found.text
    [found] = judge_loose_images(list("abcdefghijkl"))
    assert "12 images" in found.text and "i, j and 2 more;" in found.text
    assert find(balanced(), ("cat", "dog"), [found]) == [found]


def test_names_that_look_the_same_are_listed():
    names = (
        "Gr\N{LATIN SMALL LETTER O WITH DIAERESIS}n",
        "cat",
        "Gro\N{COMBINING DIAERESIS}n",
        "CAT",
        "dog",
    )
    [found] = judge_names([], names)
    assert found.level == "warning"
    assert "'cat', 'CAT'" in found.text
    assert found.text.count("'Gr") == 2
    assert not [*judge_names([], ("cat", "dog", "cats"))]


def test_all_broken_files_are_named_at_once():
    broken = [image(f"{i}.jpg", fault="the file is empty") for i in range(12)]
    [found] = find([*balanced(), *broken], ("cat", "dog"))
    assert found.level == "error"
    lines = str(found).splitlines()
    assert "12 images: unreadable, the file is empty;" in lines[0]
    assert "--max_bad_examples" in lines[0]
    assert lines[1].strip() == "0.jpg"
    assert lines[-1].strip() == "and 2 more"


@pytest.mark.parametrize(
    "changes, level, text",
    [
        ({"label": "dog"}, "warning", "but different classes"),
        ({"split": "test"}, "warning", "in several splits"),
        ({}, "note", "within a class and split"),
    ],
)
@pytest.mark.parametrize("is_exact", [True, False])
def test_copies_are_told_by_where_they_are(changes, level, text, is_exact):
    first = balanced()[0]
    digest = first.digest if is_exact else "other"
    copy = image("new.jpg", look=first.look, digest=digest, **changes)
    [found] = find([*balanced(), copy], ("cat", "dog"))
    level = "warning" if is_exact else level
    how = "the same content" if is_exact else "the same look"
    assert (found.level, how in found.text) == (level, True)
    assert text in found.text
    assert [i.name for i in found.groups[0]] == [first.name, "new.jpg"]


@pytest.mark.parametrize(
    "name, facts, text",
    [
        ("x.jpg", {"is_turned": True}, "Exif"),
        ("x.jpg", {"size": (31, 400)}, "less than 32"),
        ("x.png", {}, "ending"),
        ("x.jpg", {"kind": "JPEG CMYK"}, "CMYK"),
        ("x.png", {"kind": "PNG I;16"}, "16 bits"),
        ("x.png", {"kind": "PNG P", "is_transparent": True}, "transparent"),
        ("x.gif", {"kind": "GIF P", "num_frames": 3}, "frames"),
        ("x.jpg", {"look": None}, "no contrast"),
    ],
)
def test_what_is_worth_knowing_is_noted(name, facts, text):
    facts = {"look": ANOTHER, **facts}
    [found] = texts([*balanced(), image(name, **facts)])
    assert found.startswith("note: 1 image: ")
    assert text in found


@pytest.mark.parametrize(
    "name, kind",
    [
        ("a.JPG", "JPEG RGB"),
        ("a.jpeg", "MPO RGB"),
        ("digits-train.tfrecord-00000-of-00001__0", "PNG L"),
        ("a.heic", "HEIF RGB"),
    ],
)
def test_usual_files_are_not_noted(name, kind):
    facts = {"kind": kind, "num_frames": 2 if "MPO" in kind else 1}
    rows = [*balanced(), image(name, look=ANOTHER, **facts)]
    assert texts(rows) == []


def looking(name, look=None, digest=None):
    return Examined(name, "train", "cat", digest or name, look=look)


def names(groups):
    return sorted(sorted(image.name for image in group) for group in groups)


def test_looks_of_few_different_bits_are_near_copies():
    rows = [
        looking("a", 0),
        looking("b", 0b1111),
        looking("c", 0b1111 << 60),
        looking("far", 0b11111 << 30),
        looking("flat"),
        looking("flat too"),
        # Copies are no near copies.
        looking("one", ANOTHER, "1"),
        looking("other", ANOTHER, "1"),
    ]
    assert names(find_near_copies(rows)) == [["a", "b", "c"]]
    assert names(find_copies(rows)) == [["one", "other"]]


def test_no_pair_is_missed():
    """As by comparing each with each other."""
    draws = random.Random(0)
    looks = [draws.getrandbits(64) for _ in range(150)]
    for look in looks[:100]:
        for bit in draws.sample(range(64), draws.randrange(7)):
            look ^= 1 << bit
        looks.append(look)
    rows = [looking(str(index), look) for index, look in enumerate(looks)]
    together = {
        name: group for group in names(find_near_copies(rows)) for name in group
    }
    pairs = 0
    for one, other in itertools.combinations(rows, 2):
        if (one.look ^ other.look).bit_count() <= 4:
            pairs += 1
            assert other.name in together[one.name]
    assert pairs > 50
    # No chain of pairs joins different originals: random bits are far apart.
    assert max(map(len, together.values())) <= 2


@pytest.fixture
def photos(tmp_path):
    """Return a folder with a photo of each class in three splits."""
    for index in range(6):
        place = tmp_path / ("train", "test", "val")[index // 2]
        place = place / ("cat", "dog")[index % 2]
        place.mkdir(parents=True)
        Image.fromarray(waves(index)).save(place / f"{index}.png")
    return tmp_path


def test_a_split_that_nobody_reads_is_named_with_its_use(photos):
    [found] = find_unread(open_dataset(f"folder:{photos}"))
    assert str(found).startswith("Warning: the split 'val', 2 images, is not")
    assert "with --eval_split=val" in found.text
    assert "evaluate --eval_split=test" in found.text
    dataset = open_dataset(
        f"folder:{photos}", train_split="train+val", eval_split="test[:1]"
    )
    assert find_unread(dataset) == []
    assert find_unread(open_dataset("digits")) == []


def test_files_of_no_image_are_counted_by_their_endings(photos):
    shutil.rmtree(photos / "val")
    for name in ("a.TXT", "b.txt", "c.psd", "d", ".hidden", "Thumbs.db"):
        (photos / "train/cat" / name).write_bytes(b"")
    (photos / "test/dog/lost.jpg").symlink_to(photos / "nowhere.jpg")
    with pytest.warns(UserWarning, match="1 broken link is left out.*lost.jpg"):
        dataset = open_dataset(f"folder:{photos}")
    [found] = find_unread(dataset)
    assert "not read: 2 of .txt, 1 of " in found.text
    for part in ("1 of .psd", "1 of no ending", "1 of links that lead nowhere"):
        assert part in found.text
    assert "hidden" not in found.text and ".db" not in found.text


def test_labels_are_counted_each_and_together():
    """Images of two labels, of one and of none."""
    sets = [("cat", "dog"), ("cat", "dog"), ("dog", "ant"), ("cat",), ()]
    images = [
        image(str(n), ", ".join(labels), labels=labels)
        for n, labels in enumerate(sets)
    ]
    names = ["ant", "cat", "dog", "emu"]
    counts = {"train": {"ant": 1, "cat": 3, "dog": 3, "emu": 0}}
    assert count_classes(images, names) == counts
    assert count_label_sets(images) == {
        "Labels an image": {"0": 1, "1": 1, "2": 3},
        "Labels that occur together": {"cat + dog": 2, "ant + dog": 1},
    }
    findings = find(images, names)
    assert {finding.level for finding in findings} == {"warning"}
    assert "no image of 'emu'" in str(findings[0])
    assert not count_label_sets([image("a")])


def test_an_image_that_pillow_cannot_read_is_no_fault():
    assert find([image("a.jpg", kind="")], ["cat"])


def test_a_photo_in_two_classes_may_have_both():
    images = [image(str(n), x, digest="same") for n, x in enumerate("ab")]
    assert "--labels=several" in str(find(images, ["a", "b"]))
    sets = [one._replace(labels=(one.label,)) for one in images]
    text = " ".join(map(str, find(sets, ["a", "b"])))
    assert "different classes" in text and "--labels" not in text
